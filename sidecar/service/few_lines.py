"""The log's lines about what anybody may do again and again: each one while they are few, a count of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.ops.log import Log

LINES_PER_SECOND_MAX: Final = 50


class FewLines:
    """Writes at most so many lines of one fact in a second of the clock, then one with how many there were besides."""

    def __init__(self, log: Log, clock_unix_ms: Callable[[], int], fact: str) -> None:
        self._log = log
        self._fact = fact
        self._clock_unix_ms = clock_unix_ms
        self._second = -1
        self._told = 0
        self._untold = 0

    def tell(self, **values: object) -> None:
        second = self._clock_unix_ms() // 1000
        if second != self._second:
            self.settle()
            self._second, self._told = second, 0
        if self._told == LINES_PER_SECOND_MAX:
            self._untold += 1
            return
        self._told += 1
        self._log.info(self._fact, **values)

    def settle(self) -> None:
        """Says how many were passed over."""
        if self._untold:
            self._log.info(f"{self._fact}_more", count=self._untold)
            self._untold = 0
