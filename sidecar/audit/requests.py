"""The requests of a ledger, one after the other, from a reading of its records; memory holds only what is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from msgspec import Struct

from sidecar.audit.decoder import Line
from sidecar.audit.reading import Reading
from sidecar.ledger.faults import LedgerDamaged

State = Literal["completed", "failed", "indeterminate"]
STATES: Final[tuple[State, ...]] = ("completed", "failed", "indeterminate")


class Request(Struct, frozen=True):
    """A begin and what ended it. One without an end is indeterminate, or, beside a live daemon, runs still."""

    begun: Line
    ended: Line | None

    @property
    def caller(self) -> str:
        return str(self.begun.members["caller_runtime_id"])

    @property
    def model(self) -> str:
        return str(self.begun.members["model"])

    @property
    def admitted_at_unix_ms(self) -> int:
        return int(self.begun.members["admitted_at_unix_ms"])

    @property
    def charge_micro_usd(self) -> int | None:
        """None while nothing settles it: then the reservation is held."""
        return None if self.ended is None else int(self.ended.members["charge_micro_usd"])

    @property
    def held_micro_usd(self) -> int:
        return int(self.begun.members["reservation_micro_usd"]) if self.ended is None else 0

    @property
    def state(self) -> State:
        if self.ended is None:
            return "indeterminate"
        return "completed" if self.ended.members["outcome"] == "completed" else "failed"

    def document(self) -> dict[str, Any]:
        """Everything but the answer, for a program; every member is always there."""
        begun = self.begun.members
        ended = self.ended.members if self.ended is not None else {}
        return {
            **{name: begun[name] for name in ("caller_runtime_id", "request_id", "model", "upstream", "provider")},
            "state": self.state,
            "outcome": ended.get("outcome"),
            "admitted_at_unix_ms": begun["admitted_at_unix_ms"],
            "first_event_at_unix_ms": ended.get("first_event_at_unix_ms"),
            "completed_at_unix_ms": ended.get("completed_at_unix_ms"),
            "expires_at_unix_ms": begun["expires_at_unix_ms"],
            "reservation_micro_usd": begun["reservation_micro_usd"],
            "charge_micro_usd": ended.get("charge_micro_usd"),
            "usage": ended.get("usage"),
            "notes": ended.get("notes", []),
            "begin_segment": self.begun.segment,
            "begin_offset": self.begun.offset,
            "completed_segment": self.ended.segment if self.ended is not None else None,
            "completed_offset": self.ended.offset if self.ended is not None else None,
        }


def requests_of(reading: Reading) -> Iterator[Request]:
    """In the order in which they ended; then those that have not, in the order in which they began.

    Of a damaged ledger what stands before the damage is given first, and then
    LedgerDamaged raised: what is open there may have ended behind it.
    """
    damage: LedgerDamaged | None = None
    try:
        for batch in reading.batches():
            for line in batch.lines:
                if line.begun is not None:
                    yield Request(line.begun, line)
    except LedgerDamaged as fault:
        damage = fault
    for begun in reading.open.values():
        yield Request(begun, None)
    if damage is not None:
        raise damage
