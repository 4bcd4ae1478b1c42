"""One process at a time holds a ledger: the lock on a file in it, which dies with the process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from sidecar.ledger.faults import LedgerHeld
from sidecar.ledger.files import DiskFiles

_LOCK_NAME: Final = "lock"
_HOLDER_BYTES_MAX: Final = 80


def take_lock(files: DiskFiles, directory: Path) -> int:
    """The lock's descriptor, with our pid written into the file for whoever comes second.

    Raises LedgerHeld, or OSError where the file can't be written; then nothing is held.
    """
    path = directory / _LOCK_NAME
    lock = files.lock(path)
    if lock is None:
        holder = _read_holder(files, path)
        raise LedgerHeld(directory, f"pid {holder}" if holder else "another process")
    try:
        files.truncate(lock)
        files.write(lock, [f"{os.getpid()}\n".encode()], 0)
    except BaseException:
        files.close(lock)
        raise
    return lock


def hold_as_it_is(files: DiskFiles, directory: Path) -> int | None:
    """As `take_lock`, and changes nothing: for whoever only reads. None where there is no lock to take."""
    path = directory / _LOCK_NAME
    try:
        lock = files.open_to_read(path)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        files.close(lock)
        holder = _read_holder(files, path)
        raise LedgerHeld(directory, f"pid {holder}" if holder else "another process") from None
    except OSError:  # a file system without locks
        files.close(lock)
        return None
    return lock


def _read_holder(files: DiskFiles, path: Path) -> str:
    descriptor = files.open_to_read(path)
    try:
        return files.read(descriptor, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
    finally:
        files.close(descriptor)
