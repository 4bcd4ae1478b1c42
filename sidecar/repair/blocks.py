"""Reading a file of a damaged ledger: what the disk does not give costs its own blocks, and nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sidecar.audit import decoder
from sidecar.audit.decoder import BLOCK, RECORD_HEADER, Line, Segment, Unexpected
from sidecar.ledger.files import DiskFiles

# What a disk or a file system says of a place that it can't give, the last one of a directory in a file's place.
# Anything else, as a right that is missing, is no fault of a place: it is raised.
DISK_FAULTS: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EISDIR)
_LOOK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_LOOK_BYTES)


class Blocks:
    """One open file. Reads raise Unexpected for what the disk does not give."""

    def __init__(self, files: DiskFiles, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self.size = files.size(descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Fewer only where the file ends."""
        try:
            return self._files.read(self._descriptor, length, offset)
        except OSError as error:
            if error.errno not in DISK_FAULTS:
                raise
            raise Unexpected(f"bytes that can be read ({error.strerror})") from None

    def next_used(self, offset: int, end: int) -> int | None:
        """The first block from here on that is not zeros; one that can't be read is none. `offset` begins a block."""
        if offset < end and self._is_used(offset):  # as in a stretch of damage each is
            return offset
        for at in range(offset, end, _LOOK_BYTES):
            length = min(_LOOK_BYTES, end - at)
            try:
                piece = self.read(at, length)
            except Unexpected:
                for block in range(at, at + length, BLOCK):
                    if self._is_used(block):
                        return block
                continue
            if piece != _ZEROS[: len(piece)]:
                zeros = len(piece) - len(piece.lstrip(b"\0"))
                return at + zeros - zeros % BLOCK
        return None

    def _is_used(self, offset: int) -> bool:
        try:
            piece = self.read(offset, BLOCK)
        except Unexpected:
            return True
        return piece != _ZEROS[: len(piece)]

    def batch(self, segment: Segment, offset: int) -> bytes:
        """The whole batch of this segment that begins here; raises Unexpected."""
        block = self.read(offset, BLOCK)
        size = decoder.batch_size(block, segment)
        if offset + size > self.size:
            raise Unexpected("a batch that ends within its segment")
        batch = block + self.read(offset + BLOCK, size - BLOCK) if size > BLOCK else block
        decoder.check_sum(batch)
        return batch

    def begins_batch(self, segment: Segment, offset: int) -> bool:
        """Whether a batch of this segment begins here, whole or not. Only who knows the salt can have written that."""
        try:
            decoder.batch_size(self.read(offset, BLOCK), segment)
        except Unexpected:
            return False
        return True

    def line(self, segment: int, offset: int, length: int) -> Line:
        """Raises Unexpected."""
        return decoder.line_of(self.read(offset, length), segment, offset)

    def lines(self, segment: int, batch_offset: int) -> Iterator[Line]:
        """The records of a damaged batch from its begin on, from one length to the next, while the CRC of each fits.

        So no bytes within a record, which a provider can choose, are ever taken for one.
        """
        at = decoder.first_record(batch_offset)
        with suppress(Unexpected):
            while True:
                length = decoder.record_size(self.read(at, RECORD_HEADER))
                if at + length > self.size:
                    return
                yield self.line(segment, at, length)
                at += length


@contextmanager
def opened(files: DiskFiles, path: Path) -> Iterator[Blocks]:
    """Past what the page cache remembers, where it can be."""
    descriptor = files.open_to_read(path)
    try:
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield Blocks(files, descriptor)
    finally:
        files.close(descriptor)
