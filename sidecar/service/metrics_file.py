"""The file that the node exporter's text-file collector reads: written again and again, gone at a clean end.

It is written in a thread, so a disk that hangs holds up nothing but this file,
whose age tells of it. A failure is one line in the log, and so is its end. At
a clean end the file goes, so that what no longer runs is not told as running;
a crash leaves it, and its age tells. Source: ECOSYSTEM section 4.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from sidecar.config.values import MetricsFile
from sidecar.ops.log import Log
from sidecar.ops.text_file import write_whole

_REMOVE_SECONDS_MAX: Final = 1.0


async def keep_written(
    file: MetricsFile,
    text: Callable[[], Awaitable[str]],
    log: Log,
    *,
    write: Callable[[Path, str], None] = write_whole,
    pause: Callable[[float], Awaitable[None]] = trio.sleep,
) -> None:
    """Until it is cancelled."""
    kept = _Kept(file.file, write)
    is_failing = False
    try:
        while True:
            why = await _done(partial(kept.write, await text()))
            if why is not None and not is_failing:
                log.warning("metrics_file_failed", file=file.file, why=why, now="tried again at each interval")
            elif why is None and is_failing:
                log.notice("metrics_file_written", file=file.file)
            is_failing = why is not None
            await pause(file.interval_seconds)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_SECONDS_MAX):
            await _done(kept.remove)


class _Kept:
    """The file, for threads one after the other: a write that was given up lands before the removal, or not at all."""

    def __init__(self, path: Path, write: Callable[[Path, str], None]) -> None:
        self._path = path
        self._write = write
        self._one = threading.Lock()
        self._is_over = False

    def write(self, text: str) -> None:
        with self._one:
            if not self._is_over:
                self._write(self._path, text)

    def remove(self) -> None:
        with self._one:
            self._is_over = True
            self._path.unlink(missing_ok=True)


async def _done(work: Callable[[], None]) -> str | None:
    """Why it could not be done, in a thread; None where it was."""
    try:
        await trio.to_thread.run_sync(work, abandon_on_cancel=True)
    except OSError as error:
        return error.strerror or str(error)
    except RuntimeError as fault:  # no thread can be started
        return str(fault)
    return None
