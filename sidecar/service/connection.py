"""One connection: frames in, decisions in order, answers out as they finish.

An idle connection is one task, its reader, which sleeps as long as frames come
whole: they are decided where they arrive. Each frame is decided before the next
one is looked at, and that waits for neither disk nor provider.
A connector that is waited for (`start_request`) and a replay that is read back
(`start_replay`) run in tasks that belong to the daemon, so that a caller that
hangs up doesn't stop what is paid for. Answers are sent at
the end of the loop's turn; a writer is needed only for what the kernel has not
taken then. A client that doesn't read its answers is not read from any further,
so its backlog is bounded by what it had already been admitted for. Source:
CONTRACT section 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import trio

from sidecar.contract.frames import BadFrame, parse
from sidecar.contract.operator_frames import OperatorCheck, OperatorFrame, OperatorResolve
from sidecar.rules.framing import FrameSize, FrameSplitter, framed
from sidecar.service.carrier import GiveAnswer
from sidecar.service.decision import Admitted, Answered, Decision, Replay
from sidecar.service.errors import error_frame
from sidecar.service.exchange import Exchange
from sidecar.service.held import HeldBytes
from sidecar.service.stream import RECEIVE_BYTES_MAX, Stream
from sidecar.service.tasks import Start
from sidecar.service.turn import Act

_FRAMES_PER_CHECKPOINT: Final = 16
_UNSENT_BYTES_MAX: Final = 1_048_576  # above this, the connection is not read from
_REPLAYS_MAX: Final = 16  # read back from disk, or asked by an operator, at once for one connection
_DISCARD_SECONDS: Final = 1.0  # how long a client that is still sending may read why it was cut off


Operate = Callable[[OperatorFrame, Start, GiveAnswer], None]


class _CutOff(Exception):
    """This connection can't go on; the frame says why."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame


