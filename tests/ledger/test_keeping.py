"""Upkeep beside what goes on meanwhile: what was found by the crash states and the failing calls, each once more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
import trio
from kit import records
from kit.sim_disk import SimDisk
from kit.sim_ledger import DIRECTORY, CommitInLine, KeepingInLine, SparesInLine
from kit.sim_story import DAY_MS, FIRST_DAY_MS, Heard, Story, opened_at

from sidecar.contract.values import BeginRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger.index import Book
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.threads import Threads

BIG = 60_000


class KeepingByHand(KeepingInLine[Any]):
    """Each job is done when it is handed over, and told of when the test says so."""

    done: ClassVar[list[Callable[[], None]]] = []

    def hand_over(self, job: Any) -> None:
        assert not self._busy
        self._busy = True
        self.done.append(partial(self._tell, self._work(job)))


BY_HAND = Threads(commit=CommitInLine, spares=SparesInLine, keeping=KeepingByHand)


def begun(number: int, story: Story) -> BeginRecord:
    now = story.now_unix_ms
    return records.begin(number, admitted_at_unix_ms=now, expires_at_unix_ms=now + 1000)


def lives_of_a_day(disk: SimDisk, story: Story, lives: int) -> None:
    """Each begins one request that it completes, and one that nothing does."""

    async def one(life: int) -> None:
        ledger = opened_at(disk, story, Heard(story.windows), life)
        async with ledger.running():
            for number in (2 * life, 2 * life + 1):
                place = await story.begin(ledger, begun(number, story)).place()
            await story.complete(ledger, begun(number, story), records.completed(place)).place()

    for number in range(lives):
        trio.run(one, number)


async def fill_a_segment(ledger: Ledger, story: Story, first: int) -> None:
    """With more requests than a block of its seal holds, so that older seals are less work to merge."""
    segment = ledger._index.book.number
    for number in range(first, first + 46):
        begin = begun(number, story)
        place = await story.begin(ledger, begin).place()
        end = records.completed(place, response=bytes(BIG if number >= first + 40 else 1))
        while not ledger.room_for(end):
            ledger._spare_maker.want(0)
            await trio.lowlevel.checkpoint()
        await story.complete(ledger, begin, end).place()
    assert ledger._index.book.number > segment


def test_an_open_request_is_found_where_all_segments_before_this_one_are_gone() -> None:
    disk, story = SimDisk(), Story()
    lives_of_a_day(disk, story, 1)
    story.now_unix_ms = FIRST_DAY_MS + 9 * DAY_MS

    async def life() -> None:
        ledger = opened_at(disk, story, Heard(story.windows), 9)
        async with ledger.running():
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert not ledger._index.sealed
            recorded = ledger.find("dungeon", "request-0")
            assert recorded is not None
            assert recorded.completed is None

    trio.run(life)


def test_segments_that_end_while_a_checkpoint_is_written_are_not_merged_with_what_is_gone() -> None:
    disk, story = SimDisk(), Story()
    lives_of_a_day(disk, story, 3)
    story.now_unix_ms = FIRST_DAY_MS + 9 * DAY_MS

    async def life() -> None:
        ledger = opened_at(disk, story, Heard(story.windows), 9, threads=BY_HAND)
        async with ledger.running():
            done = KeepingByHand.done
            while not any(checkpoints.segment_of_name(name) for name in disk.names(DIRECTORY)):
                if done:
                    done.pop()()
                await trio.lowlevel.checkpoint()
            await fill_a_segment(ledger, story, 100)
            await fill_a_segment(ledger, story, 200)
            assert len(ledger._index.sealed) + len(ledger._index.waiting) > 3
            for _ in range(40):
                if done:
                    done.pop()()
                await trio.lowlevel.checkpoint()
            assert not [name for name in disk.names(DIRECTORY) if name < "0000000000000003.checkpoint"]
            story.hold_while_it_runs(ledger, disk)
        story.heard(ledger)

    trio.run(life)
    assert story.front


def test_a_bug_met_in_upkeep_is_told_and_the_next_try_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, story = SimDisk(), Story()
    lives_of_a_day(disk, story, 1)
    troubles: list[str] = []

    def buggy(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def life() -> None:
        ledger = opened_at(disk, story, Heard(story.windows), 9, on_trouble=troubles.append)
        async with ledger.running():
            with monkeypatch.context() as patch:
                patch.setattr(Book, "write_seal", buggy)
                await fill_a_segment(ledger, story, 100)
            assert troubles[-1].startswith("sealing segment 1: ZeroDivisionError (")
            assert "a bug" not in troubles[-1], "what a bug says may be what was in memory"
            assert ledger.poisoned is None
            ledger._keeping.try_again()
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert not ledger._index.waiting

    trio.run(life)
