"""The file that the node exporter's text-file collector reads: written again and again, gone at a clean end.

It is written in a thread, so a disk that hangs holds up nothing but this file,
whose age tells of it. A failure is one line in the log, and so is its end. At
a clean end the file goes, so that what no longer runs is not told as running;
a crash leaves it, and its age tells. Source: ECOSYSTEM section 4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
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
    is_failing = False
    try:
        while True:
            why = await _written(file.file, await text(), write)
            if why is not None and not is_failing:
                log.warning("metrics_file_failed", file=file.file, why=why, now="tried again at each interval")
            elif why is None and is_failing:
                log.notice("metrics_file_written", file=file.file)
            is_failing = why is not None
            await pause(file.interval_seconds)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REMOVE_SECONDS_MAX):
            await trio.to_thread.run_sync(_remove, file.file, abandon_on_cancel=True)


async def _written(path: Path, text: str, write: Callable[[Path, str], None]) -> str | None:
    """Why it is not, or None."""
    try:
        await trio.to_thread.run_sync(write, path, text, abandon_on_cancel=True)
    except OSError as error:
        return error.strerror or str(error)
    except RuntimeError as fault:  # no thread can be started
        return str(fault)
    return None


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
