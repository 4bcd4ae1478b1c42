"""Reading a ledger from outside, and changing nothing: every batch in order, checked, also beside a live daemon.

It takes no lock, writes nothing and asks nothing of whoever writes. A batch
is written only after the sync of the one before it, and a segment has its name
only after its header is synced; so what is seen out of order was written
between two looks, and a second look settles it:

    a whole batch behind one that is not   the first is looked at again, and only then is it damage
    a next segment that was not there      this one is looked at again: it may have grown before that one came

Behind the last batch of a segment stand zeros. Other bytes there are a tail:

    the segment is        closed by a clean exit   decision
    any                   yes                      damaged
    the last              no                       reported: a crash tore it, or it is being written
    left by a rotation    no                       damaged: whoever rotates has written whole batches only
    left by a crash       no                       reported; damaged where its copy in quarantine/ differs

Only what is open is kept in memory, and, if `every_id` is asked for, a table
of 16-byte keys that tells whether an id began twice. Source: CONTRACT section 4, LEDGER section 5.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct, structs

from sidecar.ledger import second_decoder as decoder
from sidecar.ledger.begun_ids import BegunIds
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.second_decoder import BLOCK, Line, Segment, Unexpected

_NAME: Final = re.compile(r"(\d{16})\.segment")
_LOOK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_LOOK_BYTES)


class NoLedger(Exception):
    """There is no ledger in this place."""


class Batch(Struct, frozen=True, kw_only=True):
    """What one sync made durable; `head` is the chain's head after it."""

    segment: int
    offset: int
    number: int
    head: bytes
    lines: tuple[Line, ...]


class Tail(Struct, frozen=True, kw_only=True):
    """Bytes behind the last batch of a segment: no record, and no damage."""

    segment: Path
    offset: int
    length: int
    state: Literal["last", "kept", "copy_missing"]


