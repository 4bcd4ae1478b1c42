"""`sidecar ledger resolve`: a person settles an Indeterminate request, of a ledger that no daemon holds.

It appends the Completed record that CONTRACT section 4 describes, through the
ledger itself, so that a replay of the request gets its answer from now on: a
failure that says who decided, and why. Nothing that stands is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import trio
from msgspec import Struct

from sidecar.cli.ledger_reading import told
from sidecar.cli.output import line_out, say
from sidecar.cli.receipt import dollars
from sidecar.cli.stops import Stops
from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.connectors.messages import clean_message
from sidecar.contract.values import NOTHING_USED, BeginRecord, Failed, TransportOutcome
from sidecar.ledger.faults import LedgerHeld, LedgerUnavailable
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.requests import requests_of
from sidecar.ledger.second_reading import Reading
from sidecar.ops.clock import unix_ms
from sidecar.service.settlement import Settled, completed_record, result_frame

Charge = Literal["nothing", "reservation"]
CHARGES: Final[tuple[Charge, ...]] = ("nothing", "reservation")
WHO_CHARACTERS_MAX: Final = 128
WHY_CHARACTERS_MAX: Final = 768  # with who and charge it fits the longest message that an outcome has

EXIT_CODES: Final = {
    os.EX_OK: "the request is settled, on disk",
    os.EX_USAGE: "wrong command line",
    os.EX_DATAERR: "the ledger is damaged, or of another version: nothing was written",
    os.EX_NOINPUT: "there is no ledger in this directory",
    os.EX_UNAVAILABLE: "no request of this id is indeterminate",
    os.EX_IOERR: "the disk failed; look with show whether the request is settled",
    os.EX_TEMPFAIL: "a daemon holds the ledger: stop it first",
    os.EX_NOPERM: "another user owns the ledger: a record of ours would keep its daemon out",
}


class Verdict(Struct, frozen=True, kw_only=True):
    """What a person has decided about one request."""

    caller: str
    request_id: str
    charge: Charge
    who: str
    why: str


def resolve(directory: Path, verdict: Verdict) -> int:
    code = os.EX_OK

    def settle() -> None:
        nonlocal code
        with Stops() as stops:
            code = _resolved(directory, verdict, stops)

    return told("resolve", directory, settle) or code


def _resolved(directory: Path, verdict: Verdict, stops: Stops) -> int:
    """A stop ends it while it reads; then it waits until it is known that the record is on disk."""
    try:
        with stops.raising():
            reading = Reading(directory)
            if (why := _why_not(reading, verdict)) is not None:
                _say(why)
                return os.EX_UNAVAILABLE
            if os.geteuid() != (owner := directory.stat().st_uid):
                _say(
                    f"the ledger belongs to uid {owner}: run this as that user, or its daemon could not read the record"
                )
                return os.EX_NOPERM
            ledger = Ledger.open(
                directory,
                segment_bytes=reading.segment_bytes,
                frame_bytes_max=reading.segment_bytes // 4 - RECORD_MARGIN_BYTES,
                requests_in_flight_max=1,
            )
        return trio.run(_settle, ledger, verdict)
    except LedgerHeld as held:
        _say(f"{held}: stop it first")
        return os.EX_TEMPFAIL
    except LedgerUnavailable as fault:
        _say(f"not settled, as far as is known: {fault}")
        return os.EX_IOERR


def _why_not(reading: Reading, verdict: Verdict) -> str | None:
    """Why there is nothing to settle; a look before anything is written."""
    states = [
        request.state
        for request in requests_of(reading)
        if (request.caller, request.begun.members["request_id"]) == (verdict.caller, verdict.request_id)
    ]
    if states == ["indeterminate"]:
        return None
    known = f"it is {states[0]}" if states else "there is none on record"
    return f"{_named(verdict)} is not indeterminate: {known}"


async def _settle(ledger: Ledger, verdict: Verdict) -> int:
    """Looks again, now that nobody else can write: the request may have ended since."""
    open_now = {(begin.caller_runtime_id, begin.request_id): begin for begin in ledger.recovery.indeterminate}
    begin = open_now.get((verdict.caller, verdict.request_id))
    recorded = ledger.find(verdict.caller, verdict.request_id)
    charge = 0
    async with ledger.running():
        if begin is not None and recorded is not None:
            settled = _settlement(begin, verdict)
            charge = settled.charge_micro_usd
            record = completed_record(
                settled,
                result_frame(begin, settled),
                begin_segment=recorded.begin.segment,
                begin_offset=recorded.begin.offset,
                completed_at_unix_ms=unix_ms(),
                first_event_at_unix_ms=None,
            )
            await ledger.complete(begin, record)
    if begin is None:
        _say(f"{_named(verdict)} has ended meanwhile")
        return os.EX_UNAVAILABLE
    line_out(f"{_named(verdict)} is settled at {charge} micro-USD = {dollars(charge)}")
    return os.EX_OK


def _settlement(begin: BeginRecord, verdict: Verdict) -> Settled:
    is_free = verdict.charge == "nothing"
    decided = "nothing is charged" if is_free else "the whole reservation is charged"
    message = clean_message(f"resolved by {verdict.who}, {decided}: {verdict.why}")
    usage = NOTHING_USED if is_free else None
    return Settled(
        outcome=TransportOutcome(failed=Failed(kind="unavailable", message=message, usage=usage)),
        events=(),
        charge_micro_usd=0 if is_free else begin.reservation_micro_usd,
        notes=(),
    )


def _named(verdict: Verdict) -> str:
    return f"request {verdict.request_id} of caller {verdict.caller}"


def _say(what: str) -> None:
    say(f"sidecar ledger resolve: {what}")
