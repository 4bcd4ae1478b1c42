"""The few file calls that a ledger makes, as one small port.

The same ledger code runs on a fake that fails, writes short or forgets what
was not synced. Every method raises OSError, and nothing here tries anything
twice except to finish a write that the kernel took only part of.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_IOV_MAX: Final = 512
_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
_libc: Final = ctypes.CDLL(None)
# Not every libc has the first; where it doesn't, the second takes 64-bit offsets.
_fallocate: Final = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
_ZEROS: Final = bytes(1 << 20)


class DiskFiles:
    """The real file system."""

    def create(self, path: Path) -> int:
        """A new file, for reading and writing; it must not be there yet."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """`length` bytes, fewer only where the file ends."""
        pieces = []
        while length > 0 and (piece := os.pread(descriptor, length, offset)):
            pieces.append(piece)
            length -= len(piece)
            offset += len(piece)
        return b"".join(pieces)

    def write(self, descriptor: int, pieces: Sequence[bytes], offset: int) -> None:
        """All of it, or OSError. A partial write is continued: the rest then says why it can't be written."""
        rest = [memoryview(piece) for piece in pieces if piece]
        while rest:
            written = self.write_some(descriptor, rest[:_IOV_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "the kernel took no byte of a write")
            offset += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest and written:
                rest[0] = rest[0][written:]

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        """One write call: how many bytes the kernel took."""
        return os.pwritev(descriptor, pieces, offset)

    def write_zeros(self, descriptor: int, size: int) -> None:
        for at in range(0, size, len(_ZEROS)):
            self.write(descriptor, [_ZEROS[: size - at]], at)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget_cache(self, descriptor: int) -> None:
        """Syncs, then drops what the page cache remembers, so that the next read sees what the disk holds."""
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        """The directory, private, and what is missing above it; each new entry is synced into the one above."""
        for place in reversed([p for p in (path, *path.parents) if not p.exists()]):
            place.mkdir(mode=0o700 if place == path else 0o755)
            self.sync_directory(place.parent)

    def give_back_zeros(self, path: Path, offset: int) -> None:
        """Frees the disk blocks of zeros from here to the file's end; the file's size and content stay the same.

        A courtesy: a file system that can't is left alone.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            length = os.fstat(descriptor).st_size - offset
            if length > 0 and _fallocate:
                _fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length))
        finally:
            os.close(descriptor)

    def free_bytes(self, directory: Path) -> int:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def lock(self, path: Path) -> int | None:
        """A descriptor that holds the exclusive lock on this file, or None where another process holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return descriptor
