"""A ledger of which the nth file call fails, once or for ever, having done its work or not: what the daemon is told.

An open raises OSError and holds nothing. A begin or completion lands, or is
LedgerUnavailable; a fault of the writer is final and named, one of the spare
maker is pressure that refuses begins and passes, and one of upkeep refuses
nothing, is told of, and is made good when it is tried again. A close never raises and gives
everything back. And whoever opens the ledger then, with the power cut before or
not, finds all that was acknowledged.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio
import trio.testing
from kit import records
from kit.sim_disk import NONE_LANDED, Fates, Fault, SimDisk
from kit.sim_ledger import DIRECTORY, KeepingInLine
from kit.sim_story import DAY_MS, Found, Heard, Story, continued, opened_at

from sidecar.contract.operator_frames import OPERATOR_RESOLVE, OperatorResolve
from sidecar.contract.values import BeginRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.keeping import SEALS_MAX
from sidecar.ledger.ledger import Ledger
from sidecar.service.resolution import resolved_record

Left = Callable[[], tuple[SimDisk, Story]]
BIG = 60_000
# A write of this ledger takes several calls, so that one of them can be the last that works.
WRITE_BYTES_MAX = 48 * 1024


# Calls of upkeep of which nobody is told when they fail: what they leave undone the next open does.
_IN_SILENCE: Final = {
    ("_remove", "keeping.py"): ("close", "unlink"),
    ("_seal", "keeping.py"): ("give_back_zeros",),
    ("write_whole", "whole_file.py"): ("unlink",),
}


class FailingCalls:
    """Call number `at` fails, and where `for_good` all behind it. `fell` is the call, and whether it made a spare."""

    def __init__(self, disk: SimDisk, at: int, fault: Fault, *, for_good: bool) -> None:
        self._at = at
        self._fault = fault
        self._for_good = for_good
        self.ledger: Ledger | None = None
        self.writer_fell: list[str] = []
        self.keeping_fell: list[str] = []  # but for what the next open makes good without a word
        self.fell = False
        self.over = False
        self.heals = not for_good or at % 2 == 0
        disk.fault = self

    def __call__(self, call: str, number: int) -> Fault | None:
        if self.over or number < self._at or (number > self._at and not self._for_good):
            return None
        self.fell = True
        making = self.ledger is not None and (self.ledger._spare_maker.making or KeepingInLine.keeping)
        if KeepingInLine.keeping and not any(
            call in calls and _is_done_by(*where) for where, calls in _IN_SILENCE.items()
        ):
            self.keeping_fell.append(call)
        if not making and call in ("write_some", "sync", "rename", "sync_directory"):
            self.writer_fell.append(call)
        return self._fault


def _is_done_by(function: str, module: str) -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(module):
            return True
    return False


class Session:
    """A ledger that is opened, used over two segments and more, and closed; each answer held to the contract."""

    def __init__(self, disk: SimDisk, failing: FailingCalls, story: Story) -> None:
        self._disk = disk
        self._failing = failing
        self._story = story
        self._answered: dict[str, bytes] = {}
        self._found = Found(disk)
        self._troubles: list[str] = []
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
            await self._made_good()
            if not self._ledger.poisoned:
                self._story.clean = None
        if not self._ledger.poisoned and self._story.clean is None:
            self._story.clean = True
        assert not self._disk.descriptors, "a ledger that is closed holds nothing"

    def _opened(self) -> Ledger | None:
        try:
            heard = Heard(self._story.windows)
            return opened_at(self._disk, self._story, heard, on_trouble=self._troubles.append)
        except OSError:  # and nothing else: a fault of the disk is no damage
            return None

    async def _use(self) -> None:
        begins = [begun(number, self._story) for number in (101, 102, 103)]
        landed = [begin for begin in begins if await self._begin(begin)]
        for begin, size in zip(landed, (10, 9000, BIG), strict=False):
            await self._complete(begin, size)
        for begin in self._ledger.recovery.indeterminate[:1]:
            await self._resolve(begin)
        for number in range(104, 108):
            begin = begun(number, self._story)
            if await self._begin(begin):
                await self._complete(begin, BIG)
        await self._replay()
        await self._begin(begun(110, self._story))

    async def _made_good(self) -> None:
        """What failed of upkeep, once it is tried again and nothing fails any more."""
        ledger, failing = self._ledger, self._failing
        if failing.keeping_fell:
            assert self._troubles, f"a fault of upkeep is told: {failing.keeping_fell}, {failing._at}"
            assert ledger.poisoned or not failing.writer_fell
        if ledger.poisoned or not failing.fell or not failing.heals:
            return
        failing.over = True
        self._try_spares_again()
        ledger._keeping.try_again()
        for _ in range(60):
            await trio.testing.wait_all_tasks_blocked()
            await trio.lowlevel.checkpoint()
        assert not ledger._index.waiting, "every segment that has ended is sealed"
        assert len(ledger._index.sealed) <= SEALS_MAX
        assert ledger._keeping._trouble is None
        assert ledger._keeping._retaining.next(ledger._landed, lambda: None) is None, "what is old enough is dropped"
        base = ledger._keeping._retaining.base.segment
        named = [name for name in self._disk.names_in(DIRECTORY) if name[:16].isdigit() and int(name[:16]) <= base]
        expected = [checkpoints.checkpoint_path(DIRECTORY, base).name] if base else []
        gone = [name for name in named if not name.endswith(".seal")]
        assert gone == expected, f"of what is dropped there is left {gone}"

    async def _resolve(self, begin: BeginRecord) -> None:
        recorded = self._ledger.find(begin.caller_runtime_id, begin.request_id)
        assert recorded is not None
        asked = OperatorResolve(
            caller_runtime_id=begin.caller_runtime_id,
            charge="reservation",
            request_id=begin.request_id,
            schema_id=OPERATOR_RESOLVE,
            who="who decides",
            why="because",
        )
        end = resolved_record(begin, recorded.begin, asked, self._story.now_unix_ms)
        landed = await self._story.complete(self._ledger, begin, end).landed()
        if isinstance(landed, LedgerUnavailable):
            if self._ledger.poisoned:
                self._assert_final()
            return  # else there was no spare segment, and whoever asked asks again
        self._answered[begin.request_id] = end.response[1:]

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


def begun(number: int, story: Story) -> BeginRecord:
    now = story.now_unix_ms
    return records.begin(number, admitted_at_unix_ms=now, expires_at_unix_ms=now + 60_000)


def left_torn() -> tuple[SimDisk, Story]:
    """A ledger whose last process was cut off in the midst of a write."""
    disk, story = SimDisk(chance=random.Random(4)), Story()

    async def life() -> None:
        ledger = opened_at(disk, story, Heard(story.windows))
        story.opened(Found(disk))
        async with ledger.running():
            for number in range(4):
                begin = begun(number, story)
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


def lived_through(disk: SimDisk, story: Story, lives: int) -> None:
    """Lives of one day, each of which begins two requests, completes one, settles one that the last but one left open,
    and does all upkeep."""

    async def one(life: int) -> None:
        ledger = opened_at(disk, story, Heard(story.windows), life)
        async with ledger.running():
            for number in (2 * life, 2 * life + 1):
                place = await story.begin(ledger, begun(number, story)).place()
            end = records.completed(place, response=bytes(100))
            await story.complete(ledger, begun(number, story), end).place()
            for begin in ledger.recovery.indeterminate[:-1]:
                recorded = ledger.find(begin.caller_runtime_id, begin.request_id)
                assert recorded is not None
                await story.complete(ledger, begin, records.completed(recorded.begin, 7)).place()
            await trio.testing.wait_all_tasks_blocked()

    for life in range(lives):
        trio.run(one, life)


def left_cleanly() -> tuple[SimDisk, Story]:
    disk, story = SimDisk(chance=random.Random(5)), Story()
    lived_through(disk, story, 1)
    return disk.after_exit(), story


def left_with_seals() -> tuple[SimDisk, Story]:
    """So many that the next life merges, and requests that nothing has ended."""
    disk, story = SimDisk(chance=random.Random(7)), Story()
    lived_through(disk, story, 4)
    return disk.after_exit(), story


def left_due() -> tuple[SimDisk, Story]:
    """All of it is old enough to be dropped."""
    disk, story = left_with_seals()
    story.now_unix_ms += 3 * DAY_MS
    return disk, story


def left_in_a_dropping(call: str | int) -> tuple[SimDisk, Story]:
    """A process was gone while it dropped segments, before the last call of this name, or the one of this number."""
    disk, story = left_due()
    images: list[tuple[str, SimDisk, Story]] = []

    def keep(about_to: str) -> None:
        if KeepingInLine.keeping:
            images.append((about_to, disk.after_exit(), story.so_far()))

    async def life() -> None:
        story.opening()
        story.opened(Found(disk))
        ledger = opened_at(disk, story, Heard(story.windows), 9)
        async with ledger.running():
            disk.about_to = keep
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked()
        story.heard(ledger)

    trio.run(life)
    assert story.front, "segments were dropped"
    if isinstance(call, str):
        _, left, story = next(image for image in reversed(images) if image[0] == call)
    else:
        _, left, story = images[min(call, len(images) - 1)]
    return left, story


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
