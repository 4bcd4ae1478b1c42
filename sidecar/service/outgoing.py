"""What is on its way to one client, in order, and never more than its bounds.

Answers are sent at the end of the loop's turn, live events at once; a writer is
needed only for what the kernel has not taken then. What a client doesn't read piles up here, so in
this order, each by the bytes that are unsent:

    above LIVE_BYTES_MAX       live events are dropped: the result carries them all
    above READ_ON_BYTES_MAX    the connection is not read from, so nothing more is admitted from it; if the client takes
                               less than 64 KiB in SILENT_SECONDS_MAX, the connection is cut
    above STALL_BYTES_MAX      the same in STALL_SECONDS_MAX
    above CUT_BYTES_MAX        the connection is cut at once

A cut costs no request anything: what runs is completed, and what is on record
is replayed to whoever asks again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from sidecar.rules.framing import framed
from sidecar.service.stream import Stream
from sidecar.service.tasks import Start
from sidecar.service.turn import Act

LIVE_BYTES_MAX: Final = 262_144
READ_ON_BYTES_MAX: Final = 1_048_576
STALL_BYTES_MAX: Final = 8_388_608
CUT_BYTES_MAX: Final = 67_108_864
SILENT_SECONDS_MAX: Final = 60.0
STALL_SECONDS_MAX: Final = 5.0
_PIECE_BYTES: Final = 65_536  # of a large frame, so that its progress is seen


class Outgoing:
    """The sending half of one connection. `on_change` is called when it may have become less, or has broken."""

    def __init__(
        self,
        stream: Stream,
        *,
        start_writer: Start,
        at_end_of_turn: Callable[[Act], None],
        on_change: Callable[[], None],
        on_cut: Callable[[int], None],
    ) -> None:
        self._stream = stream
        self._start_writer = start_writer
        self._at_end_of_turn = at_end_of_turn
        self._on_change = on_change
        self._on_cut = on_cut
        self._frames: deque[bytes] | None = None  # an idle connection has none
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
        self.broken = True
        self._on_change = _tell_nobody
        self._on_cut = _tell_nobody

    def _queue(self, frame: bytes, when: Callable[[Act], None]) -> None:
        """Behind what is on its way; where nothing is, it is written `when` says."""
        if self.broken:
            return
        outgoing = framed(frame)
        if self._frames is None:
            self._frames = deque()
        self._frames.append(outgoing)
        self.unsent_bytes += len(outgoing)
        if self.unsent_bytes > CUT_BYTES_MAX:
            self._cut()
        elif not self.writing:
            self.writing = True
            when(self._write_now)
        else:
            self._be_patient(again=False)

    # --- writing ----------------------------------------------------------------------------------------------

    def _write_now(self) -> None:
        """What the kernel takes without a wait, which is most answers; the rest is for a task."""
        frames = self._frames
        try:
            while frames and not self.broken:
                sent = self._stream.send_now(frames[0])
                self.unsent_bytes -= sent
                if sent < len(frames[0]):
                    frames[0] = frames[0][sent:]
                    self._start_writer(self._write)
                    return
                frames.popleft()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.broken = True
        self._written()

    async def _write(self) -> None:
        with trio.CancelScope() as patience:
            self._patience = patience
            self._be_patient(again=True)
            try:
                while self._frames and not self.broken:
                    await self._write_one(self._frames.popleft())
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.broken = True
            finally:
                self._patience = None
                if patience.cancel_called:
                    self._cut()
                self._written()

    async def _write_one(self, frame: bytes) -> None:
        whole = memoryview(frame)
        for at in range(0, len(whole), _PIECE_BYTES):
            piece = whole[at : at + _PIECE_BYTES]
            await self._stream.send_all(piece)
            self.unsent_bytes -= len(piece)
            self._be_patient(again=True)
            self._on_change()

    def _written(self) -> None:
        self.writing = False
        self._frames = None
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
        self.broken = True
        self._on_cut(self.unsent_bytes)
        self._frames = None
        self._stream.hang_up()
        self._on_change()


def _at_once(act: Act) -> None:
    act()


def _tell_nobody(_: int = 0) -> None:
    return
