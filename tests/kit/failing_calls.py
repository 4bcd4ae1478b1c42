"""A ledger of which the nth file call fails, once or for ever, having done its work or not: what the daemon is told.

An open raises OSError and holds nothing. A begin or completion lands, or is
LedgerUnavailable; a fault of the writer is final and named, one of the spare
maker is pressure that refuses begins and passes. A close never raises and gives
everything back. And whoever opens the ledger then, with the power cut before or
not, finds all that was acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import trio
import trio.testing
from kit import records
from kit.sim_disk import NONE_LANDED, Fates, Fault, SimDisk
from kit.sim_ledger import DIRECTORY, Found, KeepingInLine, Story, continued, opened

from sidecar.contract.values import BeginRecord
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.ledger import Ledger

Left = Callable[[], tuple[SimDisk, Story]]
BIG = 60_000
# A write of this ledger takes several calls, so that one of them can be the last that works.
WRITE_BYTES_MAX = 48 * 1024


class FailingCalls:
    """Call number `at` fails, and where `for_good` all behind it. `fell` is the call, and whether it made a spare."""

    def __init__(self, disk: SimDisk, at: int, fault: Fault, *, for_good: bool) -> None:
        self._at = at
        self._fault = fault
        self._for_good = for_good
        self.ledger: Ledger | None = None
        self.writer_fell: list[str] = []
        self.fell = False
        self.over = False
        disk.fault = self

    def __call__(self, call: str, number: int) -> Fault | None:
        if self.over or number < self._at or (number > self._at and not self._for_good):
            return None
        self.fell = True
        making = self.ledger is not None and (self.ledger._spare_maker.making or KeepingInLine.keeping)
        if not making and call in ("write_some", "sync", "rename", "sync_directory"):
            self.writer_fell.append(call)
        return self._fault


class Session:
    """A ledger that is opened, used over two segments and more, and closed; each answer held to the contract."""

    def __init__(self, disk: SimDisk, failing: FailingCalls, story: Story) -> None:
        self._disk = disk
        self._failing = failing
        self._story = story
        self._answered: dict[str, bytes] = {}
        self._found = Found(disk)
        self._ledger: Ledger

    async def run(self) -> None:
        self._story.opening()
        ledger = self._opened()
        if ledger is None:
            assert self._failing.fell
            assert not self._disk.descriptors, "an open that fails holds nothing"
            return
        self._ledger = ledger
        self._failing.ledger = self._ledger
        self._failing.writer_fell.clear()
        self._story.opened(self._found)
        async with self._ledger.running():
            await self._use()
            if not self._ledger.poisoned:
                self._story.clean = None
        if not self._ledger.poisoned and self._story.clean is None:
            self._story.clean = True
        assert not self._disk.descriptors, "a ledger that is closed holds nothing"

    def _opened(self) -> Ledger | None:
        try:
            return opened(self._disk, told=self._found.totals.told)
        except OSError:  # and nothing else: a fault of the disk is no damage
            return None

    async def _use(self) -> None:
        begins = [records.begin(number) for number in (101, 102, 103)]
        landed = [begin for begin in begins if await self._begin(begin)]
        for begin, size in zip(landed, (10, 9000, BIG), strict=False):
            await self._complete(begin, size)
        for number in range(104, 108):
            begin = records.begin(number)
            if await self._begin(begin):
                await self._complete(begin, BIG)
        await self._replay()
        await self._begin(records.begin(110))

    async def _begin(self, begin: BeginRecord) -> bool:
        self._try_spares_again()
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        refused_before = self._ledger.poisoned or self._ledger.pressure
        calls = self._disk.calls
        landed = await self._story.begin(self._ledger, begin).landed()
        if isinstance(landed, LedgerUnavailable):
            assert str(landed) == (self._ledger.poisoned or self._ledger.pressure), "the reason is told"
            assert not refused_before or self._disk.calls == calls, "nothing is tried again"
            self._assert_final()
            return False
        assert not refused_before, "what is refused stays so until the reason is gone"
        assert not self._failing.writer_fell, "a fault of the writer is final"
        return True

    async def _complete(self, begin: BeginRecord, size: int) -> None:
        recorded = self._ledger.find("dungeon", begin.request_id)
        assert recorded is not None
        answer = random.Random(size).randbytes(size)
        end = records.completed(recorded.begin, response=answer)
        if not self._ledger.room_for(end):
            end = records.completed(recorded.begin, response=b"", outcome="result_size")
        landed = await self._story.complete(self._ledger, begin, end).landed()
        if isinstance(landed, LedgerUnavailable):
            assert str(landed) == self._ledger.poisoned, "room to settle is always there"
            self._assert_final()
            return
        assert not self._failing.writer_fell, "a fault of the writer is final"
        self._answered[begin.request_id] = end.response[1:]

    def _assert_final(self) -> None:
        if self._failing.writer_fell:
            assert self._ledger.poisoned
            assert len(self._failing.writer_fell) == 1, "after a fault nothing is written"
        if self._ledger.poisoned:
            assert self._failing.fell
            assert ".segment failed: Input/output error" in self._ledger.poisoned

    async def _replay(self) -> None:
        for request_id, answer in self._answered.items():
            try:
                recorded = self._ledger.find("dungeon", request_id)
                assert recorded is not None
                assert recorded.completed is not None
                assert await self._ledger.read_response(recorded) == answer
            except LedgerUnavailable:
                assert self._failing.fell

    def _try_spares_again(self) -> None:
        """As the thread does after a while."""
        self._ledger._spare_maker.want(0)


def left_torn() -> tuple[SimDisk, Story]:
    """A ledger whose last process was cut off in the midst of a write."""
    disk, story = SimDisk(chance=random.Random(4)), Story()

    async def life() -> None:
        ledger = opened(disk)
        story.opened(Found(disk))
        async with ledger.running():
            for number in range(4):
                begin = records.begin(number)
                place = await story.begin(ledger, begin).place()
                if number % 2:
                    await story.complete(ledger, begin, records.completed(place, response=bytes(9000))).place()
            disk.fault = lambda call, _: Fault(done=True) if call == "write_some" else None
            with suppress(LedgerUnavailable):
                await story.begin(ledger, records.begin(9, model="m" * 9000)).place()

    trio.run(life)
    left = disk.after_power_cut(Fates(random.Random(2), way="all"))
    seen = left.after_exit()
    settled = continued(seen, story)
    assert seen.names_in(DIRECTORY / "quarantine"), "there is a torn tail"
    return left, settled


def left_cleanly() -> tuple[SimDisk, Story]:
    disk, story = SimDisk(chance=random.Random(5)), Story()

    async def life() -> None:
        ledger = opened(disk)
        async with ledger.running():
            await story.begin(ledger, records.begin(1)).place()

    trio.run(life)
    return disk.after_exit(), story


def left_nothing() -> tuple[SimDisk, Story]:
    return SimDisk(chance=random.Random(6)), Story()


def hold(disk: SimDisk, story: Story) -> None:
    """Opened by the next process, and once more when the power fails then; and opened when it fails at once."""
    next_one = disk.after_exit()
    went_on = continued(next_one, story)
    continued(next_one.after_power_cut(NONE_LANDED), went_on)
    chance = random.Random(disk.calls)
    continued(disk.after_power_cut(Fates(chance, way=chance.choice(("none", "all", None, None)))), story)


def whichever_call_fails(left: Left, *, done: bool, for_good: bool) -> int:
    """How many calls a session makes that nothing fails in."""
    before, story_before = left()
    at, reached = 0, True
    while reached:
        at += 1
        disk, story = before.after_exit(), story_before.so_far()
        disk.write_bytes_max = WRITE_BYTES_MAX
        failing = FailingCalls(disk, at, Fault(done=done), for_good=for_good)
        trio.run(Session(disk, failing, story).run)
        reached = failing.fell
        failing.over = True
        hold(disk, story)
    return at
