"""The daemon of one vector: knows what bytes must come, and plays what its scene says.

A scene waits for the frames of its actions, in any order and on any connection,
and answers on the connection on which they came. What comes that should not,
or comes otherwise than it should, is a fault with a sentence; the scene goes on
all the same, so that one wrong byte is not told as a silence. A hello is
answered with a welcome wherever it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio

from sidecar.conformance.differences import difference, shown, value_difference
from sidecar.conformance.fresh import canonical, decoded
from sidecar.conformance.scenes import Action, Plain, Scene, error, joined
from sidecar.contract.client_frames import (
    PROTOCOL,
    TRANSPORT_CANCEL,
    TRANSPORT_HELLO,
    TRANSPORT_QUOTE,
    TRANSPORT_STATUS,
    TRANSPORT_WELCOME,
    BrokenClientFrame,
    TransportHello,
    parse_from_client,
)
from sidecar.contract.values import TRANSPORT_INVOCATION
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

FRAME_BYTES_MAX: Final = 4_194_304
_RECEIVE_BYTES_MAX: Final = 65_536
_FAULTS_MAX: Final = 20

Key = tuple[str, Any, Any]


class Line:
    """One connection of the client."""

    def __init__(self, number: int, stream: trio.SocketStream) -> None:
        self.number = number
        self.hello: TransportHello | None = None
        self._stream = stream
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        self._sending = trio.Lock()

    @property
    def streams(self) -> bool:
        """Whether its hello asks for live events."""
        return self.hello is not None and self.hello.stream_events

    async def send(self, *frames: bytes) -> None:
        """All of them in one write."""
        await self.send_raw(b"".join(map(framed, frames)))

    async def send_raw(self, sent: bytes) -> None:
        """In whole, also where a welcome and an answer go out at once."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the client has left, as its outcome says
            async with self._sending:
                await self._stream.send_all(sent)

    async def send_in_pieces(self, sent: bytes, cuts: Sequence[int]) -> None:
        """A write for each piece; others get their turn in between."""
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            await self.send_raw(sent[begin:end])
            await trio.sleep(0.002)  # so that a client that is read from meanwhile meets the pieces apart

    async def hang_up(self) -> None:
        await self._stream.aclose()

    async def frame(self) -> bytes | None:
        """The client's next frame; None at its end. Raises FrameSize."""
        while (frame := self._splitter.next_frame()) is None:
            try:
                received = await self._stream.receive_some(_RECEIVE_BYTES_MAX)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return None
            if not received:
                return None
            self._splitter.feed(received)
        return frame


class Arrival:
    """A frame that an action's client has sent."""

    def __init__(self, line: Line, action: Action) -> None:
        self.line = line
        self.action = action


