"""What is on record, by request: dicts for segments that are not sealed yet, seals on disk for the rest.

The book of a segment is what is learned of it while its records land, or are
read: in the end its seal is made of that. A request is looked up in the newest
book, in those that wait for their seals, among what is open, and then in the
seals, the newest first; the first that knows it knows most of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from sidecar.contract.values import U64_MAX, BeginRecord, CompletedRecord
from sidecar.ledger import seal_format
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable, RecordDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.landing import Place
from sidecar.ledger.read_back import ReadBack
from sidecar.ledger.seal_format import KEY_BYTES, End, SealDocument, SegmentRow, WindowSum
from sidecar.ledger.sealed import Sealed, write_seal
from sidecar.rules.windows import window_start

# How long a caller's spend windows are, in seconds; 0 for a caller that the configuration doesn't name.
WindowOf = Callable[[str], int]

_encode: Final = msgspec.msgpack.Encoder().encode
_ENTRIES_IN_A_BREATH: Final = 2048
_hash: Final = sha256()  # a copy of one is made in half the time of a new one


def key_of_new(caller_runtime_id: str, request_id: str) -> bytes:
    """Under which a request stands in the index and in seals: 16 bytes. `key_of` is for one wanted again."""
    hashed = _hash.copy()
    hashed.update(_encode((caller_runtime_id, request_id)))
    return hashed.digest()[:KEY_BYTES]


# A request's key is wanted when it is decided, begun and completed.
key_of: Final = lru_cache(maxsize=1024)(key_of_new)


def recorded_of(begin: BeginRecord, place: Place, completed: Place | None = None) -> Recorded:
    """What is kept of a Begin that stands in this place."""
    return Recorded(
        identity=bytes(begin.identity_sha256),
        reservation_micro_usd=begin.reservation_micro_usd,
        admitted_at_unix_ms=begin.admitted_at_unix_ms,
        begin=place,
        completed=completed,
    )


class Book:
    """One segment's requests and sums so far. `before` is where the segment before it ended."""

    end: End
    still_open: tuple[tuple[int, ...], ...]

    def __init__(
        self, number: int, segment_bytes: int, before: End, window_of: WindowOf, *, is_of_this_run: bool = False
    ) -> None:
        self.number = number
        self.is_of_this_run = is_of_this_run
        self.before = before
        self.recorded: dict[bytes, Recorded] = {}
        # Of a segment that an opening has read: Begin, or Begin and Completed, as segment and offset each. Of most
        # nobody will ask again, so what a Recorded says is read back for who does.
        self.placed: dict[bytes, tuple[int, ...]] = {}
        self.segment_bytes = segment_bytes
        self._window_of = window_of
        self.sums: dict[tuple[str, int, int], int] = {}
        self._begun: list[tuple[int, int]] = []  # admitted at, expires at
        self._completed: list[tuple[str, int, int]] = []  # caller, admitted at, charge
        self.records = 0
        self.begins = 0
        self.completions = 0
        self.charged_micro_usd = 0
        self.admitted_until_unix_ms = 0
        self.expires_until_unix_ms = 0

    def begun(self, key: bytes, record: BeginRecord, place: Place) -> Recorded:
        """A Begin has landed; only noted, since this is the event loop's time (`_add_up`)."""
        recorded = self.recorded[key] = recorded_of(record, place)
        self._begun.append((record.admitted_at_unix_ms, record.expires_at_unix_ms))
        return recorded

    def completed(self, key: bytes, recorded: Recorded, caller: str, record: CompletedRecord, place: Place) -> None:
        """The end of a request has landed, which may have begun in a segment before this; noted as `begun` does."""
        self.recorded[key] = msgspec.structs.replace(recorded, completed=place)
        self._completed.append((caller, recorded.admitted_at_unix_ms, record.charge_micro_usd))

    def _add_up(self) -> None:
        """What was only noted while records landed, which takes the event loop's time."""
        begun, completed = self._begun, self._completed
        for admitted_at, expires_at in begun:
            self.admitted_until_unix_ms = max(self.admitted_until_unix_ms, admitted_at)
            self.expires_until_unix_ms = max(self.expires_until_unix_ms, expires_at)
        for caller, admitted_at, charge in completed:
            self.admitted_until_unix_ms = max(self.admitted_until_unix_ms, admitted_at)
            window = self.window(caller, admitted_at)
            self.sums[window] = self.sums.get(window, 0) + charge
            self.charged_micro_usd += charge
        self.begins += len(begun)
        self.completions += len(completed)
        self._begun, self._completed = [], []  # last: at every moment a charge stands in one of the two at least

    def knows_caller(self, caller: str) -> bool:
        """Whether a request of this caller has ended here. Callable while another thread adds up."""
        return caller in {charged for charged, _, _ in (*tuple(self._completed), *tuple(self.sums))}

    def window(self, caller: str, at_unix_ms: int) -> tuple[str, int, int]:
        """What a charge of a request admitted then is summed under."""
        seconds = self._window_of(caller)
        return caller, seconds, window_start(at_unix_ms, seconds) if seconds else 0

    def ended(self, end: End, still_open: Iterable[tuple[int, ...]]) -> None:
        """Nothing more will stand in this segment. `still_open` are the Begins that nothing up to here has ended."""
        self.end = end
        self.still_open = tuple(sorted(still_open))

    def write_seal(self, files: DiskFiles, directory: Path, breathe: Callable[[], None] = lambda: None) -> Path:
        """Of a segment that has ended; `breathe` is called now and then. Raises OSError."""
        self._add_up()
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
            begins=self.begins,
            completions=self.completions,
            charged_micro_usd=min(self.charged_micro_usd, U64_MAX),  # no ceiling is above that
            admitted_until_unix_ms=self.admitted_until_unix_ms,
            expires_until_unix_ms=self.expires_until_unix_ms,
        )
        assert end.ledger_id is not None
        sums = tuple(WindowSum(*window, min(charged, U64_MAX)) for window, charged in sorted(self.sums.items()))
        entries = _in_order(self._entries(), breathe)

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

        assert sum(self.sums.values()) == self.charged_micro_usd, "what windows were charged is not what requests were"
        return write_seal(files, directory, entries, end.ledger_id, (self.number, self.number), document)

    def _entries(self) -> Iterator[bytes]:
        for key, one in self.recorded.items():
            completed = (one.completed.segment, one.completed.offset) if one.completed else None
            yield seal_format.encode_entry(key, (one.begin.segment, one.begin.offset), completed)
        for key, (segment, offset, *completed_at) in self.placed.items():
            yield seal_format.encode_entry(key, (segment, offset), tuple(completed_at) or None)


