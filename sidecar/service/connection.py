"""One connection: frames in, decisions in order, answers out as they finish.

An idle connection is one task, its reader, which sleeps as long as frames come
whole: they are decided where they arrive. Each frame is decided before the next
one is looked at, and that waits for neither disk nor provider.
A connector that is waited for (`start_request`) and a replay that is read back
(`start_replay`) run in tasks that belong to the daemon, so that a caller that
hangs up doesn't stop what is paid for. What is sent is bounded by
`sidecar.service.outgoing`: a client that doesn't read its answers is not read
from any further, so its backlog is bounded by what it had already been admitted
for, and it is cut where even that becomes too much. Source: CONTRACT section 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import trio
from msgspec import structs

from sidecar.contract.client_frames import (
    PROTOCOL,
    TransportCancel,
    TransportHello,
    TransportStatus,
)
from sidecar.contract.frames import BadFrame, BrokenInvocation, FromClient, Invocation, Quote, parse
from sidecar.contract.operator_frames import OperatorFrame
from sidecar.contract.values import TransportErrorCode
from sidecar.rules.framing import FrameSize, FrameSplitter, framed
from sidecar.service.carrier import Hear
from sidecar.service.decision import Admitted, Answered, Joined, Replay
from sidecar.service.errors import error_frame
from sidecar.service.greeting import shown_name, welcome
from sidecar.service.outgoing import READ_ON_BYTES_MAX, Outgoing
from sidecar.service.peer import Standing
from sidecar.service.services import Services
from sidecar.service.stream import RECEIVE_BYTES_MAX, Stream

_FRAMES_PER_CHECKPOINT: Final = 16
UNDER_WAY_MAX: Final = 1024  # answers that one connection may wait for; above it, it is not read from
_REPLAYS_MAX: Final = 16  # read back from disk, or asked by an operator, at once for one connection
_DISCARD_SECONDS: Final = 1.0  # how long a client that is still sending may read why it was cut off


class _CutOff(Exception):
    """This connection can't go on; the frame says why."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self.frame = frame


