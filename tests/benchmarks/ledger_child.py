"""Opens a ledger in a process of its own and looks requests up: `python -m benchmarks.ledger_child DIRECTORY REQUESTS
LOOKUPS` prints what it took as JSON. It imports the ledger and little else, so that its memory is the ledger's."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
from benchmarks.ledger_made import opened
from benchmarks.ledger_records import CALLER, request_id, unknown_id
from msgspec import Struct

from sidecar.ledger.ledger import Ledger


class Lookups(Struct, frozen=True):
    """In microseconds, each call alone."""

    p50: float
    p99: float
    longest: float


class Opened(Struct, frozen=True):
    """Peaks of resident memory in MB, as the kernel keeps them."""

    seconds: float
    imported_mb: float
    opened_mb: float
    segments: int
    records: int
    unknown: Lookups
    known: Lookups


def peak_mb() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def looked_up(ledger: Ledger, ids: Iterable[str], *, known: bool) -> Lookups:
    took = []
    gc.disable()
    for wanted in ids:
        began = time.perf_counter_ns()
        found = ledger.find(CALLER, wanted)
        took.append(time.perf_counter_ns() - began)
        assert (found is not None) == known, f"{wanted} is {'not ' if known else ''}on record"
    gc.enable()
    took.sort()
    return Lookups(took[len(took) // 2] / 1000, took[len(took) * 99 // 100] / 1000, took[-1] / 1000)


def main(directory: Path, requests: int, lookups: int) -> None:
    imported_mb = peak_mb()
    began = time.monotonic()
    ledger = opened(directory)
    seconds = time.monotonic() - began
    opened_mb = peak_mb()
    numbers = random.Random(1).choices(range(requests), k=lookups)
    found = Opened(
        seconds=seconds,
        imported_mb=imported_mb,
        opened_mb=opened_mb,
        segments=ledger.recovery.segments,
        records=ledger.recovery.records,
        unknown=looked_up(ledger, map(unknown_id, range(lookups)), known=False),
        known=looked_up(ledger, map(request_id, numbers), known=True),
    )
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
