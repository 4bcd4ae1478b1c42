"""A text file that others read while it is written again and again: they find the old text or the new one, whole."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o644  # who collects it is another user


def temporary_for(path: Path) -> Path:
    """Beside it, of this thread alone, with an end that collectors don't take."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")


def write_whole(path: Path, text: str) -> None:
    """Raises OSError; then what was there stands as it was. It is not synced: what it says is old after a crash."""
    temporary = temporary_for(path)
    with suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, MODE)  # whatever the umask
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
