"""The log's lines about peers that are not what they would be: one a second at most, with how many there were besides.

Anybody who may connect can try again and again.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.ops.log import Log


class Strangers:
    """Writes the first line of each second of the clock."""

    def __init__(self, log: Log, clock_unix_ms: Callable[[], int]) -> None:
        self._log = log
        self._clock_unix_ms = clock_unix_ms
        self._second = -1
        self._untold = 0

    def tell(self, fact: str, **values: object) -> None:
        second = self._clock_unix_ms() // 1000
        if second == self._second:
            self._untold += 1
            return
        besides, self._untold, self._second = self._untold, 0, second
        self._log.warning(fact, **values, **({"untold_before": besides} if besides else {}))
