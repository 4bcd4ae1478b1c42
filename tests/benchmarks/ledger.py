"""The benchmark of the ledger: `PYTHONPATH=tests python -m benchmarks ledger`.

Makes a ledger of completed requests with answers of 600 bytes and one of a tenth of them, opens each in a process of
its own, looks requests up there, reads one segment beside its checksums, and commits beside SQLite. Prints what each
took and whether each bar holds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec
from benchmarks import ledger_commits, ledger_replay
from benchmarks.ledger_child import Lookups, Opened
from benchmarks.ledger_made import IN_FLIGHT, Made, make
from benchmarks.printed import bar, filesystem, machine, spread

import sidecar

OPEN_BAR_SECONDS = 2.5
OPEN_BAR_MB = 96.0
UNKNOWN_BAR_US = 50.0  # p99
KNOWN_BAR_US = 1000.0  # p99
REPLAY_BAR = 0.25  # x the scan of all checksums
COMMIT_BAR = 2.0  # x SQLite
_PATHS = (Path(sidecar.__file__).parent.parent, Path(__file__).parent.parent)


def main(arguments: Sequence[str]) -> int:
    asked = _arguments(arguments)
    asked.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=asked.directory) as name:
        folder = Path(name)
        print(f"{machine()}\ndisk: {filesystem(name)}; medians over {asked.rounds} rounds, and (least to most)\n")
        made = _make(folder / "whole", asked.requests)
        held = [*_replay(made, folder, asked.rounds), *_commits(folder, asked.rounds, asked.commits)]
        held += _open(made, _make(folder / "tenth", max(1, asked.requests // 10)), asked.lookups)
    return 0 if all(held) else 1


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ledger", description="What the ledger costs.")
    add = parser.add_argument
    add("--requests", type=int, default=1_000_000, help="completed, in the ledger; by default %(default)s")
    add("--lookups", type=int, default=20_000, help="of ids, of each kind; by default %(default)s")
    add("--rounds", type=int, default=7, help="of reading a segment, and of commits; by default %(default)s")
    add("--commits", type=int, default=4_096, help="records of each kind in a round; by default %(default)s")
    add("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the ledgers are put")
    return parser.parse_args(arguments)


def _make(directory: Path, requests: int) -> Made:
    made = make(directory, requests)
    print(
        f"made: {made.requests} requests in {made.segments} segments, {made.disk_bytes / 1e6:.0f} MB on disk,"
        f" {made.written_bytes / made.requests:.0f} bytes a request in batches of {made.records_per_batch:.0f} records;"
        f" {made.seconds:.1f} s, {made.requests / made.seconds:.0f} requests/s"
    )
    return made


# --- opening and looking up ---------------------------------------------------------------------------------------


def _open(whole: Made, tenth: Made, lookups: int) -> list[bool]:
    small, large = _opened(tenth, lookups), _opened(whole, lookups)
    print(f"\nopening, in a process of its own (its imports alone: {large.imported_mb:.1f} MB)")
    for opened in (small, large):
        print(
            f"  {opened.segments} segments, {opened.records} records: {opened.seconds:.3f} s, {opened.opened_mb:.1f} MB"
        )
    more = large.seconds - small.seconds
    segments, records = large.segments - small.segments, large.records - small.records
    by_segment = f"{1000 * more / segments:.2f} ms for each more segment, " if segments else ""
    print(f"  grows by {by_segment}{1e6 * more / max(1, records):.3f} us for each more record")
    seconds, peak_mb = large.seconds, large.opened_mb
    return [
        bar("opens, seconds", f"{seconds:.3f}", f"at most {OPEN_BAR_SECONDS}", holds=seconds <= OPEN_BAR_SECONDS),
        bar("peak memory after it, MB", f"{peak_mb:.1f}", f"at most {OPEN_BAR_MB:.0f}", holds=peak_mb <= OPEN_BAR_MB),
        _looked_up("look-up of an unknown id, us", large.unknown, UNKNOWN_BAR_US),
        _looked_up("look-up of an old known id, us", large.known, KNOWN_BAR_US),
    ]


def _opened(made: Made, lookups: int) -> Opened:
    command = [sys.executable, "-m", "benchmarks.ledger_child", str(made.directory), str(made.requests), str(lookups)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _PATHS))}
    printed = subprocess.run(command, env=paths, check=True, stdout=subprocess.PIPE).stdout
    return msgspec.json.decode(printed, type=Opened)


def _looked_up(name: str, took: Lookups, most_us: float) -> bool:
    said = f"p50 {took.p50:.1f}, p99 {took.p99:.1f}, longest {took.longest:.1f}"
    return bar(name, said, f"p99 at most {most_us:.0f}", holds=took.p99 <= most_us)


# --- reading what no index covers ---------------------------------------------------------------------------------


def _replay(made: Made, folder: Path, rounds: int) -> list[bool]:
    scans, replay = ledger_replay.measured(made.directory, folder, rounds)
    print(f"\none segment, from the page cache: {replay.records} records, {replay.read_bytes / 1e6:.1f} MB")
    for name, one in {**scans, "read as an open does": replay}.items():
        mb = [one.read_bytes / 1e6 / seconds for seconds in one.took]
        print(f"  {name:28}{spread(one.records_per_second):>34} records/s{spread(mb):>24} MB/s")
    ratios = {
        name: [scanned / read for scanned, read in zip(one.took, replay.took, strict=True)]
        for name, one in scans.items()
    }
    *less, whole = ratios
    for name in less:
        print(f"read / {name:30}{spread(ratios[name], '{:.2f}')}")
    holds = median(ratios[whole]) >= REPLAY_BAR
    return [bar(f"read / {whole}", spread(ratios[whole], "{:.2f}"), f"at least {REPLAY_BAR}", holds=holds)]


# --- commits ------------------------------------------------------------------------------------------------------


def _commits(folder: Path, rounds: int, records: int) -> list[bool]:
    done = ledger_commits.Commits(folder, records).rounds(rounds)
    print(f"\ncommits of about {ledger_commits.RECORD_BYTES} bytes, {IN_FLIGHT} waiting, records/s")
    for name in ("ledger", "writer", "sqlite"):
        print(f"  {name:28}{spread([getattr(one, name) for one in done]):>34}")
    ratios = [one.ledger / one.sqlite for one in done]
    print(f"writer alone / SQLite                {spread([one.writer / one.sqlite for one in done], '{:.2f}')}")
    holds = median(ratios) >= COMMIT_BAR
    return [bar("ledger / SQLite", spread(ratios, "{:.2f}"), f"at least {COMMIT_BAR}", holds=holds)]
