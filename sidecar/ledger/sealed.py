"""Seals on disk: written, merged, and opened for looking a key up in one read.

A look-up reads one block of 1 KiB, found by its fence in memory. What a seal
costs in memory is 8 bytes for each 30 requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from sidecar.contract.values import U64_MAX
from sidecar.ledger import seal_format as on_disk
from sidecar.ledger.faults import (
    CHANGE_VERSION,
    SEAL_AGAIN,
    LedgerDamaged,
    LedgerUnavailable,
    RecordDamaged,
)
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault, OtherVersion
from sidecar.ledger.seal_format import (
    BLOCK_BYTES,
    KEY_BYTES,
    TRAILER_BYTES,
    End,
    Entry,
    Seal,
    SealDocument,
    WindowSum,
)
from sidecar.ledger.whole_file import write_whole

_BLOCKS_AT_ONCE: Final = 64
_BEGIN: Final = slice(KEY_BYTES, KEY_BYTES + 9)

GoOn = Callable[[], None]


class Sealed:
    """One seal, open until `close`."""

    def __init__(self, files: DiskFiles, path: Path, descriptor: int, seal: Seal) -> None:
        self._files = files
        self._descriptor = descriptor
        self._seed = seal.seed
        self._fences = seal.fences
        self.path = path
        self.document = seal.document

    @classmethod
    def open(cls, files: DiskFiles, path: Path, breathe: GoOn = lambda: None) -> Sealed:
        """Past the page cache. Raises LedgerDamaged, OSError."""
        descriptor = files.open_to_read(path)
        try:
            files.forget_cache(descriptor)
            seal = cls(files, path, descriptor, _decoded(files, path, descriptor))
            seal._prove(breathe)
            return seal
        except BaseException:
            files.close(descriptor)
            raise

    def close(self) -> None:
        """Nothing may be looked up from here on: the descriptor's number may be another file's. Raises OSError."""
        self._files.close(self._descriptor)

    def find(self, key: bytes) -> Entry | None:
        """Raises LedgerUnavailable where the seal can't be read, RecordDamaged where other bytes stand in it."""
        prefix = int.from_bytes(key[:8], "big")
        number = bisect_right(self._fences, prefix) - 1
        while number >= 0:
            entry = on_disk.find_in(self._block(number), key)
            if entry is not None or self._fences[number] != prefix:
                return entry
            number -= 1  # the block before may end with keys of the same first half
        return None

    def _block(self, number: int) -> bytes:
        try:
            block = self._files.read(self._descriptor, BLOCK_BYTES, number * BLOCK_BYTES)
        except OSError as error:
            raise LedgerUnavailable(f"{self.path.name} can't be read: {error.strerror or error}") from error
        if not on_disk.block_is_whole(block, self._seed):
            at = number * BLOCK_BYTES
            raise RecordDamaged(
                f"{self.path.name} is damaged at byte {at}", file=self.path, offset=at, advice=SEAL_AGAIN
            )
        return block

    def _prove(self, breathe: GoOn) -> None:
        """Every block, so that damage is met here and not when a request is refused; and the page cache has them then.
        Raises LedgerDamaged."""
        for number, piece in self._pieces(breathe):
            for at in range(0, len(piece), BLOCK_BYTES):
                self._check(piece[at : at + BLOCK_BYTES], number * BLOCK_BYTES + at)

    def entries(self, breathe: GoOn = lambda: None) -> Iterator[bytes]:
        """All of them, encoded, in the order of their keys. `breathe` is called now and then."""
        for number, piece in self._pieces(breathe):
            for at in range(0, len(piece), BLOCK_BYTES):
                block = piece[at : at + BLOCK_BYTES]
                self._check(block, number * BLOCK_BYTES + at)
                yield from on_disk.entries_of(block)

    def _pieces(self, breathe: GoOn) -> Iterator[tuple[int, bytes]]:
        """Blocks, some at once, each time with the number of the first."""
        for number in range(0, len(self._fences), _BLOCKS_AT_ONCE):
            breathe()
            count = min(_BLOCKS_AT_ONCE, len(self._fences) - number)
            yield number, self._files.read(self._descriptor, count * BLOCK_BYTES, number * BLOCK_BYTES)

    def _check(self, block: bytes, offset: int) -> None:
        if not on_disk.block_is_whole(block, self._seed):
            raise LedgerDamaged(self.path, offset, "a block whose CRC fits", SEAL_AGAIN)


def _decoded(files: DiskFiles, path: Path, descriptor: int) -> Seal:
    size = files.size(descriptor)
    place = max(0, size - TRAILER_BYTES)
    try:
        trailer = on_disk.decode_trailer(files.read(descriptor, TRAILER_BYTES, place), size)
        place = trailer.fences_begin
        fences = files.read(descriptor, 8 * trailer.blocks, place)
        document = files.read(descriptor, trailer.document_bytes, trailer.document_begin)
        return on_disk.decode_seal(trailer, fences, document, path.name)
    except OtherVersion as fault:
        raise LedgerDamaged(path, place, str(fault), CHANGE_VERSION) from fault
    except FormatFault as fault:
        raise LedgerDamaged(path, place, str(fault), SEAL_AGAIN) from fault


