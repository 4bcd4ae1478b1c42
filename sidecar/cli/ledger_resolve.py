"""`sidecar ledger resolve`: a person settles an Indeterminate request, through the daemon or on a ledger at rest.

It appends the Completed record that CONTRACT section 4 describes, through the
ledger itself, so that a replay of the request gets its answer from now on: a
failure that says who decided, and why. Nothing that stands is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import trio

from sidecar.audit.reading import Reading
from sidecar.audit.requests import requests_of
from sidecar.cli import operator_call
from sidecar.cli.ledger_reading import told
from sidecar.cli.output import line_out, say
from sidecar.cli.receipt import dollars
from sidecar.cli.stops import Stops
from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.contract.operator_frames import OperatorResolve, OperatorResolved
from sidecar.ledger.faults import LedgerHeld, LedgerUnavailable
from sidecar.ledger.ledger import Ledger
from sidecar.ops.clock import unix_ms
from sidecar.service.resolution import resolved_record, why_not

_ANSWER_SECONDS_MAX: Final = 60.0  # a sync on a busy disk; what is not known by then, asking again tells

EXIT_CODES: Final = {
    os.EX_OK: "the request is settled, on disk",
    os.EX_USAGE: "wrong command line",
    os.EX_DATAERR: "the ledger is damaged, or of another version: nothing was written",
    os.EX_NOINPUT: "there is no ledger in this directory",
    os.EX_UNAVAILABLE: "no request of this id is indeterminate; or no daemon is on the socket",
    os.EX_SOFTWARE: "a bug in the daemon",
    os.EX_IOERR: "the disk failed; look with show whether the request is settled",
    os.EX_TEMPFAIL: "a daemon holds the ledger: use --socket, or stop it; or it is busy, or has not answered in time",
    os.EX_PROTOCOL: "what listens on the socket is no daemon of this version",
    os.EX_NOPERM: "another user owns the ledger: a record of ours would keep its daemon out; or: no operator there",
}


def resolve_through(socket: Path, verdict: OperatorResolve) -> int:
    """Asks the daemon that holds the ledger."""

    def tell(resolved: OperatorResolved) -> int:
        if resolved.found != "settled" or resolved.charge_micro_usd is None:
            _say(_not_indeterminate(verdict, resolved.message))
            return os.EX_UNAVAILABLE
        line_out(_settled(verdict, resolved.charge_micro_usd))
        return os.EX_OK

    return operator_call.asked(
        "ledger resolve", socket, verdict, OperatorResolved, tell, seconds_max=_ANSWER_SECONDS_MAX
    )


def resolve(directory: Path, verdict: OperatorResolve) -> int:
    """On a ledger that no daemon holds, which this process holds meanwhile."""
    code = os.EX_OK

    def settle() -> None:
        nonlocal code
        with Stops() as stops:
            code = _resolved(directory, verdict, stops)

    return told("resolve", directory, settle) or code


def _resolved(directory: Path, verdict: OperatorResolve, stops: Stops) -> int:
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
        _say(f"{held}: with --socket PATH in the place of {directory} that daemon settles it; or stop it first")
        return os.EX_TEMPFAIL
    except LedgerUnavailable as fault:
        _say(f"not settled, as far as is known: {fault}")
        return os.EX_IOERR


def _why_not(reading: Reading, verdict: OperatorResolve) -> str | None:
    """Why there is nothing to settle; a look before anything is written."""
    states = [
        request.state
        for request in requests_of(reading)
        if (request.caller, request.begun.members["request_id"]) == (verdict.caller_runtime_id, verdict.request_id)
    ]
    if states == ["indeterminate"]:
        return None
    return _not_indeterminate(verdict, why_not("ended" if states else "unknown"))


async def _settle(ledger: Ledger, verdict: OperatorResolve) -> int:
    """Looks again, now that nobody else can write: the request may have ended since."""
    key = verdict.caller_runtime_id, verdict.request_id
    begin, recorded = ledger.indeterminate(*key), ledger.find(*key)
    charge = 0
    async with ledger.running():
        if begin is not None and recorded is not None:
            record = resolved_record(begin, recorded.begin, verdict, unix_ms())
            charge = record.charge_micro_usd
            await ledger.complete(begin, record)
    if begin is None:
        _say(_not_indeterminate(verdict, why_not("ended")))
        return os.EX_UNAVAILABLE
    line_out(_settled(verdict, charge))
    return os.EX_OK


def _named(verdict: OperatorResolve) -> str:
    return f"request {verdict.request_id} of caller {verdict.caller_runtime_id}"


def _not_indeterminate(verdict: OperatorResolve, why: str) -> str:
    return f"{_named(verdict)} is not indeterminate: {why}"


def _settled(verdict: OperatorResolve, charge_micro_usd: int) -> str:
    return f"{_named(verdict)} is settled at {charge_micro_usd} micro-USD = {dollars(charge_micro_usd)}"


def _say(what: str) -> None:
    say(f"sidecar ledger resolve: {what}")
