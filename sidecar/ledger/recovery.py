"""Reading a ledger that is there: what it holds, where it ends, and whether a crash alone can have left it so.

A batch is written only after the sync of the one before it. So a valid batch
proves that everything before it was acknowledged, and only what follows the
last valid batch of the last segment can be what a crash left behind. Each
segment's header names where the segment before it ended and its chain head,
so that a tail set aside once stays told apart from the record for ever. A segment
has its header, its whole length and its name before its first batch.

So each segment is looked at from the front. What is named in `DAMAGES` no crash
leaves, in whichever segment it stands. Where nothing of that is found, what
stands behind the last batch decides (`DECISIONS`):

    the segment is  closed  behind its last valid batch   decision
    any             any     a valid batch                 damaged
    last            yes     anything but zeros            damaged: a clean exit leaves no tail
    last            no      anything but zeros            set aside: copied to quarantine/, synced, reported
    last            any     zeros                         goes on
    not last        yes     anything but zeros            damaged
    not last        any     zeros                         goes on if the next header names this end, else damaged
    not last        no      anything but zeros            the same: it was set aside when it was the last

What is read is what the disk holds, not what the page cache remembers: every
file is synced and dropped from the cache first (LEDGER section 0, finding 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, structs

from sidecar.contract.values import CheckpointRecord, ClosedRecord, LowWaterRecord, RecordBody
from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BLOCK_BYTES, BatchHeader, FormatFault, OtherVersion, SegmentHeader
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import LeanRecord, in_full, lean_records
from sidecar.ledger.seal_format import End

_NAME: Final = re.compile(r"(\d{16})\.segment")
_SCAN_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_SCAN_BYTES)  # bytes, because a memoryview is compared element by element

Behind = Literal["zeros", "bytes", "batch"]
Damage = Literal[
    "missing",
    "sealed_missing",
    "named_by_a_seal",
    "other_end_than_sealed",
    "no_header",
    "header_of_another_version",
    "other_ledger",
    "other_number",
    "other_end",
    "other_head",
    "other_length",
    "older_incarnation",
    "batch_behind_exit",
    "off_the_chain",
    "no_record",
    "record_of_another_version",
    "not_zeros_behind_exit",
    "broken_before_whole",
]
Decision = Literal["go_on", "set_aside"] | Damage

# What is damage whatever else is there, in the order in which it is looked for: what should have stood there, and what
# to do.
DAMAGES: Final[dict[Damage, tuple[str, str]]] = {
    "missing": ("segment {number}, or a checkpoint of segment {before}; both are missing", RESTORE),
    "sealed_missing": ("this segment, which has a seal; it is missing", RESTORE),
    "named_by_a_seal": ("this segment, since {name} is there", RESTORE),
    "other_end_than_sealed": ("a batch that continues the chain, up to {end} as the segment's seal says", RESTORE),
    "no_header": ("{fault}", RESTORE),
    "header_of_another_version": ("{fault}", CHANGE_VERSION),
    "other_ledger": ("this ledger's id", RESTORE),
    "other_number": ("segment number {number}", RESTORE),
    "other_end": ("that the segment before ended at {end}", RESTORE),
    "other_head": ("the chain head of the segment before", RESTORE),
    "other_length": ("a file of {size} bytes", RESTORE),
    "older_incarnation": ("an incarnation of at least {incarnation}", RESTORE),
    "batch_behind_exit": ("nothing after a clean exit", RESTORE),
    "off_the_chain": ("a batch that continues the chain", RESTORE),
    "no_record": ("{fault}", RESTORE),
    "record_of_another_version": ("{fault}", CHANGE_VERSION),
    "not_zeros_behind_exit": ("zeros after a clean exit", RESTORE),
    "broken_before_whole": ("a whole batch, since one behind it is whole", RESTORE),
}

# (the segment is the last, it was closed, what stands behind its last valid batch) -> decision
DECISIONS: Final[dict[tuple[bool, bool, Behind], Decision]] = {
    (True, True, "zeros"): "go_on",
    (True, True, "bytes"): "not_zeros_behind_exit",
    (True, True, "batch"): "not_zeros_behind_exit",
    (True, False, "zeros"): "go_on",
    (True, False, "bytes"): "set_aside",
    (True, False, "batch"): "broken_before_whole",
    # The next header must name this very end; that is checked when it is read.
    (False, True, "zeros"): "go_on",
    (False, True, "bytes"): "not_zeros_behind_exit",
    (False, True, "batch"): "not_zeros_behind_exit",
    (False, False, "zeros"): "go_on",
    (False, False, "bytes"): "go_on",
    (False, False, "batch"): "broken_before_whole",
}


def damaged(segment: Path, offset: int, damage: Damage, **named: object) -> LedgerDamaged:
    """The row of DAMAGES as what is to be raised; `named` fills its sentence."""
    expected, advice = DAMAGES[damage]
    return LedgerDamaged(segment, offset, expected.format(**named), advice)


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:016d}.segment"


def segments_in(files: DiskFiles, directory: Path) -> list[int]:
    """The numbers of the segments that are there, rising."""
    return [int(found[1]) for name in files.names(directory) if (found := _NAME.fullmatch(name))]


class Tail(Struct, frozen=True, kw_only=True):
    """Bytes behind the last valid batch that a crash left: from `offset`, up to the last that is not zero."""

    segment: int
    offset: int
    length: int


class Found(Struct, kw_only=True):
    """What reading a ledger came to; `segments` and `records` are those that were read."""

    end: End
    tail: Tail | None = None
    segments: int = 0
    records: int = 0


_CHANGE_THE_END: Final = frozenset({LowWaterRecord, CheckpointRecord, ClosedRecord})


def end_after(record: object, end: End) -> End:
    """What holds of the record's end from this record on."""
    if isinstance(record, LowWaterRecord):
        return structs.replace(end, low_water_unix_ms=max(end.low_water_unix_ms, record.expires_at_unix_ms))
    if isinstance(record, CheckpointRecord):
        digest = bytes(record.file_sha256)
        return structs.replace(end, checkpoint_segment=record.segment, checkpoint_sha256=digest)
    return structs.replace(end, closed=True) if isinstance(record, ClosedRecord) else end


