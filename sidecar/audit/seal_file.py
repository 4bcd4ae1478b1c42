"""One seal as whoever reads from outside holds it: every byte looked at when it is opened, then looked up in.

Memory holds its document, and 8 bytes for each of its blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.audit import seals as decoder
from sidecar.audit.decoder import Unexpected
from sidecar.audit.seals import BLOCK_BYTES, ENTRY_BYTES, TRAILER_BYTES, Entry
from sidecar.ledger.faults import CHANGE_VERSION, SEAL_AGAIN, LedgerDamaged
from sidecar.ledger.files import DiskFiles

_AT_ONCE: Final = 64


class SealFile:
    """One seal, every byte of it looked at when it is opened; then looked up in, until `close`."""

    def __init__(self, files: DiskFiles, path: Path, *, cold: bool) -> None:
        """Raises LedgerDamaged, OSError."""
        self.path = path
        first_and_last = decoder.seal_range(path.name)
        assert first_and_last is not None
        self.first, self.last = first_and_last
        self._files = files
        self._descriptor = files.open_to_read(path)
        try:
            if cold:
                files.forget_if_it_can(self._descriptor)
            self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._files.close(self._descriptor)

    def damaged(self, offset: int, expected: str) -> LedgerDamaged:
        return LedgerDamaged(self.path, offset, expected, SEAL_AGAIN)

    def _read(self) -> None:
        size = self._files.size(self._descriptor)
        place = max(0, size - TRAILER_BYTES)
        try:
            trailer = decoder.seal_trailer(self._files.read(self._descriptor, TRAILER_BYTES, place), size)
            place = self.document_at = trailer.document_begin
            document = self._files.read(self._descriptor, trailer.document_end - place, place)
            self.document = decoder.seal_document(document, trailer, self.first, self.last)
            place = trailer.fences_begin
            fences = self._files.read(self._descriptor, trailer.document_begin - place, place)
            decoder.check_fences(fences, trailer)
        except Unexpected as fault:
            advice = CHANGE_VERSION if fault.other_version else SEAL_AGAIN
            raise LedgerDamaged(self.path, place, str(fault), advice) from None
        self._fences = array("Q", (int.from_bytes(fences[at : at + 8], "big") for at in range(0, len(fences), 8)))

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """All of them with where they stand: whole blocks, as their fences say, in the order of their keys."""
        seed = decoder.seal_seed(self.document["end"]["ledger_id"], self.first, self.last)
        blocks, count, key = len(self._fences), 0, b""
        for first in range(0, blocks, _AT_ONCE):
            piece = self._files.read(self._descriptor, min(_AT_ONCE, blocks - first) * BLOCK_BYTES, first * BLOCK_BYTES)
            for number in range(first, min(first + _AT_ONCE, blocks)):
                begin = number * BLOCK_BYTES
                block = piece[(number - first) * BLOCK_BYTES :][:BLOCK_BYTES]
                try:
                    entries = list(decoder.entries_of(block, seed, is_last=number == blocks - 1))
                except Unexpected as fault:
                    raise self.damaged(begin + (fault.place or 0), str(fault)) from None
                if int.from_bytes(block[:8], "big") != self._fences[number]:
                    raise self.damaged(blocks * BLOCK_BYTES + 8 * number, "the first key of its block")
                for at, entry in enumerate(entries):
                    if count and entry.key <= key:
                        raise self.damaged(begin + ENTRY_BYTES * at, "a key behind the one before it")
                    key, count = entry.key, count + 1
                    yield begin + ENTRY_BYTES * at, entry
        if count != self.document["entries"]:
            raise self.damaged(self.document_at, f"{count} entries in the document")

    def find(self, key: bytes) -> tuple[int, Entry | None]:
        """With the block that it stands in, or would; the block has been checked before."""
        prefix = int.from_bytes(key[:8], "big")
        number = bisect_right(self._fences, prefix) - 1
        while number >= 0:
            block = self._files.read(self._descriptor, BLOCK_BYTES, number * BLOCK_BYTES)
            entry = decoder.found_in(block, key)
            if entry is not None or self._fences[number] != prefix or not number:
                return number * BLOCK_BYTES, entry
            number -= 1  # the block before may end with keys of the same first half
        return 0, None
