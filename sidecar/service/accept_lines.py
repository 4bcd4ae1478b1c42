"""The log's lines about accepts that fail: the first at once, then one a minute at most, with how many there were.

Trio tells of each to a logger of its own, with a traceback, and tries again
after a tenth of a second: while descriptors are out, that is ten a second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sidecar.ops.log import Log

_LOGGER: Final = "trio.serve_listeners"
_MS_BETWEEN_MIN: Final = 60_000


class AcceptLines(logging.Handler):
    """`count` in a line: how many accepts have failed since the line before, this one included."""

    def __init__(self, log: Log, clock_unix_ms: Callable[[], int]) -> None:
        super().__init__()
        self._log = log
        self._clock_unix_ms = clock_unix_ms
        self._told_at: int | None = None
        self._why: object = ""
        self._untold = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._why = record.exc_info[1] if record.exc_info else record.getMessage()
        self._untold += 1
        now = self._clock_unix_ms()
        if self._told_at is None or not 0 <= now - self._told_at < _MS_BETWEEN_MIN:  # a clock may be put back
            self._told_at = now
            self.settle()

    def settle(self) -> None:
        """Says how many there were that no line has told."""
        if self._untold:
            self._log.warning("accept_failed", why=self._why, count=self._untold)
            self._untold = 0


@contextmanager
def accept_faults_in(log: Log, clock_unix_ms: Callable[[], int]) -> Iterator[None]:
    """What Trio tells of failed accepts is in this log, and nowhere else."""
    lines, logger = AcceptLines(log, clock_unix_ms), logging.getLogger(_LOGGER)
    logger.addHandler(lines)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.propagate = True
        lines.settle()
