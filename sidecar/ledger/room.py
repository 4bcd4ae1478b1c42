"""Where the next record goes, and whether there is room to settle every live request.

Disk is reserved like money. Space for records is written out ahead, in the
segment in use and in spare ones; a begin is taken only if, after it, every
live request could still be settled in space that is there. A settlement
without an answer takes at most `SETTLE_BYTES`, so room is counted in those. A
whole answer is recorded only if what remains settles all others.

The plan is made here, on the Trio side, and the writer follows it: each record
is given the segment that it goes to. While batches are not yet formed, each
record is counted as if it stood alone in a batch, which is never too little;
when a batch has landed, its real end takes the place of the estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sidecar.ledger.format import BATCH_HEADER_BYTES, BLOCK_BYTES

SETTLE_BYTES: Final = 2 * BLOCK_BYTES


class Slot:
    """A segment that is written out with zeros: a spare, or the one in use. Numbered when it is put to use."""

    def __init__(self, path: Path, descriptor: int, salt: bytes) -> None:
        self.path = path
        self.descriptor = descriptor
        self.salt = salt
        self.number = 0
        self.made_in_seconds = 0.0


class NoRoom(Exception):
    """The record does not fit where every live request could still be settled."""


class Room:
    """The plan of what is still to be written. All sizes are in bytes."""

    def __init__(
        self,
        segment_bytes: int,
        current: Slot,
        current_end: int,
        on_spare_used: Callable[[], None] = lambda: None,
    ) -> None:
        self._segment_bytes = segment_bytes
        self._a_spare_settles = _settled_by_a_spare(segment_bytes)
        self.current = current
        self._planned = deque([current])
        self._landed_end = current_end
        self._pending_bytes = 0
        self._on_spare_used = on_spare_used
        self.spares: deque[Slot] = deque()
        self.live = 0

    def settlements(self) -> int:
        """How many settlements fit into what is there."""
        here = (self._segment_bytes - self._landed_end - self._pending_bytes) // SETTLE_BYTES
        return here + len(self.spares) * self._a_spare_settles

    def place_begin(self, framed_bytes: int) -> Slot:
        """The segment for a begin record; from now on one more request is live. Raises NoRoom."""
        size = _alone(framed_bytes)
        # One more than the live ones: a clean exit has its own record to write.
        if self._settlements_after(size) < self.live + 2:
            raise NoRoom
        self.live += 1
        return self._place(size)

    def has_room_for(self, framed_bytes: int) -> bool:
        """Whether a completion of this size leaves room for every other live request."""
        return self._leaves_room(_alone(framed_bytes))

    def place_completion(self, framed_bytes: int, *, live: bool) -> Slot:
        """The segment for a completion; `live` where its request was begun in this process."""
        size = _alone(framed_bytes)
        if not live and self._settlements_after(size) < self.live + 1:
            raise NoRoom
        assert not live or self._leaves_room(size), "an answer is recorded that room_for has not allowed"
        slot = self._place(size)
        self.live -= live
        return slot

    def place_closed(self, framed_bytes: int) -> Slot:
        return self._place(_alone(framed_bytes))

    def turn(self) -> bool:
        """What is placed from now on goes to a new segment, if all live requests can be settled without the rest of
        this one. Whether it is so."""
        if self._landed_end == BLOCK_BYTES and not self._pending_bytes:
            return False  # nothing is placed in this one: it would have no file
        there = (self._segment_bytes - BLOCK_BYTES) // SETTLE_BYTES + (len(self.spares) - 1) * self._a_spare_settles
        if not self.spares or there < self.live + 2:
            return False
        self._go_on_in_a_spare()
        return True

    def landed(self, slot: Slot, end: int, framed_sizes: list[int]) -> None:
        """A batch is on disk and ends here."""
        while self._planned[0] is not slot:
            self._planned.popleft()
        if slot is self.current:
            self._landed_end = end
            self._pending_bytes -= sum(map(_alone, framed_sizes))

    def planned_behind(self, slot: Slot) -> list[Slot]:
        """The segments that records are given to and that the writer, which is in this one, has not come to."""
        return [planned for planned in self._planned if planned.number > slot.number]

    def _leaves_room(self, size: int) -> bool:
        return size <= SETTLE_BYTES or self._settlements_after(size) >= self.live

    def _settlements_after(self, size: int) -> int:
        """How many settlements would still fit if a record of this size were placed; -1 if it can't be."""
        left = self._segment_bytes - self._landed_end - self._pending_bytes - size
        if left >= 0:
            return left // SETTLE_BYTES + len(self.spares) * self._a_spare_settles
        if not self.spares or BLOCK_BYTES + size > self._segment_bytes:
            return -1
        there = (self._segment_bytes - BLOCK_BYTES - size) // SETTLE_BYTES
        return there + (len(self.spares) - 1) * self._a_spare_settles

    def _place(self, size: int) -> Slot:
        if self._landed_end + self._pending_bytes + size > self._segment_bytes:
            if not self.spares:
                raise NoRoom
            self._go_on_in_a_spare()
        self._pending_bytes += size
        return self.current

    def _go_on_in_a_spare(self) -> None:
        spare = self.spares.popleft()
        spare.number = self.current.number + 1
        self.current, self._landed_end, self._pending_bytes = spare, BLOCK_BYTES, 0
        self._planned.append(spare)
        self._on_spare_used()


def _alone(framed_bytes: int) -> int:
    """What a record takes that stands alone in its batch."""
    return -(-(BATCH_HEADER_BYTES + framed_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def spares_wanted(requests_in_flight_max: int, segment_bytes: int) -> int:
    """How many spare segments keep room to settle everything that may run, and one to go on in."""
    return 1 + -(-requests_in_flight_max // _settled_by_a_spare(segment_bytes))


def _settled_by_a_spare(segment_bytes: int) -> int:
    return (segment_bytes - BLOCK_BYTES) // SETTLE_BYTES
