"""The few file calls that a ledger makes, as one small port.

The same ledger code runs on a fake that fails, writes short or forgets what
was not synced. Every method raises OSError, and nothing here tries anything
twice except to finish a write that the kernel took only part of.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_IOV_MAX: Final = 512
_PUNCH_HOLE_KEEP_SIZE: Final = 0x02 | 0x01
_NOT_OURS_TO_SYNC: Final = (errno.EACCES, errno.EROFS, errno.EINVAL, errno.ENOTSUP)
_libc: Final = ctypes.CDLL(None, use_errno=True)
# Not every libc has the first; where it doesn't, the second takes 64-bit offsets.
_libc_fallocate: Final = getattr(_libc, "fallocate64", None) or getattr(_libc, "fallocate", None)
# On a page's boundary, as the disk wants what it takes directly.
_ZEROS: Final = memoryview(mmap.mmap(-1, 1 << 20)).toreadonly()
# linux/fs.h: _IOR('f', 1, long), _IOW('f', 2, long), FS_NOCOW_FL; as most machines number them.
_GET_FLAGS: Final = (2 << 30) | (struct.calcsize("l") << 16) | (ord("f") << 8) | 1
_SET_FLAGS: Final = (1 << 30) | (struct.calcsize("l") << 16) | (ord("f") << 8) | 2
_NO_COPY_ON_WRITE: Final = 0x00800000


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> int:
    """The errno, or 0."""
    if _libc_fallocate is None:
        return errno.ENOSYS
    failed = _libc_fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    return ctypes.get_errno() if failed else 0


@contextmanager
def _direct(descriptor: int) -> Iterator[None]:
    """Writes go past the page cache, where the file system can do that."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


class DiskFiles:
    """The real file system."""

    _kept: tuple[Path, int] | None = None

    def create(self, path: Path) -> int:
        """A new file, for reading and writing; it must not be there yet."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write_in_place(self, descriptor: int) -> None:
        """Of an empty file: its blocks, once written, are written again where they are.

        On btrfs a write over written zeros would else need new room, and fail on a full disk. A file system that
        always writes in place, or never does, is left as it is.
        """
        flags = bytearray(struct.calcsize("l"))
        with suppress(OSError):
            fcntl.ioctl(descriptor, _GET_FLAGS, flags)
            struct.pack_into("i", flags, 0, struct.unpack_from("i", flags)[0] | _NO_COPY_ON_WRITE)
            fcntl.ioctl(descriptor, _SET_FLAGS, flags)

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

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
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

    def truncate(self, descriptor: int) -> None:
        """To nothing."""
        os.ftruncate(descriptor, 0)

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        """Takes the room for all of them first, so that where there is too little, what there is stays for others:
        under a quota a write in place still needs some. They don't gather in the page cache: written out all at once
        they would hold up every sync on that disk meanwhile. Raises ECANCELED where it is not to go on."""
        code = _fallocate(descriptor, 0, 0, size)
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(code, os.strerror(code))
        done = size - size % mmap.PAGESIZE
        try:
            with _direct(descriptor):
                self._fill(descriptor, 0, done, go_on)
        except OSError as error:
            if error.errno != errno.EINVAL:  # pieces that it doesn't take directly
                raise
            done = 0
        self._fill(descriptor, done, size, go_on)

    def _fill(self, descriptor: int, begin: int, end: int, go_on: Callable[[], bool]) -> None:
        for at in range(begin, end, len(_ZEROS)):
            if not go_on():
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            self.write(descriptor, [_ZEROS[: end - at]], at)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def keep_directory(self, path: Path) -> None:
        """From now on this directory is synced without a new descriptor, so that it can be when none is left."""
        self.let_directory_go()
        self._kept = path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def let_directory_go(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept[1])

    def sync_directory(self, path: Path) -> None:
        if self._kept is not None and self._kept[0] == path:
            os.fsync(self._kept[1])
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget_cache(self, descriptor: int) -> None:
        """Syncs, then drops what the page cache remembers, so that the next read sees what the disk holds."""
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def forget_if_it_can(self, descriptor: int) -> None:
        """As `forget_cache`, for whoever only reads: without the sync, as advice to the kernel, and never raises."""
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_one_directory(self, path: Path, mode: int) -> None:
        path.mkdir(mode=mode)

    def make_directory(self, path: Path) -> None:
        """The directory, private, and what is missing above it; every name on the way to it is synced.

        Also one that was there: whoever made it may have been killed before its sync. A directory above that we may
        not read, or that can't be written or synced, is not one that we made.
        """
        path = path.absolute()
        for place in reversed([p for p in (path, *path.parents) if not self.exists(p)]):
            self.make_one_directory(place, 0o700 if place == path else 0o755)
        for place in path.parents:
            try:
                self.sync_directory(place)
            except OSError as error:
                if error.errno not in _NOT_OURS_TO_SYNC:
                    raise

    def give_back_zeros(self, path: Path, offset: int) -> None:
        """Frees the disk blocks of zeros from here to the file's end; the file's size and content stay the same.

        A courtesy: a file system that can't is left alone.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            length = os.fstat(descriptor).st_size - offset
            if length > 0:
                _fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, offset, length)
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
