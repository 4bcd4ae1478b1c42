"""What is unsent to all clients together, and who is cut off where that becomes too much.

One connection's backlog is bounded by `sidecar.service.outgoing`; this bounds
their sum. Only a client that is behind can be cut, one whose kernel buffer is
full, and of these the one that has taken nothing for the longest: who reads is
behind for moments only, and has just taken something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UNSENT_BYTES_MAX: Final = 268_435_456


class Backlogs:
    """Counts the unsent bytes of one daemon's connections, each with what cuts it off."""

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._behind: dict[Callable[[], None], None] = {}  # who has taken nothing for the longest comes first
        self.unsent_bytes = 0

    def grow(self, size_bytes: int) -> None:
        self.unsent_bytes += size_bytes
        self._keep_bound()

    def shrink(self, size_bytes: int) -> None:
        self.unsent_bytes -= size_bytes
        assert self.unsent_bytes >= 0, "more is sent than was unsent"

    def is_behind(self, cut: Callable[[], None]) -> None:
        """The kernel takes no more for this connection; or it has just taken something, and is behind still."""
        self._behind.pop(cut, None)
        self._behind[cut] = None
        self._keep_bound()

    def has_caught_up(self, cut: Callable[[], None]) -> None:
        """Nothing is unsent to it any more, or it is gone."""
        self._behind.pop(cut, None)

    def _keep_bound(self) -> None:
        while self.unsent_bytes > self._bytes_max and self._behind:
            cut = next(iter(self._behind))
            del self._behind[cut]
            cut()
