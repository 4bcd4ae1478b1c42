"""The benchmark of idle connections: `PYTHONPATH=tests python -m benchmarks idle`.

What the daemon keeps resident for each of 10,000 connections: ones that have said nothing, ones that said hello and
asked for live events and joining, and ones that had an answer besides. Each kind meets a daemon of its own, which
starts with a soft limit of 1,024 descriptors. One connection more is there from first to last: it asks, so that a
request beside idle connections stands beside one without. Where answers were given, the daemon also keeps what it
knows of the requests; as many requests on one connection say how much that is, and it is told apart.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median

import msgpack
from benchmarks.printed import bar, filesystem, machine, spread
from kit.daemon_process import Client, Process, invocation, packed, running_daemon, wait_until
from msgspec import Struct

BAR_BYTES = 12_288  # by connection
_SOFT_LIMIT = 1024
_RESERVE = 64  # descriptors of the benchmark itself
_AT_ONCE = 64
_HELLO = packed(
    {
        "schema_id": "gamecult.model.transport_hello.v1",
        "protocol": 1,
        "client": "idle",
        "stream_events": True,
        "join": True,
    }
)
_STATUS = packed({"schema_id": "gamecult.model.transport_status.v1"})
_LIMITED = ("sh", "-c", f'ulimit -S -n {_SOFT_LIMIT}; exec "$0" "$@"')


class Resident(Struct, frozen=True):
    """Bytes of one process: all that is resident, and its share of what others map too."""

    rss: int
    pss: int


class Kind(Struct, frozen=True):
    """Of one kind of idle connection; what is by connection is in bytes."""

    name: str
    connect_seconds: float
    rss: float
    pss: float
    request_rss: float  # of as many requests on one connection, by request; 0 where none was asked
    kept: float  # once all have left, by connection that there was
    again: float  # with as many once more, by connection: what was kept is used again
    alone_us: float  # p50 of a request
    beside_us: float


def main(arguments: Sequence[str]) -> int:
    asked = _arguments(arguments)
    wanted: int = asked.connections
    if not _may_open(wanted + _RESERVE):
        print(f"needs {wanted + _RESERVE} descriptors: raise the hard limit (ulimit -Hn), or lower --connections")
        return 1
    asked.directory.mkdir(parents=True, exist_ok=True)
    print(
        f"{machine()}\ndisk: {filesystem(str(asked.directory))}; {wanted} idle connections beside the one that asks\n"
    )
    kinds = [
        _measured(asked, "said nothing", _nothing),
        _measured(asked, "said hello", _greet),
        _measured(asked, "had an answer", _greet_and_ask, asks=True),
    ]
    _report(kinds)
    held = [
        bar(f"bytes each that {kind.name}", f"{kind.rss:.0f}", f"at most {BAR_BYTES}", holds=kind.rss <= BAR_BYTES)
        for kind in kinds
    ]
    return 0 if all(held) else 1


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks idle", description="What idle connections cost.")
    add = parser.add_argument
    add("--connections", type=int, default=10_000, help="by default %(default)s")
    add("--requests", type=int, default=500, help="timed, alone and beside the idle ones; by default %(default)s")
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the ledgers are put")
    return parser.parse_args(arguments)


def _may_open(descriptors: int) -> bool:
    """Raises this process's own soft limit, if it can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < descriptors <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    return descriptors <= hard


def _report(kinds: Sequence[Kind]) -> None:
    heads = ("connect, s", "VmRSS, each", "Pss, each", "once they left", "as many silent again", "as many requests")
    print(("\n{:16}" + "{:>22}" * len(heads)).format("bytes", *heads))
    for kind in kinds:
        whole = (kind.rss, kind.pss, kind.kept, kind.again, kind.request_rss)
        print(f"{kind.name:16}{kind.connect_seconds:22.2f}" + "".join(f"{each:22.0f}" for each in whole))
    alone, beside = [kind.alone_us for kind in kinds], [kind.beside_us for kind in kinds]
    print(f"\np50 of a request, alone {spread(alone)} us, beside the idle ones {spread(beside)} us", end="")
    print(f", ratio {spread([two / one for one, two in zip(alone, beside, strict=True)], '{:.2f}')}\n")


# --- one daemon ---------------------------------------------------------------------------------------------------


