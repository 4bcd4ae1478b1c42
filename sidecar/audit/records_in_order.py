"""The records of a ledger in their order, and what they come to: each is part of all before it, or is refused.

Of what was dropped the checkpoint tells; then everything goes on from there.
Only what is open is kept in memory, and, if every id is asked for, a table
of 16-byte keys that tells whether an id began twice.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from sidecar.audit import decoder
from sidecar.audit.begun_ids import BegunIds
from sidecar.audit.decoder import Line, Unexpected
from sidecar.audit.seals import Dropped, Start

_NOTHING: Final = Dropped()


class RecordsInOrder:
    """What the records up to here come to; `records`, `requests` and `charged_micro_usd` with what was dropped.

    `low_water_unix_ms` and `checkpoint` (segment, SHA-256) are what the last records of those kinds say.
    """

    def __init__(self, *, every_id: bool) -> None:
        self._ids = BegunIds() if every_id else None
        self._opened = True  # a record stands in the segment being read, or none has to be an Opened
        self._clean_before = True
        self._run_begins_in = 0
        self.incarnation = 0
        self.closed = True
        self.end_before = (0, decoder.NO_HEAD)  # where the segment before this one ended, and its head
        self.records = 0
        self.requests = 0
        self.charged_micro_usd = 0
        self.low_water_unix_ms = 0
        self.low_water_at_begin = 0  # as the checkpoint says, which is of a later time than the segment it stands for
        self.checkpoint = (0, decoder.NO_HEAD)
        self.dropped = _NOTHING
        self.open: dict[tuple[int, int], Line] = {}

    @property
    def may_run(self) -> int:
        """How many of the open requests may belong to the run that has not ended: a daemon may be at work on them.

        Of a run that began before the first segment that is there, all that began before it may.
        """
        return 0 if self.closed else sum(segment >= self._run_begins_in for segment, _ in self.open)

    @property
    def held_micro_usd(self) -> int:
        return sum(line.members["reservation_micro_usd"] for line in self.open.values())

    def _begin_behind(self, start: Start) -> None:
        self.incarnation, self.closed = start.end["incarnation"], start.end["closed"]
        self.checkpoint = start.end["checkpoint_segment"], start.end["checkpoint_sha256"]
        self.low_water_at_begin = start.end["low_water_unix_ms"]
        self.dropped = start.dropped
        self.records, self.requests = start.dropped.records, start.dropped.begins
        self.charged_micro_usd = start.dropped.charged_micro_usd
        for line in start.begins:
            self._check_new(line)
            self.open[line.segment, line.offset] = line

    def _in_order(self, lines: tuple[Line, ...]) -> tuple[Line, ...]:
        """The records of a batch as part of all before them, which they change together or, by a fault, not at all."""
        begun: dict[tuple[int, int], Line] = {}
        ended: dict[tuple[int, int], Line] = {}
        ordered = []
        closed, low_water, checkpoint = self.closed, self.low_water_unix_ms, self.checkpoint
        for line in lines:
            if closed:
                raise Unexpected("nothing after a clean exit", place=line.offset)
            self._check_opened(line)
            if line.kind == "Begin":
                self._check_new(line)
                begun[line.segment, line.offset] = line
            elif line.kind == "Completed":
                named = line.members["begin_segment"], line.members["begin_offset"]
                begin = begun.get(named) or self.open.get(named)
                if begin is None or named in ended:
                    raise Unexpected("the end of a request that is open", place=line.offset)
                self._check_charge(begin, line)
                line = structs.replace(line, begun=begin)
                ended[named] = line
            elif line.kind == "LowWater":
                low_water = self._low_water(line, low_water)
            elif line.kind == "Checkpoint":
                checkpoint = self._checkpoint(line, checkpoint)
            closed = line.kind == "Closed"
            ordered.append(line)
        self.closed, self.low_water_unix_ms, self.checkpoint = closed, low_water, checkpoint
        self.open.update(begun)
        for named, line in ended.items():
            del self.open[named]
            self.charged_micro_usd += line.members["charge_micro_usd"]
        self.records += len(ordered)
        self.requests += len(begun)
        return tuple(ordered)

    def _check_opened(self, line: Line) -> None:
        """An Opened stands first where an open began a segment, and nowhere else."""
        if self._opened == (line.kind == "Opened"):
            raise Unexpected("no Opened here" if self._opened else "an Opened first", place=line.offset)
        if not self._opened:
            said = line.members["incarnation"], line.members["clean"]
            if said != (self.incarnation, self._clean_before):
                how = "clean" if self._clean_before else "not clean"
                raise Unexpected(f"an Opened of incarnation {self.incarnation}, {how}", place=line.offset)
        self._opened = True

    def _check_new(self, line: Line) -> None:
        if self._ids is not None and not self._ids.is_new(
            line.members["caller_runtime_id"], line.members["request_id"]
        ):
            raise Unexpected("a request that had not begun before", place=line.offset)

    @staticmethod
    def _check_charge(begin: Line, line: Line) -> None:
        bound = begin.members["reservation_micro_usd"]
        if line.members["charge_micro_usd"] > bound and "over_run" not in line.members["notes"]:
            raise Unexpected(f"a charge of at most {bound} micro-USD, or the note over_run", place=line.offset)

    @staticmethod
    def _low_water(line: Line, before: int) -> int:
        said: Any = line.members["expires_at_unix_ms"]
        if said < before:
            raise Unexpected(f"a low-water mark of at least {before}", place=line.offset)
        return int(said)

    @staticmethod
    def _checkpoint(line: Line, before: tuple[int, bytes]) -> tuple[int, bytes]:
        segment = line.members["segment"]
        if not max(before[0], 1) <= segment < line.segment:
            expected = f"a checkpoint of a segment from {max(before[0], 1)} on and before this one"
            raise Unexpected(expected, place=line.offset)
        return segment, bytes(line.members["file_sha256"])
