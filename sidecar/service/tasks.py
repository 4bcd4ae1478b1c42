"""Tasks of one kind, counted, and kept for reuse: a Trio task costs more than most of what a request does.

A task that is done with its work waits for more of it, and is woken in place
of a new one. What runs in it is cancelled only with the nursery it lives in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import outcome
import trio

Work = Callable[[], Awaitable[None]]
Start = Callable[[Work], None]
IDLE_MAX: Final = 64  # tasks that wait for work; a crowd's others end when they are done


class Tasks:
    """Runs each piece of work in a task of `nursery`, at once; `count` is how many run.

    `on_end` is called when one ends. `end` lets the waiting tasks go: until
    then the nursery can't be left. Nothing may be started from then on but by a
    crash, which loses it with everything else.
    """

    def __init__(self, nursery: trio.Nursery, on_end: Callable[[], None]) -> None:
        self._nursery = nursery
        self._on_end = on_end
        self._idle: list[trio.lowlevel.Task] = []
        self._ended = False
        self.count = 0

    def start_soon(self, work: Work) -> None:
        if self._ended:
            return
        self.count += 1
        if self._idle:
            trio.lowlevel.reschedule(self._idle.pop(), outcome.Value(work))
        else:
            self._nursery.start_soon(self._work, work)

    def end(self) -> None:
        """No task waits for work from here on; what runs is finished."""
        self._ended = True
        for task in self._idle:
            trio.lowlevel.reschedule(task, outcome.Value(None))
        self._idle.clear()

    async def _work(self, work: Work | None) -> None:
        while work is not None:
            try:
                await work()
            finally:
                self.count -= 1
                self._on_end()
            work = None if self._ended or len(self._idle) >= IDLE_MAX else await self._more()

    async def _more(self) -> Work | None:
        task = trio.lowlevel.current_task()

        def cancelled(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle.append(task)
        more: Work | None = await trio.lowlevel.wait_task_rescheduled(cancelled)
        return more
