"""Work on what a provider sent, in turns: a provider that sends very many small things holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

Clock = Callable[[], float]  # seconds of a clock that never goes back

TURN_SECONDS_MAX: Final = 0.002


class Pace:
    """Call `rest` between any two small steps of work: others run once 2 ms have gone by since they last could."""

    def __init__(self, now: Clock = time.perf_counter) -> None:
        self._now = now
        self._since = now()

    async def rest(self) -> None:
        """A checkpoint, where it is time for one."""
        if self._is_due():
            await trio.lowlevel.checkpoint()
            self._since = self._now()

    async def rest_uncancelled(self) -> None:
        """The same, for work that a cancellation must not cut."""
        if self._is_due():
            await trio.lowlevel.cancel_shielded_checkpoint()
            self._since = self._now()

    def _is_due(self) -> bool:
        return self._now() - self._since >= TURN_SECONDS_MAX
