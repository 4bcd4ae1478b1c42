"""Who is told how long the ledger's work took: on the Trio side, with the work that it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

Job = Literal["seal", "merge", "checkpoint", "remove"]


class Watch(Struct, frozen=True):
    """`on_batch` hears of each batch that has landed: its records, its bytes, and in seconds how long its first record
    waited for it, how long the write took, and how long the sync. `on_spare` and `on_upkeep` hear of seconds too.
    """

    on_batch: Callable[[int, int, float, float, float], None] = lambda records, size_bytes, waited, written, synced: (
        None
    )
    on_spare: Callable[[float], None] = lambda seconds: None
    on_upkeep: Callable[[Job, float], None] = lambda job, seconds: None


NOBODY_WATCHES = Watch()
