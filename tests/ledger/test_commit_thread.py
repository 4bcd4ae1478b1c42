"""Who hands a batch over waits for it a moment, and no longer; either way it is told of exactly once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from sidecar.ledger.commit_thread import IMPATIENCE_SECONDS, CommitThread


class Jobs:
    """Work that a test lets go on; what was told, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.let_go = {"held": threading.Event(), "held too": threading.Event()}
        self.thread: CommitThread[str] = CommitThread(self._work, lambda: self.now)
        self.heard = trio.Event()

    def _work(self, job: str) -> Callable[[], None]:
        if job in self.let_go:
            self.let_go[job].wait()
        return lambda: self._tell(job)

    def _tell(self, job: str) -> None:
        self.told.append(job)
        self.heard.set()

    async def hear(self) -> None:
        await self.heard.wait()
        self.heard = trio.Event()


@asynccontextmanager
async def running() -> AsyncIterator[Jobs]:
    jobs = Jobs()
    jobs.thread.start()
    try:
        yield jobs
    finally:
        jobs.thread.stop()
        await trio.to_thread.run_sync(jobs.thread.join)


async def told_when_handed_over(jobs: Jobs, job: str) -> bool:
    """Whether a quick job was waited for. A thread that gets no processor for a while is not held against it."""
    jobs.thread.hand_over(job)
    at_once = job in jobs.told
    if not at_once:
        await jobs.hear()
    return at_once


async def test_a_quick_job_is_told_of_when_it_is_handed_over() -> None:
    async with running() as jobs:
        waited_for = 0
        for number in range(50):
            waited_for += await told_when_handed_over(jobs, f"{number}")
            jobs.now += IMPATIENCE_SECONDS
        assert waited_for > 0
        assert jobs.told == [f"{number}" for number in range(50)]


async def test_a_slow_job_is_told_of_through_the_loop_and_only_once() -> None:
    async with running() as jobs:
        jobs.thread.hand_over("held")
        assert jobs.told == [], "the loop goes on"
        jobs.let_go["held"].set()
        await jobs.hear()
        await trio.testing.wait_all_tasks_blocked()
        assert jobs.told == ["held"]


async def test_behind_a_slow_job_nothing_is_waited_for_until_some_time_has_passed() -> None:
    async with running() as jobs:
        jobs.thread.hand_over("held")
        jobs.let_go["held"].set()
        await jobs.hear()
        jobs.now = 0.99 * IMPATIENCE_SECONDS
        for job in ("quick", "quick too"):
            assert not await told_when_handed_over(jobs, job)
        jobs.now = IMPATIENCE_SECONDS
        waited_for = 0
        for number in range(50):
            waited_for += await told_when_handed_over(jobs, f"later {number}")
            jobs.now += IMPATIENCE_SECONDS
        assert waited_for > 0


async def test_once_the_loop_has_ended_nobody_is_told() -> None:
    jobs = Jobs()
    trio_ended = threading.Event()

    async def hand_over_and_leave() -> None:
        jobs.thread.start()
        jobs.thread.hand_over("held")

    def loop() -> None:
        trio.run(hand_over_and_leave)
        trio_ended.set()

    await trio.to_thread.run_sync(loop)
    assert trio_ended.is_set()
    jobs.let_go["held"].set()
    jobs.thread.stop()
    await trio.to_thread.run_sync(jobs.thread.join)
    assert jobs.told == []