class Connection:
    """Serves one connected peer until it has no more frames and no more answers."""

    def __init__(self, stream: Stream, standing: Standing, services: Services) -> None:
        self._stream = stream
        self._standing = standing
        self._services = services
        self._number = standing.connection
        self._is_told_of = False
        self._splitter = FrameSplitter(services.in_force.config.daemon.frame_bytes_max)
        self._outgoing = Outgoing(
            stream,
            backlogs=services.backlogs,
            start_writer=services.start_writer,
            at_end_of_turn=services.at_end_of_turn,
            on_change=self._wake,
            on_cut=self._tell_cut,
        )
        self._hello: TransportHello | None = None
        self._at_end = False  # the client has said all
        self._under_way = 0
        self._running: set[tuple[str, str]] | None = None  # what live events may be of, by caller and request id
        self._replaying = 0  # what operators ask included
        self._coming_bytes = 0  # of replays that are being read back
        self._changed: trio.Event | None = None

    async def serve(self) -> None:
        """Reads until end of file, lets the answers under way go out, and closes."""
        outgoing = self._outgoing
        try:
            await self._read_frames()
            await self._until_or_gone(lambda: self._under_way == 0 and not outgoing.writing)
        except _CutOff as cut:
            await self._cut_off(cut.frame)
        finally:
            outgoing.end()
            self._leave_all()
            await self._stream.aclose()

    # --- reading ----------------------------------------------------------------------------------------------

    async def _read_frames(self) -> None:
        for number in count(1):
            if not self._may_read():
                await self._until_or_gone(self._may_read)
            if self._outgoing.broken:
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
                raise _CutOff(self._error("frame_size", str(fault))) from fault
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._outgoing.stop()
                return
            if frame is None:
                return
            self._take(frame)
            del frame  # whoever needs it has it; an idle reader would hold it for as long as the client likes

    def _may_read(self) -> bool:
        outgoing = self._outgoing
        return outgoing.broken or (
            outgoing.unsent_bytes + self._coming_bytes <= READ_ON_BYTES_MAX
            and self._replaying < _REPLAYS_MAX
            and self._under_way < UNDER_WAY_MAX
        )

    def _arrived(self, received: bytes) -> bool:
        """Takes the frames that have come whole. Whether all is done that way; what is left is for the reader."""
        if not received:
            self._at_end = True
            return False
        only = self._splitter.only_frame(received)
        if only is not None and self._services.held.take_whole(len(only)):
            self._take(only)
            return self._may_read() and not self._outgoing.broken
        self._splitter.feed(received)
        for _ in range(_FRAMES_PER_CHECKPOINT):
            frame = self._whole_frame()
            if frame is None:
                break
            self._take(frame)
            if not self._may_read():
                return False
        return not self._splitter.in_frame and not self._outgoing.broken

    def _whole_frame(self) -> bytes | None:
        """The next frame if it is whole and may be held, its bytes taken from what may be held."""
        wanted = self._splitter.whole_bytes()
        return self._splitter.next_frame() if wanted is not None and self._services.held.take_whole(wanted) else None

    async def _rest_of_frame(self, deadline: float) -> bytes | None:
        splitter = self._splitter
        while (wanted := splitter.wanted_bytes()) is None:
            if not await self._receive_before(deadline):
                return None  # in the middle of a frame: there is nobody left to tell
        paused_at = trio.current_time()
        await self._services.held.take(wanted)
        deadline += trio.current_time() - paused_at  # time in which we don't read is not counted
        frame = None
        try:
            while splitter.whole_bytes() is None:
                if not await self._receive_before(deadline):
                    return None
            frame = splitter.next_frame()
        finally:
            if frame is None:
                self._services.held.give_up(wanted)
            else:
                self._services.held.arrived(wanted)
        return frame

    async def _receive_before(self, deadline: float) -> bool:
        """Whether something came; False at end of file."""
        with trio.move_on_at(deadline) as patience:
            received = await self._stream.receive_some(RECEIVE_BYTES_MAX)
            self._splitter.feed(received)
            return bool(received)
        assert patience.cancelled_caught
        late = f"a frame must be whole {self._frame_timeout_seconds:g} s after its first byte"
        raise _CutOff(self._error("frame_timeout", late))

    @property
    def _frame_timeout_seconds(self) -> float:
        return self._services.in_force.config.daemon.frame_timeout_seconds

    def _error(self, code: TransportErrorCode, why: str) -> bytes:
        self._services.meter.told_error(code)
        return error_frame(code, why)

    # --- deciding ---------------------------------------------------------------------------------------------

    def _take(self, frame: bytes) -> None:
        """Decides one frame. Its bytes stay held while an admitted request runs, and are given back otherwise."""
        parsed = parse(frame)
        if isinstance(parsed, Invocation | BrokenInvocation):
            self._invoked(parsed, len(frame))
            return
        self._services.held.give_back(len(frame))
        if isinstance(parsed, BadFrame):
            self._outgoing.send(self._error(parsed.code, parsed.message))
        elif isinstance(parsed, OperatorFrame):
            self._under_way += 1
            self._replaying += 1
            self._services.operate(self._standing, parsed, self._services.start_replay, self._operated)
        else:
            self._asked(parsed)

    def _invoked(self, invocation: Invocation | BrokenInvocation, held_bytes: int) -> None:
        services = self._services
        callers = self._standing.callers
        if not self._is_told_of:
            self._tell_connection()
        decision = services.exchange.decide(invocation, callers, joins=self._joins, connection=self._number)
        if isinstance(decision, Admitted):
            key = decision.live.caller, decision.live.request_id
            self._runs(key)
            services.exchange.carry(decision, services.start_request, partial(self._carried, held_bytes, key))
            self._listen_if_asked(key)
            return
        services.held.give_back(held_bytes)
        if isinstance(decision, Answered):
            self._outgoing.send(decision.frame)
        elif isinstance(decision, Joined):
            key = decision.caller, decision.request_id
            self._runs(key)
            services.exchange.join(decision, self, partial(self._carried, 0, key))
            self._listen_if_asked(key)
        else:
            self._under_way += 1
            self._coming_bytes += decision.length_bytes
            self._replaying += 1
            services.start_replay(partial(self._replay, decision))

    def _tell_connection(self) -> None:
        """Once it invokes: who only looks is told of by no line."""
        self._is_told_of = True
        peer, hello = self._standing.peer, self._hello
        client = hello.client if hello is not None else ""
        self._services.connections.tell(connection=self._number, uid=peer.uid, pid=peer.pid, client=client)

    def _asked(self, asked: FromClient) -> None:
        """A frame that asks for no request to be run."""
        exchange, callers = self._services.exchange, self._standing.callers
        if isinstance(asked, TransportHello):
            self._greeted(asked)
        elif isinstance(asked, Quote):
            self._outgoing.send(exchange.quote(asked, callers, joins=self._joins, connection=self._number))
        elif isinstance(asked, TransportCancel):
            exchange.cancel(asked, callers)
        else:
            assert isinstance(asked, TransportStatus)
            self._outgoing.send(self._services.report(self._standing))

    def _runs(self, key: tuple[str, str]) -> None:
        self._under_way += 1
        if self._running is None:
            self._running = set()
        self._running.add(key)

    def _carried(self, held_bytes: int, key: tuple[str, str], answer: bytes) -> None:
        self._services.held.give_back(held_bytes)
        assert self._running is not None, "what ends has run"
        self._running.discard(key)
        self._finish(answer)

    def _operated(self, answer: bytes) -> None:
        self._replaying -= 1
        self._finish(answer)

    async def _replay(self, replay: Replay) -> None:
        answer = await self._services.exchange.replay(replay)
        self._replaying -= 1
        self._coming_bytes -= replay.length_bytes
        self._finish(answer)

    def _finish(self, answer: bytes) -> None:
        self._under_way -= 1
        self._outgoing.send(answer)
        self._wake()

    # --- what a hello asks for --------------------------------------------------------------------------------

    @property
    def _joins(self) -> bool:
        return self._hello is not None and self._hello.join

    def _greeted(self, hello: TransportHello) -> None:
        """This hello stands in place of any before it, also for the requests of this connection that run."""
        if hello.protocol != PROTOCOL:
            why = f"protocol {hello.protocol} is asked for; this daemon speaks {PROTOCOL}"
            raise _CutOff(self._error("unsupported_protocol", why))
        self._hello = structs.replace(hello, client=shown_name(hello.client))  # a name of megabytes is not kept
        server, frame_bytes_max = self._services.server, self._splitter.frame_bytes_max
        self._outgoing.send(welcome(hello, self._standing, server=server, frame_bytes_max=frame_bytes_max))
        if hello.stream_events:
            for key in self._running or ():
                self._listen(key)

    def _listen_if_asked(self, key: tuple[str, str]) -> None:
        """To a request of this connection, unless it has ended already."""
        asked = self._hello is not None and self._hello.stream_events
        if asked and self._running and key in self._running:
            self._listen(key)

    def _listen(self, key: tuple[str, str]) -> None:
        self._services.exchange.hear(*key, self, self._live_events())

    def _live_events(self) -> Hear:
        """Takes one request's live events. Behind one that was dropped, or not asked for any more, none is sent:

        what has come has no gaps.
        """
        is_whole = True

        def hear(frame: bytes) -> None:
            nonlocal is_whole
            asked = self._hello is not None and self._hello.stream_events
            is_whole = is_whole and asked and self._outgoing.send_live(frame)
            self._services.meter.live_events_dropped += asked and not is_whole

        return hear

    # --- how it ends ------------------------------------------------------------------------------------------

    def _tell_cut(self, unsent_bytes: int) -> None:
        peer = self._standing.peer
        self._services.meter.slow_readers_cut += 1
        self._services.log.warning(
            "slow_reader_cut",
            connection=self._number,
            uid=peer.uid,
            pid=peer.pid,
            client=self._hello.client if self._hello is not None else "",
            unsent_bytes=unsent_bytes,
            under_way=self._under_way,
            now="its requests go on, and are there to be replayed",
        )

    async def _cut_off(self, why: bytes) -> None:
        """Sends why, ends the sending side, and briefly discards what still comes, so that why can be read."""
        outgoing = self._outgoing
        with trio.move_on_after(_DISCARD_SECONDS):
            await self._until(lambda: outgoing.broken or not outgoing.writing)
            if outgoing.broken:
                return
            outgoing.stop()  # an answer that finishes from here on is not written: the caller can replay it
            try:
                await self._stream.send_all(framed(why))
                await self._stream.send_eof()
                while await self._stream.receive_some(RECEIVE_BYTES_MAX):
                    pass
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def _until_or_gone(self, condition: Callable[[], bool]) -> None:
        """Until that holds, or nobody is there any more who could read an answer."""
        outgoing = self._outgoing
        if not outgoing.broken and not condition():
            with self._stream.telling_hang_up(self._gone):
                await self._until(lambda: outgoing.broken or condition())

    def _leave_all(self) -> None:
        """Nobody waits here any more: what was begun here goes on all the same, what was joined forgets us."""
        if self._running:
            for key in self._running:
                self._under_way -= self._services.exchange.leave(*key, self)
            self._running = set()

    def _gone(self) -> None:
        self._outgoing.stop()
        self._wake()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()
            self._changed = None
