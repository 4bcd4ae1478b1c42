"""The benchmark of live events: `PYTHONPATH=tests python -m benchmarks first_token`.

What a delta takes from the provider's `send` to the client's `recv`, through the daemon (openai_chat over loopback,
a live event over its Unix socket) and through a bare Trio relay that copies the same bytes between the same two
sockets. Each number is the client's stamp behind `recv` minus the provider's in front of `send`, so both hold one hop
over loopback TCP, one over a Unix socket, and the client's wake-up; the daemon's also holds all that it does between
them, and what it does for other streams meanwhile: reading requests, two syncs of the ledger for each, asking the
provider. The two run in turn, and it is the ratio of neighbours that is reported.

A provider sends the head of its response either ahead of the first delta or in one piece with it. In the second case
the first number holds the reading of the head and of an event without text too; the relay copies them unread.

On a machine that others use too, what is measured is how long a busier process waits for a processor. There,
`chrt -f 1` before the command keeps the others out of it, and the quickest tenth (p10) tells what the way itself takes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.first_token_loads import Load, Loads, Pair, Told, quantile
from benchmarks.printed import bar, filesystem, machine, spread
from benchmarks.stub_stream import Pace

P50_BAR = 3.0  # x the relay's, for the first delta
_ROW = "{:34}{:>20}{:>20}{:>22}{:>20}{:>22}{:>20}"


def main(arguments: Sequence[str]) -> int:
    asked = _arguments(arguments)
    asked.directory.mkdir(parents=True, exist_ok=True)
    loads = _loads(asked.requests, 1000 * asked.every_ms)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name, Loads(Path(name)) as running:
        print(f"{machine()}\ndisk: {filesystem(name)}; {asked.rounds} rounds in turn; medians, and (least to most)")
        for told in loads:
            print(f"{told.name}: {told.requests} requests a round, {told.pace.words()}, each time by half more or less")
        running.warm()
        rounds = [
            [running.pair(told, daemon_first=bool(number % 2)) for told in loads] for number in range(asked.rounds)
        ]
    by_load = list(zip(*rounds, strict=True))
    print("\n" + _ROW.format("us", "first p10", "first p50", "first p99", "later p50", "later p99", "CPU by delta"))
    for told, pairs in zip(loads, by_load, strict=True):
        for server in ("relay", "daemon"):
            _row(f"{told.name}, {server}", [getattr(pair, server) for pair in pairs])
    print("\ndaemon / relay")
    held = [_ratios(told, pairs) for told, pairs in zip(loads, by_load, strict=True)]
    return 0 if all(held) else 1


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks first_token", description="What a live event takes.")
    parser.add_argument("--rounds", type=int, default=5, help="by default %(default)s")
    parser.add_argument(
        "--requests",
        type=int,
        default=320,
        help="a round, of 64 streams; a fifth as many of one; by default %(default)s",
    )
    parser.add_argument("--every-ms", type=int, default=40, help="a delta of each of 64; by default %(default)s")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the ledger is put")
    return parser.parse_args(arguments)


def _loads(requests: int, every_us: int) -> list[Told]:
    """One stream, and 64 at the pace of a quick model, whose head comes first or with the first delta."""
    lone = max(1, requests // 5)
    return [
        Told("1 stream, head apart", 1, lone, Pace(8, 5_000, 10_000, True)),
        Told("1 stream, head with it", 1, lone, Pace(8, 5_000, 10_000, False)),
        Told("64 streams, head apart", 64, requests, Pace(40, every_us, every_us, True)),
        Told("64 streams, head with it", 64, requests, Pace(40, every_us, every_us, False)),
    ]


def _row(name: str, loads: Sequence[Load]) -> None:
    wanted = [("first", 0.1), *[(which, share) for which in ("first", "later") for share in (0.5, 0.99)]]
    cells = [spread([quantile(getattr(load, which), share) for load in loads]) for which, share in wanted]
    print(_ROW.format(name, *cells, spread([load.cpu_us for load in loads])))


def _ratios(told: Told, pairs: Sequence[Pair]) -> bool:
    def over(took: Callable[[Load], float]) -> list[float]:
        return [took(pair.daemon) / took(pair.relay) for pair in pairs]

    first = over(lambda load: quantile(load.first, 0.5))
    rest = {
        "first p10": over(lambda load: quantile(load.first, 0.1)),
        "first p99": over(lambda load: quantile(load.first, 0.99)),
        "later p50": over(lambda load: quantile(load.later, 0.5)),
        "later p99": over(lambda load: quantile(load.later, 0.99)),
    }
    form = "{:.2f}"
    said = "; ".join(f"{name} {spread(ratios, form)}" for name, ratios in rest.items())
    holds = bar(told.name, f"first p50 {spread(first, form)}", f"at most {P50_BAR}", holds=median(first) <= P50_BAR)
    print(f"{'':37}{said}")
    return holds