def _measured(
    asked: argparse.Namespace, name: str, begin: Callable[[list[Client]], None], *, asks: bool = False
) -> Kind:
    wanted: int = asked.connections
    bounds = f"connections_max = {wanted + 1}\nconnections_per_user_max = {wanted + 1}"
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as folder,
        running_daemon(Path(folder), daemon=bounds, wrapper=_LIMITED) as served,
        served.connect() as asker,
    ):
        alone_us = _p50_us(asker, asked.requests)
        request_rss = 0.0
        if asks:
            before = _resident(served)
            _ask([asker] * wanted)
            request_rss = (_resident(served).rss - before.rss) / wanted
        before = _resident(served)
        with ExitStack() as held:
            began = time.monotonic()
            idle = [held.enter_context(_connected(served)) for _ in range(wanted)]
            _wait_for(asker, wanted + 1)
            seconds = time.monotonic() - began
            begin(idle)
            there = _resident(served)
            beside_us = _p50_us(asker, asked.requests)
            _one_too_many(served, asker, idle[0], wanted)
        _wait_for(asker, 1)
        kept = _resident(served)
        again = _once_more(served, asker, wanted)
        print(f"{name}: {_descriptors(served)}")
    return Kind(
        name=name, connect_seconds=seconds, request_rss=request_rss, alone_us=alone_us, beside_us=beside_us,
        rss=(there.rss - before.rss) / wanted - request_rss, pss=(there.pss - before.pss) / wanted - request_rss,
        kept=(kept.rss - before.rss) / wanted - request_rss,
        again=(again.rss - before.rss) / wanted - request_rss,
    )  # fmt: skip


def _connected(served: Process) -> Client:
    """Once there is room in what the listening socket holds before the daemon has accepted it."""
    while True:
        try:
            return served.connect()
        except BlockingIOError:
            time.sleep(0.001)


def _once_more(served: Process, asker: Client, wanted: int) -> Resident:
    """With as many silent connections as there were before."""
    with ExitStack() as held:
        for _ in range(wanted):
            held.enter_context(_connected(served))
        _wait_for(asker, wanted + 1)
        return _resident(served)


def _resident(served: Process) -> Resident:
    lines = Path(f"/proc/{served.pid}/smaps_rollup").read_text().splitlines()
    found = {line.split()[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    return Resident(found["Rss:"], found["Pss:"])


def _descriptors(served: Process) -> str:
    limits = Path(f"/proc/{served.pid}/limits").read_text().splitlines()
    soft = next(line for line in limits if line.startswith("Max open files")).split()[3]
    told = "it says descriptors_short" if "descriptors_short" in served.log() else "it says nothing more of it"
    return f"started with a limit of {_SOFT_LIMIT} descriptors, the daemon has {soft}; {told}"


def _one_too_many(served: Process, asker: Client, leaver: Client, wanted: int) -> None:
    """At the bound the next one is told so; once one has left, the next is let in."""
    with served.connect() as refused:
        answer = refused.receive()
        assert answer is not None
        assert msgpack.unpackb(answer)["code"] == "too_many_connections"
    leaver.close()
    _wait_for(asker, wanted)
    with served.connect() as let_in:
        assert b"transport_welcome" in let_in.ask(_HELLO)


# --- what connections say -----------------------------------------------------------------------------------------

_numbers = count()


def _nothing(_: list[Client]) -> None:
    return


def _greet(idle: list[Client]) -> None:
    for client in idle:
        assert b"transport_welcome" in client.ask(_HELLO)


def _ask(idle: list[Client]) -> None:
    """Each hears an answer, many at a time."""
    for some in _in_groups(idle):
        for client in some:
            client.send(invocation(f"r{next(_numbers)}"))
        for client in some:
            _until_result(client)


def _greet_and_ask(idle: list[Client]) -> None:
    _greet(idle)
    _ask(idle)


def _in_groups(idle: list[Client]) -> Iterator[list[Client]]:
    for at in range(0, len(idle), _AT_ONCE):
        yield idle[at : at + _AT_ONCE]


def _until_result(client: Client) -> None:
    while (frame := client.receive()) is not None:
        if b"transport_result" in frame:
            assert b"Completed" in frame, frame
            return
    raise AssertionError("the daemon closed the connection")


def _p50_us(asker: Client, requests: int) -> float:
    took = []
    for _ in range(requests):
        frame = invocation(f"r{next(_numbers)}")
        began = time.perf_counter_ns()
        asker.send(frame)
        _until_result(asker)
        took.append(time.perf_counter_ns() - began)
    return median(took) / 1000


def _wait_for(asker: Client, connections: int) -> None:
    wait_until(lambda: msgpack.unpackb(asker.ask(_STATUS))["daemon"]["connections"] == connections)
