"""What is on its way to one client, in order, and never more than its bounds.

Answers are sent at the end of the loop's turn, live events at once; a writer is
needed only for what the kernel has not taken then. A frame that many wait for
is one in memory, and counts once for each connection. What a client doesn't
read piles up here, so in this order, each by the bytes that are unsent:

    above LIVE_BYTES_MAX       live events are dropped: the result carries them all
    above READ_ON_BYTES_MAX    the connection is not read from, so nothing more is admitted from it; if the client takes
                               less than 64 KiB in SILENT_SECONDS_MAX, the connection is cut
    above STALL_BYTES_MAX      the same in STALL_SECONDS_MAX

and where all connections together have too much unsent, `sidecar.service.backlogs`
cuts the one that has taken nothing for the longest. A cut costs no request
anything: what runs is completed, and what is on record is replayed to whoever
asks again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from sidecar.rules.framing import PREFIX_BYTES, framed
from sidecar.service.backlogs import Backlogs
from sidecar.service.stream import Stream
from sidecar.service.tasks import Start
from sidecar.service.turn import Act

LIVE_BYTES_MAX: Final = 262_144
READ_ON_BYTES_MAX: Final = 1_048_576
STALL_BYTES_MAX: Final = 8_388_608
SILENT_SECONDS_MAX: Final = 60.0
STALL_SECONDS_MAX: Final = 5.0
_PIECE_BYTES: Final = 65_536  # of a large frame, so that its progress is seen


class _Entry:
    """A frame that is to be sent, `times` over."""

    __slots__ = ("frame", "times")

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.times = 1


class Outgoing:
    """The sending half of one connection. `on_change` is called when it may have become less, or has broken."""

    def __init__(
        self,
        stream: Stream,
        *,
        backlogs: Backlogs,
        start_writer: Start,
        at_end_of_turn: Callable[[Act], None],
        on_change: Callable[[], None],
        on_cut: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._backlogs = backlogs
        self._start_writer = start_writer
        self._at_end_of_turn = at_end_of_turn
        self._on_change = on_change
        self._on_cut = on_cut
        self._entries: deque[_Entry] | None = None  # an idle connection has none
        self._rest: list[bytes | memoryview] = []  # of the frame that is being sent
        self._patience: trio.CancelScope | None = None  # of the writer, while one runs
        self.unsent_bytes = 0
        self.writing = False
        self.broken = False

    def send(self, frame: bytes) -> None:
        """An answer; the length prefix is put before it. Nothing where the connection has broken."""
        self._queue(frame, self._at_end_of_turn)

    def send_live(self, frame: bytes) -> bool:
        """A live event, at once, if there is room for it or nothing else is unsent; False where it was dropped."""
        if self.unsent_bytes and self.unsent_bytes + len(frame) > LIVE_BYTES_MAX:
            return False
        self._queue(frame, _at_once)  # a provider's events come one by one: there is nothing to send it together with
        return True

    def end(self) -> None:
        """Nothing is sent from here on and nobody told, so that this and who owns it don't keep each other alive."""
        self.stop()
        self._on_change = _tell_nobody
        self._on_cut = _tell_nobody

    def _queue(self, frame: bytes, when: Callable[[Act], None]) -> None:
        """Behind what is on its way; where nothing is, it is written `when` says."""
        if self.broken:
            return
        if self._entries is None:
            self._entries = deque()
        is_under_way = bool(self._rest) and len(self._entries) == 1
        if self._entries and not is_under_way and self._entries[-1].frame is frame:
            self._entries[-1].times += 1
        else:
            self._entries.append(_Entry(frame))
            self.unsent_bytes += PREFIX_BYTES + len(frame)
            self._backlogs.grow(PREFIX_BYTES + len(frame))
        if not self.writing and not self.broken:
            self.writing = True
            when(self._write_now)
        else:
            self._be_patient(again=False)

    # --- writing ----------------------------------------------------------------------------------------------

    def _write_now(self) -> None:
        """What the kernel takes without a wait, which is most answers; the rest is for a task."""
        try:
            while (piece := self._next_piece()) is not None:
                sent = self._stream.send_now(piece)
                self._has_sent(sent)
                if sent < len(piece):
                    self._backlogs.is_behind(self._cut)
                    self._start_writer(self._write)
                    return
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.stop()
        self._written()

    async def _write(self) -> None:
        with trio.CancelScope() as patience:
            self._patience = patience
            self._be_patient(again=True)
            try:
                while (piece := self._next_piece()) is not None:
                    await self._stream.send_all(piece[:_PIECE_BYTES])
                    self._has_sent(min(len(piece), _PIECE_BYTES))
                    self._be_patient(again=True)
                    if not self.broken:
                        self._backlogs.is_behind(self._cut)
                    self._on_change()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.stop()
            finally:
                self._patience = None
                if patience.cancel_called:
                    self._cut()
                self._backlogs.has_caught_up(self._cut)
                self._written()

    def _next_piece(self) -> bytes | memoryview | None:
        """What is to be sent next, of the frame under way or of the next one; None where there is none."""
        if self.broken:
            return None
        if not self._rest:
            if not self._entries:
                return None
            frame = self._entries[0].frame
            # A large frame may be shared by many connections, and is not copied.
            small = len(frame) <= _PIECE_BYTES
            self._rest = [framed(frame)] if small else [len(frame).to_bytes(PREFIX_BYTES, "big"), memoryview(frame)]
        return self._rest[0]

    def _has_sent(self, size_bytes: int) -> None:
        """So much of the piece has left; of a frame that is sent again, it is unsent still."""
        if self.broken or not self._entries:
            return
        entry, piece = self._entries[0], self._rest[0]
        if entry.times == 1:
            self.unsent_bytes -= size_bytes
            self._backlogs.shrink(size_bytes)
        if size_bytes < len(piece):
            self._rest[0] = memoryview(piece)[size_bytes:]
            return
        del self._rest[0]
        if not self._rest:
            entry.times -= 1
            if not entry.times:
                self._entries.popleft()

    def _written(self) -> None:
        self.writing = False
        self._entries = None
        self._rest = []
        self._on_change()

    # --- a client that doesn't read ---------------------------------------------------------------------------

    def _be_patient(self, *, again: bool) -> None:
        """How long the writer may take for its next piece; from now on, if it has just made progress."""
        if self._patience is None:
            return
        seconds_max = math.inf
        if self.unsent_bytes > READ_ON_BYTES_MAX:
            seconds_max = STALL_SECONDS_MAX if self.unsent_bytes > STALL_BYTES_MAX else SILENT_SECONDS_MAX
        deadline = trio.current_time() + seconds_max
        self._patience.deadline = deadline if again else min(deadline, self._patience.deadline)

    def _cut(self) -> None:
        if self.broken:
            return
        unsent_bytes = self.unsent_bytes
        self.stop()
        self._on_cut(unsent_bytes)
        self._stream.hang_up()
        self._on_change()

    def stop(self) -> None:
        """Nothing is sent any more, and nothing kept for it."""
        self.broken = True
        self._backlogs.shrink(self.unsent_bytes)
        self._backlogs.has_caught_up(self._cut)
        self.unsent_bytes = 0
        self._entries = None
        self._rest = []


def _at_once(act: Act) -> None:
    act()


def _tell_nobody(_: int = 0) -> None:
    return
