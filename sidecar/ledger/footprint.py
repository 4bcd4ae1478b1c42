"""What a ledger takes of its disk, by a look at its directory. It may wait for the disk: for a thread."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

_BLOCK_BYTES: Final = 512  # the unit of st_blocks
_MS_PER_NS: Final = 1_000_000


class Footprint(Struct, frozen=True):
    """`size_bytes` is what the files take, their holes left out; `checkpoint_unix_ms` None where there is none."""

    segments: int
    size_bytes: int
    free_bytes: int
    checkpoint_unix_ms: int | None


def footprint(directory: Path) -> Footprint:
    """Raises OSError where the directory can't be looked at. A file that goes meanwhile is not counted."""
    segments, size_bytes, checkpoints = 0, 0, [0]
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            size_bytes += status.st_blocks * _BLOCK_BYTES
            segments += entry.name.endswith(".segment")
            if entry.name.endswith(".checkpoint"):
                checkpoints.append(status.st_mtime_ns // _MS_PER_NS)
    room = os.statvfs(directory)
    return Footprint(segments, size_bytes, room.f_bavail * room.f_frsize, max(checkpoints) or None)
