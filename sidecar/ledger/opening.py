"""Opening a ledger that is there: a checkpoint and seals first, then only what is not sealed.

Each segment that is read and has another behind it is sealed at once, so that
however long a ledger without seals is, memory holds one segment of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import recovery
from sidecar.ledger.checkpoint import Dropped
from sidecar.ledger.faults import SEAL_AGAIN, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault, SegmentHeader
from sidecar.ledger.index import Book, Index, WindowOf, key_of_new, recorded_of
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import BeginAtOpen, LeanRecord, whole
from sidecar.ledger.read_back import ReadBack
from sidecar.ledger.recovery import Found, segment_path
from sidecar.ledger.report import Recovery
from sidecar.ledger.seal_format import End, SegmentRow, segments_of_name
from sidecar.ledger.sealed import Sealed, merged, pair_to_merge
from sidecar.ledger.whole_file import TEMPORARY_SUFFIX
from sidecar.rules.windows import window_start

SEALS_OPEN_MAX: Final = 16  # in an opening, which is to be quick; while the ledger runs they become fewer
_NO_BOOK: Final = 0


class Listeners(Struct, frozen=True, kw_only=True):
    """Who hears of what an opening finds: of each request that nothing on record has ended, and of sums of the rest:
    the caller, an instant of a window of its, and what was charged in that. Where windows have another length than they
    had, it is not known what was charged in those before the present one: the caller, and that one's start. And where
    segments were dropped, what expired up to an instant may be missing.
    """

    on_open: Callable[[BeginRecord], None] = lambda begin: None
    on_sum: Callable[[str, int, int], None] = lambda caller, at_unix_ms, charged_micro_usd: None
    on_unknown: Callable[[str, int], None] = lambda caller, until_unix_ms: None
    on_dropped: Callable[[int], None] = lambda low_water_unix_ms: None


Begun = BeginRecord | BeginAtOpen  # the second, of the many that are read, with its digests and prices unread


class _Window:
    """What a caller was charged in one window; most charges in a row are of the same."""

    __slots__ = ("charged_micro_usd", "end", "key", "start")

    def __init__(self) -> None:
        self.start, self.end, self.charged_micro_usd = 0, 0, 0
        self.key = ("", 0, 0)


class Opening:
    """One opening of the ledger in `directory`; what it came to stands in its attributes."""

    def __init__(
        self, files: DiskFiles, directory: Path, *, window_of: WindowOf | None, now_unix_ms: int, listeners: Listeners
    ) -> None:
        self._files = files
        self._directory = directory
        self._makes_seals = window_of is not None
        self._window_of: WindowOf = window_of or (lambda caller: 0)
        self._now_unix_ms = now_unix_ms
        self._listeners = listeners
        self.read_back = ReadBack(files, directory)
        self.base = End()
        self.dropped = Dropped()
        self.checkpoint_sha256 = b""
        self.index = Index(self.read_back, Book(_NO_BOOK, 0, End(), self._window_of))
        self.open: tuple[BeginRecord, ...] = ()
        self._open: dict[tuple[int, ...], tuple[bytes, Begun, int]] = {}  # place -> key, record, its length
        self._open_before: set[bytes] = set()
        self._windows: defaultdict[str, _Window] = defaultdict(_Window)
        self.found: Found

    def read(self) -> Found:
        """Raises LedgerDamaged, OSError; `close` is for the caller then too."""
        self._remove_temporary()
        self._take_checkpoint()
        for name in self._cover():
            self.index.sealed.append(Sealed.open(self._files, self._directory / name))
        self._check_neighbours()
        start = self.index.sealed[-1].document.end if self.index.sealed else self.base
        self._sealed_until = start.segment
        self._take_open()
        self._take_sums()
        self._merge_down()
        if self.base.segment:
            self._listeners.on_dropped(self.base.low_water_unix_ms)
        self.found = recovery.replay(self._files, self._directory, self.take, cold=True, start=start, enter=self._enter)
        self._check_checkpoint()
        self.tell()
        return self.found

    def tell(self) -> None:
        """What the reading came to, now that it is over."""
        self._sum_up()
        self.open = tuple(self._taken_open())

    def summary(self, set_aside: Path | None) -> Recovery:
        """Of a reading that is over; sealed segments are counted by their rows, not read."""
        found, rows = self.found, self.index.rows(behind=self.base.segment)
        return Recovery(
            clean=found.end.closed,
            segments=found.segments + sum(row.number <= self._sealed_until for row in rows),
            records=found.records + sum(row.records for row in rows if row.number <= self._sealed_until),
            records_read=found.records,
            set_aside=set_aside,
            set_aside_bytes=found.tail.length if found.tail else 0,
            indeterminate=self.open,
        )

    def close(self) -> None:
        """The seals, for an opening that failed; else they are the ledger's."""
        for seal in self.index.sealed:
            with suppress(OSError):
                seal.close()

    # --- what is there besides segments -------------------------------------------------------------------------

    def _remove_temporary(self) -> None:
        for name in self._files.names(self._directory):
            if name.endswith(TEMPORARY_SUFFIX):
                self._files.unlink(self._directory / name)

    def _take_checkpoint(self) -> None:
        """The newest one counts: it has its name only once it is whole."""
        segments = [checkpoints.segment_of_name(name) for name in self._files.names(self._directory)]
        newest = max((segment for segment in segments if segment is not None), default=0)
        if not newest:
            return
        checkpoint, self.checkpoint_sha256 = checkpoints.read(self._files, self._directory, newest)
        self.base, self.dropped = checkpoint.end, checkpoint.dropped
        self.read_back.dropped_until = newest
        self.read_back.kept = {(one.segment, one.offset): one.framed for one in checkpoint.begins}

    def _check_checkpoint(self) -> None:
        """What the record says of it. One that it doesn't speak of yet was written a moment before a crash."""
        end = self.found.end
        if end.checkpoint_segment > self.base.segment or (
            end.checkpoint_segment == self.base.segment > 0 and end.checkpoint_sha256 != self.checkpoint_sha256
        ):
            path = checkpoints.checkpoint_path(self._directory, end.checkpoint_segment)
            raise LedgerDamaged(path, 0, f"a checkpoint of SHA-256 {end.checkpoint_sha256.hex()}")

    def _cover(self) -> list[str]:
        """Seals that follow each other from the first segment on, which may begin with what was dropped since; others
        are covered by them, or stand behind a gap, and are removed."""
        ranges = {}
        for name in self._files.names(self._directory):
            if (range_of_name := segments_of_name(name)) is not None:
                ranges[range_of_name] = name
        covered, chosen = self.base.segment, []
        while True:
            following = [
                (last, first)
                for first, last in ranges
                if first == covered + 1 or (covered == self.base.segment and first <= covered < last)
            ]
            if not following:
                break
            covered, first = max(following)
            chosen.append(ranges.pop((first, covered)))
        newest = max((self.base.segment, covered, *recovery.segments_in(self._files, self._directory)))
        for (_, last), name in ranges.items():  # before any is removed: each is a witness of segments that were here
            if last > newest:
                raise recovery.damaged(segment_path(self._directory, newest + 1), 0, "named_by_a_seal", name=name)
        for name in ranges.values():
            self._files.unlink(self._directory / name)
        return chosen

    def _check_neighbours(self) -> None:
        """Seals continue each other, and their segments are there, as long as they were."""
        self._check_whose()
        before = self.base
        for seal in self.index.sealed:
            said = seal.document
            is_first = said.first == before.segment + 1
            expectations = (
                (not is_first or said.before_end == before.offset, f"that segment {before.segment} ended there"),
                (not is_first or said.before_head == before.head, f"the chain head of segment {before.segment}"),
                (before.ledger_id in (None, said.end.ledger_id), "this ledger's id"),
            )
            for is_so, expected in expectations:
                if not is_so:
                    raise LedgerDamaged(seal.path, 0, expected, SEAL_AGAIN)
            before = said.end
        for row in self.index.rows(behind=self.base.segment):
            self._check_length(segment_path(self._directory, row.number), row.segment_bytes)

    def _check_whose(self) -> None:
        """A seal speaks of the segments that stand here: else it is blamed, and not they."""
        there = recovery.segments_in(self._files, self._directory)
        for seal in self.index.sealed:
            said = seal.document
            first = max(said.first, self.base.segment + 1)
            nearest = next((number for number in there if number >= first), None)
            if nearest is None:
                continue
            before = recovery.start_of(self._files, self._directory, nearest)
            is_first = nearest == said.first
            if before.ledger_id != said.end.ledger_id or (
                is_first and (before.offset, before.head) != (said.before_end, said.before_head)
            ):
                raise LedgerDamaged(seal.path, 0, f"a seal of the segments from {first} on that are here", SEAL_AGAIN)

    def _check_length(self, path: Path, segment_bytes: int) -> None:
        try:
            descriptor = self._files.open_to_read(path)
        except FileNotFoundError:
            raise recovery.damaged(path, 0, "sealed_missing") from None
        try:
            size = self._files.size(descriptor)
        finally:
            self._files.close(descriptor)
        if size != segment_bytes:
            raise recovery.damaged(path, min(size, segment_bytes), "other_length", size=segment_bytes)

    # --- what holds when the reading begins ----------------------------------------------------------------------

    def _take_open(self) -> None:
        """The requests that are open at the end of what is sealed, or dropped, in full."""
        sealed = self.index.sealed
        places = sealed[-1].document.open if sealed else tuple(self.read_back.kept)
        for segment, offset in places:
            path = segment_path(self._directory, segment)
            try:
                begin, place = self.read_back.begin(segment, offset)
            except FileNotFoundError:
                raise recovery.damaged(path, offset, "sealed_missing") from None
            except FormatFault as fault:
                raise recovery.damaged(path, offset, "no_record", fault=fault) from fault
            key = key_of_new(begin.caller_runtime_id, begin.request_id)
            self._open[segment, offset] = key, begin, place.length
            self._open_before.add(key)

    def _take_sums(self) -> None:
        for seal in self.index.sealed:
            changed = set()
            for row in seal.document.sums:
                seconds = self._window_of(row.caller)
                if seconds and seconds != row.window_seconds:
                    changed.add(row.caller)
            for row in seal.document.sums:
                if row.caller not in changed and row.window_seconds:
                    self._listeners.on_sum(row.caller, row.window_start_unix_ms, row.charged_micro_usd)
            if changed:
                self._read_again(seal, changed)

    def _read_again(self, seal: Sealed, callers: set[str]) -> None:
        """Whose windows have another length by now: what they have been charged in the present one."""
        starts = {caller: window_start(self._now_unix_ms, self._window_of(caller)) for caller in callers}
        for caller, present in starts.items():
            self._listeners.on_unknown(caller, present)
        for row in seal.document.segments:
            if row.number > self.base.segment and row.admitted_until_unix_ms >= min(starts.values()):
                for begin, charged in self._charges_in(row):
                    start = starts.get(begin.caller_runtime_id)
                    if start is not None and begin.admitted_at_unix_ms >= start:
                        self._listeners.on_sum(begin.caller_runtime_id, begin.admitted_at_unix_ms, charged)

    def _charges_in(self, row: SegmentRow) -> list[tuple[Begun, int]]:
        begun: dict[tuple[int, int], BeginAtOpen] = {}
        charged: list[tuple[Begun, int]] = []

        def take(segment: int, records: list[tuple[LeanRecord, int, int]]) -> None:
            for record, offset, _ in records:
                if type(record) is BeginAtOpen:
                    begun[segment, offset] = record
                elif type(record) is CompletedRecord:
                    named = record.begin_segment, record.begin_offset
                    begin = begun.pop(named, None) or self.read_back.begin(*named)[0]
                    charged.append((begin, record.charge_micro_usd))

        recovery.replay_one(self._files, self._directory, row.number, take, end=row.end, head=row.head)
        return charged

    # --- what is not sealed -------------------------------------------------------------------------------------

    def _enter(self, header: SegmentHeader, before: End) -> None:
        if self.index.book.number:
            self._sum_up()
            self.index.ended(before, self._open)
            if self._makes_seals:
                self._seal()
        self.index.book = Book(header.segment, header.segment_bytes, before, self._window_of)

    def _seal(self) -> None:
        path = self.index.waiting.pop().write_seal(self._files, self._directory)
        self.index.sealed.append(Sealed.open(self._files, path))
        self._merge_down()

    def _merge_down(self) -> None:
        """Also after many starts that were each too short for upkeep."""
        sealed = self.index.sealed
        while self._makes_seals and len(sealed) > SEALS_OPEN_MAX:
            older, newer = pair_to_merge(sealed)
            path = merged(self._files, self._directory, older, newer, self.base)
            at = sealed.index(older)
            sealed[at : at + 2] = [Sealed.open(self._files, path)]
            for seal in (older, newer):
                seal.close()
                self._files.unlink(seal.path)

    def take(self, segment: int, records: list[tuple[LeanRecord, int, int]]) -> None:
        """One batch, in one loop: there are many. Raises FormatFault for a record that contradicts those before it."""
        book, still_open = self.index.book, self._open
        placed = book.placed
        book.records += len(records)
        admitted_until, expires_until = book.admitted_until_unix_ms, book.expires_until_unix_ms
        for record, offset, length in records:
            if type(record) is BeginAtOpen:
                key = key_of_new(record.caller_runtime_id, record.request_id)
                place = segment, offset
                if placed.setdefault(key, place) is not place or key in self._open_before:
                    raise FormatFault("a request that had not begun before")
                still_open[place] = key, record, length
                book.begins += 1
                if record.admitted_at_unix_ms > admitted_until:
                    admitted_until = record.admitted_at_unix_ms
                if record.expires_at_unix_ms > expires_until:
                    expires_until = record.expires_at_unix_ms
            elif type(record) is CompletedRecord:
                named = record.begin_segment, record.begin_offset
                begun = still_open.pop(named, None)
                if begun is None:
                    raise FormatFault("the completion of a request that is open")
                key, begin, _ = begun
                placed[key] = (*named, segment, offset)
                admitted_at = begin.admitted_at_unix_ms
                window = self._windows[begin.caller_runtime_id]
                if not window.start <= admitted_at < window.end:
                    self._aim(window, begin.caller_runtime_id, admitted_at)
                window.charged_micro_usd += record.charge_micro_usd
                book.completions += 1
                book.charged_micro_usd += record.charge_micro_usd
                if admitted_at > admitted_until:
                    admitted_until = admitted_at
        book.admitted_until_unix_ms, book.expires_until_unix_ms = admitted_until, expires_until

    def _aim(self, window: _Window, caller: str, at_unix_ms: int) -> None:
        """Sums what it holds, and begins anew at the window of this instant."""
        self._sum(window)
        window.key = _, seconds, window.start = self.index.book.window(caller, at_unix_ms)
        window.end = window.start + 1000 * seconds if seconds else 1 << 64

    def _sum(self, window: _Window) -> None:
        sums = self.index.book.sums
        if window.key[0]:
            sums[window.key] = sums.get(window.key, 0) + window.charged_micro_usd
        window.charged_micro_usd = 0

    def _sum_up(self) -> None:
        """What this segment's requests were charged, told and kept for its seal."""
        for window in self._windows.values():
            self._sum(window)
        self._windows.clear()
        for (caller, seconds, start), charged in self.index.book.sums.items():
            if seconds:
                self._listeners.on_sum(caller, start, charged)

    def _taken_open(self) -> Iterator[BeginRecord]:
        """What nothing has ended, in full; from now on the index knows it."""
        for (segment, offset), (key, begun, length) in self._open.items():
            try:
                begin = whole(begun) if isinstance(begun, BeginAtOpen) else begun
            except FormatFault as fault:
                path = segment_path(self._directory, segment)
                raise recovery.damaged(path, offset, "no_record", fault=fault) from fault
            self.index.open[key] = recorded_of(begin, Place(segment, offset, length))
            self._listeners.on_open(begin)
            yield begin
