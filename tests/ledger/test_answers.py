"""A ledger's sign of life comes from the thread that writes, through a sync of the file that is written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from kit import records
from kit.sim_disk import SimDisk
from kit.sim_ledger import DIRECTORY, IN_LINE, LATER, opened

from sidecar.ledger.counted_files import CountedFiles
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.threads import Threads

OpenLedger = Callable[..., Ledger]


class WatchedSyncs(DiskFiles):
    """Syncs of segments are counted by the thread that makes them; each waits for `go_on`, or raises `fault`."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.fault: OSError | None = None

    def sync(self, descriptor: int) -> None:
        if threading.current_thread().name == "ledger-commit":
            self.synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            self.go_on.wait()
            if self.fault is not None:
                raise self.fault
        super().sync(descriptor)


async def test_an_idle_ledger_answers_by_a_sync_of_its_segment_and_nothing_on_record_changes(
    open_ledger: OpenLedger, directory: Path
) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    async with ledger.running():
        await ledger.begin(records.begin(0))
        files.synced.clear()
        segment = directory / "0000000000000001.segment"
        before, batch = segment.read_bytes(), ledger.landed_batch
        for _ in range(3):
            await ledger.answers()
        assert files.synced == [str(segment)] * 3
        assert segment.read_bytes() == before
        assert ledger.landed_batch == batch


async def test_a_sync_that_hangs_is_no_answer_until_it_comes_back(open_ledger: OpenLedger) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    answered: list[int] = []

    async def ask(number: int) -> None:
        await ledger.answers()
        answered.append(number)

    async with ledger.running():
        files.go_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 1)
            nursery.start_soon(ask, 2)
            await trio.testing.wait_all_tasks_blocked()
            landing = ledger.begin(records.begin(0))
            await trio.testing.wait_all_tasks_blocked()
            assert answered == []
            files.go_on.set()
        await landing  # what came meanwhile is written behind it
        assert sorted(answered) == [1, 2]


async def test_a_batch_that_is_under_way_is_the_answer(open_ledger: OpenLedger) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    async with ledger.running():
        files.go_on.clear()
        landing = ledger.begin(records.begin(0))
        await trio.testing.wait_all_tasks_blocked()
        files.synced.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.answers)
            await trio.testing.wait_all_tasks_blocked()
            files.go_on.set()
        await landing
        assert files.synced == [], "no sync of its own"


async def test_a_sync_that_fails_poisons_like_any_other(open_ledger: OpenLedger) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    async with ledger.running():
        files.fault = OSError(errno.EIO, os.strerror(errno.EIO))
        with pytest.raises(LedgerUnavailable, match=r"writing 0000000000000001\.segment failed: Input/output error"):
            await ledger.answers()
        assert ledger.poisoned is not None
        with pytest.raises(LedgerUnavailable):
            await ledger.begin(records.begin(0))


async def test_a_poisoned_ledger_answers_nobody_also_who_has_asked_before(open_ledger: OpenLedger) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    async with ledger.running():
        files.go_on.clear()
        landing = ledger.begin(records.begin(0))
        await trio.testing.wait_all_tasks_blocked()
        refused: list[str] = []

        async def ask() -> None:
            with pytest.raises(LedgerUnavailable) as raised:
                await ledger.answers()
            refused.append(str(raised.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            files.fault = OSError(errno.EIO, os.strerror(errno.EIO))
            files.go_on.set()
        await ask()
        with pytest.raises(LedgerUnavailable):
            await landing
        assert refused == [ledger.poisoned] * 2


async def test_who_has_asked_and_is_cancelled_leaves_the_ledger_at_work(open_ledger: OpenLedger) -> None:
    files = WatchedSyncs()
    ledger = open_ledger(files=files)
    async with ledger.running():
        files.go_on.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.answers)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        files.go_on.set()
        await ledger.answers()
        await ledger.begin(records.begin(0))


@pytest.mark.parametrize("threads", [IN_LINE, LATER], ids=["at_once", "later"])
def test_questions_between_records_leave_the_same_ledger_as_without(threads: Threads) -> None:
    async def run(asks: bool) -> dict[str, bytes]:
        disk = SimDisk()
        ledger = opened(disk, threads=threads)
        async with ledger.running():
            for number in range(3):
                if asks:
                    await ledger.answers()
                begin = records.begin(number)
                place = await ledger.begin(begin)
                if asks:
                    await ledger.answers()
                await ledger.complete(begin, records.completed(place))
        return {name: bytes(content) for name, content in contents(disk).items()}

    assert trio.run(run, True) == trio.run(run, False)


def contents(disk: SimDisk) -> dict[str, bytes]:
    read = {}
    for name in disk.names(DIRECTORY):
        if name.endswith(".segment"):
            descriptor = disk.open_to_read(DIRECTORY / name)
            read[name] = disk.read(descriptor, disk.size(descriptor), 0)
            disk.close(descriptor)
    return read


def test_each_piece_that_an_opening_reads_or_writes_is_a_sign_of_life(open_ledger: OpenLedger) -> None:
    files = CountedFiles()
    ledger = open_ledger(files=files)
    first = files.calls
    assert first > 2

    async def use() -> None:
        async with ledger.running():
            await ledger.begin(records.begin(0))

    trio.run(use)
    used = files.calls
    again = open_ledger(files=files)
    assert files.calls > used
    again._let_go()
