"""Whatever a test wants to listen on a Unix socket: each connection plays the next part, in a thread of its own.

A part is a function of the Peer: it reads frames, answers bytes, and the
connection is closed where it returns. Connections without a part are closed at
once. What a part raises is raised in the test, at the end of the block.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
from kit import daemon_says

_GIVE_UP_SECONDS = 30


class Peer:
    """A client that has connected."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        connection.settimeout(_GIVE_UP_SECONDS)
        self.connection = connection
        self.number = number  # of the connection, from 0
        self.frames: list[bytes] = []  # as received, hellos among them
        self._stream = connection.makefile("rb")

    def frame(self) -> dict[str, Any] | None:
        """The next frame, or None where the client has hung up."""
        try:
            prefix = self._stream.read(4)
            frame = self._stream.read(int.from_bytes(prefix, "big")) if len(prefix) == 4 else b""
        except ConnectionResetError:
            return None
        if not frame:
            return None
        self.frames.append(frame)
        said: dict[str, Any] = msgpack.unpackb(frame)
        return said

    def expect(self, kind: str) -> dict[str, Any]:
        """The next frame, which is a `gamecult.model.transport_<kind>.v1`."""
        said = self.frame()
        assert said is not None, f"the client hung up instead of saying {kind}"
        assert said["schema_id"] == f"gamecult.model.transport_{kind}.v1", said
        return said

    def welcome(self, **changes: Any) -> dict[str, Any]:
        """Answers the hello that comes next; returns it."""
        hello = self.expect("hello")
        self.say(daemon_says.welcome(stream_events=hello["stream_events"], **changes))
        return hello

    def request_id(self) -> str:
        """The id of the invocation that comes next."""
        request_id: str = self.expect("invocation")["request"]["request_id"]
        return request_id

    def say(self, *frames: bytes) -> None:
        self.raw(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))

    def raw(self, sent: bytes) -> None:
        self.connection.sendall(sent)

    def until_hung_up(self) -> None:
        """Reads on until the client has gone."""
        while self.frame() is not None:
            pass

    def close(self) -> None:
        self._stream.close()
        self.connection.close()


Part = Callable[[Peer], None]


class FakeDaemon:
    """Listens at this path; `peers` are those that have connected so far."""

    def __init__(self, path: Path, parts: tuple[Part, ...]) -> None:
        self.path = path
        self.peers: list[Peer] = []
        self._parts = list(parts)
        self._faults: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(64)
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def frames(self, kind: str) -> list[bytes]:
        """Every frame of this kind that came, in order, over all connections."""
        schema_id = f"gamecult.model.transport_{kind}.v1"
        everything = [frame for peer in self.peers for frame in peer.frames]
        return [frame for frame in everything if msgpack.unpackb(frame)["schema_id"] == schema_id]

    def listening_no_more(self) -> None:
        """As a daemon that is gone: the socket file stays, and nobody accepts."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()

    def end(self) -> None:
        if self._accepting.is_alive():
            self.listening_no_more()
        for thread in self._threads:
            thread.join()
        self.path.unlink(missing_ok=True)
        if self._faults:
            raise self._faults[0]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            peer = Peer(connection, len(self.peers))
            self.peers.append(peer)
            part = self._parts.pop(0) if self._parts else Peer.close
            thread = threading.Thread(target=self._play, args=(part, peer))
            thread.start()
            self._threads.append(thread)

    def _play(self, part: Part, peer: Peer) -> None:
        try:
            part(peer)
        except BaseException as fault:
            self._faults.append(fault)
        finally:
            peer.close()


@contextmanager
def fake_daemon(path: Path, *parts: Part) -> Iterator[FakeDaemon]:
    """A fake daemon that plays these parts, one for each connection."""
    fake = FakeDaemon(path, parts)
    try:
        yield fake
    finally:
        fake.end()