def write_seal(
    files: DiskFiles,
    directory: Path,
    entries: Iterable[bytes],
    ledger_id: bytes,
    segments: tuple[int, int],
    document: Callable[[int], SealDocument],
) -> Path:
    """A new seal of the segments from the first to the last, synced under its name; `document` is asked when all
    entries are written, with their number. Raises OSError; what was begun is removed if it fails."""
    path = directory / on_disk.seal_name(*segments)
    seed = on_disk.seed_of(ledger_id, *segments)
    write_whole(files, path, lambda descriptor: _fill(files, descriptor, entries, seed, document))
    return path


def _fill(
    files: DiskFiles, descriptor: int, entries: Iterable[bytes], seed: int, document: Callable[[int], SealDocument]
) -> None:
    count, at = 0, 0
    fences = bytearray()
    gathered: list[bytes] = []

    def counted() -> Iterator[bytes]:
        nonlocal count
        for entry in entries:
            count += 1
            yield entry

    for block in on_disk.blocks_of(counted(), seed):
        fences += on_disk.fence_of(block)
        gathered.append(block)
        if len(gathered) == _BLOCKS_AT_ONCE:
            files.write(descriptor, gathered, at)
            at += len(gathered) * BLOCK_BYTES
            gathered = []
    files.write(descriptor, [*gathered, on_disk.encode_end(bytes(fences), document(count))], at)


# --- merging ----------------------------------------------------------------------------------------------------


def pair_to_merge(seals: Sequence[Sealed]) -> tuple[Sealed, Sealed]:
    """Of seals in their order: the two neighbours that are the least work to merge, the newest of those."""
    return min(pairwise(reversed(seals)), key=lambda pair: sum(seal.document.entries for seal in pair))[::-1]


def merged(
    files: DiskFiles,
    directory: Path,
    older: Sealed,
    newer: Sealed,
    base: End,
    breathe: GoOn = lambda: None,
) -> Path:
    """One seal in place of two neighbours, without what stood in segments up to the end of `base`, which are dropped.

    Raises LedgerDamaged, OSError. The two stay; the next open removes what another seal covers.
    """
    first, second = older.document, newer.document
    assert first.last + 1 == second.first
    rows = tuple(row for row in (*first.segments, *second.segments) if row.number > base.segment)
    is_cut = first.first <= base.segment
    assert second.end.ledger_id is not None

    def document(count: int) -> SealDocument:
        return SealDocument(
            before_end=base.offset if is_cut else first.before_end,
            before_head=base.head if is_cut else first.before_head,
            end=second.end,
            entries=count,
            open=second.open,
            segments=rows,
            sums=_added(first.sums, second.sums, base.low_water_unix_ms if is_cut else 0),
        )

    # What was dropped is left out first: its ids may have been used again since.
    kept, added = (_without_dropped(seal.entries(breathe), base.segment) for seal in (older, newer))
    entries = _merged(kept, added, newer.path)
    segments = rows[0].number, rows[-1].number
    return write_seal(files, directory, entries, second.end.ledger_id, segments, document)


def _merged(older: Iterator[bytes], newer: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Both in the order of their keys; of a request that stands in both, what the newer says."""
    one, other = next(older, None), next(newer, None)
    while one is not None and other is not None:
        if one[:KEY_BYTES] < other[:KEY_BYTES]:
            yield one
            one = next(older, None)
            continue
        if one[:KEY_BYTES] == other[:KEY_BYTES]:
            if one[_BEGIN] != other[_BEGIN]:
                raise LedgerDamaged(path, 0, "a request that had not begun before", SEAL_AGAIN)
            one = next(older, None)
        yield other
        other = next(newer, None)
    if one is not None:
        yield one
        yield from older
    if other is not None:
        yield other
        yield from newer


def _without_dropped(entries: Iterator[bytes], dropped_until: int) -> Iterator[bytes]:
    if not dropped_until:
        return entries
    return (entry for entry in entries if not on_disk.ends_until(entry, dropped_until))


def _added(first: Iterable[WindowSum], second: Iterable[WindowSum], low_water_unix_ms: int) -> tuple[WindowSum, ...]:
    """By caller and window; those that had ended by the low-water mark are left out."""
    sums: dict[tuple[str, int, int], int] = {}
    for row in (*first, *second):
        ended = row.window_seconds and row.window_start_unix_ms + 1000 * row.window_seconds <= low_water_unix_ms
        if not ended:
            key = row.caller, row.window_seconds, row.window_start_unix_ms
            sums[key] = min(sums.get(key, 0) + row.charged_micro_usd, U64_MAX)
    return tuple(WindowSum(*key, charged) for key, charged in sorted(sums.items()))
