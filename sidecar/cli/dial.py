"""What a command line needs of a client: send a frame, read what the daemon says. Blocking.

The clients in `sidecar.client` dial again where a connection is lost, and wait
for a daemon that is about to come. Who types a command is told so instead, at
once, and decides; so here is one connection, and no second try.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from sidecar.cli.exits import CommandFault
from sidecar.client import daemon_frames
from sidecar.client.errors import NotADaemon
from sidecar.client.reaching import path_complaint, why_unreachable
from sidecar.contract import canonical
from sidecar.contract.client_frames import PROTOCOL, TRANSPORT_HELLO, TransportHello, TransportWelcome
from sidecar.contract.values import TransportError, TransportResult, Value
from sidecar.ops.version import version_of_sidecar
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

_RECEIVE_BYTES = 65_536
_Said = TypeVar("_Said", bound=Value)


class Trouble(Exception):
    """There is no answer, by our own fault, the daemon's or nobody's."""

    def __init__(self, kind: CommandFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_said(frame: bytes, *types: type[_Said]) -> _Said | TransportError:
    """What the daemon said, if it is one of these. Raises NotADaemon for what is none, nor an error."""
    said: Any = daemon_frames.read(frame)
    if not isinstance(said, (*types, TransportError)):
        raise NotADaemon(f"what listens there said {said.schema_id}, which answers nothing that was asked")
    return cast("_Said | TransportError", said)


def read_answer(frame: bytes) -> TransportResult | TransportError:
    """What the daemon answered to an invocation. Raises NotADaemon for anything else."""
    return read_said(frame, TransportResult)


class Dialed:
    """One connection to a daemon.

    `give_up_at`, on the monotonic clock, bounds all of it: past it anything
    here raises TimeoutError. Without it, it waits for as long as it takes.
    """

    def __init__(self, path: Path, *, give_up_at: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        self.give_up_at = give_up_at
        try:
            self._bound_the_wait()
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, frame: bytes) -> bytes:
        """The next frame that the daemon says once this one is sent. Raises as `send` and `receive`."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        self._bound_the_wait()
        with suppress(BrokenPipeError, ConnectionResetError):  # a daemon that closes has said why before
            self._socket.sendall(framed(frame))

    def receive(self) -> bytes:
        """Raises ConnectionError if the daemon closes before it has said more, FrameSize if that is no frame."""
        if (said := self._next_frame()) is None:
            raise ConnectionResetError("the daemon closed the connection before it had answered")
        return said

    def finish(self) -> bytes | None:
        """Says that nothing more comes. The next frame of the daemon, or None where it has read all, and closed."""
        self._socket.shutdown(socket.SHUT_WR)
        return self._next_frame()

    def _next_frame(self) -> bytes | None:
        while (said := self._splitter.next_frame()) is None:
            self._bound_the_wait()
            received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                return None
            self._splitter.feed(received)
        return said

    def _bound_the_wait(self) -> None:
        if self.give_up_at is None:
            return
        left = self.give_up_at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is over")
        self._socket.settimeout(left)


def dialed(socket: Path, give_up_at: float | None) -> Dialed:
    """A connection to the daemon on this socket. Raises Trouble where there is none."""
    if (complaint := path_complaint(str(socket))) is not None:
        raise Trouble("usage", f"--socket {complaint}")
    try:
        return Dialed(socket, give_up_at=give_up_at)
    except OSError as error:
        raise Trouble(*why_unreachable(str(socket), error)) from None


@contextmanager
def telling(socket: Path) -> Iterator[None]:
    """What goes wrong on a connection to the daemon on this socket, as Trouble."""
    try:
        yield
    except TimeoutError:
        raise Trouble("no_answer", "the daemon has not answered in time") from None
    except (FrameSize, NotADaemon):
        raise Trouble("no_daemon_protocol", f"what listens on {socket} does not speak as sidecar does") from None
    except OSError as error:
        raise Trouble("connection_lost", str(error.strerror or error)) from None


def answered(
    socket: Path, frame: bytes, read: Callable[[bytes], _Said | TransportError], *, seconds_max: float | None
) -> _Said | TransportError:
    """One question, and its answer as `read` reads it. Raises Trouble where there is none."""
    give_up_at = None if seconds_max is None else time.monotonic() + seconds_max
    with dialed(socket, give_up_at) as daemon, telling(socket):
        return read(daemon.ask(frame))


def greeted(daemon: Dialed, command: str, *, stream_events: bool = False) -> TransportWelcome | TransportError:
    """Says who asks, and whether live events are wanted. Raises as Dialed, and NotADaemon."""
    hello = TransportHello(
        schema_id=TRANSPORT_HELLO,
        protocol=PROTOCOL,
        client=f"sidecar {command} {version_of_sidecar()}",
        stream_events=stream_events,
        join=False,
    )
    return read_said(daemon.ask(canonical.encode(hello)), TransportWelcome)
