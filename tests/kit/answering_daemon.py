"""A daemon that answers each frame as a function of a test says, in a thread, on a Unix socket.

Where a test plays whole connections, it takes `kit.fake_daemon`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgpack
from kit import wire

Said = dict[str, Any]
# What each frame of a client is answered, in order: values, or bytes as they are; None closes the connection.
Answer = Callable[[Said], Iterable[Said | bytes | None]]


@contextmanager
def answering_daemon(at: Path, answer: Answer) -> Iterator[list[Said]]:
    """Listens until it is left; yields what clients have told it so far. It closes behind the last frame of each."""
    told: list[Said] = []
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(at))
        listener.listen(8)
        thread = threading.Thread(target=_serve_all, args=(listener, answer, told), daemon=True)
        thread.start()
        yield told
        listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        thread.join(timeout=20)
        assert not thread.is_alive(), "a client of this daemon has not gone"


def _serve_all(listener: socket.socket, answer: Answer, told: list[Said]) -> None:
    while True:
        try:
            stream, _ = listener.accept()
        except OSError:
            return
        with closing(stream), stream.makefile("rb") as read:
            _serve(stream, read, answer, told)


def _serve(stream: socket.socket, read: Any, answer: Answer, told: list[Said]) -> None:
    try:
        while len(prefix := read.read(4)) == 4:
            said = msgpack.unpackb(read.read(int.from_bytes(prefix, "big")))
            told.append(said)
            for one in answer(said):
                if one is None:
                    return
                stream.sendall(one if isinstance(one, bytes) else framed(one))
    except ConnectionError:
        return  # the client has gone


def framed(value: Said) -> bytes:
    frame = wire.write(wire.without_nil(value))
    return len(frame).to_bytes(4, "big") + frame
