"""The benchmark of the whole road, one command: `PYTHONPATH=tests python -m benchmarks`; `ledger`, `first_token` or
`idle` behind it name that of the ledger, of live events, of idle connections.

Prints a table of medians over the rounds with their spread, the ratios to the
echo and to the bare syncs, and whether each bar holds. Absolute numbers are
this machine's; the ratios are what can be compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from benchmarks import first_token, idle, ledger
from benchmarks.lean_client import LeanClient, find_compiler
from benchmarks.printed import filesystem, machine, spread
from benchmarks.road import CONNECTIONS, PAYLOAD_BYTES, SYNCED_BYTES, Bench, Load, Round

P50_BAR = 3.5  # x (echo p50 + the two syncs), at 1 connection
RATE_BAR = 0.20  # x echo, at 64 connections
IDLE_BAR_MB = 48.0
_OTHERS = {"ledger": ledger.main, "first_token": first_token.main, "idle": idle.main}
_FLOOR = (
    "import trio, msgspec, ssl; print(next(l for l in open('/proc/self/status') if l.startswith('VmRSS')).split()[1])"
)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in _OTHERS:
        return _OTHERS[given[0]](given[1:])
    asked = _arguments(given)
    asked.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as folder:
        client = LeanClient(Path(folder), find_compiler() if asked.compile else None)
        print(machine())
        print(f"disk: {filesystem(folder)}; client: {client.kind}; about {PAYLOAD_BYTES} bytes in and out")
        print(f"{asked.rounds} rounds of {asked.exchanges} exchanges; medians, and (least to most) over the rounds\n")
        rounds, memory = Bench(Path(folder), client, asked.exchanges).rounds(asked.rounds)
    _report(rounds)
    return _bars(rounds, memory)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the road costs.")
    parser.add_argument("--rounds", type=int, default=7, help="by default %(default)s")
    parser.add_argument(
        "--exchanges",
        type=int,
        default=8_000,
        help="in each load of a round, a quarter as many on a lone connection; by default %(default)s",
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the client in C")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the ledger is put")
    return parser.parse_args(arguments)


def _report(rounds: Sequence[Round]) -> None:
    print(f"{'':28}{'requests/s':>24}{'p50 us':>24}{'p99 us':>24}{'CPU us/request':>19}{'records/sync':>22}")

    def row(name: str, loads: list[Load]) -> None:
        cells = (
            f"{spread([load.run.per_second for load in loads]):>24}",
            f"{spread([load.run.quantile_us(0.5) for load in loads]):>24}",
            f"{spread([load.run.quantile_us(0.99) for load in loads]):>24}",
            f"{spread([load.cpu_us for load in loads]):>19}",
        )
        syncs = [load.records_per_sync for load in loads if load.records_per_sync]
        print(f"{name:28}{''.join(cells)}{spread(syncs, '{:.1f}') if syncs else '':>22}")

    for connections in CONNECTIONS:
        row(f"echo, {connections} connections", [one.echo[connections] for one in rounds])
        row(f"daemon, {connections} connections", [one.daemon[connections] for one in rounds])
    row(f"waiting, {CONNECTIONS[-1]} connections", [one.waiting for one in rounds])
    row(f"replays, {CONNECTIONS[-1]} connections", [one.replay for one in rounds])
    for size in SYNCED_BYTES:
        print(f"{f'write + fdatasync, {size} bytes':28}{'':24}{spread([one.sync_us[size] for one in rounds]):>24}")
    print()


def _floor_us(one: Round) -> float:
    return one.echo[1].run.quantile_us(0.5) + sum(one.sync_us.values())


def _bars(rounds: Sequence[Round], memory: dict[str, float]) -> int:
    """Prints the ratios; 1 if a bar does not hold."""
    most = CONNECTIONS[-1]

    def over(ratio: Callable[[Round], float]) -> list[float]:
        return [ratio(one) for one in rounds]

    p50 = over(lambda one: one.daemon[1].run.quantile_us(0.5) / _floor_us(one))
    rate = over(lambda one: one.daemon[most].run.per_second / one.echo[most].run.per_second)
    others = {
        "p99 at 64 / echo's": over(
            lambda one: one.daemon[most].run.quantile_us(0.99) / one.echo[most].run.quantile_us(0.99)
        ),
        "CPU a request at 64 / echo's": over(lambda one: one.daemon[most].cpu_us / one.echo[most].cpu_us),
        "with a connector that waits": over(lambda one: one.waiting.run.per_second / one.echo[most].run.per_second),
        "replays/s at 64 / echo's": over(lambda one: one.replay.run.per_second / one.echo[most].run.per_second),
    }
    held = [median(p50) <= P50_BAR, median(rate) >= RATE_BAR, memory["idle"] <= IDLE_BAR_MB]
    said = ["holds" if holds else "DOES NOT HOLD" for holds in held]
    form = "{:.2f}"
    print(f"p50 at 1 / (echo p50 + both syncs)   {spread(p50, form)}   at most {P50_BAR}: {said[0]}")
    print(f"requests/s at 64 / echo's            {spread(rate, form)}   at least {RATE_BAR}: {said[1]}")
    print(f"resident memory, idle                {memory['idle']:.1f} MB   at most {IDLE_BAR_MB:.0f}: {said[2]}")
    print(f"resident memory, after the load      {memory['after the load']:.1f} MB; bare imports {_floor_mb():.1f} MB")
    for name, ratios in others.items():
        print(f"{name:37}{spread(ratios, form)}")
    return 0 if all(held) else 1


def _floor_mb() -> float:
    printed = subprocess.run([sys.executable, "-c", _FLOOR], capture_output=True, text=True, check=True).stdout
    return int(printed) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
