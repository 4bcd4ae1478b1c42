"""A file that is there whole or not at all: written under another name, synced, and only then renamed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.ledger.files import DiskFiles

TEMPORARY_SUFFIX: Final = ".tmp"


def write_whole(files: DiskFiles, path: Path, fill: Callable[[int], None]) -> None:
    """`fill` writes to the descriptor that it is given. In the place of what had this name. Raises OSError, and what
    `fill` raises; what was begun is removed then."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with suppress(FileNotFoundError):
        files.unlink(temporary)
    descriptor = files.create(temporary)
    try:
        try:
            fill(descriptor)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            files.unlink(temporary)
        raise
    files.sync_directory(path.parent)
