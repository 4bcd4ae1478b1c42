"""What is on record, by request: dicts for segments that are not sealed yet, seals on disk for the rest.

The book of a segment is what is learned of it while its records land, or are
read: in the end its seal is made of that. A request is looked up in the newest
book, in those that wait for their seals, among what is open, and then in the
seals, the newest first; the first that knows it knows most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger import seal_format
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable, RecordDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import BeginAtOpen, LeanRecord, digest_of
from sidecar.ledger.read_back import ReadBack
from sidecar.ledger.seal_format import KEY_BYTES, End, Entry, SealDocument, SegmentRow, WindowSum
from sidecar.ledger.sealed import Sealed, write_seal
from sidecar.rules.windows import window_start

Begun = BeginRecord | BeginAtOpen  # the second, of the many that are read, with its digests and prices unread

# How long a caller's spend windows are, in seconds; 0 for a caller that the configuration doesn't name.
WindowOf = Callable[[str], int]

_encode: Final = msgspec.msgpack.Encoder().encode
_hash: Final = sha256()  # a copy of one is made in half the time of a new one


def key_of_new(caller_runtime_id: str, request_id: str) -> bytes:
    """The same, where it is wanted once."""
    hashed = _hash.copy()
    hashed.update(_encode((caller_runtime_id, request_id)))
    return hashed.digest()[:KEY_BYTES]


# A request's key is wanted when it is decided, begun and completed.
key_of: Final = lru_cache(maxsize=1024)(key_of_new)


class StillOpen(Struct, frozen=True, gc=False):
    """A begin on record that nothing has ended, and how long its record is."""

    key: bytes
    begin: Begun
    length: int


def recorded_of(begin: Begun, place: Place, completed: Place | None = None) -> Recorded:
    """Raises FormatFault for a BeginAtOpen whose identity is no digest."""
    identity = begin.identity_sha256
    return Recorded(
        identity=bytes(identity) if isinstance(identity, tuple) else digest_of(identity),
        reservation_micro_usd=begin.reservation_micro_usd,
        admitted_at_unix_ms=begin.admitted_at_unix_ms,
        begin=place,
        completed=completed,
    )


class Book:
    """One segment's requests and sums so far. `before` is where the segment before it ended."""

    end: End
    still_open: tuple[tuple[int, int], ...]

    def __init__(self, number: int, segment_bytes: int, before: End, window_of: WindowOf) -> None:
        self.number = number
        self.before = before
        self.recorded: dict[bytes, Recorded] = {}
        # Of a segment that was read, in place of `recorded`: where begin and completion stand. Few are ever asked for.
        self.read: dict[bytes, tuple[tuple[int, int], tuple[int, int] | None]] = {}
        self.segment_bytes = segment_bytes
        self._window_of = window_of
        self.sums: dict[tuple[str, int, int], int] = {}
        self._begins = 0
        self._completions = 0
        self._charged_micro_usd = 0
        self._admitted_until = 0
        self._expires_until = 0
        self.records = 0

    def begun(self, key: bytes, record: Begun, place: Place) -> Recorded:
        recorded = self.recorded[key] = recorded_of(record, place)
        self._begins += 1
        self._admitted_until = max(self._admitted_until, record.admitted_at_unix_ms)
        self._expires_until = max(self._expires_until, record.expires_at_unix_ms)
        return recorded

    def completed(self, key: bytes, recorded: Recorded, caller: str, record: CompletedRecord, place: Place) -> None:
        self.recorded[key] = msgspec.structs.replace(recorded, completed=place)
        admitted_at = recorded.admitted_at_unix_ms
        seconds = self._window_of(caller)
        window = caller, seconds, window_start(admitted_at, seconds) if seconds else 0
        self.sums[window] = self.sums.get(window, 0) + record.charge_micro_usd
        self._completions += 1
        self._charged_micro_usd += record.charge_micro_usd
        self._admitted_until = max(self._admitted_until, admitted_at)

    def take(
        self,
        segment: int,
        records: list[tuple[LeanRecord, int, int]],
        still_open: dict[tuple[int, int], StillOpen],
        carried: Container[bytes],
    ) -> None:
        """As `begun` and `completed`, for one batch on record, in the least time. `still_open`, by place, is what
        nothing has ended, and changes with it; `carried` are the keys of those that began in other segments.

        Raises FormatFault for a record that contradicts the ones before it.
        """
        self.records += len(records)
        read, end = self.read, still_open.pop
        begins, ended = 0, []
        for record, offset, length in records:
            if type(record) is BeginAtOpen:
                key = key_of_new(record.caller_runtime_id, record.request_id)
                if key in read or key in carried:
                    raise FormatFault("a request that had not begun before")
                place = segment, offset
                read[key] = place, None
                still_open[place] = StillOpen(key, record, length)
                begins += 1
                if record.expires_at_unix_ms > self._expires_until:
                    self._expires_until = record.expires_at_unix_ms
                if record.admitted_at_unix_ms > self._admitted_until:
                    self._admitted_until = record.admitted_at_unix_ms
            elif type(record) is CompletedRecord:
                place = record.begin_segment, record.begin_offset
                opened = end(place, None)
                if opened is None:
                    raise FormatFault("the completion of a request that is open")
                read[opened.key] = place, (segment, offset)
                ended.append((opened.begin, record.charge_micro_usd))
        self._begins += begins
        self._charge_each(ended)

    def _charge_each(self, ended: list[tuple[Begun, int]]) -> None:
        seconds_of: dict[str, int] = {}
        for begin, charge_micro_usd in ended:
            caller, at = begin.caller_runtime_id, begin.admitted_at_unix_ms
            seconds = seconds_of.get(caller)
            if seconds is None:
                seconds = seconds_of[caller] = self._window_of(caller)
            window = caller, seconds, at - at % (1000 * seconds) if seconds else 0
            self.sums[window] = self.sums.get(window, 0) + charge_micro_usd
            self._charged_micro_usd += charge_micro_usd
            if at > self._admitted_until:
                self._admitted_until = at
        self._completions += len(ended)

    def ended(self, end: End, still_open: Iterable[tuple[int, int]]) -> None:
        """Nothing more will stand in this segment. `still_open` are the Begins that nothing up to here has ended."""
        self.end = end
        self.still_open = tuple(sorted(still_open))

    def write_seal(self, files: DiskFiles, directory: Path) -> Path:
        """Of a segment that has ended. Raises OSError."""
        end = self.end
        row = SegmentRow(
            number=self.number,
            segment_bytes=self.segment_bytes,
            incarnation=end.incarnation,
            end=end.offset,
            head=end.head,
            batch=end.batch,
            closed=end.closed,
            records=self.records,
            begins=self._begins,
            completions=self._completions,
            charged_micro_usd=self._charged_micro_usd,
            admitted_until_unix_ms=self._admitted_until,
            expires_until_unix_ms=self._expires_until,
        )
        assert end.ledger_id is not None
        seed = seal_format.seed_of(end.ledger_id, self.number, self.number)
        sums = tuple(WindowSum(*window, charged) for window, charged in sorted(self.sums.items()))
        entries = [seal_format.encode_entry(key, *places) for key, places in self.read.items()]
        entries += [
            seal_format.encode_entry(
                key,
                (one.begin.segment, one.begin.offset),
                (one.completed.segment, one.completed.offset) if one.completed else None,
            )
            for key, one in self.recorded.items()
        ]
        entries.sort()

        def document(count: int) -> SealDocument:
            return SealDocument(
                before_end=self.before.offset,
                before_head=self.before.head,
                end=end,
                entries=count,
                open=self.still_open,
                segments=(row,),
                sums=sums,
            )

        return write_seal(files, directory, entries, seed, document)


