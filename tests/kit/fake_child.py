"""Children in memory: what a child says, when it ends, and what was done to it, all at the test's word."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import trio
from kit import wire

from goldens import published_values as golden
from sidecar.connectors.child import Plan


class FakeChild:
    """Answers each request by `behave(self, exchange)`; takes `takes_bytes` of a frame at once."""

    def __init__(self, pid: int, behave: Callable[[FakeChild, int], None], takes_bytes: int | None = None) -> None:
        self.pid = pid
        self.asked: list[dict[str, Any]] = []
        self.killed = self.closed = False
        self._behave = behave
        self._takes_bytes = takes_bytes
        self._held = b""
        self._ended = trio.Event()
        self._writing, self._reading = trio.open_memory_channel[bytes](1000)

    # --- what it does -----------------------------------------------------------------------------------------

    def write(self, *frames: dict[str, Any]) -> None:
        self.write_bytes(b"".join(len(wire.write(one)).to_bytes(4, "big") + wire.write(one) for one in frames))

    def write_bytes(self, raw: bytes) -> None:
        self._writing.send_nowait(raw)

    def speak(self, exchange: int, text: str = "Hello") -> None:
        self.write(golden.connector_event({"TextDelta": {"text": text}}, exchange))

    def end(self, exchange: int) -> None:
        self.write(golden.connector_outcome(exchange=exchange))

    def die(self) -> None:
        self._writing.close()
        self._ended.set()

    # --- what is done to it -----------------------------------------------------------------------------------

    def send_now(self, framed: bytes) -> int:
        if self._ended.is_set():
            raise BrokenPipeError
        taken = framed[: self._takes_bytes]
        self._take(taken)
        return len(taken)

    async def send(self, framed: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._take(framed)

    def _take(self, piece: bytes) -> None:
        self._held += piece
        if len(self._held) >= 4 and len(self._held) == 4 + int.from_bytes(self._held[:4], "big"):
            asked = msgpack.unpackb(self._held[4:])
            self._held = b""
            self.asked.append(asked)
            self._behave(self, asked["exchange"])

    async def receive(self) -> bytes:
        try:
            return await self._reading.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return b""

    def is_quiet(self) -> bool:
        waiting = self._reading.statistics()
        return not waiting.current_buffer_used and bool(waiting.open_send_channels)

    async def tell_lines(self, tell: Callable[[str], None]) -> None:
        tell(f"I am {self.pid}")
        await self._ended.wait()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self.killed = True
        self.die()

    async def reap(self) -> str:
        self.kill()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return "exit code 0"

    def close(self) -> None:
        self.closed = True
        self._reading.close()


def answers(child: FakeChild, exchange: int) -> None:
    child.speak(exchange)
    child.end(exchange)


class Nursery:
    """Starts children that behave so; `fault` set, they can't be started."""

    def __init__(self, behave: Callable[[FakeChild, int], None] = answers, takes_bytes: int | None = None) -> None:
        self.behave = behave
        self.takes_bytes = takes_bytes
        self.fault: OSError | None = None
        self.on_start: Callable[[FakeChild], None] = lambda child: None
        self.wait_start: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.started: list[FakeChild] = []
        self.tried_at: list[float] = []

    async def start(self, _: Plan) -> FakeChild:
        self.tried_at.append(trio.current_time())
        await self.wait_start()
        if self.fault is not None:
            raise self.fault
        child = FakeChild(len(self.started) + 1, self.behave, self.takes_bytes)
        self.started.append(child)
        self.on_start(child)
        return child

    @property
    def living(self) -> list[int]:
        return [child.pid for child in self.started if not child.closed]