# A segment's number, and of one batch in it every record, with its offset in the file and its length.
TakeBatch = Callable[[int, list[tuple[LeanRecord, int, int]]], None]
Enter = Callable[[SegmentHeader, End], None]


def _enter_nothing(header: SegmentHeader, before: End) -> None:
    return


def read(files: DiskFiles, directory: Path, take: Callable[[RecordBody, Place], None], *, cold: bool) -> Found:
    """Every record in order and in full, through `take`; otherwise as `replay`."""

    def take_batch(segment: int, records: list[tuple[LeanRecord, int, int]]) -> None:
        for record, offset, length in records:
            take(in_full(record), Place(segment, offset, length))

    return replay(files, directory, take_batch, cold=cold)


def replay(
    files: DiskFiles,
    directory: Path,
    take: TakeBatch,
    *,
    cold: bool,
    start: End | None = None,
    enter: Enter = _enter_nothing,
) -> Found:
    """Every record in order behind `start`, through `take`; raises LedgerDamaged. `cold`: past the page cache, as an
    open must. `enter` is told of each segment and where the one before it ended, which from then on is certain."""
    found = Found(end=start or End())
    first = found.end.segment + 1
    numbers = [number for number in segments_in(files, directory) if number >= first]
    for expected, number in enumerate(numbers, start=first):
        path = segment_path(directory, number)
        if number != expected:
            raise damaged(segment_path(directory, expected), 0, "missing", number=expected, before=number - 1)
        descriptor = files.open_to_read(path)
        try:
            if cold:
                files.forget_cache(descriptor)
            _Segment(files, path, descriptor, found, take, enter).read(is_last=number == numbers[-1])
        finally:
            files.close(descriptor)
    return found


