"""The real file system's part of a ledger: how zeros are written."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from sidecar.ledger.files import DiskFiles

MEBIBYTE = 1 << 20


class WatchedFiles(DiskFiles):
    """Remembers of each write call whether it went past the page cache. `fault`: the errno of the second one."""

    def __init__(self, fault: int | None = None) -> None:
        self.direct: list[bool] = []
        self._fault = fault

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        self.direct.append(is_direct(descriptor))
        if self._fault is not None and len(self.direct) == 2:
            raise OSError(self._fault, os.strerror(self._fault))
        return super().write_some(descriptor, pieces, offset)


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    created = DiskFiles().create(tmp_path / "zeros")
    yield created
    os.close(created)


@pytest.fixture
def direct_descriptor(descriptor: int) -> int:
    """Of a file that can be written past the page cache."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    if not is_direct(descriptor):
        pytest.skip("this file system takes no O_DIRECT")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return descriptor


def content(descriptor: int) -> bytes:
    return DiskFiles().read(descriptor, 1 << 30, 0)


def test_zeros_go_past_the_page_cache_and_what_is_written_later_does_not(direct_descriptor: int) -> None:
    files = WatchedFiles()
    files.write_zeros(direct_descriptor, 2 * MEBIBYTE, lambda: True)
    assert files.direct
    assert all(files.direct)
    assert not is_direct(direct_descriptor)


def test_a_fault_among_the_zeros_leaves_no_later_write_direct(direct_descriptor: int) -> None:
    files = WatchedFiles(fault=errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.write_zeros(direct_descriptor, 2 * MEBIBYTE, lambda: True)
    assert files.direct == [True, True]
    assert not is_direct(direct_descriptor)


def test_zeros_that_are_given_up_leave_no_later_write_direct(direct_descriptor: int) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ECANCELED)):
        DiskFiles().write_zeros(direct_descriptor, MEBIBYTE, lambda: False)
    assert not is_direct(direct_descriptor)


@pytest.mark.parametrize("size", [1, 511, 512, 513, MEBIBYTE, MEBIBYTE + 777])
def test_any_size_gives_exactly_that_many_zeros(descriptor: int, size: int) -> None:
    files = DiskFiles()
    files.write(descriptor, [b"x" * (size + 1000)], 0)  # else the room that is taken first reads as zeros already
    files.write_zeros(descriptor, size, lambda: True)
    assert content(descriptor) == bytes(size) + b"x" * 1000


def test_an_empty_file_becomes_as_long_as_its_zeros(descriptor: int) -> None:
    DiskFiles().write_zeros(descriptor, MEBIBYTE + 777, lambda: True)
    assert content(descriptor) == bytes(MEBIBYTE + 777)


def test_zeros_that_are_not_to_go_on_stop_where_they_are_with_ecanceled(descriptor: int) -> None:
    files = DiskFiles()
    files.write(descriptor, [b"x" * (2 * MEBIBYTE)], 0)
    word = iter((True, False))
    with pytest.raises(OSError, match=os.strerror(errno.ECANCELED)) as fault:
        files.write_zeros(descriptor, 2 * MEBIBYTE, lambda: next(word))
    assert fault.value.errno == errno.ECANCELED
    assert content(descriptor) == bytes(MEBIBYTE) + b"x" * MEBIBYTE


class WatchedDirectories(DiskFiles):
    """Remembers which directories were synced; `faults` are the errnos of those that can't be."""

    def __init__(self, faults: dict[Path, int] | None = None) -> None:
        self.synced: list[Path] = []
        self._faults = faults or {}

    def sync_directory(self, path: Path) -> None:
        self.synced.append(path)
        if path in self._faults:
            raise OSError(self._faults[path], os.strerror(self._faults[path]))
        super().sync_directory(path)


def test_every_name_on_the_way_to_a_directory_is_synced_also_those_that_were_there(tmp_path: Path) -> None:
    """Whoever made them may have been killed before its sync: then a power cut would take all that is acknowledged."""
    place = tmp_path / "a" / "b"
    for _ in range(2):
        files = WatchedDirectories()
        files.make_directory(place)
        assert set(files.synced) == set(place.parents)
    assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EINVAL, errno.ENOTSUP])
def test_a_directory_above_that_is_not_ours_to_sync_is_left_alone(code: int, tmp_path: Path) -> None:
    WatchedDirectories({tmp_path.parent: code}).make_directory(tmp_path / "ledger")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        WatchedDirectories({tmp_path: errno.EIO}).make_directory(tmp_path / "ledger")


def test_forgetting_where_it_can_be_done_is_advice_that_never_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"kept")
    descriptor = DiskFiles().open_to_read(path)
    advised = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *advice: advised.append(advice))
    DiskFiles().forget_if_it_can(descriptor)
    assert advised == [(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)]
    monkeypatch.undo()
    DiskFiles().close(descriptor)
    DiskFiles().forget_if_it_can(descriptor)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        DiskFiles().forget_cache(descriptor)
