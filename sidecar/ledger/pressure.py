"""No spare segment can be made: why, told once, and over with the next that is made (CONTRACT section 4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from sidecar.ledger.files import DiskFiles
from sidecar.ledger.room import Room, Slot
from sidecar.ledger.terms import Terms

_DISK_FULL_ADVICE: Final = "it goes on by itself when there is room"


class Pressure:
    """What the spare maker tells, taken over to the Trio side."""

    def __init__(
        self,
        files: DiskFiles,
        directory: Path,
        room: Callable[[], Room],
        terms: Terms,
    ) -> None:
        self._files = files
        self._directory = directory
        self._room = room
        self._needed_bytes = terms.segment_bytes
        self._on_change = terms.on_pressure
        self._on_spare = terms.watch.on_spare
        self._token: trio.lowlevel.TrioToken
        self.why: str | None = None

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    def explain(self, error: Exception) -> str:
        """A sentence for an operator: what failed, how much is needed, how much is free."""
        try:
            had = f"{self._files.free_bytes(self._directory)} are free"
        except OSError as unknown:
            had = f"how many are free can't be told ({unknown.strerror or unknown})"
        return (
            f"no spare segment can be made ({getattr(error, 'strerror', None) or error}):"
            f" {self._needed_bytes} bytes are needed and"
            f" {had} in {self._directory}; {_DISK_FULL_ADVICE}"
        )

    def spare_made(self, spare: Slot) -> None:
        def ready() -> None:
            self._room().spares.append(spare)
            self._on_spare(spare.made_in_seconds)
            self._changed(None)

        self._on_trio_side(ready)

    def spare_failed(self, why: str) -> None:
        self._on_trio_side(lambda: self._changed(why))

    def _changed(self, why: str | None) -> None:
        """Tells of the first failure and of the success that ends it, not of each try in between."""
        is_news = (why is None) != (self.why is None)
        self.why = why
        if is_news:
            self._on_change(why)

    def _on_trio_side(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback)
        except trio.RunFinishedError:
            return
