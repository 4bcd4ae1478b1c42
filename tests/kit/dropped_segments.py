"""Ledgers whose first segments were dropped: a checkpoint made of the records, step by step as a daemon does it."""

from __future__ import annotations

from pathlib import Path

import trio
from kit.small_ledgers import open_small, segment_name
from msgspec import structs

from sidecar.contract import values as v
from sidecar.contract.values import RecordBody
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import recovery
from sidecar.ledger.checkpoint import Checkpoint, Dropped, KeptBegin
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import SegmentHeader
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import LeanRecord, in_full
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.seal_format import End

LOW_WATER = 61_000  # where the requests of tests expire
STEPS = ("low_water", "file", "record", "unlink")


class _Enough(Exception):
    pass


class _Summed:
    """What stands in the segments up to one, on top of what an older checkpoint says."""

    def __init__(self, directory: Path, until: int) -> None:
        self._directory = directory
        self._until = until
        self.end = End()
        self.dropped = Dropped()
        self.open: dict[tuple[int, int], bytes] = {}

    def read(self) -> None:
        files = DiskFiles()
        older = max(filter(None, map(checkpoints.segment_of_name, files.names(self._directory))), default=0)
        start = End()
        if older:
            known, _ = checkpoints.read(files, self._directory, older)
            start, self.dropped = known.end, known.dropped
            self.open = {(one.segment, one.offset): one.framed for one in known.begins}
        try:
            recovery.replay(files, self._directory, self._take_batch, cold=False, start=start, enter=self._enter)
        except _Enough:
            return
        raise AssertionError("there is no segment behind the last one to drop")

    def _enter(self, header: SegmentHeader, before: End) -> None:
        if header.segment == self._until + 1:
            self.end = before
            raise _Enough

    def _take_batch(self, segment: int, lean: list[tuple[LeanRecord, int, int]]) -> None:
        for record, offset, length in lean:
            self._take(in_full(record), Place(segment, offset, length))

    def _take(self, body: RecordBody, place: Place) -> None:
        said = self.dropped
        changes = {"records": said.records + 1}
        if body.begin:
            content = (self._directory / segment_name(place.segment)).read_bytes()
            self.open[place.segment, place.offset] = content[place.offset : place.offset + place.length]
            changes["begins"] = said.begins + 1
        elif body.completed:
            del self.open[body.completed.begin_segment, body.completed.begin_offset]
            changes["completions"] = said.completions + 1
            changes["charged_micro_usd"] = said.charged_micro_usd + body.completed.charge_micro_usd
        self.dropped = structs.replace(said, **changes)


def checkpoint_of(directory: Path, until: int, low_water: int = LOW_WATER) -> Checkpoint:
    """Of the segments up to `until`, which are all there but for what an older checkpoint stands for."""
    summed = _Summed(directory, until)
    summed.read()
    return Checkpoint(
        begins=tuple(KeptBegin(*place, framed) for place, framed in sorted(summed.open.items())),
        dropped=summed.dropped,
        end=structs.replace(summed.end, low_water_unix_ms=low_water),
    )


async def drop(directory: Path, until: int, *, steps: tuple[str, ...] = STEPS, low_water: int = LOW_WATER) -> None:
    """One run of a daemon that drops the segments up to `until`, or comes only so far."""
    ledger = open_small(directory)
    async with ledger.running():
        await drop_from(ledger, directory, until, steps=steps, low_water=low_water)


async def drop_from(
    ledger: Ledger, directory: Path, until: int, *, steps: tuple[str, ...] = STEPS, low_water: int = LOW_WATER
) -> None:
    checkpoint = checkpoint_of(directory, until, low_water)
    while not ledger.statistics().spares_ready:
        await trio.lowlevel.checkpoint()
    digest = b""
    for step in steps:
        if step == "low_water":
            await ledger.append(v.LowWaterRecord(expires_at_unix_ms=low_water))
        elif step == "file":
            digest = checkpoints.write(DiskFiles(), directory, checkpoint)
        elif step == "record":
            await ledger.append(v.CheckpointRecord(file_sha256=tuple(digest), segment=until))
        else:
            for path in sorted(directory.iterdir()):
                older = checkpoints.segment_of_name(path.name) or until
                if older < until or path.name in map(segment_name, range(1, until + 1)):
                    path.unlink()