class Stage:
    """`faults` is what the client did wrong; `waiting_for` says what the scene waits for, where it does."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.faults: list[str] = []
        self.waiting_for: str | None = None
        self.told: list[list[Plain]] = [[] for _ in scene.actions]  # live events that the driver has told
        self.over = trio.Event()
        self._keys = {_key(decoded(action.frame)): at for at, action in enumerate(scene.actions)}
        self._arrived: list[deque[Arrival]] = [deque() for _ in scene.actions]
        self._counts = [0 for _ in scene.actions]
        self._hello_on: list[bool | None] = [None for _ in scene.actions]
        self._lines = 0
        self._open = 0
        self._changed = trio.lowlevel.ParkingLot()

    # --- for scenes -------------------------------------------------------------------------------------------

    async def asked(self, at: int = 0) -> Arrival:
        """The next time that the frame of this action comes."""
        action = self.scene.actions[at]
        again = " again" if self._counts[at] else ""
        await self._until(lambda: bool(self._arrived[at]), f"the frame of action {at} ({action.do}){again}")
        return self._arrived[at].popleft()

    async def handed(self, at: int, *events: Any) -> None:
        """Until the driver has told of these live events, however they are cut."""
        wanted = joined([msgspec.to_builtins(one) for one in events])
        await self._until(
            lambda: _covers(joined(self.told[at]), wanted),
            f"action {at}'s driver to tell of the live event {shown(wanted[-1])}, before the result is sent",
        )

    # --- for the runner ---------------------------------------------------------------------------------------

    async def run(self) -> None:
        if self.scene.serves is not None:
            await self.scene.serves(self)
        self.over.set()

    def fault(self, why: str) -> None:
        if len(self.faults) < _FAULTS_MAX:
            self.faults.append(why)

    def tell(self, at: int, one: Plain) -> None:
        """A line of the driver: the program has got this event."""
        self.told[at].append(one)
        self._wake()

    async def all_closed(self) -> None:
        """Until the client has left every connection."""
        while self._open:
            await self._changed.park()

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, until the client leaves it."""
        line = Line(self._lines, stream)
        self._lines += 1
        self._open += 1
        try:
            async with stream:
                if self.scene.greets is None or await self.scene.greets(line):
                    await self._serve(line)
        finally:
            self._open -= 1
            self._wake()

    async def _serve(self, line: Line) -> None:
        try:
            while (frame := await line.frame()) is not None:
                await self._take(line, frame)
        except FrameSize as fault:
            self.fault(f"the client sent what is no frame: {fault}")
            await line.send(error("frame_size"))

    async def _until(self, condition: Callable[[], bool], waiting_for: str) -> None:
        """For the scene, which waits for one thing at a time."""
        while not condition():
            self.waiting_for = waiting_for
            await self._changed.park()
        self.waiting_for = None

    def _wake(self) -> None:
        self._changed.unpark_all()

    # --- what comes -------------------------------------------------------------------------------------------

    async def _take(self, line: Line, frame: bytes) -> None:
        value = decoded(frame)
        if not isinstance(value, dict):
            self.fault(f"the client sent a frame that is no map: {shown(frame)}")
            await line.send(error("malformed_frame"))
        elif value.get("schema_id") == TRANSPORT_HELLO:
            await self._greet(line, frame)
        elif (at := self._keys.get(_key(value))) is not None:
            self._take_asked(line, at, frame)
        elif not self._is_our_cancel(value):  # a client may cancel what it gives up
            where = difference(self.scene.actions[0].frame, frame)
            self.fault(f"the client sent a frame that belongs to no action: {shown(value)}; beside action 0: {where}")
            await line.send(error("malformed_frame"))

    def _is_our_cancel(self, value: Plain) -> bool:
        key = _key(value)
        return key[0] == TRANSPORT_CANCEL and (TRANSPORT_INVOCATION, *key[1:]) in self._keys

    async def _greet(self, line: Line, frame: bytes) -> None:
        try:
            hello = parse_from_client(TRANSPORT_HELLO, frame)
        except BrokenClientFrame as broken:
            self.fault(f"the client's hello breaks its schema: {broken}")
            await line.send(error("malformed_frame"))
            return
        assert isinstance(hello, TransportHello)
        if where := difference(canonical(decoded(frame)), frame):
            self.fault(f"the client's hello is not canonical: {where}")
        if hello.protocol != PROTOCOL:
            self.fault(f"the client says hello for protocol {hello.protocol}; it is {PROTOCOL}")
        line.hello = hello
        if self.scene.parting is not None:
            await line.send(self.scene.parting)
            await line.hang_up()
            return
        welcome = {
            "schema_id": TRANSPORT_WELCOME,
            "callers": list(self.scene.callers),
            "frame_bytes_max": FRAME_BYTES_MAX,
            "join": hello.join,
            "protocol": PROTOCOL,
            "server": self.scene.server,
            "stream_events": hello.stream_events,
        }
        await line.send(canonical(welcome))

    def _take_asked(self, line: Line, at: int, frame: bytes) -> None:
        action = self.scene.actions[at]
        self._counts[at] += 1
        where = difference(action.frame, frame)
        if where and self._counts[at] > 1:
            self.fault(f"action {at} ({action.do}) was not sent again as it was: {where}")
        elif where:
            self.fault(f"action {at} ({action.do}) sent other bytes than the canonical ones: {where}")
        if self.over.is_set() and not self.scene.endless:
            self.fault(f"action {at} ({action.do}) was sent once more, after its answer")
        if action.do == "stream" and self._counts[at] == 1 and not line.streams:
            self.fault(f"action {at} streams on a connection whose hello did not ask for stream_events")
        if self._hello_on[at] and line.hello is None:
            self.fault(
                f"action {at} ({action.do}) was sent again on a connection that has not said hello, as the last had"
            )
        self._hello_on[at] = line.hello is not None
        self._arrived[at].append(Arrival(line, action))
        self._wake()


def _covers(told: list[Plain], wanted: list[Plain]) -> bool:
    """Whether all that is wanted is told; of the last text there may be more."""
    if len(told) < len(wanted):
        return False
    *before, last = wanted
    if value_difference(before, told[: len(before)]):
        return False
    other = told[len(before)]
    texts = [one["payload"].get("TextDelta", {}).get("text") for one in (last, other)]
    if None in texts:
        return value_difference(last, other) is None
    return last["sequence"] == other["sequence"] and str(texts[1]).startswith(str(texts[0]))


def _key(value: Any) -> Key:
    """What a client's frame is about."""
    schema_id = value.get("schema_id")
    if schema_id == TRANSPORT_QUOTE:
        return (TRANSPORT_QUOTE, *_ids(value.get("invocation")))
    if schema_id == TRANSPORT_INVOCATION:
        return (TRANSPORT_INVOCATION, *_ids(value))
    if schema_id == TRANSPORT_CANCEL:
        return (TRANSPORT_CANCEL, str(value.get("caller_runtime_id")), str(value.get("request_id")))
    return (TRANSPORT_STATUS if schema_id == TRANSPORT_STATUS else "", None, None)


def _ids(value: Any) -> tuple[str | None, str | None]:
    request = value.get("request") if isinstance(value, dict) else None
    return (
        (str(value.get("caller_runtime_id")), str(request.get("request_id"))) if isinstance(request, dict) else ("", "")
    )
