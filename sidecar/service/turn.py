"""What is put off to the end of the event loop's turn, and then done together.

A batch that lands on disk makes many answers ready in one turn. Sent one by
one, each wakes a client that has gone to sleep again since the last one; sent
together, they find it awake. The same goes for the log's lines, which become
one write. What brings no answer yet comes behind them, so that clients work on
theirs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

Act = Callable[[], None]


class EndOfTurn:
    """Calls what it was given by `soon` behind the tasks that can run already, in one go, and then what by `later`.

    Where `serve` doesn't run, or no longer, everything is done at once, so
    that nothing is lost. `pending` while something is put off.
    """

    def __init__(self) -> None:
        self._put_off: list[Act] = []
        self._put_behind: list[Act] = []
        self._task: trio.lowlevel.Task | None = None
        self._asleep = False

    @property
    def pending(self) -> bool:
        return bool(self._put_off or self._put_behind)

    def soon(self, act: Act) -> None:
        self._put(act, self._put_off)

    def later(self, act: Act) -> None:
        self._put(act, self._put_behind)

    def _put(self, act: Act, acts: list[Act]) -> None:
        if self._task is None:
            act()
            return
        acts.append(act)
        if self._asleep:
            self._asleep = False
            trio.lowlevel.reschedule(self._task)

    async def over(self) -> None:
        """Returns when nothing is put off."""
        while self.pending:
            await trio.lowlevel.checkpoint()

    async def serve(self) -> NoReturn:
        self._task = trio.lowlevel.current_task()
        try:
            while True:
                self._act()
                if self.pending:
                    await trio.lowlevel.checkpoint()
                else:
                    self._asleep = True
                    await trio.lowlevel.wait_task_rescheduled(self._woken_to_end)
        finally:
            self._task = None
            self._act()

    def _woken_to_end(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self._asleep = False
        return trio.lowlevel.Abort.SUCCEEDED

    def _act(self) -> None:
        """All of it, also where an act raises; the first fault is raised behind the last act."""
        fault: Exception | None = None
        for acts in (self._put_off, self._put_behind):
            now = acts.copy()
            acts.clear()
            for act in now:
                try:
                    act()
                except Exception as raised:
                    fault = fault or raised
        if fault is not None:
            raise fault
