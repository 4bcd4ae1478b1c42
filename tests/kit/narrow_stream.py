"""A Unix socket in memory, with as small a kernel buffer as a test likes, for a virtual clock that sees no sockets.

Both ways of the daemon's `Stream` are there: `send_now` takes what fits, `send_all`
waits for room. It ends as Linux ends a Unix socket: what has come before an end is
read first; who closes with something unread resets the other end; who writes
to a closed end is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from sidecar.service.stream import RECEIVE_BYTES_MAX


class Pipe:
    """One direction, at most `room_bytes` of it on the way."""

    def __init__(self, room_bytes: int) -> None:
        assert room_bytes > 0
        self._room_bytes = room_bytes
        self._on_the_way = bytearray()
        self._ended = False  # nothing more will be written
        self._gone = False  # nothing more will be read
        self._reset = False
        self._changed = trio.lowlevel.ParkingLot()
        self.on_gone: Callable[[], None] | None = None

    @property
    def is_gone(self) -> bool:
        """Whether its reader is gone."""
        return self._gone

    def put(self, outgoing: bytes | memoryview) -> int:
        if self._ended or self._gone:
            raise trio.BrokenResourceError
        fits = bytes(outgoing[: self._room_bytes - len(self._on_the_way)])
        self._on_the_way += fits
        self._changed.unpark_all()
        return len(fits)

    async def put_all(self, outgoing: bytes | memoryview) -> None:
        rest = memoryview(outgoing)
        await trio.lowlevel.checkpoint()
        while rest := rest[self.put(rest) :]:
            await self._changed.park()

    async def take(self, bytes_max: int) -> bytes:
        """Waits for something to be there; b"" at the end."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._gone:
                raise trio.ClosedResourceError
            if self._on_the_way:
                taken = bytes(self._on_the_way[:bytes_max])
                del self._on_the_way[:bytes_max]
                self._changed.unpark_all()
                return taken
            if self._reset:
                raise trio.BrokenResourceError
            if self._ended:
                return b""
            await self._changed.park()

    def end(self, *, reset: bool = False) -> None:
        self._ended = True
        self._reset = self._reset or reset
        self._changed.unpark_all()

    def go(self) -> bool:
        """Its reader is gone; whether something was left unread."""
        self._gone = True
        self._changed.unpark_all()
        if self.on_gone is not None:
            self.on_gone()
        return bool(self._on_the_way)


class NarrowStream:
    """One end. `hung_up` and `closed` say what its owner did with it."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self.hung_up = False
        self.closed = False

    def send_now(self, outgoing: bytes | memoryview) -> int:
        self._check_open()
        return self._outgoing.put(outgoing)

    async def send_all(self, outgoing: bytes | memoryview) -> None:
        self._check_open()
        await self._outgoing.put_all(outgoing)

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES_MAX) -> bytes:
        self._check_open()
        return await self._incoming.take(max_bytes)

    async def receive_each(self, take: Callable[[bytes], bool]) -> None:
        while take(await self.receive_some()):
            pass
        await trio.lowlevel.checkpoint()  # as with a socket, who listened goes on in a later turn

    @contextmanager
    def telling_hang_up(self, gone: Callable[[], None]) -> Iterator[None]:
        self._outgoing.on_gone = gone
        if self._outgoing.is_gone:
            gone()
        yield
        self._outgoing.on_gone = None

    def hang_up(self) -> None:
        self.hung_up = True
        self._outgoing.end()
        self._incoming.end()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._check_open()
        self._outgoing.end()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._outgoing.end(reset=self._incoming.go())

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError


def narrow_pair(*, up_bytes: int, down_bytes: int) -> tuple[NarrowStream, NarrowStream]:
    """The client's end and the daemon's, with room for this much on the way to the daemon, and back."""
    up, down = Pipe(up_bytes), Pipe(down_bytes)
    return NarrowStream(down, up), NarrowStream(up, down)
