"""The log's lines about refusals: each one while they are few, a count of the rest where a caller sends a flood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.contract.values import Refusal
from sidecar.ops.log import Log

LINES_PER_SECOND_MAX: Final = 50


class RefusalLines:
    """Writes at most so many lines in a second of the clock, then one with how many there were besides.

    `fact` is what the lines say: that it was `refused`, or only that a quote says so.
    """

    def __init__(self, log: Log, clock_unix_ms: Callable[[], int], fact: str = "refused") -> None:
        self._log = log
        self._fact = fact
        self._clock_unix_ms = clock_unix_ms
        self._second = -1
        self._told = 0
        self._untold = 0

    def tell(self, refusal: Refusal, connection: int, caller: str, request: str, why: str) -> None:
        second = self._clock_unix_ms() // 1000
        if second != self._second:
            self.settle()
            self._second, self._told = second, 0
        if self._told == LINES_PER_SECOND_MAX:
            self._untold += 1
            return
        self._told += 1
        self._log.info(self._fact, refusal=refusal, connection=connection, caller=caller, request=request, why=why)

    def settle(self) -> None:
        """Says how many were passed over."""
        if self._untold:
            self._log.info(f"{self._fact}_more", count=self._untold)
            self._untold = 0
