"""Where the dropping of old segments has come to: what is to be done next, a step at a time (`retention`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from sidecar.contract.values import CheckpointRecord, LowWaterRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger.checkpoint import Checkpoint, Dropped, less
from sidecar.ledger.commit_thread import Told
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.opening import Opening
from sidecar.ledger.retention import Going, checkpoint_of, going, remove_gone
from sidecar.ledger.seal_format import End
from sidecar.ledger.watch import Job


class Work(Struct, frozen=True):
    """A job for the thread, in words for who hears that it failed; what it returns is called on the Trio side."""

    job: Job
    name: str
    do: Callable[[], Told]


class ToRecord(Struct, frozen=True):
    """A record to be appended, and what is to be done once it has landed."""

    record: LowWaterRecord | CheckpointRecord
    then: Told


class Retaining:
    """Known to the Trio side alone; what it gives as work is for the thread, and tells what changes here."""

    def __init__(
        self,
        files: DiskFiles,
        directory: Path,
        opening: Opening,
        retention_days: int | None,
        clock_unix_ms: Callable[[], int],
        on_dropped: Callable[[End, Dropped], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._index = opening.index
        self._read_back = opening.read_back
        self.retention_days = retention_days
        self._clock_unix_ms = clock_unix_ms
        self._on_dropped = on_dropped
        self.base = opening.base
        self.dropped = opening.dropped
        self._unsaid: CheckpointRecord | None = None
        if opening.found.end.checkpoint_segment < self.base.segment:
            self._unsaid = _record(self.base.segment, opening.checkpoint_sha256)
        self._leftovers = self.base.segment > 0

    def next(self, end: End, breathe: Callable[[], None]) -> Work | ToRecord | None:
        """`end` is where the record ends now."""
        if self._unsaid is not None:
            return ToRecord(self._unsaid, self._said)
        if self._leftovers:
            until = self.base.segment
            return Work("remove", f"removing segments up to {until}", partial(self._remove, until))
        if self.retention_days is None:
            return None
        rows = self._index.rows(behind=self.base.segment)
        gone = going(rows, now_unix_ms=self._clock_unix_ms(), retention_days=self.retention_days)
        if gone is None:
            return None
        if gone.low_water_unix_ms > end.low_water_unix_ms:
            return ToRecord(LowWaterRecord(expires_at_unix_ms=gone.low_water_unix_ms), lambda: None)
        name = f"writing the checkpoint of segment {gone.last.number}"
        return Work("checkpoint", name, partial(self._write, gone, end, breathe))

    # --- in the thread ----------------------------------------------------------------------------------------

    def _write(self, gone: Going, end: End, breathe: Callable[[], None]) -> Told:
        seals = list(self._index.sealed)
        checkpoint = checkpoint_of(gone, seals, self._read_back, self.dropped, end, breathe)
        digest = checkpoints.write(self._files, self._directory, checkpoint)
        return partial(self._written, checkpoint, digest)

    def _remove(self, until: int) -> Told:
        remove_gone(self._files, self._directory, until)
        return self._removed

    # --- on the Trio side -------------------------------------------------------------------------------------

    def _written(self, checkpoint: Checkpoint, digest: bytes) -> None:
        """What is looked up from now on is found without the segments that go."""
        self._on_dropped(checkpoint.end, less(checkpoint.dropped, self.dropped))
        self.base, self.dropped = checkpoint.end, checkpoint.dropped
        self._read_back.kept = {(one.segment, one.offset): one.framed for one in checkpoint.begins}
        self._read_back.dropped_until = checkpoint.end.segment
        self._unsaid = _record(checkpoint.end.segment, digest)

    def _said(self) -> None:
        self._unsaid = None
        self._leftovers = True

    def _removed(self) -> None:
        self._leftovers = False


def _record(segment: int, digest: bytes) -> CheckpointRecord:
    return CheckpointRecord(file_sha256=tuple(digest), segment=segment)
