"""What a daemon under test writes to its stderr: read as it comes, so that its pipe is never full.

A thread waits for the pipe; whoever wants to know all that has been written
until now reads what is left in it himself. The lines of a daemon that is
started again follow those of the one before.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

_READ_BYTES: Final = 65_536


class LogLine(Struct, frozen=True):
    """A line as it was written. `fact` and `values` are of the daemon's log; a line of another form has none."""

    text: str
    fact: str | None
    values: Mapping[str, Any]


class LogLines:
    """All lines so far."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[LogLine] = []

    def all(self, since: int = 0) -> list[LogLine]:
        with self._changed:
            return self._lines[since:]

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: LogLine) -> None:
        with self._changed:
            self._lines.append(line)
            self._changed.notify_all()

    def stir(self) -> None:
        """For whoever waits: something else has happened."""
        with self._changed:
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> bool:
        """Whether this became true, looked at whenever a line has come."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_seconds)


class Followed:
    """The reading end of a pipe, which is read into `lines` until its end, or until `close`."""

    def __init__(self, descriptor: int, lines: LogLines) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._lines = lines
        self._reading = threading.Lock()
        self._begun = b""
        self._is_closed = False
        self.ended = False
        self._enough = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._follow, name="sidecar log", daemon=True)
        self._thread.start()

    def take(self) -> None:
        """Reads all that has been written."""
        with self._reading:
            while not self.ended and not self._is_closed:
                try:
                    piece = os.read(self._descriptor, _READ_BYTES)
                except BlockingIOError:
                    return
                self._take(piece)

    def close(self) -> None:
        """With what has been written, though others may hold its other end. Closed twice is closed once."""
        if self._is_closed:
            return
        os.eventfd_write(self._enough, 1)
        self._thread.join()
        self.take()
        with self._reading:
            self._is_closed = True
            os.close(self._descriptor)
            os.close(self._enough)

    def _follow(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        poll.register(self._enough, select.POLLIN)
        while not self.ended and all(descriptor != self._enough for descriptor, _ in poll.poll()):
            self.take()
        self._lines.stir()

    def _take(self, piece: bytes) -> None:
        self.ended = not piece
        *whole, self._begun = (self._begun + piece).split(b"\n")
        if self.ended and self._begun:
            whole, self._begun = [self._begun], b""
        for line in whole:
            self._lines.add(read_line(line.decode("utf-8", "replace")))


def read_line(text: str) -> LogLine:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not isinstance(values.get("fact"), str):
        return LogLine(text, None, {})
    return LogLine(text, values["fact"], values)
