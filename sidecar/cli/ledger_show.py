"""`sidecar ledger show`: the requests of a ledger, one a line, those that are asked for.

In the order in which they ended, and then those that have not, as they began.
One that an operator settled is told from a provider's failure by its message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from sidecar.audit.reading import Reading
from sidecar.audit.requests import Request, State, requests_of
from sidecar.cli.ledger_reading import instant, told, write_lines
from sidecar.cli.table import table
from sidecar.contract.values import STORED_AS_IS, TransportResult
from sidecar.service.resolution import who_resolved

_COLUMNS: Final = ("admitted (UTC)", "caller", "request", "model", "state", ">micro-USD", ">tokens out", ">seconds")

_results: Final = msgspec.msgpack.Decoder(TransportResult)


class Wanted(Struct, frozen=True, kw_only=True):
    """Which requests; None leaves that open. `since` and `until` are of the admission, `until` not included."""

    caller: str | None = None
    model: str | None = None
    state: State | None = None
    since_unix_ms: int | None = None
    until_unix_ms: int | None = None

    def takes(self, request: Request) -> bool:
        return (
            self.caller in (None, request.caller)
            and self.model in (None, request.model)
            and self.state in (None, request.state)
            and (self.since_unix_ms is None or request.admitted_at_unix_ms >= self.since_unix_ms)
            and (self.until_unix_ms is None or request.admitted_at_unix_ms < self.until_unix_ms)
        )


def show(directory: Path, wanted: Wanted, *, as_json: bool) -> int:
    reading = Reading(directory)
    requests = (request for request in requests_of(reading) if wanted.takes(request))
    lines = _json_lines(requests) if as_json else table(_COLUMNS, map(_row, requests))
    return told("show", directory, lambda: write_lines(lines))


def _json_lines(requests: Iterator[Request]) -> Iterator[str]:
    for request in requests:
        yield json.dumps({**request.document(), "resolved_by": _resolved_by(request)}) + "\n"


def _resolved_by(request: Request) -> str | None:
    """The operator who settled it; None where nobody had to. Few answers are decoded for it."""
    ended = request.ended.members if request.ended is not None else {}
    if ended.get("outcome") != "unavailable" or ended.get("first_event_at_unix_ms") is not None or ended["notes"]:
        return None
    response: bytes = ended["response"]
    if any((ended.get("usage") or {}).values()) or b"resolved by " not in response or response[:1] != STORED_AS_IS:
        return None
    try:
        transported = _results.decode(response[1:]).disposition.transported
    except msgspec.MsgspecError:
        return None
    failed = transported.receipt.outcome.failed if transported else None
    return who_resolved(failed.message) if failed else None


def _row(request: Request) -> tuple[str, ...]:
    begun = request.begun.members
    ended = request.ended.members if request.ended is not None else None
    who = _resolved_by(request)
    state: str = request.state
    if ended is not None and state == "failed":
        state = f"failed, {ended['outcome']}" if who is None else f"failed, resolved by {who}"
    usage = ended.get("usage") if ended is not None else None
    took_ms = None if ended is None or who is not None else ended["completed_at_unix_ms"] - request.admitted_at_unix_ms
    return (
        instant(request.admitted_at_unix_ms),
        request.caller,
        str(begun["request_id"]),
        request.model,
        state,
        f"{request.held_micro_usd} held" if ended is None else str(request.charge_micro_usd),
        "-" if usage is None else str(usage["output_tokens"]),
        "-" if took_ms is None else f"{took_ms / 1000:.3f}",
    )
