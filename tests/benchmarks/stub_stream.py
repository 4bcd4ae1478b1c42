"""A provider for the first-token benchmark: `python stub_stream.py` prints its port, then serves until it is ended.

It answers any POST with a Chat Completions stream, in HTTP/1.1 chunks over plain sockets. How it is told in the text
of the request, as `Pace.words()` writes it. Every delta's text is the number of the delta and the nanoseconds of
CLOCK_MONOTONIC, which all processes share, taken right before the `send` that it leaves with.
"""

from __future__ import annotations

import heapq
import json
import random
import re
import select
import socket
import time
from itertools import count
from typing import NamedTuple

_RECEIVE_BYTES = 262_144
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_WANTED = re.compile(rb"deltas (\d+) every (\d+) us first after (\d+) us head (apart|with it)")
_AROUND = (
    '{"id":"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG","object":"chat.completion.chunk","created":1741570283,'
    '"model":"echo-1","service_tier":"default","system_fingerprint":"fp_fc9f1d7035","choices":[%s],"usage":%s}'
)


class Pace(NamedTuple):
    """How one answer is told. Times vary between half and one and a half of these, so that streams don't fall in step.

    `head_apart`: the response's head and a first event without text, as OpenAI sends it, come at once; else both
    come in one piece with the first delta.
    """

    deltas: int
    every_us: int
    first_us: int
    head_apart: bool

    def words(self) -> str:
        head = "apart" if self.head_apart else "with it"
        return f"deltas {self.deltas} every {self.every_us} us first after {self.first_us} us head {head}"


def _chunk(choices: str, usage: str = "null") -> bytes:
    event = b"data: %b\n\n" % (_AROUND % (choices, usage)).encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def _delta(number: int) -> bytes:
    content = json.dumps(f"<{number}:{time.monotonic_ns()}> ")
    return _chunk(f'{{"index":0,"delta":{{"content":{content}}},"logprobs":null,"finish_reason":null}}')


_OPENING = _HEAD + _chunk('{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"finish_reason":null}')
_USAGE = '{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}'
_LAST = (
    _chunk('{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}')
    + _chunk("", _USAGE)
    + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
)


class _Peer:
    """One connection: what has come of a request, and what is still to be said of an answer."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.received = b""
        self.pace = Pace(0, 0, 0, True)
        self.said = 0

    def wanted(self) -> Pace | None:
        """What the request asks for, once it is whole."""
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return None
        asked = _WANTED.search(body)
        assert asked is not None, "the request doesn't say how to answer"
        self.received = b""
        return Pace(int(asked[1]), int(asked[2]), int(asked[3]), asked[4] == b"apart")


class _Provider:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._peers: dict[socket.socket, _Peer] = {}
        self._due: list[tuple[int, int, _Peer]] = []  # by nanoseconds
        self._numbers = count()
        self._random = random.Random(1)

    def serve(self) -> None:
        while True:
            wait = max(0.0, (self._due[0][0] - time.monotonic_ns()) / 1e9) if self._due else None
            readable, _, _ = select.select([self._listening, *self._peers], (), (), wait)
            while self._due and self._due[0][0] <= time.monotonic_ns():
                self._say(heapq.heappop(self._due)[2])
            for ready in readable:
                if ready is self._listening:
                    self._accept()
                else:
                    self._receive(self._peers[ready])

    def _accept(self) -> None:
        connected, _ = self._listening.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[connected] = _Peer(connected)

    def _receive(self, peer: _Peer) -> None:
        try:
            received = peer.socket.recv(_RECEIVE_BYTES)
        except ConnectionResetError:
            received = b""
        if not received:
            del self._peers[peer.socket]
            peer.socket.close()
            return
        peer.received += received
        pace = peer.wanted()
        if pace is None:
            return
        peer.pace, peer.said = pace, 0
        if pace.head_apart:
            peer.socket.sendall(_OPENING)
        self._put_off(peer, pace.first_us)

    def _put_off(self, peer: _Peer, about_us: int) -> None:
        due = time.monotonic_ns() + int(about_us * 1000 * self._random.uniform(0.5, 1.5))
        heapq.heappush(self._due, (due, next(self._numbers), peer))

    def _say(self, peer: _Peer) -> None:
        if peer.said == peer.pace.deltas:
            peer.socket.sendall(_LAST)
            return
        before = b"" if peer.said or peer.pace.head_apart else _OPENING
        peer.socket.sendall(before + _delta(peer.said))
        peer.said += 1
        self._put_off(peer, peer.pace.every_us)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        print(listening.getsockname()[1], flush=True)
        _Provider(listening).serve()


if __name__ == "__main__":
    main()