class Index:
    """Every begin and complete that is durable."""

    def __init__(self, read_back: ReadBack, book: Book) -> None:
        self._read_back = read_back
        self.book = book
        self.waiting: list[Book] = []  # ended, and not sealed yet; the oldest first
        self.sealed: list[Sealed] = []  # neighbours, the oldest first
        self.open: dict[bytes, Recorded] = {}  # begun, and ended by nothing

    def find(self, key: bytes) -> Recorded | None:
        """Raises LedgerUnavailable where a seal, or what it names, can't be read, RecordDamaged where it is damaged."""
        recorded = self.book.recorded.get(key)
        if recorded is None and (self.waiting or self.sealed):
            return self._found_behind(key)
        return recorded

    def in_memory(self, key: bytes) -> Recorded | None:
        """As `find`, but for what is only in seals, or was read and has ended."""
        for book in (self.book, *reversed(self.waiting)):
            if (recorded := book.recorded.get(key)) is not None:
                return recorded
        return self.open.get(key)

    def has_begun(self, key: bytes) -> bool:
        """As far as memory tells."""
        books = (self.book, *self.waiting)
        return key in self.open or any(key in book.recorded or key in book.read for book in books)

    def _found_behind(self, key: bytes) -> Recorded | None:
        recorded = self.in_memory(key)
        if recorded is not None:
            return recorded
        for book in reversed(self.waiting):
            if (places := book.read.get(key)) is not None:
                return self._recorded(Entry(key, *places))
        for seal in reversed(self.sealed):
            entry = seal.find(key)
            if entry is not None:
                return self._recorded(entry)
        return None

    def _recorded(self, entry: Entry) -> Recorded | None:
        try:
            begin, place = self._read_back.begin(*entry.begin)
            completed = Place(*entry.completed, self._read_back.length(*entry.completed)) if entry.completed else None
        except FormatFault as fault:
            raise RecordDamaged(f"a record can't be read back: {fault}") from fault
        except OSError as fault:
            if isinstance(fault, FileNotFoundError) and entry.begin[0] <= self._read_back.dropped_until:
                return None  # it was dropped, and whoever asks for it again is late
            raise LedgerUnavailable(f"a record can't be read back: {fault}") from fault
        return recorded_of(begin, place, completed)

    def begun(self, key: bytes, record: Begun, place: Place) -> None:
        assert not self.has_begun(key), "a request begins twice"
        self.open[key] = self.book.begun(key, record, place)

    def completed(self, key: bytes, caller: str, record: CompletedRecord, place: Place) -> None:
        recorded = self.open.pop(key)
        assert (recorded.begin.segment, recorded.begin.offset) == (record.begin_segment, record.begin_offset)
        self.book.completed(key, recorded, caller, record, place)

    def ended(self, end: End) -> None:
        """The book's segment has ended; whoever calls gives the next book, and has this one sealed."""
        self.book.ended(end, [(one.begin.segment, one.begin.offset) for one in self.open.values()])
        self.waiting.append(self.book)
