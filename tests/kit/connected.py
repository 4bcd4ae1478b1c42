"""A connection to a road over memory streams, and the client at its other end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import trio
import trio.testing
from kit import build, wire
from kit.road import HeldConnector, Road, said
from kit.wire import Raw

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.script import Rule
from sidecar.connectors.scripted import Scripted
from sidecar.rules.framing import framed


def asked(request_id: str, **changes: Any) -> bytes:
    return build.frame(build.request(request_id=request_id), **changes)


def hello(**changes: Any) -> bytes:
    members = {"protocol": 1, "client": "test", "stream_events": False, "join": False, **changes}
    return wire.write({"schema_id": "gamecult.model.transport_hello.v1", **members})


def quote(frame: bytes) -> bytes:
    """A quote of the invocation in this frame."""
    return wire.write({"schema_id": "gamecult.model.transport_quote.v1", "invocation": Raw(frame)})


def cancel(request_id: str, caller: str = "dungeon") -> bytes:
    members = {"caller_runtime_id": caller, "request_id": request_id}
    return wire.write({"schema_id": "gamecult.model.transport_cancel.v1", **members})


STATUS = wire.write({"schema_id": "gamecult.model.transport_status.v1"})


def request_id_of(answer: bytes) -> str:
    return str(msgpack.unpackb(answer)["request_id"])


class Client:
    """The other end of a connection."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._received = b""

    async def send(self, *frames: bytes) -> None:
        await self.stream.send_all(b"".join(map(framed, frames)))

    async def receive(self) -> bytes | None:
        """The next frame; None where the daemon has ended its side."""
        while (frame := self._whole()) is None:
            more = await self.stream.receive_some(65_536)
            if not more:
                assert not self._received, "the daemon stopped in the middle of a frame"
                return None
            self._received += more
        return frame

    async def heard(self, number: int) -> list[str]:
        frames = [await self.receive() for _ in range(number)]
        return [said(frame) for frame in frames if frame is not None]

    async def value(self) -> dict[str, Any]:
        """The next frame's value."""
        frame = await self.receive()
        assert frame is not None, "the daemon has ended its side"
        return dict(msgpack.unpackb(frame))

    async def greet(self, *, stream_events: bool = False, join: bool = False, **changes: Any) -> dict[str, Any]:
        """Says hello, and gives the welcome."""
        await self.send(hello(stream_events=stream_events, join=join, **changes))
        return await self.value()

    async def hang_up(self) -> None:
        await self.stream.aclose()

    def _whole(self) -> bytes | None:
        length = int.from_bytes(self._received[:4], "big")
        if len(self._received) < 4 + length or not length:
            return None
        frame, self._received = self._received[4 : 4 + length], self._received[4 + length :]
        return frame


@asynccontextmanager
async def served(
    road: Road, pair: Callable[[], tuple[Any, Any]] = trio.testing.memory_stream_pair, **terms: Any
) -> AsyncIterator[Client]:
    """A connection to this road; it must end by itself once the client has hung up."""
    theirs, ours = pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.connection(ours, nursery, **terms).serve)
        client = Client(theirs)
        yield client
        await client.hang_up()
        while road.exchange.running:
            await road.ended.park()


def answering(**rule: Any) -> Scripted:
    return Scripted((Rule(**rule),))


class Gated(HeldConnector):
    """Each request has a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, trio.Event] = {}

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        self.asked.append(lowered)
        answer.sent = True
        await self.gates.setdefault(lowered.request.request_id, trio.Event()).wait()
        await Scripted().exchange(lowered, answer)
