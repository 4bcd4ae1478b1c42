"""Reading a ledger from outside, and changing nothing: every batch in order, checked, also beside a live daemon.

It takes no lock, writes nothing and asks nothing of whoever writes. A batch
is written only after the sync of the one before it, and a segment has its name
only after its header is synced; so what is seen out of order was written
between two looks, and a second look settles it:

    a whole batch behind one that is not   the first is looked at again, and only then is it damage
    a next segment that was not there      this one is looked at again: it may have grown before that one came

Each segment that was there once and that no checkpoint stands for must be there: a segment behind it, a seal that names
it or a segment behind it, or a checkpoint of the one before it tells that it was.

Behind the last batch of a segment stand zeros. Other bytes there are a tail:

    the segment is        closed by a clean exit   decision
    any                   yes                      damaged
    the last              no                       reported: a crash tore it, or it is being written
    left by a rotation    no                       damaged: whoever rotates has written whole batches only
    left by a crash       no                       reported; damaged where its copy in quarantine/ differs

Where the first segments were dropped, the newest checkpoint stands in their place and the reading begins with what it
says. What is left of them, and older checkpoints, is what an interrupted dropping left: ignored, and named. The
checkpoint is synced before a record speaks of it, so one that no record speaks of is no damage; but where nothing is
left of what it stands for, the low-water mark that it names must be on record.

Beside a live daemon segments are dropped while they are read. So the first `HELD_MAX` of them are opened at the begin:
a file that is held open stays as it is, and whoever reads sees the ledger as it stood then, each record once. Where
one is gone before it could be opened, the look at the names is taken again. A reading that begins again in its midst
would give records twice, or sums of which a part is counted in the checkpoint too; so where more is dropped at once
than is held, the reading ends, with the advice to read again.

`prove_seals`: each seal is proved by the records too (`seal_proof`). One that is damaged is said at the end, since
nothing of the records is in doubt by that. Source: CONTRACT section 4, LEDGER section 5.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sidecar.audit import decoder
from sidecar.audit.decoder import BLOCK, Line, Members, Segment, Unexpected
from sidecar.audit.look import Look, damaged
from sidecar.audit.records_in_order import RecordsInOrder
from sidecar.audit.seal_proof import SealProofs
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.files import DiskFiles

_LOOK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_LOOK_BYTES)


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


class Reading(RecordsInOrder):
    """One reading of the ledger in `directory`. What it has come to stands in its attributes, also after damage.

    `cold`: what the page cache remembers is dropped first where it can be, so that the disk is read.
    `dropped_until` is the last segment that a checkpoint stands for; `leftovers` are names of what it stands for too.
    """

    def __init__(
        self,
        directory: Path,
        *,
        files: DiskFiles | None = None,
        cold: bool = False,
        every_id: bool = False,
        prove_seals: bool = False,
    ) -> None:
        super().__init__(every_id=every_id)
        self._directory = directory
        self._files = files or DiskFiles()
        self._cold = cold
        self._seals = SealProofs(self._files, directory, cold=cold) if prove_seals else None
        self._look = Look(self._files, directory, cold=cold)
        self._ledger_id: bytes | None = None
        self._end = 0
        self._has_begun = False
        self.segment = 0
        self.segment_bytes = 0
        self.head = decoder.NO_HEAD
        self.batch = 0
        self.dropped_until = 0
        self._dropped_sha256 = decoder.NO_HEAD
        self.is_on_record: bool | None = None  # the checkpoint; known at the end
        self.leftovers: tuple[str, ...] = ()
        self.tails: list[Tail] = []

    @property
    def segments(self) -> int:
        """How many have been read."""
        return self.segment - self.dropped_until

    @property
    def seals(self) -> int:
        """How many have been proved."""
        return self._seals.count if self._seals is not None else 0

    @property
    def seal_damages(self) -> tuple[LedgerDamaged, ...]:
        """What was found in seals so far; `batches` raises the first at its end, when all records have been given."""
        return tuple(self._seals.damages) if self._seals is not None else ()

    def newest_segment(self) -> int:
        """The highest number that a segment has now; 0 for none. Raises NoLedger, OSError."""
        self._look.again()
        return max(self._look.segments(), default=0)

    def begin(self) -> None:
        """What a checkpoint says stands in the attributes from now on; `batches` does that too, by itself. Raises as
        it does."""
        if self._has_begun or self.segment:
            return
        self._has_begun = True
        self.dropped_until, start, self._dropped_sha256 = self._look.begin()
        if start is not None:
            self._begin_behind(start)
            self._take_end(start.end)
            self.leftovers = self._look.left_behind(self.dropped_until)

    def batches(self) -> Generator[Batch, None, None]:
        """Raises LedgerDamaged, NoLedger, OSError; what was given before stands."""
        try:
            self.begin()
            yield from self._of_segments()
            if self._seals is not None:
                self._seals.finish()
            self._check_checkpoint()
            if self.seal_damages:
                raise self.seal_damages[0]
        finally:
            self._look.let_go()
            if self._seals is not None:
                self._seals.close()

    def _of_segments(self) -> Generator[Batch, None, None]:
        descriptor = self._opened_or_none_is_there()
        while descriptor is not None:
            following: int | None = None
            try:
                header = self._header(descriptor)
                following = self._opened_next()
                yield from self._batches(descriptor, header)
                if following is None:
                    following = self._opened_or_none_is_there()
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

    # --- what stands in place of what was dropped ----------------------------------------------------------------

    def _take_end(self, end: Members) -> None:
        self._ledger_id, self.segment = end["ledger_id"], end["segment"]
        self._end, self.head, self.batch = end["offset"], end["head"], end["batch"]

    def _end_so_far(self) -> Members:
        return {
            "ledger_id": self._ledger_id,
            "incarnation": self.incarnation,
            "segment": self.segment,
            "offset": self._end,
            "head": self.head,
            "batch": self.batch,
            "closed": self.closed,
            "low_water_unix_ms": self.low_water_unix_ms,
            "checkpoint_segment": self.checkpoint[0],
            "checkpoint_sha256": self.checkpoint[1],
        }

    def _check_checkpoint(self) -> None:
        """What the last record of one says of the newest that is there, which beside a live daemon may be a new one."""
        named, digest = self.checkpoint
        there, there_sha256 = self.dropped_until, self._dropped_sha256
        self._look.again()
        while (newest := self._look.newest_checkpoint()) > there:
            try:
                there_sha256 = self._look.checkpoint(newest)[1]
                there = newest
            except FileNotFoundError:
                self._look.again()
        if named > there or (named == there > 0 and digest != there_sha256):
            raise LedgerDamaged(self._look.checkpoint_path(named), 0, f"a checkpoint of SHA-256 {digest.hex()}")
        self.is_on_record = named >= self.dropped_until
        is_nothing_left = not self.is_on_record and not self.leftovers  # else the mark may stand in what is to go
        if is_nothing_left and self.low_water_unix_ms < self.low_water_at_begin:
            expected = f"a checkpoint behind a LowWater record of at least {self.low_water_at_begin}"
            raise LedgerDamaged(self._look.checkpoint_path(self.dropped_until), 0, expected)

    # --- segments ---------------------------------------------------------------------------------------------

    def _opened_next(self) -> int | None:
        """The descriptor of the segment that comes next, if it is there."""
        with suppress(FileNotFoundError):
            return self._look.opened(self.segment + 1)
        return None

    def _opened_or_none_is_there(self) -> int | None:
        """As `_opened_next`, and None is certain: no segment behind it, no seal and no checkpoint tells of it."""
        number = self.segment + 1
        self._look.again()
        expected = self._look.why_expected(number)
        descriptor = self._opened_next()
        if descriptor is None and expected is not None:
            self._look.again()
            if self._look.newest_checkpoint() >= number:
                raise OSError(errno.ESTALE, f"segment {number} was dropped while those before it were read: read again")
            raise LedgerDamaged(self._look.segment_path(number), 0, expected)
        return descriptor

    def _header(self, descriptor: int) -> Segment:
        path = self._look.segment_path(self.segment + 1)
        self._look.chill(descriptor)
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
        self._clean_before, self.end_before = self.closed, (self._end, self.head)
        self._opened = is_rotation
        self._run_begins_in = self._run_begins_in if is_rotation else header.number
        self._ledger_id, self.incarnation = header.ledger_id, header.incarnation
        self.segment, self.segment_bytes = header.number, header.segment_bytes
        self._end, self.closed = BLOCK, False
        if self._seals is not None:
            self._seals.enter(header.number, header.segment_bytes, self, self.dropped_until)
        return header

    def _decoded(self, descriptor: int, path: Path) -> Segment:
        try:
            return decoder.segment_header(self._files.read(descriptor, BLOCK, 0))
        except Unexpected as fault:
            raise damaged(path, 0, fault) from None

    def _leave(self, descriptor: int, header: Segment, following: int | None) -> None:
        """What stands behind the last batch, whether the next segment says the same of this one's end, and then
        whether seals do."""
        self._check_behind(descriptor, header, following)
        if self._seals is not None:
            self._seals.leave(self._end_so_far())

    def _check_behind(self, descriptor: int, header: Segment, following: int | None) -> None:
        path = self._look.segment_path(self.segment)
        after = self._decoded(following, self._look.segment_path(self.segment + 1)) if following is not None else None
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
                    raise LedgerDamaged(self._look.segment_path(self.segment), self._end, expected) from None
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
        path, offset = self._look.segment_path(self.segment), self._end
        if self.closed:
            raise LedgerDamaged(path, offset, "nothing after a clean exit")
        try:
            head = decoder.head_of(batch, self.head)
            lines = self._in_order(tuple(decoder.lines_of(batch, self.segment, offset)))
        except Unexpected as fault:
            raise damaged(path, offset, fault) from None
        self.batch, self.head, self._end = decoder.batch_number(batch), head, offset + len(batch)
        if self._seals is not None:
            self._seals.take(lines)
        return Batch(segment=self.segment, offset=offset, number=self.batch, head=head, lines=lines)