def _in_order(entries: Iterable[bytes], breathe: Callable[[], None]) -> Iterator[bytes]:
    """Sorted by parts, each of the keys that begin with one byte: sorting holds up every other thread."""
    parts: list[list[bytes]] = [[] for _ in range(256)]
    for number, entry in enumerate(entries, start=1):
        parts[entry[0]].append(entry)
        if number % _ENTRIES_IN_A_BREATH == 0:
            breathe()
    sorted_since = 0
    for part in parts:
        part.sort()
        yield from part
        sorted_since += len(part)
        if sorted_since >= _ENTRIES_IN_A_BREATH:
            sorted_since = 0
            breathe()


class Index:
    """Every begin and complete that is durable."""

    def __init__(self, read_back: ReadBack, book: Book) -> None:
        self._read_back = read_back
        self.book = book
        self.waiting: list[Book] = []  # ended, and not sealed yet; the oldest first
        self.sealed: list[Sealed] = []  # neighbours, the oldest first
        self.open: dict[bytes, Recorded] = {}  # begun, and ended by nothing

    def rows(self, behind: int) -> list[SegmentRow]:
        """What seals say of the segments behind this one, in order."""
        return [row for seal in self.sealed for row in seal.document.segments if row.number > behind]

    def find(self, key: bytes) -> Recorded | None:
        """Raises LedgerUnavailable where a seal, or what it names, can't be read, RecordDamaged where it is damaged."""
        recorded = self.book.recorded.get(key)
        return self._found_behind(key) if recorded is None else recorded

    def has_begun(self, key: bytes) -> bool:
        """As far as memory says: what is only in seals is for `find`."""
        if key in self.open or key in self.book.recorded:
            return True
        return bool(self.waiting) and any(key in book.recorded or key in book.placed for book in self.waiting)

    def knows_caller(self, caller: str) -> bool:
        """Whether anything was charged to this caller that is on record, or is being charged in this run."""
        if any(row.caller == caller for seal in self.sealed for row in seal.document.sums):
            return True
        return any(book.knows_caller(caller) for book in (*self.waiting, self.book))

    def _found_behind(self, key: bytes) -> Recorded | None:
        recorded = self.open.get(key)
        if recorded is not None:
            return recorded
        for book in reversed(self.waiting):
            if (recorded := book.recorded.get(key)) is not None:
                return recorded
            if (placed := book.placed.get(key)) is not None:
                return self._recorded(placed[0], placed[1], *placed[2:])
        for seal in reversed(self.sealed):
            entry = seal.find(key)
            if entry is not None:
                return self._recorded(*entry.begin, *(entry.completed or ()))
        return None

    def _recorded(self, segment: int, offset: int, ends_in: int = 0, ends_at: int = 0) -> Recorded | None:
        try:
            begin, place = self._read_back.begin(segment, offset)
            completed = Place(ends_in, ends_at, self._read_back.length(ends_in, ends_at)) if ends_in else None
        except FormatFault as fault:
            file = self._read_back.path(segment)
            raise RecordDamaged(f"a record can't be read back: {fault}", file=file, offset=offset) from fault
        except OSError as fault:
            if isinstance(fault, FileNotFoundError) and segment <= self._read_back.dropped_until:
                return None  # it was dropped, and whoever asks for it again is late
            raise LedgerUnavailable(f"a record can't be read back: {fault}") from fault
        return recorded_of(begin, place, completed)

    def begun(self, key: bytes, record: BeginRecord, place: Place) -> None:
        assert key not in self.open, "a request begins twice"  # whoever queued it has looked at the rest
        self.open[key] = self.book.begun(key, record, place)

    def completed(self, key: bytes, caller: str, record: CompletedRecord, place: Place) -> None:
        recorded = self.open.pop(key)
        assert (recorded.begin.segment, recorded.begin.offset) == (record.begin_segment, record.begin_offset)
        self.book.completed(key, recorded, caller, record, place)

    def ended(self, end: End, still_open: Iterable[tuple[int, ...]] | None = None) -> None:
        """The book's segment has ended; whoever calls gives the next book, and has this one sealed."""
        if still_open is None:
            still_open = [(one.begin.segment, one.begin.offset) for one in self.open.values()]
        self.book.ended(end, still_open)
        self.waiting.append(self.book)
