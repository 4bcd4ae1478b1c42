"""The benchmark of the test kit's start: `PYTHONPATH=tests python -m benchmarks.start`.

What a test waits for before its game has the first answer, and what that is made of: the interpreter, what the daemon
imports, what its ledger writes out and syncs before it is ready. Prints whether the bar holds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.printed import bar, filesystem, machine, spread
from kit.daemon_process import Client, invocation

from sidecar.testing.daemon import Daemon, spawned

ANSWER_BAR_SECONDS = 0.6
_MEMORY = Path("/dev/shm")
_WHOLE_SEGMENT_BYTES = 67_108_864
_END = "import os; os._exit(0)"  # what tidying up takes, no start waits for
_SECONDS = "{:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description="What the kit's start costs.")
    parser.add_argument("--rounds", type=int, default=7, help="by default %(default)s")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where the ledgers are put")
    asked = parser.parse_args(arguments)
    print(
        f"{machine()}\ndisk: {filesystem(str(asked.directory))}; medians over {asked.rounds} rounds, and their spread\n"
    )
    rows = _rows(asked.directory)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(asked.rounds):
        for name, measure in rows.items():
            seconds[name].append(measure())
    for name, taken in seconds.items():
        print(f"{name:44}{spread(taken, _SECONDS)} s")
    ready, imports = seconds["start to ready"], seconds["the interpreter and all imports"]
    print(f"\n{'start to ready / imports':44}{spread([a / b for a, b in zip(ready, imports, strict=True)], '{:.2f}')}")
    answer = seconds["start to first answer"]
    held = bar(
        "start to first answer",
        f"{spread(answer, _SECONDS)} s",
        f"at most {ANSWER_BAR_SECONDS} s",
        holds=median(answer) <= ANSWER_BAR_SECONDS,
    )
    return 0 if held else 1


def _rows(directory: Path) -> dict[str, Callable[[], float]]:
    python = partial(_taken, sys.executable, "-c")
    rows = {
        "the interpreter alone": partial(python, _END),
        "the interpreter and all imports": partial(python, f"import sidecar.cli.main, sidecar.cli.serve; {_END}"),
        "start to ready": partial(_ready, directory),
        "start to first answer": partial(_answer, directory),
        "start to ready, segments of 64 MiB": partial(
            _ready, directory, ledger={"segment_bytes": _WHOLE_SEGMENT_BYTES}
        ),
        "a shared daemon, begun anew": partial(_anew, directory),
    }
    return {**rows, "start to ready, ledger in memory": partial(_ready, _MEMORY)} if _MEMORY.is_dir() else rows


def _taken(*command: str) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begun


def _in_folder(directory: Path, measure: Callable[[Daemon, float], float], **settings: Any) -> float:
    with tempfile.TemporaryDirectory(prefix="start-", dir=directory) as folder:
        begun = time.perf_counter()
        with spawned(models=["npc"], folder=Path(folder), **settings) as daemon:
            return measure(daemon, begun)


def _ready(directory: Path, **settings: Any) -> float:
    return _in_folder(directory, lambda _, begun: time.perf_counter() - begun, **settings)


def _answer(directory: Path) -> float:
    def measure(daemon: Daemon, begun: float) -> float:
        daemon.on(text="dragon").says("It ", "sleeps.")
        with Client(daemon.socket) as client:
            assert b"It sleeps." in client.ask(invocation("turn-1", "Where is the dragon?"))
        return time.perf_counter() - begun

    return _in_folder(directory, measure)


def _anew(directory: Path) -> float:
    def measure(daemon: Daemon, _: float) -> float:
        with Client(daemon.socket) as client:
            client.ask(invocation("turn-1"))
        begun = time.perf_counter()
        daemon.begin_anew()
        return time.perf_counter() - begun

    return _in_folder(directory, measure)


if __name__ == "__main__":
    sys.exit(main())
