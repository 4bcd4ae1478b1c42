"""What a command line needs of a client: build an invocation, send it, read the one answer. Blocking."""

from __future__ import annotations

import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from sidecar.cli.exits import CommandFault
from sidecar.contract import canonical
from sidecar.contract.values import (
    TRANSPORT_INVOCATION,
    ProviderRequest,
    TransportError,
    TransportInvocation,
    TransportResult,
)
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSplitter, framed

_RECEIVE_BYTES = 65_536
_SOCKET_PATH_BYTES_MAX: Final = 107  # sockaddr_un without its closing NUL
_results = msgspec.msgpack.Decoder(TransportResult)
_errors = msgspec.msgpack.Decoder(TransportError)


class Trouble(Exception):
    """There is no answer, by our own fault, the daemon's or nobody's."""

    def __init__(self, kind: CommandFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def invocation_frame(
    request: ProviderRequest, *, caller: str, expires_at_unix_ms: int, max_cost_micro_usd: int
) -> bytes:
    """The canonical invocation of a request, without its length prefix; its digests are computed here."""
    digest = canonical.digest(canonical.encode(request))
    invocation = TransportInvocation(
        schema_id=TRANSPORT_INVOCATION,
        caller_runtime_id=caller,
        expires_at_unix_ms=expires_at_unix_ms,
        max_cost_micro_usd=max_cost_micro_usd,
        native_request_sha256=digest,
        provider_request_sha256=digest,
        request=request,
    )
    return canonical.encode(invocation)


def read_answer(frame: bytes) -> TransportResult | TransportError:
    """What the daemon said. Raises msgspec.MsgspecError for what no daemon says."""
    try:
        return _results.decode(frame)
    except msgspec.ValidationError:
        return _errors.decode(frame)


class Dialed:
    """One connection to a daemon; one frame out, one frame back.

    `give_up_at`, on the monotonic clock, bounds all of it: past it anything
    here raises TimeoutError. Without it, it waits for as long as it takes.
    """

    def __init__(self, path: Path, *, give_up_at: float | None = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        self._give_up_at = give_up_at
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
        """Raises ConnectionError if the daemon closes before it has answered, FrameSize if it answers no frame."""
        self._bound_the_wait()
        with suppress(BrokenPipeError, ConnectionResetError):  # a daemon that closes has said why before
            self._socket.sendall(framed(frame))
        while (answer := self._splitter.next_frame()) is None:
            self._bound_the_wait()
            received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                raise ConnectionResetError("the daemon closed the connection before it had answered")
            self._splitter.feed(received)
        return answer

    def _bound_the_wait(self) -> None:
        if self._give_up_at is None:
            return
        left = self._give_up_at - time.monotonic()
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


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
