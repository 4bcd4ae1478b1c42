"""What a ledger says of itself: what its opening found, and what it counts while it runs."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sidecar.contract.values import BeginRecord
from sidecar.ledger.room import Room
from sidecar.ledger.writer import Writer


class Recovery(Struct, frozen=True, kw_only=True):
    """What opening found: for the log, and for spend that is still held."""

    clean: bool
    segments: int
    records: int
    records_read: int  # the others are in sealed segments
    set_aside: Path | None
    set_aside_bytes: int
    indeterminate: tuple[BeginRecord, ...]


class Statistics(Struct, frozen=True, kw_only=True):
    """Counted since the open, its own record included; `settlements` is how many would still fit."""

    records: int
    batches: int
    syncs: int
    written_bytes: int
    queued: int
    live: int
    settlements: int
    spares_ready: int


def statistics_of(writer: Writer, room: Room, *, live: int) -> Statistics:
    """As it is now; `live` requests are to be settled."""
    return Statistics(
        records=writer.records,
        batches=writer.batches,
        syncs=writer.syncs,
        written_bytes=writer.written_bytes,
        queued=writer.queued,
        live=live,
        settlements=room.settlements(),
        spares_ready=len(room.spares),
    )
