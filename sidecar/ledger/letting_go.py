"""The end of a ledger's use: files that were open are closed, spares removed, and last of all the lock let go."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from sidecar.ledger import spares
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.room import Slot
from sidecar.ledger.sealed import Sealed


def let_go(files: DiskFiles, current: Slot, unused: list[Slot], seals: Iterable[Sealed], lock: int) -> None:
    """What fails here loses nothing: all that was acknowledged is synced, the next open removes spares, and how the
    process ends is for `poisoned` to say."""
    spares.let_go(files, unused, [current, *unused])
    for seal in seals:
        with suppress(OSError):
            seal.close()
    with suppress(OSError):
        files.let_directory_go()
    with suppress(OSError):
        files.close(lock)
