"""The signals that a daemon hears: those to stop, and the one to reload."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

import trio

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
