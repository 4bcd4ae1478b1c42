"""Who hands a batch over waits for it a moment, and no longer; either way it is told of exactly once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from sidecar.ledger.commit_thread import FREE_SECONDS, PATIENCE_SECONDS, CommitThread


class Jobs:
    """Work that takes as long as a test says, on its own clock; what was told, in order, and what was waited for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.waited_for: list[str] = []
        self.let_go = threading.Event()
        self.job_seconds = 0.0
        self.thread: CommitThread[str] = CommitThread(self._work, lambda: self.now)
        self._heard = trio.Event()

    def _work(self, job: str) -> Callable[[], None]:
        if job == "held":
            self.let_go.wait()
        self.now += self.job_seconds
        return lambda: self._tell(job)

    def _tell(self, job: str) -> None:
        self.told.append(job)
        self._heard.set()

    async def hear(self, job: str) -> None:
        while job not in self.told:
            self._heard = trio.Event()
            await self._heard.wait()

    async def hand_over(self, job: str) -> None:
        """A thread that gets no processor for a while is not held against it: then the job is heard of later."""
        self.thread.hand_over(job)
        if job in self.told:
            self.waited_for.append(job)
        await self.hear(job)


@asynccontextmanager
async def running() -> AsyncIterator[Jobs]:
    jobs = Jobs()
    jobs.thread.start()
    try:
        yield jobs
    finally:
        jobs.thread.stop()
        await trio.to_thread.run_sync(jobs.thread.join)


async def test_a_quick_job_is_told_of_when_it_is_handed_over() -> None:
    async with running() as jobs:
        jobs.job_seconds = FREE_SECONDS
        names = [f"{number}" for number in range(50)]
        for name in names:
            await jobs.hand_over(name)
            jobs.now += 1
        assert jobs.waited_for
        assert jobs.told == names


async def test_a_slow_job_is_told_of_through_the_loop_and_only_once() -> None:
    async with running() as jobs:
        jobs.thread.hand_over("held")
        assert jobs.told == [], "the loop goes on"
        jobs.let_go.set()
        await jobs.hear("held")
        await jobs.hand_over("next")
        assert jobs.told == ["held", "next"]


async def test_behind_a_slow_job_nothing_is_waited_for_until_some_time_has_passed() -> None:
    async with running() as jobs:
        jobs.thread.hand_over("held")
        jobs.let_go.set()
        await jobs.hear("held")
        jobs.now = 0.99 * 20 * PATIENCE_SECONDS
        for number in range(20):
            await jobs.hand_over(f"soon {number}")
        assert jobs.waited_for == []
        for number in range(50):
            jobs.now += 20 * PATIENCE_SECONDS
            await jobs.hand_over(f"later {number}")
        assert jobs.waited_for


async def test_a_disk_of_a_millisecond_or_two_takes_a_quarter_of_the_loops_time_at_most() -> None:
    async with running() as jobs:
        jobs.job_seconds = 0.95 * PATIENCE_SECONDS
        for number in range(400):
            await jobs.hand_over(f"{number}")
        waited_seconds = len(jobs.waited_for) * jobs.job_seconds
        assert jobs.waited_for
        assert waited_seconds <= 0.26 * jobs.now


async def test_a_job_is_not_handed_over_before_the_last_one_has_been_told_of() -> None:
    async with running() as jobs:
        jobs.thread.hand_over("held")
        with pytest.raises(AssertionError, match="before the last one"):
            jobs.thread.hand_over("too soon")
        jobs.let_go.set()
        await jobs.hear("held")
        await jobs.hand_over("next")
        assert jobs.told == ["held", "next"]


async def test_once_the_loop_has_ended_nobody_is_told() -> None:
    jobs = Jobs()

    async def hand_over_and_leave() -> None:
        jobs.thread.start()
        jobs.thread.hand_over("held")

    await trio.to_thread.run_sync(trio.run, hand_over_and_leave)
    jobs.let_go.set()
    jobs.thread.stop()
    await trio.to_thread.run_sync(jobs.thread.join)
    assert jobs.told == []
