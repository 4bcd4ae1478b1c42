"""The records of a ledger added up again, by the second reading, up to a batch that is known to be on disk.

For a worker thread beside the daemon that writes: it shares nothing with it
but the files, and memory holds only what is open and the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from sidecar.audit.decoder import Line
from sidecar.audit.reading import Reading
from sidecar.ledger.faults import RESTORE, LedgerDamaged
from sidecar.rules.conservation import Tally


class GivenUp(Exception):
    """Nobody wants the sums any more."""


class Tallied(Struct, frozen=True):
    """The sums, and the chain's head behind the last batch in them (32 bytes)."""

    tally: Tally
    head: bytes


def tallied(
    directory: Path, window_seconds: Mapping[str, int], *, up_to_batch: int, goes_on: Callable[[], bool] = lambda: True
) -> Tallied:
    """All batches from the first to this one, and nothing behind it. `goes_on` is asked before each.

    Raises LedgerDamaged (also where the ledger ends before that batch), NoLedger, OSError, GivenUp.
    """
    tally = Tally(window_seconds)
    reading = Reading(directory)
    reading.begin()
    tally.forget(reading.low_water_at_begin)
    for line in reading.open.values():  # of segments that were dropped; a checkpoint has kept them
        _add(line, tally)
    with closing(reading.batches()) as batches:
        for batch in batches:
            for line in batch.lines:
                _add(line, tally)
            if batch.number == up_to_batch:
                return Tallied(tally, batch.head)
            if not goes_on():
                raise GivenUp
    path = directory / f"{reading.segment:016d}.segment"
    raise LedgerDamaged(path, 0, f"batch {up_to_batch}, and the ledger ends after {reading.batch}", RESTORE)


def _add(line: Line, tally: Tally) -> None:
    members = line.members
    if line.kind == "Begin":
        tally.begun(members["caller_runtime_id"], members["admitted_at_unix_ms"], members["reservation_micro_usd"])
    elif line.kind == "Completed":
        assert line.begun is not None, "the second reading names the begin of each completion"
        begun = line.begun.members
        tally.ended(
            begun["caller_runtime_id"],
            begun["admitted_at_unix_ms"],
            begun["reservation_micro_usd"],
            members["charge_micro_usd"],
        )
