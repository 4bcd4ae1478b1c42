"""What the road costs, beside what its parts cost: all of it measured in turn, round after round, on one machine.

A round goes through the numbers of connections, the echo and then the daemon at each, with the bare syncs between
the two at one connection and replays behind the last. Neighbours in time see the same machine, so it is the ratio of
neighbours that is reported, with its spread over the rounds. Frames and answers are 4 KiB but for a few bytes; an
answer is one text delta of the scripted connector, which needs no task for it; the same with one that waits a
millisecond first, and so is asked in a task as a real provider is, stands beside it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.disk import batches_written, sync_median_us
from benchmarks.lean_client import LeanClient, Run
from kit.daemon_process import Process, invocation, spawn, wait_ready
from msgspec import Struct

CONNECTIONS = (1, 8, 64)
PAYLOAD_BYTES = 4096
SYNCED_BYTES = (600, 4_700)  # about a begin and a completion of 4 KiB
_AROUND_THE_QUESTION_BYTES = 480  # what an invocation has around its text, but for the length of its ids
_AROUND_THE_ANSWER_BYTES = 616  # and a result

_CONFIG = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc", "waits"]
concurrent_requests_max = 64
spend_ceiling_micro_usd = 1_000_000_000_000_000
spend_window_seconds = 86_400
[[connector]]
name = "provider"
kind = "scripted"
script = "script.toml"
concurrent_requests_max = 64
"""
_MODEL = """
[[model]]
name = "{}"
connector = "provider"
upstream = "echo-1"
[[model.price]]
input = 2_000_003
cache_read = 3_000_017
cache_write_short = 5_000_011
cache_write_long = 7_000_003
output = 11_000_027
"""
_RULES = """
[[rule]]
model = "waits"
delay_ms = 1
deltas = ["{words}"]
[[rule]]
deltas = ["{words}"]
"""
_EXPECTED = "Completed"  # stands in the receipt of an answer that was carried, and in no refusal


class Load(Struct, frozen=True):
    """One server under one number of connections."""

    run: Run
    cpu_us: float  # of the server, by exchange
    records_per_sync: float | None = None


class Round(Struct, frozen=True):
    """What was measured side by side."""

    echo: dict[int, Load]
    daemon: dict[int, Load]
    waiting: Load  # as `daemon` at the most connections, with a connector that waits
    replay: Load
    sync_us: dict[int, float]  # bytes -> the median


def words(length: int) -> str:
    """Text of this many bytes, in words as prose has them."""
    return ("wording " * (length // 8 + 1))[:length]


class Frames:
    """Invocations of 4 KiB, each with an id of its own."""

    def __init__(self) -> None:
        self._numbers = count()
        self._text = words(PAYLOAD_BYTES - _AROUND_THE_QUESTION_BYTES)

    def fresh(self, wanted: int, model: str = "npc") -> list[bytes]:
        return [invocation(f"r{next(self._numbers)}", self._text, seconds=290, model=model) for _ in range(wanted)]


def cpu_ns(pid: int) -> int:
    """What a process has run, its threads that have ended included: the kernel's CPU clock of that process."""
    return time.clock_gettime_ns(~pid << 3 | 2)


def resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


@contextmanager
def echo_server(folder: Path) -> Iterator[tuple[Path, int]]:
    path = folder / "echo.sock"
    command = [sys.executable, str(Path(__file__).with_name("echo_server.py")), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield path, process.pid
        finally:
            process.send_signal(signal.SIGTERM)


@contextmanager
def daemon(folder: Path) -> Iterator[Process]:
    (folder / "script.toml").write_text(_RULES.format(words=words(PAYLOAD_BYTES - _AROUND_THE_ANSWER_BYTES)))
    (folder / "sidecar.toml").write_text(_CONFIG + _MODEL.format("npc") + _MODEL.format("waits"))
    process = spawn(folder)
    try:
        wait_ready(process)
        yield process
    finally:
        process.stop()


class Bench:
    """One echo and one daemon, loaded in turn."""

    def __init__(self, folder: Path, client: LeanClient, exchanges: int) -> None:
        self._folder = folder
        self._client = client
        self._exchanges = exchanges
        self._frames = Frames()

    def rounds(self, wanted: int) -> tuple[list[Round], dict[str, float]]:
        """The rounds, and the daemon's resident memory in MB: idle, and at the end."""
        with echo_server(self._folder) as (echo_path, echo_pid), daemon(self._folder) as served:
            memory = {"idle": resident_mb(served.pid)}
            self._load(served.socket_path, served.pid, self._frames.fresh(200), 8)  # code and caches are warm now
            done = [self._round(echo_path, echo_pid, served) for _ in range(wanted)]
            memory["after the load"] = resident_mb(served.pid)
        return done, memory

    def _round(self, echo_path: Path, echo_pid: int, served: Process) -> Round:
        echo, carried, sync_us = {}, {}, {}
        frames: list[bytes] = []
        for connections in CONNECTIONS:
            frames = self._frames.fresh(self._share(connections))
            echo[connections] = self._load(echo_path, echo_pid, frames, connections, "wording")
            if connections == 1:
                sync_us = {size: sync_median_us(self._folder, size, len(frames)) for size in SYNCED_BYTES}
            carried[connections] = self._carried(served, frames, connections)
        most = CONNECTIONS[-1]
        waiting = self._carried(served, self._frames.fresh(self._exchanges, "waits"), most)
        replayed = self._load(served.socket_path, served.pid, frames, most)
        return Round(echo, carried, waiting, replayed, sync_us)

    def _share(self, connections: int) -> int:
        """A lone connection is slow and its median settles early."""
        return self._exchanges if connections > 1 else self._exchanges // 4

    def _carried(self, served: Process, frames: list[bytes], connections: int) -> Load:
        before = batches_written(self._folder / "ledger")
        load = self._load(served.socket_path, served.pid, frames, connections)
        synced = batches_written(self._folder / "ledger") - before
        return Load(load.run, load.cpu_us, 2 * len(frames) / synced)

    def _load(self, path: Path, pid: int, frames: list[bytes], connections: int, expected: str = _EXPECTED) -> Load:
        before = cpu_ns(pid)
        run = self._client.run(path, frames, connections, expected)
        return Load(run, (cpu_ns(pid) - before) / len(frames) / 1000)
