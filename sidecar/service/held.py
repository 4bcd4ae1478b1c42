"""How many bytes of frames the daemon holds at once, all connections together.

A frame is held from its length prefix until its request has ended or its
answer is decided. When the sum is reached, reading pauses between frames;
nothing is refused. A frame that comes whole waits only for what is whole as
well, so for a moment both together may be up to twice the bound. Source: CONTRACT section 1.
"""

from __future__ import annotations

from collections import deque

import trio


class HeldBytes:
    """First come, first served, so that a large frame is not passed over for ever by small ones."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._coming = 0  # held for frames that are not whole yet
        self._waiting: deque[tuple[int, trio.Event]] = deque()

    @property
    def held_bytes(self) -> int:
        return self._held

    def change(self, bytes_max: int) -> None:
        """Another bound from now on; what is held above it is given back as its requests end."""
        self._bytes_max = bytes_max
        self._let_in()

    def take_whole(self, size_bytes: int) -> bool:
        """Whether a frame that has come whole may be held, from now on, without a wait.

        It is in memory already, so what others have only declared is not counted against it: four bytes of theirs
        could hold it up else, for as long as a frame may take.
        """
        whole = self._held - self._coming
        if whole and whole + size_bytes > self._bytes_max:
            return False
        self._held += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Returns once a frame of this size, which is not whole yet, may be held. One is always let in, however large.

        `arrived` says that it is whole, `give_up` that it never will be.
        """
        if not self._waiting and self._fits(size_bytes):
            self._held += size_bytes
            self._coming += size_bytes
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
                self._coming -= size_bytes
            self._let_in()
            raise

    def arrived(self, size_bytes: int) -> None:
        self._coming -= size_bytes
        assert self._coming >= 0, "more bytes have arrived than were coming"

    def give_up(self, size_bytes: int) -> None:
        self.arrived(size_bytes)
        self.give_back(size_bytes)

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
            self._coming += size_bytes
            let_in.set()
