"""What this process takes of the machine, by /proc; nothing where that is hidden."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Takes(Struct, frozen=True):
    """Bytes resident and open descriptors are None where /proc doesn't say."""

    cpu_seconds: float
    resident_bytes: int | None
    open_descriptors: int | None


def takes(proc: Path = Path("/proc/self")) -> Takes:
    """As of now; a few microseconds."""
    return Takes(time.process_time(), _resident(proc), _descriptors(proc))


def _resident(proc: Path) -> int | None:
    try:
        return int((proc / "statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def _descriptors(proc: Path) -> int | None:
    try:
        return len(os.listdir(proc / "fd")) - 1  # without the one that this look has opened
    except OSError:
        return None