def start_of(files: DiskFiles, directory: Path, segment: int) -> End:
    """Where the record ended before this segment, as this segment tells it; `batch` 0 if it holds no batch.

    Raises LedgerDamaged, OSError.
    """
    path = segment_path(directory, segment)
    descriptor = files.open_to_read(path)
    try:
        files.forget_cache(descriptor)
        header = on_disk.decode_segment_header(files.read(descriptor, BLOCK_BYTES, 0))
        first = files.read(descriptor, BLOCK_BYTES, BLOCK_BYTES)
    except FormatFault as fault:
        raise damaged(path, 0, "no_header", fault=fault) from fault
    finally:
        files.close(descriptor)
    batch = on_disk.decode_batch_header(first, salt=header.salt, segment=segment)
    return End(
        ledger_id=header.ledger_id,
        segment=segment - 1,
        offset=header.previous_end,
        head=header.previous_head,
        batch=batch.number - 1 if batch else 0,
        closed=False,
    )


def replay_one(files: DiskFiles, directory: Path, segment: int, take: TakeBatch, *, end: int, head: bytes) -> None:
    """The records of one segment of which it is known where it ends. Raises LedgerDamaged, OSError."""
    found = Found(end=start_of(files, directory, segment))
    path = segment_path(directory, segment)
    descriptor = files.open_to_read(path)
    try:
        _Segment(files, path, descriptor, found, take, _enter_nothing).read(is_last=False)
    finally:
        files.close(descriptor)
    if (found.end.offset, found.end.head) != (end, head):
        raise damaged(path, found.end.offset, "other_end_than_sealed", end=end)


