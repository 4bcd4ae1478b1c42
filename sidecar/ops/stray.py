"""What would reach stderr beside the log: exceptions that nobody caught, warnings, what libraries log.

It all becomes facts, without the texts that came with it: nobody has looked
at what these hold. And the process leaves no core and lets no other process of its user look into
its memory, where the keys are.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any, Final, TextIO

from sidecar.ops.log import Log
from sidecar.ops.tracebacks import in_a_word, in_lines

_PR_SET_DUMPABLE: Final = 4


def tell_bug(log: Log, bug: BaseException, **values: object) -> None:
    """A broken invariant, a line for each line of its traceback."""
    log.error("internal", bug=in_a_word(bug), **values)
    for line in in_lines(bug):
        log.error("traceback", line=line)


class _LibraryLog(logging.Handler):
    """Takes what a library says at level warning and above."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.warning("library_said", library=record.name, severity=record.levelname, line=record.lineno)


def take_strays(log: Log) -> None:
    """From here on, for the whole process. For a daemon: it is never undone."""

    def uncaught(type_: type[BaseException], fault: BaseException, _: Any) -> None:
        tell_bug(log, fault)

    def uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None:
            tell_bug(log, told.exc_value, thread=told.thread.name if told.thread else "")

    def unraisable(told: sys.UnraisableHookArgs) -> None:
        if told.exc_value is not None:
            log.warning("unraisable", bug=in_a_word(told.exc_value))

    def warned(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        log.warning("python_warning", category=category.__name__, at=f"{os.path.basename(filename)}:{lineno}")

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
    sys.unraisablehook = unraisable
    warnings.showwarning = warned
    logging.getLogger().addHandler(_LibraryLog(log))


def forbid_dumps(log: Log) -> None:
    """No core, and none of this user's other processes may trace this one or read its memory and environment."""
    with suppress(OSError, ValueError):  # where that may not be asked, what follows holds all the same
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("dumpable", why=os.strerror(ctypes.get_errno()), now="a core of this process would hold keys")
