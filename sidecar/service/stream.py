"""A connected Unix socket as a byte stream that can also send without waiting.

The hot path of a small answer is one `send` that the kernel takes whole; only
what it doesn't take needs a task that waits. Reading waits first and receives
then, because a client that waits for its answer has sent nothing yet. Who waits
for more than one piece shares that wait with all other connections.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, Protocol, Self

import outcome
import trio

from sidecar.service.arrivals import Arrivals

RECEIVE_BYTES_MAX: Final = 65_536


class Stream(Protocol):
    """A two-way byte stream that can end its sending side. Raises Trio's BrokenResourceError, ClosedResourceError."""

    def send_now(self, outgoing: bytes | memoryview) -> int:
        """How many bytes were taken at once, perhaps none. Not while a `send_all` is under way."""
        ...

    async def send_all(self, outgoing: bytes | memoryview) -> None: ...
    async def receive_some(self, max_bytes: int) -> bytes | bytearray: ...

    async def receive_each(self, take: Callable[[bytes], bool]) -> None:
        """Gives what comes to `take`, and b"" at the end, until that returns False; what it raises is raised here."""
        ...

    def telling_hang_up(self, gone: Callable[[], None]) -> AbstractContextManager[None]:
        """While this is entered, and nothing is received: `gone` is called once the other end is closed altogether.

        Not where it has only ended its sending; where that can't be told, never.
        """
        ...

    def hang_up(self) -> None:
        """Ends both directions now: whoever reads here or there finds the end. `aclose` is still wanted."""
        ...

    async def send_eof(self) -> None: ...
    async def aclose(self) -> None: ...


class SocketStream:
    """A connected stream socket of this process."""

    def __init__(self, connected: socket.socket, arrivals: Arrivals) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._arrivals = arrivals
        self._listener: trio.lowlevel.Task | None = None  # in `receive_each`

    @classmethod
    def taken_from(cls, stream: trio.SocketStream, arrivals: Arrivals) -> Self:
        """The same connection; the stream that held it is left empty-handed."""
        return cls(socket.socket(fileno=stream.socket.detach()), arrivals)

    def send_now(self, outgoing: bytes | memoryview) -> int:
        try:
            return self._socket.send(outgoing)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, outgoing: bytes | memoryview) -> None:
        rest = memoryview(outgoing)
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            rest = rest[self.send_now(rest) :]
            if not rest:
                return

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES_MAX) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            received = self._receive_now(max_bytes)
            if received is not None:
                return received

    def _receive_now(self, max_bytes: int) -> bytes | None:
        """None where nothing has come."""
        try:
            return self._socket.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def receive_each(self, take: Callable[[bytes], bool]) -> None:
        def readable() -> None:
            try:
                received = self._receive_now(RECEIVE_BYTES_MAX)
                if received is None or take(received):
                    return
            except Exception as fault:
                self._heard_enough(outcome.Error(fault))
            else:
                self._heard_enough(outcome.Value(None))

        def cancelled(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._leave()
            return trio.lowlevel.Abort.SUCCEEDED

        self._arrivals.watch(self._socket.fileno(), readable)
        self._listener = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(cancelled)

    def _leave(self) -> trio.lowlevel.Task | None:
        """Who listened, if anybody did; from here on nobody does."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._arrivals.leave(self._socket.fileno())
        return listener

    def _heard_enough(self, how: outcome.Outcome[None]) -> None:
        if (listener := self._leave()) is not None:
            trio.lowlevel.reschedule(listener, how)

    @contextmanager
    def telling_hang_up(self, gone: Callable[[], None]) -> Iterator[None]:
        descriptor, watches = self._socket.fileno(), True

        def left() -> None:
            nonlocal watches
            watches = False
            self._arrivals.leave(descriptor)  # it would be told again and again
            gone()

        self._arrivals.watch_hang_up(descriptor, left)
        try:
            yield
        finally:
            if watches:
                self._arrivals.leave(descriptor)

    def hang_up(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def hear_no_more(self) -> None:
        """Nothing more can be sent to us; what was sent before can still be read, and behind it the end of file."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            self._heard_enough(outcome.Error(trio.ClosedResourceError()))
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
        await trio.lowlevel.checkpoint()