class _Segment:
    """One segment being read; moves `found.end` on as batches prove whole."""

    def __init__(
        self,
        files: DiskFiles,
        path: Path,
        descriptor: int,
        found: Found,
        take: TakeBatch,
        enter: Enter,
    ) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor
        self._found = found
        self._take = take
        self._enter = enter
        self._size = files.size(descriptor)

    def read(self, *, is_last: bool) -> None:
        header = self._header()
        for offset, batch_header, batch in self._batches(header):
            self._accept(header, offset, batch_header, batch)
        end = self._found.end
        tail_end, behind = self._behind(header)
        decision = DECISIONS[is_last, end.closed, behind]
        if decision == "set_aside":
            self._found.tail = Tail(segment=end.segment, offset=end.offset, length=tail_end - end.offset)
        elif decision != "go_on":
            raise damaged(self._path, end.offset, decision)
        self._found.segments += 1

    def _header(self) -> SegmentHeader:
        end = self._found.end
        try:
            header = on_disk.decode_segment_header(self._files.read(self._descriptor, BLOCK_BYTES, 0))
        except OtherVersion as fault:
            raise damaged(self._path, 0, "header_of_another_version", fault=fault) from fault
        except FormatFault as fault:
            raise damaged(self._path, 0, "no_header", fault=fault) from fault
        number, incarnation = end.segment + 1, end.incarnation
        checks: tuple[tuple[bool, Damage, int], ...] = (
            (end.ledger_id in (None, header.ledger_id), "other_ledger", 0),
            (header.segment == number, "other_number", 0),
            (header.previous_end == end.offset, "other_end", 0),
            (header.previous_head == end.head, "other_head", 0),
            (header.segment_bytes == self._size, "other_length", self._size),
            (header.incarnation >= incarnation, "older_incarnation", 0),
        )
        for is_so, damage, offset in checks:
            if not is_so:
                named = {"number": number, "end": end.offset, "size": header.segment_bytes, "incarnation": incarnation}
                raise damaged(self._path, offset, damage, **named)
        self._enter(header, end)
        self._found.end = structs.replace(
            end,
            ledger_id=header.ledger_id,
            incarnation=header.incarnation,
            segment=header.segment,
            offset=BLOCK_BYTES,
            closed=False,
        )
        return header

    def _batches(self, header: SegmentHeader) -> Iterator[tuple[int, BatchHeader, bytes]]:
        """The batches from the front, as long as they are whole and in number."""
        while True:
            offset, number = self._found.end.offset, self._found.end.batch + 1
            batch_header, batch = self._whole_batch(header, offset)
            if batch_header is None or batch_header.number != number:
                return
            yield offset, batch_header, batch

    def _whole_batch(self, header: SegmentHeader, offset: int) -> tuple[BatchHeader | None, bytes]:
        block = self._files.read(self._descriptor, BLOCK_BYTES, offset)
        batch_header = on_disk.decode_batch_header(block, salt=header.salt, segment=header.segment)
        if batch_header is None or offset + batch_header.total_bytes > self._size:
            return None, b""
        rest = batch_header.total_bytes - BLOCK_BYTES
        batch = block + self._files.read(self._descriptor, rest, offset + BLOCK_BYTES) if rest else block
        return (batch_header, batch) if on_disk.batch_is_whole(batch_header, batch) else (None, b"")

    def _accept(self, header: SegmentHeader, offset: int, batch_header: BatchHeader, batch: bytes) -> None:
        end = self._found.end
        if end.closed:
            raise damaged(self._path, offset, "batch_behind_exit")
        if on_disk.chained_head(batch_header, batch, end.head) != batch_header.head:
            raise damaged(self._path, offset, "off_the_chain")
        try:
            records = lean_records(batch_header, batch, offset)
            self._take(header.segment, records)
            kinds = [type(record) for record, _, _ in records]
            if ClosedRecord in kinds[:-1]:
                raise FormatFault("nothing after a clean exit")
        except OtherVersion as fault:
            raise damaged(self._path, offset, "record_of_another_version", fault=fault) from fault
        except FormatFault as fault:
            raise damaged(self._path, offset, "no_record", fault=fault) from fault
        self._found.records += len(records)
        if not _CHANGE_THE_END.isdisjoint(kinds):
            for record, _, _ in records:
                end = end_after(record, end)
        self._found.end = structs.replace(
            end, offset=offset + batch_header.total_bytes, head=batch_header.head, batch=batch_header.number
        )

    def _behind(self, header: SegmentHeader) -> tuple[int, Behind]:
        """Where the last byte that is not zero ends, and what stands behind the last valid batch."""
        begin, last = self._found.end.offset, 0
        for at in range(begin, self._size, _SCAN_BYTES):
            chunk = self._files.read(self._descriptor, _SCAN_BYTES, at)
            if chunk == _ZEROS[: len(chunk)]:  # as nearly all are
                continue
            kept = len(chunk.rstrip(b"\0"))
            last = at + kept
            for block in range(at, at + kept, BLOCK_BYTES):
                if self._whole_batch(header, block)[0] is not None:
                    return last, "batch"
        return last, "bytes" if last else "zeros"


def set_aside(files: DiskFiles, directory: Path, tail: Tail) -> Path:
    """Copies the tail that a crash left into quarantine/, synced; the segment itself stays as it is."""
    quarantine = directory / "quarantine"
    files.make_directory(quarantine)
    kept = quarantine / f"{tail.segment:016d}-{tail.offset}.tail"
    if kept.name in files.names(quarantine):
        files.unlink(kept)  # a crash while it was copied: the original is still in its segment
    with ExitStack() as held:
        source = files.open_to_read(segment_path(directory, tail.segment))
        held.callback(files.close, source)
        copy = files.create(kept)
        held.callback(files.close, copy)
        for at in range(0, tail.length, _SCAN_BYTES):
            piece = files.read(source, min(_SCAN_BYTES, tail.length - at), tail.offset + at)
            files.write(copy, [piece], at)
        files.sync(copy)
    files.sync_directory(quarantine)
    return kept
