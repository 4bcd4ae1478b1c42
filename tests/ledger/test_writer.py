"""The one writer: what is acknowledged is on disk, and whatever fails is final and told to everybody."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
from kit import records
from kit.records import Totals

from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Landed
from sidecar.ledger.ledger import Ledger

OpenLedger = Callable[..., Ledger]


class ShortFiles(DiskFiles):
    """Takes at most `most_bytes` a write call, and fails with `code` once `room_bytes` are used up."""

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.most_bytes = most_bytes
        self.room_bytes: int | None = None
        self.code = errno.ENOSPC
        self.calls = 0

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        if self.room_bytes is None:
            most = self.most_bytes
        elif self.room_bytes:
            most = min(self.most_bytes, self.room_bytes)
            self.room_bytes -= most
        else:
            raise OSError(self.code, os.strerror(self.code))
        self.calls += 1
        return os.pwritev(descriptor, [b"".join(pieces)[:most]], offset)


class BrokenFiles(DiskFiles):
    """Raises `bug` in place of the named call, once one is set."""

    def __init__(self, call: str) -> None:
        self.call = call
        self.bug: Exception | None = None

    def _broken(self, call: str) -> None:
        if call == self.call and self.bug:
            raise self.bug

    def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
        self._broken("write")
        super().write(descriptor, pieces, offset)

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        self._broken("write_zeros")
        for at in range(0, size, 1 << 20):
            super().write(descriptor, [bytes(min(1 << 20, size - at))], at)

    def rename(self, old: Path, new: Path) -> None:
        self._broken("rename")
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._broken("sync_directory")
        super().sync_directory(path)

    def free_bytes(self, directory: Path) -> int:
        self._broken("write_zeros")
        return super().free_bytes(directory)


async def until_spares_are_ready(ledger: Ledger) -> None:
    while ledger.statistics().spares_ready < 2:
        await trio.lowlevel.checkpoint()


async def carried(ledger: Ledger, number: int, response: bytes = b"answer") -> None:
    begin = records.begin(number)
    await ledger.complete(begin, records.completed(await ledger.begin(begin), response=response))


async def carried_into_the_next_segment(ledger: Ledger) -> None:
    for number in range(1, 20):
        await carried(ledger, number, response=bytes(60_000))


async def test_a_write_that_the_kernel_takes_in_parts_is_finished(open_ledger: OpenLedger) -> None:
    files = ShortFiles()
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        files.most_bytes, files.calls = 1000, 0
        await carried(ledger, 1, response=bytes(range(256)) * 64)
        assert files.calls > 20
        files.most_bytes = 1 << 30
        assert ledger.poisoned is None
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert (totals.spent, totals.reserved, ledger.recovery.clean) == (60, 0, True)
    recorded = ledger.find("dungeon", "request-1")
    assert recorded is not None
    assert await ledger.read_response(recorded) == bytes(range(256)) * 64
    async with ledger.running():
        pass


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
async def test_a_write_whose_rest_cant_be_written_is_final_and_its_torn_tail_is_set_aside(
    code: int, open_ledger: OpenLedger
) -> None:
    files = ShortFiles()
    files.code = code
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        place = await ledger.begin(records.begin(1))
        files.room_bytes = 5000
        with pytest.raises(LedgerUnavailable, match=os.strerror(code)):
            await ledger.complete(records.begin(1), records.completed(place, response=bytes(20_000)))
        assert ledger.poisoned is not None
    again = open_ledger()
    assert again.recovery.set_aside is not None
    assert [begin.request_id for begin in again.recovery.indeterminate] == ["request-1"]
    async with again.running():
        pass


def test_a_kernel_that_takes_nothing_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    files = ShortFiles(most_bytes=0)
    descriptor = files.create(tmp_path / "file")
    with pytest.raises(OSError, match="took no byte"):
        files.write(descriptor, [b"x"], 0)
    files.close(descriptor)


@pytest.mark.parametrize("call", ["rename", "sync_directory"])
async def test_a_segment_that_cant_be_put_to_use_is_final(call: str, open_ledger: OpenLedger, directory: Path) -> None:
    files = BrokenFiles(call)
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        await carried(ledger, 0)
        files.bug = OSError(errno.EIO, os.strerror(errno.EIO))
        with pytest.raises(LedgerUnavailable, match=r"0{15}2.segment failed: Input/output error"):
            await carried_into_the_next_segment(ledger)
        files.bug = None
        await ledger.wait_poisoned()
        with pytest.raises(LedgerUnavailable):
            await ledger.begin(records.begin(99))
        recorded = ledger.find("dungeon", "request-0")
        assert recorded is not None
        assert await ledger.read_response(recorded) == b"answer"
    again = open_ledger()
    assert not again.recovery.clean
    async with again.running():
        pass


async def test_a_segment_is_put_to_use_when_no_descriptor_is_left(open_ledger: OpenLedger, directory: Path) -> None:
    ledger = open_ledger()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        await carried(ledger, 0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            with pytest.raises(LedgerUnavailable, match="Too many open files"):  # for one more spare, which is pressure
                await carried_into_the_next_segment(ledger)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert (directory / f"{2:016}.segment").exists()
        assert ledger.poisoned is None
        await until_spares_are_ready(ledger)
        await carried(ledger, 99)


async def test_a_ledger_gives_back_all_its_descriptors(open_ledger: OpenLedger) -> None:
    async with open_ledger().running():
        pass
    before = os.listdir("/proc/self/fd")
    async with open_ledger().running():
        pass
    assert os.listdir("/proc/self/fd") == before


class OneBadSync(DiskFiles):
    """The next sync after `armed` fails; later ones say that all is well, as the kernel does (LEDGER section 2.3)."""

    def __init__(self) -> None:
        self.armed = False
        self.syncs_after = 0

    def sync(self, descriptor: int) -> None:
        if self.armed:
            self.syncs_after += 1
            if self.syncs_after == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


async def test_a_sync_that_failed_once_is_never_asked_again(open_ledger: OpenLedger) -> None:
    files = OneBadSync()
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        while ledger.statistics().spares_ready < ledger._spares_wanted:
            await trio.lowlevel.checkpoint()
        files.armed = True
        with pytest.raises(LedgerUnavailable, match="Input/output error"):
            await ledger.begin(records.begin(1))
        with pytest.raises(LedgerUnavailable):
            await ledger.begin(records.begin(2))
    assert files.syncs_after == 1


class ReadOnlyDisk(OneBadSync):
    """What ext4 does after an error: nothing is written or removed any more."""

    def unlink(self, path: Path) -> None:
        if self.armed:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().unlink(path)

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if self.armed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_disk_that_fails_to_the_very_end_is_left_quietly_and_the_lock_with_it(open_ledger: OpenLedger) -> None:
    files = ReadOnlyDisk()
    ledger = open_ledger(files)
    async with ledger.running():
        while ledger.statistics().spares_ready < ledger._spares_wanted:
            await trio.lowlevel.checkpoint()
        files.armed = True
        with pytest.raises(LedgerUnavailable, match="Input/output error"):
            await ledger.begin(records.begin(1))
    assert ledger.poisoned is not None
    async with open_ledger().running():
        pass


async def test_no_spare_is_left_behind_by_a_clean_exit(open_ledger: OpenLedger, directory: Path) -> None:
    ledger = open_ledger()
    async with ledger.running():
        await until_spares_are_ready(ledger)
        assert list(directory.glob("*.spare"))
    assert not list(directory.glob("*.spare"))


async def test_space_behind_the_end_is_given_back_and_read_as_zeros(open_ledger: OpenLedger, directory: Path) -> None:
    async with open_ledger().running():
        pass
    path = directory / f"{1:016d}.segment"
    before, taken = path.read_bytes(), path.stat().st_blocks
    async with open_ledger().running():
        pass
    assert path.read_bytes() == before
    assert path.stat().st_blocks <= taken
    async with open_ledger().running():
        pass


class HeldSync(DiskFiles):
    """While `held`, a sync of the segment in use waits."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.waiting = threading.Event()

    def sync(self, descriptor: int) -> None:
        if not self.free.is_set():
            self.waiting.set()
            self.free.wait()
        super().sync(descriptor)


