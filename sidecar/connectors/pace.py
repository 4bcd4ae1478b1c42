"""Work on what a provider sent, in turns: a provider that sends very many small things holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

Clock = Callable[[], float]  # seconds of a clock that never goes back

TURN_SECONDS_MAX: Final = 0.002
_AWAKE: Final = object()  # stands in a task's `custom_sleep_data`, which Trio clears whenever the task is woken


class Pace:
    """Call `rest` between any two small steps of work: others run once 2 ms have gone by since they last could.

    A wait between two steps lets others run too, so a read that had to wait for its bytes is no reason to rest.
    """

    def __init__(self, now: Clock = time.perf_counter) -> None:
        self._now = now
        self._since = now()

    async def rest(self) -> None:
        """A checkpoint, where it is time for one."""
        if self._is_due():
            await trio.lowlevel.checkpoint()
            self._begin_turn()

    async def rest_uncancelled(self) -> None:
        """The same, for work that a cancellation must not cut."""
        if self._is_due():
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._begin_turn()

    def _is_due(self) -> bool:
        if trio.lowlevel.current_task().custom_sleep_data is not _AWAKE:
            self._begin_turn()
            return False
        return self._now() - self._since >= TURN_SECONDS_MAX

    def _begin_turn(self) -> None:
        trio.lowlevel.current_task().custom_sleep_data = _AWAKE
        self._since = self._now()
