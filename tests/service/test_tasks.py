"""Pooled tasks: every piece of work runs, is counted, and nothing waits behind an end."""

from __future__ import annotations

import pytest
import trio
import trio.lowlevel
import trio.testing

from sidecar.service.tasks import IDLE_MAX, Tasks


class Job:
    """Work that waits for its gate, and knows in which task it ran."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.task: trio.lowlevel.Task | None = None

    async def run(self) -> None:
        self.task = trio.lowlevel.current_task()
        await self.gate.wait()


async def test_work_runs_at_once_and_a_task_that_is_done_takes_the_next_piece() -> None:
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery, lambda: None)
        jobs = [Job() for _ in range(3)]
        for job in jobs[:2]:
            tasks.start_soon(job.run)
        assert tasks.count == 2
        await trio.testing.wait_all_tasks_blocked()
        jobs[0].gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert tasks.count == 1
        tasks.start_soon(jobs[2].run)
        await trio.testing.wait_all_tasks_blocked()
        assert jobs[2].task is jobs[0].task is not jobs[1].task
        for job in jobs:
            job.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert tasks.count == 0
        tasks.end()


async def test_an_end_of_work_is_told() -> None:
    changed = trio.lowlevel.ParkingLot()
    job = Job()
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery, changed.unpark_all)  # what it returns is not looked at
        tasks.start_soon(job.run)
        nursery.start_soon(changed.park)
        await trio.testing.wait_all_tasks_blocked()
        job.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not changed
        tasks.end()


async def test_a_crowd_leaves_no_more_than_a_few_tasks_behind() -> None:
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery, lambda: None)
        jobs = [Job() for _ in range(3 * IDLE_MAX)]
        for job in jobs:
            tasks.start_soon(job.run)
        await trio.testing.wait_all_tasks_blocked()
        for job in jobs:
            job.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == IDLE_MAX
        tasks.end()


async def test_an_end_lets_the_idle_go_and_finishes_what_runs() -> None:
    done, late = Job(), Job()
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery, lambda: None)
        tasks.start_soon(done.run)
        tasks.start_soon(late.run)
        done.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        tasks.end()
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        late.gate.set()
    assert tasks.count == 0


async def test_a_cancelled_nursery_takes_the_idle_with_it() -> None:
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery, lambda: None)
        job = Job()
        job.gate.set()
        tasks.start_soon(job.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not tasks._idle


async def test_work_that_breaks_is_counted_out_and_its_fault_is_the_nurserys() -> None:
    async def broken() -> None:
        raise KeyError("broken")

    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery, lambda: None)
            tasks.start_soon(broken)
    assert tasks.count == 0
