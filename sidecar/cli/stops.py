"""Signals that stop a command, as an exception in the stretches that can take one and as a note everywhere else."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final, Self

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Somebody wants the command to end. `exit_code` is what a shell makes of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.by = "stopped by hand" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


class Stops:
    """While it is entered a stop signal ends nothing: it is noted, and the next stretch within `raising` raises it.

    Where nothing has raised it, leaving this does. A signal that the process
    ignores stays ignored.
    """

    def __init__(self) -> None:
        self._noted: int | None = None
        self._raises = False
        self._tell: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _STOP_SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: TracebackType | None) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if fault is None:
            self._raise_noted()

    @contextmanager
    def raising(self) -> Iterator[None]:
        self._raises = True
        try:
            self._raise_noted()
            yield
        finally:
            self._raises = False

    @contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """For a stretch that ends itself: `tell` is called from the signal's handler, also for one that came before."""
        self._tell = tell
        try:
            if self._noted is not None:
                tell()
            yield
        finally:
            self._tell = None

    def _note(self, number: int, _: FrameType | None) -> None:
        self._noted = number
        if self._tell is not None:
            self._tell()
        if self._raises:
            self._raise_noted()

    def _raise_noted(self) -> None:
        if (number := self._noted) is not None:
            self._noted, self._raises = None, False  # what cleans up behind it is not disturbed
            raise Stopped(number)
