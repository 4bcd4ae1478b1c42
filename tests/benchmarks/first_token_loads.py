"""Streams of tokens through the daemon and through a bare relay, in turn, from one provider to one kind of client."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks.road import cpu_ns
from benchmarks.stub_stream import Pace
from kit.daemon_process import invocation, packed, running_daemon
from msgspec import Struct

_HERE = Path(__file__).parent
_CONNECTOR = """kind = "openai_chat"
base_url = "http://127.0.0.1:{}/v1"
concurrent_requests_max = 128"""
_HELLO = {
    "schema_id": "gamecult.model.transport_hello.v1",
    "protocol": 1,
    "client": "first_token",
    "stream_events": True,
    "join": True,
}
_WARM_REQUESTS = 200


class Told(NamedTuple):
    """How many streams there are at once, how many requests they share, and how each is answered."""

    name: str
    streams: int
    requests: int
    pace: Pace

    @property
    def stagger_us(self) -> int:
        """Between the begins of two streams: they spread over one answer."""
        return self.pace.every_us * self.pace.deltas // self.streams


class Load(Struct, frozen=True):
    """Microseconds, ascending, and the server's CPU."""

    first: Sequence[float]
    later: Sequence[float]
    cpu_us: float  # by delta, everything else that a request costs included


class Pair(Struct, frozen=True):
    """Measured one after the other."""

    relay: Load
    daemon: Load


def quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


@contextmanager
def _process(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A program of this folder, and the line that it says first."""
    script, *others = arguments
    with subprocess.Popen([sys.executable, str(_HERE / script), *others], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


class Loads:
    """One provider, one relay and one daemon, as long as the block runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._held = ExitStack()

    def __enter__(self) -> Loads:
        with self._held as held:
            _, port = held.enter_context(_process("stub_stream.py"))
            self._port = int(port)
            relay_path = self._folder / "relay.sock"
            relay, said = held.enter_context(_process("bare_relay.py", str(relay_path), str(self._port)))
            assert said == b"ready\n"
            self._relay_path, self._relay_pid = relay_path, relay.pid
            connector = _CONNECTOR.format(self._port)
            self._served = held.enter_context(running_daemon(self._folder, connector=connector, concurrent=128))
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def warm(self) -> None:
        """Runs both until code and caches are warm."""
        self.pair(Told("warm", 8, _WARM_REQUESTS, Pace(4, 1000, 1000, True)), daemon_first=True)

    def pair(self, told: Told, *, daemon_first: bool) -> Pair:
        if daemon_first:
            daemon, relay = self._daemon(told), self._relay(told)
        else:
            relay, daemon = self._relay(told), self._daemon(told)
        return Pair(relay, daemon)

    def _daemon(self, told: Told) -> Load:
        frames = [
            invocation(f"r{next(self._numbers)}", told.pace.words(), seconds=290, max_output_tokens=1024)
            for _ in range(told.requests)
        ]
        writes = [_prefixed(packed(_HELLO)), *map(_prefixed, frames)]
        return self._load(told, self._served.socket_path, self._served.pid, writes, "Completed")

    def _relay(self, told: Told) -> Load:
        body = b'{"model":"echo-1","stream":true,"messages":[{"role":"user","content":"%b"}]}'
        asked = body % told.pace.words().encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(asked)}\r\n\r\n"
        writes = [b"", *[head.encode() + asked] * told.requests]
        return self._load(told, self._relay_path, self._relay_pid, writes, "[DONE]")

    def _load(self, told: Told, path: Path, pid: int, writes: list[bytes], end: str) -> Load:
        kept = self._folder / "writes"
        kept.write_bytes(b"".join(map(_prefixed, writes)))
        before = cpu_ns(pid)
        numbers = (told.streams, told.pace.deltas, told.stagger_us)
        command = [sys.executable, str(_HERE / "stream_client.py"), str(path), str(kept), *map(str, numbers), end]
        took = array("Q", subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        cpu_us = (cpu_ns(pid) - before) / len(took) / 1000
        deltas = told.pace.deltas
        assert len(took) == deltas * told.requests, f"{len(took)} deltas of {told.requests} requests"
        first = sorted(one / 1000 for one in took[::deltas])
        later = sorted(one / 1000 for at, one in enumerate(took) if at % deltas)
        return Load(first, later, cpu_us)


def _prefixed(sent: bytes) -> bytes:
    return len(sent).to_bytes(4, "big") + sent