async def test_nothing_is_on_record_before_it_is_on_disk(open_ledger: OpenLedger) -> None:
    files = HeldSync()
    ledger = open_ledger(files)
    async with ledger.running():
        while ledger.statistics().spares_ready < ledger._spares_wanted:
            await trio.lowlevel.checkpoint()
        files.free.clear()
        landings = [ledger.begin(records.begin(1))]
        while not files.waiting.is_set():
            await trio.lowlevel.checkpoint()
        assert ledger.find("dungeon", "request-1") is None
        assert (ledger.statistics().records, ledger.statistics().live) == (1, 0)
        landings += [ledger.begin(records.begin(number)) for number in range(2, 10)]
        assert ledger.statistics().queued == 8
        files.free.set()
        for landing in landings:
            await landing
    # Opened; the batch under way; all that gathered behind it in one; Closed.
    assert (ledger.statistics().records, ledger.statistics().batches) == (1 + 1 + 8 + 1, 4)


async def test_an_open_looks_past_the_page_cache(open_ledger: OpenLedger, directory: Path) -> None:
    """A process before may have failed to write what the cache still shows (LEDGER section 0, finding 2)."""
    seen: list[str] = []

    class ColdFiles(DiskFiles):
        def forget_cache(self, descriptor: int) -> None:
            super().forget_cache(descriptor)
            seen.append("forget")

        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            if seen[-1:] != ["read"]:
                seen.append("read")
            return super().read(descriptor, length, offset)

    for _ in range(2):
        async with open_ledger().running():
            pass
    ledger = open_ledger(ColdFiles())
    assert seen == ["forget", "read"] * (len(seen) // 2)
    assert len(seen) >= 4
    async with ledger.running():
        pass


async def test_a_record_that_failed_can_be_asked_for_again_and_fails_again(open_ledger: OpenLedger) -> None:
    files = BrokenFiles("write")
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        begun = records.begin(1)
        place = await ledger.begin(begun)
        files.bug = OSError(errno.EIO, os.strerror(errno.EIO))
        for _ in range(2):
            with pytest.raises(LedgerUnavailable, match="Input/output"):
                await ledger.begin(records.begin(2))
            with pytest.raises(LedgerUnavailable, match="Input/output"):
                await ledger.complete(begun, records.completed(place))


async def test_a_bug_in_the_commit_thread_leaves_no_waiter_asleep(open_ledger: OpenLedger) -> None:
    files = BrokenFiles("write")
    ledger = open_ledger(files)
    async with ledger.running():
        await until_spares_are_ready(ledger)
        files.bug = MemoryError("no memory")
        with pytest.raises(LedgerUnavailable, match=r"MemoryError .9 characters, not shown"):
            await ledger.begin(records.begin(1))
        await ledger.wait_poisoned()


@pytest.mark.parametrize("fails", [False, True])
def test_a_bug_met_where_a_record_is_told_ends_the_run_when_the_others_have_heard_of_theirs(
    open_ledger: OpenLedger, fails: bool
) -> None:
    class HeldAndThen(HeldSync):
        broken = False

        def sync(self, descriptor: int) -> None:
            super().sync(descriptor)
            if self.broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    files = HeldAndThen()
    heard: list[int] = []

    def tell(number: int, _: Landed) -> None:
        heard.append(number)
        assert number != 3, "a bug"

    async def main() -> None:
        ledger = open_ledger(files)
        async with ledger.running():
            files.free.clear()
            files.broken = fails
            for number in range(1, 6):
                ledger.begin(records.begin(number)).then(partial(tell, number))
            files.free.set()
            await trio.sleep_forever()

    with pytest.raises(trio.TrioInternalError):
        trio.run(main)
    assert heard == [1, 2, 3, 4, 5]


async def test_pressure_is_told_also_where_free_bytes_cant_be(open_ledger: OpenLedger) -> None:
    files = BrokenFiles("write_zeros")
    ledger = open_ledger(files)
    files.bug = OSError(errno.EIO, os.strerror(errno.EIO))
    async with ledger.running():
        while ledger.pressure is None:
            await trio.lowlevel.checkpoint()
        with pytest.raises(LedgerUnavailable, match="how many are free can't be told"):
            await ledger.begin(records.begin(1))
        files.bug = None
        while ledger.pressure is not None:
            await trio.lowlevel.checkpoint()
        await carried(ledger, 1)


# --- one line for each half of a request ------------------------------------------------------------------------


async def refused(tell: list[str], append: Callable[[], object]) -> None:
    try:
        await append()
    except AssertionError as broken:
        tell.append(str(broken).splitlines()[0])  # where the pytest plugin is installed, pytest adds what it compared


async def test_of_two_begins_at_once_one_is_refused_before_it_is_written(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    told: list[str] = []
    async with ledger.running():
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(refused, told, lambda: ledger.begin(records.begin(1)))
        await refused(told, lambda: ledger.begin(records.begin(1)))
    assert told == ["a request begins twice"] * 2
    assert open_ledger().recovery.records == 3


async def test_of_two_completes_at_once_one_is_refused_before_it_is_written(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    told: list[str] = []
    async with ledger.running():
        begin = records.begin(1)
        end = records.completed(await ledger.begin(begin))
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(refused, told, lambda: ledger.complete(begin, end))
        await refused(told, lambda: ledger.complete(begin, end))
    assert sorted(told) == ["a request completes that is not open", "a request completes twice"]
    assert open_ledger().recovery.records == 4


async def test_a_completion_that_names_another_begin_is_refused(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    told: list[str] = []
    async with ledger.running():
        await ledger.begin(records.begin(1))
        other = await ledger.begin(records.begin(2))
        await refused(told, lambda: ledger.complete(records.begin(1), records.completed(other)))
    assert told == ["a completion names another begin"]


async def test_statistics_count_what_was_done(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    async with ledger.running():
        await until_spares_are_ready(ledger)
        await carried(ledger, 1)
        await ledger.begin(records.begin(2))
        told = ledger.statistics()
    # Opened alone, in a segment with its header, and three records one after the other; each batch takes a block.
    assert (told.records, told.batches, told.syncs, told.written_bytes) == (4, 4, 5, 4 * 4096)
    assert (told.queued, told.live) == (0, 1)
