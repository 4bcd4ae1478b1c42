"""A provider on a loopback socket that says exactly the bytes it was told to; plain Trio, no HTTP library.

Each request that arrives whole is counted and kept; what answers it is a
`Reply`: pieces of bytes, then the connection's end or its reuse.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

import trio


@dataclass
class Reply:
    """`pieces` go out one write each, also without end; then the connection stays, is closed, is reset, or hangs."""

    pieces: Iterable[bytes] = ()
    then: str = "keep"  # keep, close, reset, hang


@dataclass
class Heard:
    """One whole request."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class StubProvider:
    url: str
    reply: Callable[[int], Reply]
    requests: list[Heard] = field(default_factory=list)
    connections: int = 0
    ended: int = 0  # of those connections
    gone: trio.Event = field(default_factory=trio.Event)  # the client has hung up on some connection
    heard: trio.Event = field(default_factory=trio.Event)

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        try:
            while (heard := await _request(stream)) is not None:
                self.requests.append(heard)
                self.heard.set()
                reply = self.reply(len(self.requests))
                for piece in reply.pieces:
                    await stream.send_all(piece)
                if reply.then == "hang":
                    while await stream.receive_some():
                        pass
                if reply.then == "reset":
                    stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                if reply.then != "keep":
                    break
        except trio.BrokenResourceError:
            pass
        finally:
            self.ended += 1
            self.gone.set()
            await trio.aclose_forcefully(stream)


async def _request(stream: trio.SocketStream) -> Heard | None:
    received = b""
    while b"\r\n\r\n" not in received:
        more = await stream.receive_some()
        if not more:
            return None
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    line, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive_some()
    return Heard(line, headers, body)


@asynccontextmanager
async def stub_provider(reply: Reply | Callable[[int], Reply]) -> AsyncIterator[StubProvider]:
    """A provider on a port of the kernel's choice, for as long as the block runs."""
    answer = (lambda _: reply) if isinstance(reply, Reply) else reply
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    stub = StubProvider(f"http://127.0.0.1:{port}", answer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, stub.serve, listeners)
        yield stub
        nursery.cancel_scope.cancel()


@contextmanager
def stub_on_a_thread(reply: Reply | Callable[[int], Reply]) -> Iterator[StubProvider]:
    """The same, served by a thread of its own, so that the block may wait for other processes."""
    ready: SimpleQueue[tuple[StubProvider, trio.CancelScope, trio.lowlevel.TrioToken]] = SimpleQueue()

    async def serve() -> None:
        with trio.CancelScope() as scope:
            async with stub_provider(reply) as stub:
                ready.put((stub, scope, trio.lowlevel.current_trio_token()))
                await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    stub, scope, token = ready.get(timeout=20)
    try:
        yield stub
    finally:
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        thread.join()


def head(status: int = 200, *headers: str, content_type: str = "text/event-stream") -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"content-type: {content_type}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(body: bytes | str, status: int = 200, *headers: str, content_type: str = "text/event-stream") -> Reply:
    """A response with its length, after which the connection can be used again."""
    raw = body.encode() if isinstance(body, str) else body
    return Reply((head(status, f"content-length: {len(raw)}", *headers, content_type=content_type) + raw,))


def chunked(*pieces: bytes, ends: bool = True, then: str = "keep") -> Reply:
    """A 200 in chunks, one write each; without its end the connection must be dropped or reset."""
    sent = [head(200, "transfer-encoding: chunked"), *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)]
    return Reply((*sent, b"0\r\n\r\n") if ends else tuple(sent), then)
