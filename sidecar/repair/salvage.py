"""Everything that can still be read of a damaged ledger, and for every place that can't, whether a record may be lost.

Each segment is walked block by block. A whole batch is taken wherever it
stands: its CRC covers the salt, which no one outside knows. The chain of heads
then tells what lies between two of them:

    the next batch or header   lost between them    what stands there instead
    continues the chain        nothing              is no record: a torn tail, or zeros that were changed
    names a later number       batches              single records are taken, as far as they fit
    names the next number      what was changed     one of the two is not a daemon's: its completions are not believed
    is out of its place        -                    it was put here by mistake: its records count, but once, and no end
                                                    finds its begin by this place

Where segments were dropped, all this begins behind the newest whole checkpoint, with the begins that it kept. Records
of Checkpoint are no more than its witness; seals tell by their names that segments were there, and nothing else.

Behind the last batch only a clean exit proves that nothing is missing. Without
one, an end that is all zeros is what any crash leaves; it counts as a loss only
where something else is damaged too.

Memory holds stretches of whole batches and the places of single records, not
records. Reading is done twice, once to know and once to copy (`lines`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from sidecar.audit import decoder
from sidecar.audit.decoder import BLOCK, Line, Unexpected
from sidecar.ledger.faults import CHANGE_VERSION, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.repair.blocks import Blocks, opened
from sidecar.repair.order import Order
from sidecar.repair.seen import Seen
from sidecar.repair.sources import Source, sources_in

# What is believed of a record: all; all but what it says of an end; all but that it stands where it was written.
Kind = Literal["whole", "off_chain", "unplaced"]


class Gap(Struct, frozen=True, kw_only=True):
    """A stretch of a segment that can't be read as what was written. `taken` counts single records found in it.

    `may_have_held`: whether a record may have stood there that is not known now; None while that is open.
    """

    segment: int
    begin: int
    end: int
    why: str
    taken: int = 0
    may_have_held: bool | None = None


class Strangeness(Struct, frozen=True, kw_only=True):
    """What no daemon writes and no decayed byte explains."""

    segment: int
    offset: int
    what: str


class Run(Struct, frozen=True, kw_only=True):
    """A stretch of a segment to copy from: whole batches one behind the other, or single records of a damaged one,
    at `places`."""

    source: Source
    begin: int
    end: int
    kind: Kind
    is_single: bool = False
    places: tuple[tuple[int, int], ...] = ()


def begin_named(end: Line) -> tuple[int, int]:
    """The place of the Begin that a Completed is the end of."""
    return end.members["begin_segment"], end.members["begin_offset"]


class Salvage:
    """One look at all of a ledger's files; what it has come to stands in its attributes."""

    def __init__(self, directory: Path, files: DiskFiles, *, is_damaged: bool) -> None:
        """`is_damaged`: whether a reading from front to back has been refused. Raises NoLedger, OSError, and
        LedgerDamaged for what is of another version."""
        self._files = files
        self._is_damaged = is_damaged
        self.sources = sources_in(files, directory)
        self.seen = Seen()
        self.seen.kept(self.sources.start)
        self._kept = frozenset((line.segment, line.offset) for line in self.sources.start.begins)
        self.gaps: list[Gap] = []
        self.strange: list[Strangeness] = []
        self.whole_batches = 0
        self.end_is_open = False  # whether records may be missing behind the last that is there
        self._runs: list[Run] = []
        self._begins: list[tuple[int, int]] = []  # of the runs, for bisection
        self._pending: list[Gap] = []
        self._pending_runs: list[Run] = []
        self._head = self.sources.start.head
        self._number = self.sources.start.batch
        self._at = (self.sources.start.segment, self.sources.start.offset)
        self._is_closed = True
        self._behind_is_bad = False
        self._walk()

    @property
    def may_have_lost(self) -> bool:
        return any(gap.may_have_held for gap in self.gaps)

    @property
    def is_anything_known(self) -> bool:
        return bool(self.seen.records or self.sources.start.name)

    def holds(self, segment: int, offset: int) -> bool:
        """Whether the record at this place is one of those that `lines` gives."""
        if (segment, offset) in self._kept:
            return True
        run = bisect_right(self._begins, (segment, offset)) - 1
        if run < 0:
            return False
        found = self._runs[run]
        if found.source.number != segment or offset >= found.end or found.kind == "unplaced":
            return False
        return not found.is_single or any(place == offset for place, _ in found.places)

    # --- the first reading --------------------------------------------------------------------------------------

    def _walk(self) -> None:
        expected = self.sources.start.segment + 1
        for source in self.sources.segments:
            self._missing(expected, source.number)
            expected = source.number + 1
            with opened(self._files, source.path) as blocks:
                self._header(source)
                self._segment(source, blocks)
        self._missing(expected, self.sources.newest_named + 1)
        self._end()

    def _missing(self, begin: int, end: int) -> None:
        if begin < end:
            which = "the file is" if end == begin + 1 else f"the files up to segment {end - 1} are"
            is_dropped = end - 1 <= self.sources.dropped_until  # and then nothing else need have been removed
            why = f"{which} missing" + (": dropped, and what a checkpoint kept of them is lost" if is_dropped else "")
            self._pending.append(Gap(segment=begin, begin=0, end=self.sources.segment_bytes, why=why))
            self._behind_is_bad = True
            self.end_is_open = self.end_is_open or not is_dropped

    def _header(self, source: Source) -> None:
        if source.header is None:
            why = f"no header: expected {source.fault}"
            self.gaps.append(Gap(segment=source.number, begin=0, end=BLOCK, why=why, may_have_held=False))
        elif source.header.before_head == self._head:
            self._settle(lost=False)
        else:
            self._settle(lost=True, why="batches that the next segment's header says were there")
            self._head = source.header.before_head
        if source.named != source.number:
            what = f"this segment stands in the file {source.path.name}"
            self.strange.append(Strangeness(segment=source.number, offset=0, what=what))
        self._is_closed = self._behind_is_bad = False
        self._at = (source.number, BLOCK)

    def _segment(self, source: Source, blocks: Blocks) -> None:
        known = max(blocks.size, self.sources.segment_bytes)
        size = source.header.segment_bytes if source.header is not None else known
        end = min(size, blocks.size)
        order = Order(source.segment, blocks, end)
        begins_at: int | None = BLOCK  # where nothing but a batch can begin
        behind, first_fault, used_end = BLOCK, "", BLOCK
        runs: list[Run] = []
        at = blocks.next_used(BLOCK, end)
        while at is not None:
            try:
                if source.segment is None:
                    raise Unexpected("a batch of this segment, whose salt is lost with its header")
                batch = blocks.batch(source.segment, at)
            except Unexpected as fault:
                first_fault = first_fault or str(fault)
                run = self._single_records(source, blocks, at, may_begin_here=at == begins_at)
                runs += [run] if run.places else []
                used_end = run.end
            else:
                used_end = at + len(batch)
                continues = self._continues(batch)
                if at in order.in_place and (at == behind if continues else decoder.batch_number(batch) > self._number):
                    self._gap(source, behind, at, first_fault or "zeros where a batch must stand", runs)
                    self._whole_batch(source, at, batch, continues=continues)
                    behind, first_fault, runs = used_end, "", []
                    begins_at = used_end if continues else None
                else:
                    first_fault = first_fault or "another batch"
                    self._out_of_place(source, order, at, batch)
            at = blocks.next_used(used_end, end)
        self._gap(source, behind, used_end, first_fault, runs)
        self._behind_is_bad = self._behind_is_bad or bool(first_fault)
        self._length(source, blocks.size, size)

    def _out_of_place(self, source: Source, order: Order, at: int, batch: bytes) -> None:
        """Its records count, once, and nothing follows from where it stands: least of all whose begin it holds."""
        number = decoder.batch_number(batch)
        if at in order.repeated:
            what = f"batch {number} stands here again; it is not taken twice"
        elif at not in order.in_place and number in order.numbers_in_place:
            what = f"another batch {number} than the one in its place; it is not taken"
            end = at + len(batch)
            self.gaps.append(Gap(segment=source.number, begin=at, end=end, why=what, may_have_held=True))
        else:
            what = f"batch {number} stands here, out of its place"
            was_closed = self._is_closed
            self._take(source, at, batch, "unplaced")
            self._is_closed = was_closed
        self.strange.append(Strangeness(segment=source.number, offset=at, what=what))

    def _single_records(self, source: Source, blocks: Blocks, at: int, *, may_begin_here: bool) -> Run:
        """Of a batch that is damaged. `may_begin_here`: right behind a whole one nothing else can stand."""
        places: list[tuple[int, int]] = []
        end = at + BLOCK
        if may_begin_here or (source.segment is not None and blocks.begins_batch(source.segment, at)):
            for line in blocks.lines(source.number, at):
                places.append((line.offset, line.length))
                end = max(end, line.offset + line.length)
        kind: Kind = "whole" if may_begin_here else "unplaced"
        return Run(source=source, begin=at, end=end + -end % BLOCK, kind=kind, is_single=True, places=tuple(places))

    def _gap(self, source: Source, begin: int, end: int, why: str, runs: list[Run]) -> None:
        if begin < end:
            taken = sum(len(run.places) for run in runs)
            why = why if why.startswith("zeros") else f"expected {why}"
            self._pending.append(Gap(segment=source.number, begin=begin, end=end, why=why, taken=taken))
            self._pending_runs += runs

    def _length(self, source: Source, found: int, size: int) -> None:
        if found < size:
            self._pending.append(Gap(segment=source.number, begin=found, end=size, why="the file ends before"))
            self._behind_is_bad = True
        elif found > size:
            what = f"the file goes on behind its {size} bytes"
            self.strange.append(Strangeness(segment=source.number, offset=size, what=what))

    # --- what the chain says ------------------------------------------------------------------------------------

    def _continues(self, batch: bytes) -> bool:
        try:
            decoder.head_of(batch, self._head)
        except Unexpected:
            return False
        return True

    def _whole_batch(self, source: Source, at: int, batch: bytes, *, continues: bool) -> None:
        number = decoder.batch_number(batch)
        kind: Kind = "whole"
        if continues:
            self._settle(lost=False)
        elif number == self._number + 1:
            kind = "off_chain"
            what = "it does not continue the chain: this batch, or the one before it, was changed by no daemon"
            self.strange.append(Strangeness(segment=source.number, offset=at, what=what))
            self._settle(lost=False)
            self._pending.append(Gap(segment=source.number, begin=at, end=at + len(batch), why=what))
            self._settle(lost=True)
        else:
            self._settle(lost=True, why=f"{number - self._number - 1} batches that were there")
        self._head, self._number = decoder.batch_head(batch), number
        self._at = (source.number, at + len(batch))
        self.whole_batches += 1
        self._take(source, at, batch, kind)

    def _take(self, source: Source, at: int, batch: bytes, kind: Kind) -> None:
        places: list[tuple[int, int]] = []
        self._is_closed = False
        try:
            for line in decoder.lines_of(batch, source.number, at):
                places.append((line.offset, line.length))
                self._see(line, kind)
                self._is_closed = line.kind == "Closed"
        except Unexpected as fault:
            place = at if fault.place is None else fault.place
            if fault.other_version:
                raise LedgerDamaged(source.path, place, str(fault), CHANGE_VERSION) from None
            self.gaps.append(
                Gap(segment=source.number, begin=place, end=at + len(batch), why=str(fault), may_have_held=True)
            )
            self._add(
                Run(source=source, begin=at, end=at + len(batch), kind=kind, is_single=True, places=tuple(places))
            )
            return
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.source, last.end, last.kind, last.is_single) == (source, at, kind, False):
            self._runs[-1] = structs.replace(last, end=at + len(batch))
        else:
            self._add(Run(source=source, begin=at, end=at + len(batch), kind=kind))

    def _add(self, run: Run) -> None:
        place = bisect_right(self._begins, (run.source.number, run.begin))
        self._runs.insert(place, run)
        self._begins.insert(place, (run.source.number, run.begin))

    def _see(self, line: Line, kind: Kind, *, is_single: bool = False) -> None:
        named = begin_named(line) if line.kind == "Completed" else (0, 0)
        if line.kind == "Checkpoint":
            self._check_checkpoint(line)
        self.seen.line(line, named, has_begin=self.holds(*named), is_single=is_single, is_believed=kind != "off_chain")

    def _check_checkpoint(self, line: Line) -> None:
        """What the chain says of the checkpoint that this reading begins behind: with another one's begins some may be
        missing."""
        start = self.sources.start
        if line.members["segment"] == start.segment and bytes(line.members["file_sha256"]) != start.sha256:
            what = f"this record is of another checkpoint than {start.name}, which was changed by no daemon"
            self.strange.append(Strangeness(segment=line.segment, offset=line.offset, what=what))
            why = f"{start.name} is not the one on record"
            self.gaps.append(Gap(segment=start.segment, begin=0, end=start.offset, why=why, may_have_held=True))

    def _settle(self, *, lost: bool, why: str = "") -> None:
        """What lies between the last batch and here is now known to be nothing, or not."""
        if lost and not self._pending:
            segment, offset = self._at
            end = max(offset, self.sources.segment_bytes)
            self._pending = [Gap(segment=segment, begin=offset, end=end, why=f"zeros instead of {why}")]
        for gap in self._pending:
            self.gaps.append(structs.replace(gap, may_have_held=lost, taken=gap.taken if lost else 0))
        for run in self._pending_runs if lost else ():
            self._add(run)
            for line in self._lines_of(run):
                self._see(line, run.kind, is_single=True)
        self._pending, self._pending_runs = [], []

    def _end(self) -> None:
        """What may have stood behind the last batch."""
        is_damaged = self._is_damaged or bool(self.strange) or self.may_have_lost
        if self._is_closed and not self.end_is_open:
            self._settle(lost=False)
        elif self._is_closed:
            self._settle(lost=True, why="what may have been there, since files are missing")
        elif self._behind_is_bad or is_damaged or self.end_is_open:
            self.end_is_open = True
            self._settle(lost=True, why="what may have been there, since no clean exit ends this ledger")

    # --- the second reading -------------------------------------------------------------------------------------

    def lines(self) -> Iterator[tuple[Line, Kind]]:
        """Every record that is there, in order, but for single ones whose request stands in a whole batch as well.
        Before all others the begins that a checkpoint kept.

        Raises LedgerDamaged where the disk gives something else than it gave before, and OSError.
        """
        for kept in self.sources.start.begins:
            yield kept, "whole"
        for run in self._runs:
            for line in self._lines_of(run):
                named = begin_named(line) if line.kind == "Completed" else (0, 0)
                if not run.is_single or not self.seen.is_superseded(line, named):
                    yield line, run.kind

    def _lines_of(self, run: Run) -> Iterator[Line]:
        at = run.begin
        try:
            with opened(self._files, run.source.path) as blocks:
                for offset, length in run.places:
                    yield blocks.line(run.source.number, offset, length)
                while not run.is_single and at < run.end:
                    assert run.source.segment is not None
                    batch = blocks.batch(run.source.segment, at)
                    yield from decoder.lines_of(batch, run.source.number, at)
                    at += len(batch)
        except Unexpected as fault:
            expected = f"what was read here before ({fault})"
            raise LedgerDamaged(run.source.path, at, expected, "copy it to a disk that keeps what it holds") from None
