"""What a command line needs of a client: build an invocation, send a frame, read what the daemon says. Blocking."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import Struct

from sidecar.cli.exits import CommandFault
from sidecar.contract import canonical
from sidecar.contract.client_frames import (
    PROTOCOL,
    TRANSPORT_EVENT,
    TRANSPORT_HELLO,
    TRANSPORT_QUOTED,
    TRANSPORT_STATUS_REPORT,
    TRANSPORT_WELCOME,
    LiveEvent,
    TransportHello,
    TransportQuoted,
    TransportStatusReport,
    TransportWelcome,
)
from sidecar.contract.operator_frames import (
    OPERATOR_CHECKED,
    OPERATOR_RESOLVED,
    OperatorChecked,
    OperatorResolved,
)
from sidecar.contract.values import (
    TRANSPORT_ERROR,
    TRANSPORT_INVOCATION,
    TRANSPORT_RESULT,
    ProviderRequest,
    TransportError,
    TransportInvocation,
    TransportResult,
    Value,
)
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

_DISTRIBUTION: Final = "model-sidecar"
_RECEIVE_BYTES = 65_536
_SOCKET_PATH_BYTES_MAX: Final = 107  # sockaddr_un without its closing NUL
_Said = TypeVar("_Said", bound=Value)


class _Dispatch(Struct):
    schema_id: str


_dispatches: Final = msgspec.msgpack.Decoder(_Dispatch)
_decoders: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    TRANSPORT_RESULT: msgspec.msgpack.Decoder(TransportResult),
    TRANSPORT_ERROR: msgspec.msgpack.Decoder(TransportError),
    TRANSPORT_WELCOME: msgspec.msgpack.Decoder(TransportWelcome),
    TRANSPORT_EVENT: msgspec.msgpack.Decoder(LiveEvent),
    TRANSPORT_QUOTED: msgspec.msgpack.Decoder(TransportQuoted),
    TRANSPORT_STATUS_REPORT: msgspec.msgpack.Decoder(TransportStatusReport),
    OPERATOR_RESOLVED: msgspec.msgpack.Decoder(OperatorResolved),
    OPERATOR_CHECKED: msgspec.msgpack.Decoder(OperatorChecked),
}


class Trouble(Exception):
    """There is no answer, by our own fault, the daemon's or nobody's."""

    def __init__(self, kind: CommandFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def invocation_of(
    request: ProviderRequest, *, caller: str, expires_at_unix_ms: int, max_cost_micro_usd: int
) -> TransportInvocation:
    """The invocation of a request; its digests are computed here."""
    digest = canonical.digest(canonical.encode(request))
    return TransportInvocation(
        schema_id=TRANSPORT_INVOCATION,
        caller_runtime_id=caller,
        expires_at_unix_ms=expires_at_unix_ms,
        max_cost_micro_usd=max_cost_micro_usd,
        native_request_sha256=digest,
        provider_request_sha256=digest,
        request=request,
    )


def read_said(frame: bytes, *types: type[_Said]) -> _Said | TransportError:
    """What the daemon said, if it is one of these. Raises msgspec.MsgspecError for what is none, nor an error."""
    schema_id = _dispatches.decode(frame).schema_id
    if schema_id not in _decoders:
        raise msgspec.ValidationError(f"{schema_id!r:.120} is nothing that a daemon says")
    said: _Said | TransportError = _decoders[schema_id].decode(frame)
    if not isinstance(said, (*types, TransportError)):
        raise msgspec.ValidationError(f"{schema_id} answers nothing that was asked")
    return said


def read_answer(frame: bytes) -> TransportResult | TransportError:
    """What the daemon answered to an invocation. Raises msgspec.MsgspecError for anything else."""
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
    try:
        return Dialed(socket, give_up_at=give_up_at)
    except (BlockingIOError, TimeoutError):
        raise Trouble("busy", f"the daemon on {socket} takes no more connections just now") from None
    except PermissionError:
        raise Trouble("not_permitted", f"this user may not connect to {socket}") from None
    except FileNotFoundError:
        raise Trouble("no_daemon", f"there is no socket at {socket}") from None
    except ConnectionRefusedError:
        if _is_socket(socket):
            raise Trouble("no_daemon", f"no daemon listens on {socket}") from None
        raise Trouble("no_socket", f"there is something else than a socket at {socket}") from None
    except OSError as error:
        if error.errno is None:  # Python's own word, which doesn't say how long it may be
            is_bytes = len(os.fsencode(socket))
            raise Trouble(
                "usage", f"--socket has {is_bytes} bytes; the kernel takes {_SOCKET_PATH_BYTES_MAX}"
            ) from None
        raise Trouble("no_socket", f"{socket}: {error.strerror}") from None


@contextmanager
def telling(socket: Path) -> Iterator[None]:
    """What goes wrong on a connection to the daemon on this socket, as Trouble."""
    try:
        yield
    except TimeoutError:
        raise Trouble("no_answer", "the daemon has not answered in time") from None
    except (FrameSize, msgspec.MsgspecError):
        raise Trouble("no_daemon_protocol", f"what listens on {socket} does not speak as sidecar does") from None
    except OSError as error:
        raise Trouble("connection_lost", str(error.strerror or error)) from None


def answered(socket: Path, frame: bytes, type_: type[_Said], *, seconds_max: float | None) -> _Said | TransportError:
    """One question, one answer. Raises Trouble where there is none."""
    give_up_at = None if seconds_max is None else time.monotonic() + seconds_max
    with dialed(socket, give_up_at) as daemon, telling(socket):
        return read_said(daemon.ask(frame), type_)


def greeted(daemon: Dialed, command: str, *, stream_events: bool = False) -> TransportWelcome | TransportError:
    """Says who asks, and whether live events are wanted. Raises as Dialed, and msgspec.MsgspecError."""
    hello = TransportHello(
        schema_id=TRANSPORT_HELLO,
        protocol=PROTOCOL,
        client=f"sidecar {command} {version(_DISTRIBUTION)}",
        stream_events=stream_events,
        join=False,
    )
    return read_said(daemon.ask(canonical.encode(hello)), TransportWelcome)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
