"""The signals that a daemon hears: those to stop, and the one to reload."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import trio

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Terminal:
    """The terminal that a daemon was started from, if it was: where that is closed, its SIGHUP means to stop.

    Whoever starts it so that SIGHUP is ignored (nohup) wants it to go on.
    """

    def __init__(self) -> None:
        self._counts = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _is_there()

    @property
    def is_lost(self) -> bool:
        return self._counts and not _is_there()


def _is_there() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def hold_signals() -> None:
    """From here on the kernel keeps a signal to stop or reload until the daemon can hear it. For the main thread."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


@contextmanager
def heard_signals() -> Iterator[AsyncIterator[int]]:
    """Every such signal, those that were held included. Once this is left they change nothing any more."""
    hold_signals()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # what the receiver puts back; to ignore them here would lose held ones
    try:
        with trio.open_signal_receiver(*_SIGNALS) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            yield signals
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
