"""Dropping the oldest segments, and keeping of them what still counts.

A segment can go when every request that begins in it, and in those before it,
expired `retention_days` ago. No spend window is longer than that, so the
windows of all of them have ended. Requests that nothing had ended by then are
kept in full in a checkpoint, wherever they end later, or never. In this order,
each step durable before the next:

    LowWater record     what expires at or before it is refused, so nothing that is forgotten can run again
    checkpoint file     the reader's state at the end of the last segment that goes
    Checkpoint record   the chain says what that file holds
    segments unlinked   the oldest first, and the seals and checkpoints that speak only of what is gone

After a crash in between, the next opening goes on from the newest checkpoint file, and finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.contract.values import U64_MAX
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger.checkpoint import Checkpoint, Dropped, KeptBegin
from sidecar.ledger.faults import RESTORE, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.index import key_of_new
from sidecar.ledger.read_back import ReadBack, begin_in
from sidecar.ledger.recovery import segment_path, segments_in
from sidecar.ledger.seal_format import End, SegmentRow, begins_until, decode_entry, ends_until
from sidecar.ledger.sealed import Sealed

DAY_MS: Final = 86_400_000
_EMPTY_MAX: Final = 64  # segments in a row, as starts without a request leave them


class Going(Struct, frozen=True):
    """The segments that can go, all up to that of the last row, and the newest expires-at in them."""

    rows: tuple[SegmentRow, ...]
    low_water_unix_ms: int

    @property
    def last(self) -> SegmentRow:
        return self.rows[-1]


def going(rows: Iterable[SegmentRow], *, now_unix_ms: int, retention_days: int) -> Going | None:
    """Of sealed segments, the oldest first; None while all have to stay."""
    gone = []
    low_water_unix_ms = 0
    for row in rows:
        if row.expires_until_unix_ms + retention_days * DAY_MS > now_unix_ms:
            break
        gone.append(row)
        low_water_unix_ms = max(low_water_unix_ms, row.expires_until_unix_ms)
    of_requests = max((number for number, row in enumerate(gone, start=1) if row.begins), default=0)
    if (
        len(gone) - of_requests < _EMPTY_MAX
    ):  # they have no age, and go with the next that is old, or when they are many
        del gone[of_requests:]
    return Going(tuple(gone), low_water_unix_ms) if gone else None


def checkpoint_of(
    going: Going,
    seals: Sequence[Sealed],
    read_back: ReadBack,
    dropped: Dropped,
    before: End,
    breathe: Callable[[], None],
) -> Checkpoint:
    """What stays of the segments that go. `before` is where the record ends now. Raises LedgerDamaged, OSError."""
    row = going.last
    kept = {_read(read_back, place)[0]: place for place in read_back.kept}
    still_open = _open_after(row.number, kept, seals, breathe)
    return Checkpoint(
        begins=tuple(_read(read_back, place)[1] for place in sorted(still_open.values())),
        dropped=Dropped(
            records=dropped.records + sum(one.records for one in going.rows),
            begins=dropped.begins + sum(one.begins for one in going.rows),
            completions=dropped.completions + sum(one.completions for one in going.rows),
            charged_micro_usd=min(
                dropped.charged_micro_usd + sum(one.charged_micro_usd for one in going.rows), U64_MAX
            ),
        ),
        end=End(
            ledger_id=before.ledger_id,
            incarnation=row.incarnation,
            segment=row.number,
            offset=row.end,
            head=row.head,
            batch=row.batch,
            closed=row.closed,
            low_water_unix_ms=max(before.low_water_unix_ms, going.low_water_unix_ms),
        ),
    )


def _open_after(
    segment: int, kept: Mapping[bytes, tuple[int, int]], seals: Sequence[Sealed], breathe: Callable[[], None]
) -> dict[bytes, tuple[int, int]]:
    """Key -> Begin of the requests that began by the end of this segment and that nothing had ended by then. `kept` are
    those that the last checkpoint has: no seal need know of them any more."""
    found = dict(kept)
    for seal in seals:
        if seal.document.first > segment:
            break
        for entry in seal.entries(breathe):
            if ends_until(entry, segment):
                found.pop(decode_entry(entry).key, None)  # an older seal had only its Begin
            elif begins_until(entry, segment):
                decoded = decode_entry(entry)
                found[decoded.key] = decoded.begin
    return found


def _read(read_back: ReadBack, place: tuple[int, int]) -> tuple[bytes, KeptBegin]:
    """The Begin that stands there, with its key."""
    try:
        framed = read_back.framed(*place)
        begin = begin_in(framed)
        return key_of_new(begin.caller_runtime_id, begin.request_id), KeptBegin(*place, framed)
    except FormatFault as fault:
        raise LedgerDamaged(read_back.path(place[0]), place[1], str(fault), RESTORE) from fault


def remove_gone(files: DiskFiles, directory: Path, until: int) -> None:
    """Segments up to this one, and checkpoints that came before its own. Raises OSError."""
    for number in segments_in(files, directory):
        if number <= until:
            files.unlink(segment_path(directory, number))
    for name in files.names(directory):
        segment = checkpoints.segment_of_name(name)
        if segment is not None and segment < until:
            files.unlink(directory / name)
    files.sync_directory(directory)