class Connection:
    """Serves one connected peer until it has no more frames and no more answers."""

    def __init__(
        self,
        stream: Stream,
        callers: frozenset[str],
        exchange: Exchange,
        held: HeldBytes,
        *,
        frame_bytes_max: int,
        frame_timeout_seconds: float,
        start_request: Start,
        start_replay: Start,
        start_writer: Start,
        at_end_of_turn: Callable[[Act], None],
        operate: Operate,
    ) -> None:
        self._stream = stream
        self._callers = callers
        self._exchange = exchange
        self._held = held
        self._splitter = FrameSplitter(frame_bytes_max)
        self._frame_timeout_seconds = frame_timeout_seconds
        self._start_request = start_request
        self._start_replay = start_replay
        self._start_writer = start_writer
        self._at_end_of_turn = at_end_of_turn
        self._operate = operate
        self._outgoing: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._writing = False
        self._broken = False
        self._at_end = False  # the client has said all
        self._under_way = 0
        self._replaying = 0  # what operators ask included
        self._coming_bytes = 0  # of replays that are being read back
        self._changed = trio.Event()

    async def serve(self) -> None:
        """Reads until end of file, lets the answers under way go out, and closes."""
        try:
            await self._read_frames()
            await self._until(lambda: self._broken or (self._under_way == 0 and not self._writing))
        except _CutOff as cut:
            await self._cut_off(cut.frame)
        finally:
            self._broken = True
            await self._stream.aclose()

    # --- reading ----------------------------------------------------------------------------------------------

    async def _read_frames(self) -> None:
        for number in count(1):
            if not self._may_read():
                await self._until(self._may_read)
            if self._broken:
                return
            if number % _FRAMES_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()  # one read may bring thousands of small frames
            try:
                if not self._splitter.in_frame:
                    await self._stream.receive_each(self._arrived)  # idle here, as long as it likes
                    if self._at_end:
                        return
                    continue
                frame = self._whole_frame()
                if frame is None:
                    frame = await self._rest_of_frame(trio.current_time() + self._frame_timeout_seconds)
            except FrameSize as fault:
                raise _CutOff(error_frame("frame_size", str(fault))) from fault
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._broken = True
                return
            if frame is None:
                return
            self._take(frame)

    def _may_read(self) -> bool:
        return self._broken or (
            self._unsent_bytes + self._coming_bytes <= _UNSENT_BYTES_MAX and self._replaying < _REPLAYS_MAX
        )

    def _arrived(self, received: bytes) -> bool:
        """Takes the frames that have come whole. Whether all is done that way; what is left is for the reader."""
        if not received:
            self._at_end = True
            return False
        only = self._splitter.only_frame(received)
        if only is not None and self._held.take_whole(len(only)):
            self._take(only)
            return self._may_read() and not self._broken
        self._splitter.feed(received)
        for _ in range(_FRAMES_PER_CHECKPOINT):
            frame = self._whole_frame()
            if frame is None:
                break
            self._take(frame)
            if not self._may_read():
                return False
        return not self._splitter.in_frame and not self._broken

    def _whole_frame(self) -> bytes | None:
        """The next frame if it is whole and may be held, its bytes taken from what may be held."""
        wanted = self._splitter.whole_bytes()
        return self._splitter.next_frame() if wanted is not None and self._held.take_whole(wanted) else None

    async def _rest_of_frame(self, deadline: float) -> bytes | None:
        splitter = self._splitter
        while (wanted := splitter.wanted_bytes()) is None:
            if not await self._receive_before(deadline):
                return None  # in the middle of a frame: there is nobody left to tell
        paused_at = trio.current_time()
        await self._held.take(wanted)
        deadline += trio.current_time() - paused_at  # time in which we don't read is not counted
        frame = None
        try:
            while splitter.whole_bytes() is None:
                if not await self._receive_before(deadline):
                    return None
            frame = splitter.next_frame()
        finally:
            if frame is None:
                self._held.give_up(wanted)
            else:
                self._held.arrived(wanted)
        return frame

    async def _receive_before(self, deadline: float) -> bool:
        """Whether something came; False at end of file."""
        with trio.move_on_at(deadline) as patience:
            received = await self._stream.receive_some(RECEIVE_BYTES_MAX)
            self._splitter.feed(received)
            return bool(received)
        assert patience.cancelled_caught
        raise _CutOff(error_frame("frame_timeout", self._timeout_message()))

    def _timeout_message(self) -> str:
        return f"a frame must be whole {self._frame_timeout_seconds:g} s after its first byte"

    # --- deciding ---------------------------------------------------------------------------------------------

    def _take(self, frame: bytes) -> None:
        """Decides one frame. Its bytes stay held while an admitted request runs, and are given back otherwise."""
        parsed = parse(frame)
        if isinstance(parsed, OperatorResolve | OperatorCheck):
            self._held.give_back(len(frame))
            self._under_way += 1
            self._replaying += 1
            self._operate(parsed, self._start_replay, self._operated)
            return
        if isinstance(parsed, BadFrame):
            decision: Decision = Answered(error_frame(parsed.code, parsed.message))
        else:
            decision = self._exchange.decide(parsed, self._callers)
        if isinstance(decision, Admitted):
            self._under_way += 1
            self._exchange.carry(decision, self._start_request, partial(self._carried, len(frame)))
            return
        self._held.give_back(len(frame))
        if isinstance(decision, Answered):
            self._send(decision.frame)
        else:
            self._under_way += 1
            self._coming_bytes += decision.length_bytes
            self._replaying += 1
            self._start_replay(partial(self._replay, decision))

    def _carried(self, held_bytes: int, answer: bytes) -> None:
        self._held.give_back(held_bytes)
        self._finish(answer)

    def _operated(self, answer: bytes) -> None:
        self._replaying -= 1
        self._finish(answer)

    async def _replay(self, replay: Replay) -> None:
        answer = await self._exchange.replay(replay)
        self._replaying -= 1
        self._coming_bytes -= replay.length_bytes
        self._finish(answer)

    def _finish(self, answer: bytes) -> None:
        self._under_way -= 1
        self._send(answer)
        self._wake()

    # --- writing ----------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        if self._broken:
            return
        outgoing = framed(frame)
        self._outgoing.append(outgoing)
        self._unsent_bytes += len(outgoing)
        if not self._writing:
            self._writing = True
            self._at_end_of_turn(self._write_now)

    def _write_now(self) -> None:
        """What the kernel takes without a wait, which is most answers; the rest is for a task."""
        try:
            while self._outgoing and not self._broken:
                sent = self._stream.send_now(self._outgoing[0])
                if sent < len(self._outgoing[0]):
                    self._outgoing[0] = self._outgoing[0][sent:]
                    self._unsent_bytes -= sent
                    self._start_writer(self._write)
                    return
                self._outgoing.popleft()
                self._unsent_bytes -= sent
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._broken = True
        self._writing = False
        self._wake()

    async def _write(self) -> None:
        try:
            while self._outgoing and not self._broken:
                outgoing = self._outgoing.popleft()
                await self._stream.send_all(outgoing)
                self._unsent_bytes -= len(outgoing)
                self._wake()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._broken = True
        finally:
            self._writing = False
            self._wake()

    async def _cut_off(self, why: bytes) -> None:
        """Sends why, ends the sending side, and briefly discards what still comes, so that why can be read."""
        with trio.move_on_after(_DISCARD_SECONDS):
            await self._until(lambda: self._broken or not self._writing)
            self._broken = True  # an answer that finishes from here on is not written: the caller can replay it
            try:
                await self._stream.send_all(framed(why))
                await self._stream.send_eof()
                while await self._stream.receive_some(RECEIVE_BYTES_MAX):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def _wake(self) -> None:
        self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()
