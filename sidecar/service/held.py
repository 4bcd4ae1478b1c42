"""How many bytes of frames the daemon holds at once, all connections together.

A frame is held from its length prefix until its request has ended or its
answer is decided. When the sum is reached, reading pauses between frames;
nothing is refused. Source: CONTRACT section 1.
"""

from __future__ import annotations

from collections import deque

import trio


class HeldBytes:
    """First come, first served, so that a large frame is not passed over for ever by small ones."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    def take_now(self, size_bytes: int) -> bool:
        """Whether this many bytes may be held, from now on, without a wait."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self._held += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Returns once this many bytes may be held. One frame is always let in, however large."""
        if self.take_now(size_bytes):
            return
        turn = (size_bytes, trio.Event())
        self._waiting.append(turn)
        try:
            await turn[1].wait()
        except trio.Cancelled:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._held -= size_bytes  # it was let in at the same moment
            self._let_in()
            raise

    def give_back(self, size_bytes: int) -> None:
        self._held -= size_bytes
        assert self._held >= 0, "more bytes are given back than were held"
        self._let_in()

    def _fits(self, size_bytes: int) -> bool:
        return self._held == 0 or self._held + size_bytes <= self._bytes_max

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, let_in = self._waiting.popleft()
            self._held += size_bytes
            let_in.set()
