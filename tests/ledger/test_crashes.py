"""A crash at any file call, and any file call that fails: what was acknowledged is there, and the ledger opens."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from kit import records

from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger

ANSWER = bytes(range(256)) * 200  # a few of them fill a segment


def opened(directory: Path, files: DiskFiles | None = None) -> Ledger:
    return Ledger.open(
        directory, segment_bytes=records.SEGMENT_BYTES, frame_bytes_max=records.FRAME_BYTES_MAX,
        requests_in_flight_max=1, files=files,
    )  # fmt: skip


class Acknowledged:
    """What a session has been told is durable."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.completed: list[str] = []

    async def session(self, ledger: Ledger) -> None:
        async with ledger.running():
            for number in range(7):
                while not (ledger.statistics().spares_ready or ledger.pressure or ledger.poisoned):
                    await trio.lowlevel.checkpoint()
                begin = records.begin(number)
                place = await ledger.begin(begin)
                self.begun.append(begin.request_id)
                end = records.completed(place, response=ANSWER)
                if not ledger.room_for(end):
                    end = records.completed(place)
                await ledger.complete(begin, end)
                self.completed.append(begin.request_id)

    def so_far(self) -> tuple[list[str], list[str]]:
        return list(self.begun), list(self.completed)


async def assert_all_is_there(directory: Path, begun: Sequence[str], completed: Sequence[str]) -> None:
    ledger = opened(directory)
    async with ledger.running():
        for request_id in begun:
            assert ledger.find("dungeon", request_id) is not None
        for request_id in completed:
            recorded = ledger.find("dungeon", request_id)
            assert recorded is not None
            assert recorded.completed is not None
            assert await ledger.read_response(recorded) in (ANSWER, b"the answer")


# --- the Nth call fails, for all N ------------------------------------------------------------------------------

CALLS = (
    "give_back_zeros", "truncate", "exists", "make_one_directory",
    "create", "open_to_read", "close", "size", "read", "write_some", "sync", "sync_directory", "forget_cache", "rename",
    "unlink", "names", "make_directory", "free_bytes", "lock", "keep_directory",
)  # fmt: skip


class FailingFiles(DiskFiles):
    """The real calls; the one numbered `fail_at`, and where `for_good` all that come after it, raise EIO."""

    def __init__(self, fail_at: int, *, for_good: bool) -> None:
        self._count = 0
        self._fail_at = fail_at
        self._for_good = for_good
        self._counting = threading.Lock()
        for name in CALLS:
            setattr(self, name, self._failing(name, getattr(self, name)))

    @property
    def count(self) -> int:
        return self._count

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            with self._counting:
                self._count += 1
                fails = self._count == self._fail_at or (self._for_good and self._count > self._fail_at)
            if not fails:
                return call(*arguments)
            if name == "close":
                call(*arguments)  # as Linux does: the descriptor is gone, whatever is said
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        return counted


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
async def test_whichever_call_fails_nothing_acknowledged_is_lost(for_good: bool, tmp_path: Path) -> None:
    at, reached = 0, True
    while reached:
        at += 1
        directory = tmp_path / f"ledger-{at}"
        files = FailingFiles(at, for_good=for_good)
        told = Acknowledged()
        try:
            await told.session(opened(directory, files))
        except (OSError, LedgerUnavailable):
            pass
        else:
            reached = files.count >= at
        await assert_all_is_there(directory, *told.so_far())
    assert at > 30, "a session makes that many calls at least"


# --- the power is cut at any call -------------------------------------------------------------------------------


class CutFiles(DiskFiles):
    """Keeps, before and after every call that changes the disk, what a power cut there could leave.

    One image holds only what was synced (content by sync, names by sync of the
    directory), one everything, and one everything under the synced names.
    """

    def __init__(self, directory: Path, told: Acknowledged) -> None:
        self.images: list[tuple[dict[str, bytes], list[str], list[str]]] = []
        self._directory = directory
        self._told = told
        self._contents: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._one_at_a_time = threading.RLock()

    def _cut(self) -> None:
        now = {path.name: path.stat().st_ino for path in self._directory.glob("*.*")}
        whole = {path.stat().st_ino: path.read_bytes() for path in self._directory.glob("*.*")}
        for names, contents in ((self._names, self._contents), (now, whole), (self._names, whole)):
            image = {name: contents.get(inode, b"") for name, inode in names.items()}
            if not self.images or image != self.images[-1][0] or self._told.so_far() != self.images[-1][1:]:
                self.images.append((image, *self._told.so_far()))

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        with self._one_at_a_time:
            self._cut()
            half = len(pieces[0]) // 2 // 512 * 512
            if half:  # a torn write: the second half first
                os.pwrite(descriptor, pieces[0][half:], offset + half)
                self._cut()
            written = super().write_some(descriptor, pieces, offset)
            self._cut()
            return written

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        with self._one_at_a_time:
            os.pwrite(descriptor, bytes(size), 0)

    def sync(self, descriptor: int) -> None:
        with self._one_at_a_time:
            self._cut()
            self._contents[os.fstat(descriptor).st_ino] = os.pread(descriptor, 1 << 30, 0)
            self._cut()

    def sync_directory(self, path: Path) -> None:
        with self._one_at_a_time:
            self._cut()
            if path == self._directory:
                self._names = {found.name: found.stat().st_ino for found in path.glob("*.*")}
            self._cut()

    def rename(self, old: Path, new: Path) -> None:
        with self._one_at_a_time:
            self._cut()
            super().rename(old, new)
            self._cut()


async def test_wherever_the_power_is_cut_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    told = Acknowledged()
    files = CutFiles(directory, told)
    await told.session(opened(directory, files))
    assert len(told.completed) == 7
    assert len(files.images) > 30
    for number, (image, begun, completed) in enumerate(files.images):
        cut = tmp_path / f"cut-{number}"
        cut.mkdir()
        for name, content in image.items():
            (cut / name).write_bytes(content)
        await assert_all_is_there(cut, begun, completed)
        for path in cut.rglob("*"):
            if path.is_file():
                path.unlink()
