"""A client that stamps what streams in: `python stream_client.py SOCKET WRITES STREAMS DELTAS STAGGER_US END`.

One connection for each stream. WRITES holds what is sent, each behind its length: first what opens every connection
(perhaps nothing), then one request after the other, which the streams take in turn, each its next when its last
answer has ended. Every read is stamped as soon as `recv` returns, and each delta in it is one more of the stream's, in
order; what follows the last is looked through for END and nothing else. To stdout: nanoseconds (uint64) from the
provider's stamp to the one here, DELTAS of them for each request.
"""

from __future__ import annotations

import re
import select
import socket
import sys
import time
from array import array
from pathlib import Path

_RECEIVE_BYTES = 262_144
_PATIENCE_SECONDS = 30
_STAMP = re.compile(rb"<(\d+):(\d+)>")


def writes_in(path: str) -> list[bytes]:
    packed, at, found = Path(path).read_bytes(), 0, []
    while at < len(packed):
        end = at + 4 + int.from_bytes(packed[at : at + 4], "big")
        found.append(packed[at + 4 : end])
        at = end
    return found


class _Stream:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.rest = b""  # behind the last stamp
        self.took: list[int] = []  # of the answer that comes


def main(path: str, writes: str, streams: int, deltas: int, stagger_us: int, end: bytes) -> None:
    opening, *requests = writes_in(writes)
    waiting = iter(requests)
    taken = array("Q")
    poll = select.epoll()
    by_number: dict[int, _Stream] = {}

    def ask_next(stream: _Stream) -> bool:
        stream.rest, stream.took = b"", []
        if (request := next(waiting, None)) is None:
            return False
        stream.socket.sendall(request)
        return True

    def arrived(stream: _Stream) -> bool:
        """Whether more is to come on this stream."""
        received = stream.socket.recv(_RECEIVE_BYTES)
        now = time.monotonic_ns()
        assert received, f"the connection was closed behind {stream.rest[-600:]!r}"
        rest, at = stream.rest + received, 0
        while len(stream.took) < deltas and (stamp := _STAMP.search(rest, at)):
            assert int(stamp[1]) == len(stream.took), f"delta {len(stream.took)} is missing: {rest[:600]!r}"
            stream.took.append(now - int(stamp[2]))
            at = stamp.end()
        stream.rest = rest[at:]
        if len(stream.took) < deltas or end not in stream.rest:
            return True
        taken.extend(stream.took)
        return ask_next(stream)

    for _ in range(streams):
        stream = _Stream(path)
        by_number[stream.socket.fileno()] = stream
        poll.register(stream.socket, select.EPOLLIN)
        if opening:
            stream.socket.sendall(opening)
            assert stream.socket.recv(_RECEIVE_BYTES), "the daemon closed the connection"
    begin = time.monotonic_ns()
    unasked, open_streams = list(by_number.values()), 0
    while unasked or open_streams:
        due_us = begin / 1000 + stagger_us * (streams - len(unasked)) - time.monotonic_ns() / 1000
        if unasked and due_us <= 0:
            open_streams += ask_next(unasked.pop(0))
            continue
        ready = poll.poll(max(0.001, due_us / 1e6) if unasked else _PATIENCE_SECONDS)
        assert ready or unasked, f"nothing came for {_PATIENCE_SECONDS} s"
        for number, _ in ready:
            if not arrived(by_number[number]):
                open_streams -= 1
                poll.unregister(number)
    sys.stdout.buffer.write(taken)


if __name__ == "__main__":
    path, writes, *numbers, end = sys.argv[1:]
    main(path, writes, *map(int, numbers), end.encode())