class Reading:
    """One reading of the ledger in `directory`. What it has come to stands in its attributes, also after damage.

    `cold`: what the page cache remembers is dropped first where it can be, so that the disk is read.
    """

    def __init__(
        self, directory: Path, *, files: DiskFiles | None = None, cold: bool = False, every_id: bool = False
    ) -> None:
        self._directory = directory
        self._files = files or DiskFiles()
        self._cold = cold
        self._ids = BegunIds() if every_id else None
        self._ledger_id: bytes | None = None
        self._end = 0
        self._opened = True  # a record stands in the segment being read, or none has to be an Opened
        self._clean_before = True
        self._run_begins_in = 0
        self.segment = 0
        self.segment_bytes = 0
        self.incarnation = 0
        self.head = decoder.NO_HEAD
        self.batch = 0
        self.closed = True
        self.records = 0
        self.requests = 0
        self.charged_micro_usd = 0
        self.open: dict[tuple[int, int], Line] = {}
        self.tails: list[Tail] = []

    @property
    def may_run(self) -> int:
        """How many of the open requests belong to the run that has not ended: a daemon may be at work on them."""
        return 0 if self.closed else sum(segment >= self._run_begins_in for segment, _ in self.open)

    @property
    def held_micro_usd(self) -> int:
        return sum(line.members["reservation_micro_usd"] for line in self.open.values())

    def newest_segment(self) -> int:
        """The highest number that a segment has now; 0 for none. Raises NoLedger, OSError."""
        try:
            names = self._files.names(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoLedger(f"{self._directory}: {error.strerror}") from None
        numbers = [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]
        if not numbers and "lock" not in names:
            raise NoLedger(f"{self._directory} holds no ledger: no segment is in it")
        if 0 in numbers:
            raise LedgerDamaged(self._path(0), 0, "segments that are numbered from 1 on")
        return max(numbers, default=0)

    def batches(self) -> Generator[Batch, None, None]:
        """Raises LedgerDamaged, NoLedger, OSError; what was given before stands."""
        newest = self.newest_segment()
        descriptor = self._opened_next(newest)
        while descriptor is not None:
            following: int | None = None
            try:
                header = self._header(descriptor)
                following = self._opened_next(0)
                yield from self._batches(descriptor, header)
                if following is None:
                    following = self._opened_next(self.newest_segment())
                    if following is not None:  # it has come since: what came before it did too
                        yield from self._batches(descriptor, header)
                self._leave(descriptor, header, following)
            except BaseException:  # also where whoever reads has had enough
                if following is not None:
                    self._files.close(following)
                raise
            finally:
                self._files.close(descriptor)
            descriptor = following

    # --- segments ---------------------------------------------------------------------------------------------

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:016d}.segment"

    def _opened_next(self, newest: int) -> int | None:
        """The descriptor of the segment that comes next; None if there is none, and then none up to `newest`."""
        number = self.segment + 1
        with suppress(FileNotFoundError):
            return self._files.open_to_read(self._path(number))
        if newest > number:
            with suppress(FileNotFoundError):  # two can have come between the two looks
                return self._files.open_to_read(self._path(number))
            raise LedgerDamaged(self._path(number), 0, f"this segment, since segment {newest} is there")
        return None

    def _header(self, descriptor: int) -> Segment:
        path = self._path(self.segment + 1)
        if self._cold:
            with suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        header = self._decoded(descriptor, path)
        size = self._files.size(descriptor)
        is_rotation = header.incarnation == self.incarnation
        expectations = (
            (header.number == self.segment + 1, f"segment number {self.segment + 1}"),
            (self._ledger_id in (None, header.ledger_id), "this ledger's id"),
            (header.before_end == self._end, f"that the segment before ended at {self._end}"),
            (header.before_head == self.head, "the chain head of the segment before"),
            (is_rotation or header.incarnation == self.incarnation + 1, f"incarnation {self.incarnation + 1}"),
            (not is_rotation or not self.closed, f"incarnation {self.incarnation + 1}, since the one before has ended"),
        )
        for holds, expected in expectations:
            if not holds:
                raise LedgerDamaged(path, 0, expected)
        if header.segment_bytes != size:
            raise LedgerDamaged(path, min(size, header.segment_bytes), f"a file of {header.segment_bytes} bytes")
        self._clean_before = self.closed
        self._opened = is_rotation
        self._run_begins_in = self._run_begins_in if is_rotation else header.number
        self._ledger_id, self.incarnation = header.ledger_id, header.incarnation
        self.segment, self.segment_bytes = header.number, header.segment_bytes
        self._end, self.closed = BLOCK, False
        return header

    def _decoded(self, descriptor: int, path: Path) -> Segment:
        try:
            return decoder.segment_header(self._files.read(descriptor, BLOCK, 0))
        except Unexpected as fault:
            raise self._damaged(path, 0, fault) from None

    @staticmethod
    def _damaged(path: Path, offset: int, fault: Unexpected) -> LedgerDamaged:
        place = offset if fault.place is None else fault.place
        return LedgerDamaged(path, place, str(fault), CHANGE_VERSION if fault.other_version else RESTORE)

    def _leave(self, descriptor: int, header: Segment, following: int | None) -> None:
        """What stands behind the last batch, and whether the next segment says the same of this one's end."""
        path = self._path(self.segment)
        after = self._decoded(following, self._path(self.segment + 1)) if following is not None else None
        if after is not None and after.before_end != self._end and after.number == self.segment + 1:
            why = self._why_no_batch(descriptor, header) if after.before_end > self._end else "no batch"
            raise LedgerDamaged(
                path,
                min(self._end, after.before_end),
                f"{why}, since the header of the next segment says that this one ends at {after.before_end}",
            )
        length = self._bytes_behind(descriptor)
        if not length:
            return
        if self.closed:
            raise LedgerDamaged(path, self._end, "zeros after a clean exit")
        if after is not None and after.incarnation == header.incarnation:
            raise LedgerDamaged(path, self._end, "zeros behind the last batch, since the daemon went on from it")
        state: Literal["last", "kept", "copy_missing"] = "last"
        if after is not None:
            state = self._compared(descriptor, path, length)
        self.tails.append(Tail(segment=path, offset=self._end, length=length, state=state))

    def _bytes_behind(self, descriptor: int) -> int:
        """How many bytes from the end on, up to the last that is not zero."""
        last = self._end
        for at in range(self._end, self.segment_bytes, _LOOK_BYTES):
            piece = self._files.read(descriptor, _LOOK_BYTES, at)
            if piece != _ZEROS[: len(piece)]:
                last = at + len(piece.rstrip(b"\0"))
        return last - self._end

    def _compared(self, descriptor: int, path: Path, length: int) -> Literal["kept", "copy_missing"]:
        """A tail that an open set aside, with the copy that it made."""
        copy_path = self._directory / "quarantine" / f"{self.segment:016d}-{self._end}.tail"
        try:
            copy = self._files.open_to_read(copy_path)
        except FileNotFoundError:
            return "copy_missing"
        try:
            for at in range(0, max(length, self._files.size(copy)), _LOOK_BYTES):
                here = self._files.read(descriptor, min(_LOOK_BYTES, length - at), self._end + at)
                if here != self._files.read(copy, _LOOK_BYTES, at):
                    raise LedgerDamaged(path, self._end + at, f"the tail that was set aside as {copy_path}")
        finally:
            self._files.close(copy)
        return "kept"

    # --- batches ----------------------------------------------------------------------------------------------

    def _batches(self, descriptor: int, header: Segment) -> Iterator[Batch]:
        """From the end so far, as long as they are whole."""
        looked_again = False
        while True:
            try:
                batch = self._whole(descriptor, header, self._end)
                if decoder.batch_number(batch) != self.batch + 1:
                    raise Unexpected(f"batch number {self.batch + 1}")
            except Unexpected as fault:
                if not self._is_batch_behind(descriptor, header):
                    return
                if looked_again:
                    expected = f"{fault}, since a batch behind it is whole"
                    raise LedgerDamaged(self._path(self.segment), self._end, expected) from None
                looked_again = True
                continue
            looked_again = False
            yield self._accepted(batch)

    def _why_no_batch(self, descriptor: int, header: Segment) -> str:
        try:
            self._whole(descriptor, header, self._end)
        except Unexpected as fault:
            return str(fault)
        return f"batch number {self.batch + 1}"

    def _whole(self, descriptor: int, header: Segment, offset: int) -> bytes:
        block = self._files.read(descriptor, BLOCK, offset)
        size = decoder.batch_size(block, header)
        if offset + size > header.segment_bytes:
            raise Unexpected("a batch that ends within its segment")
        batch = block + self._files.read(descriptor, size - BLOCK, offset + BLOCK) if size > BLOCK else block
        decoder.check_sum(batch)
        return batch

    def _is_batch_behind(self, descriptor: int, header: Segment) -> bool:
        for at in range(self._end, self.segment_bytes, _LOOK_BYTES):
            piece = self._files.read(descriptor, _LOOK_BYTES, at)
            if piece == _ZEROS[: len(piece)]:  # as nearly all are
                continue
            for block in range(at, at + len(piece), BLOCK):
                with suppress(Unexpected):
                    decoder.batch_size(piece[block - at : block - at + BLOCK], header)  # most blocks are no begin
                    self._whole(descriptor, header, block)
                    return True
        return False

    def _accepted(self, batch: bytes) -> Batch:
        path, offset = self._path(self.segment), self._end
        if self.closed:
            raise LedgerDamaged(path, offset, "nothing after a clean exit")
        try:
            head = decoder.head_of(batch, self.head)
            lines = self._in_order(tuple(decoder.lines_of(batch, self.segment, offset)))
        except Unexpected as fault:
            raise self._damaged(path, offset, fault) from None
        self.batch, self.head, self._end = decoder.batch_number(batch), head, offset + len(batch)
        return Batch(segment=self.segment, offset=offset, number=self.batch, head=head, lines=lines)

    # --- records ----------------------------------------------------------------------------------------------

    def _in_order(self, lines: tuple[Line, ...]) -> tuple[Line, ...]:
        """The records of a batch as part of all before them, which they change together or, by a fault, not at all."""
        begun: dict[tuple[int, int], Line] = {}
        ended: dict[tuple[int, int], Line] = {}
        ordered = []
        for line in lines:
            if self.closed:
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
            self.closed = line.kind == "Closed"
            ordered.append(line)
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
