"""The ledger on disk: begins and completes that are durable when they are said to be.

Opening takes the lock, reads what is there, sets a torn tail aside, and starts
a new segment with an Opened record, whose sync proves that the disk can be
written. `running()` adds the two threads (writer, spares) for as long as it is
entered, and says a clean goodbye. Memory changes only when a batch has landed,
on the Trio side. Source: CONTRACT section 4, LEDGER sections 5 and 5a.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import trio
from msgspec import structs

from sidecar.config.values import smallest_segment_bytes
from sidecar.contract.values import (
    BeginRecord,
    CheckpointRecord,
    ClosedRecord,
    CompletedRecord,
    LowWaterRecord,
    OpenedRecord,
)
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery, spares
from sidecar.ledger.checkpoint import Dropped
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.index import Book, WindowOf, key_of
from sidecar.ledger.keeping import Keeping
from sidecar.ledger.landing import Landing, Place
from sidecar.ledger.left_open import LeftOpen
from sidecar.ledger.letting_go import let_go
from sidecar.ledger.lock import take_lock
from sidecar.ledger.opening import Listeners, Opening
from sidecar.ledger.pressure import Pressure
from sidecar.ledger.recovery import end_after
from sidecar.ledger.report import Recovery, Statistics, statistics_of
from sidecar.ledger.retaining import Retaining
from sidecar.ledger.retention import DAY_MS
from sidecar.ledger.room import SETTLE_BYTES, NoRoom, Room, Slot, spares_wanted
from sidecar.ledger.seal_format import End
from sidecar.ledger.spares import SpareMaker
from sidecar.ledger.terms import Terms
from sidecar.ledger.threads import Threads
from sidecar.ledger.watch import NOBODY_WATCHES, Watch
from sidecar.ledger.writer import Append, Batch, Writer
from sidecar.ops.clock import unix_ms

_THREADS: Final = Threads()
_NOBODY: Final = Listeners()
_UPKEEP_MS: Final = 3_600_000
Settling = CompletedRecord | LowWaterRecord | CheckpointRecord
# A record of a response this long fits into what is kept for each settlement, whatever else stands in it.
SURE_RESPONSE_BYTES: Final = SETTLE_BYTES - on_disk.BATCH_HEADER_BYTES - 1024


class Ledger:
    """One ledger directory, held by this process. Made by `Ledger.open`."""

    def __init__(
        self, lock: int, files: DiskFiles, opening: Opening, found: Recovery, directory: Path, terms: Terms
    ) -> None:
        self._lock = lock
        self._files = files
        self._index = opening.index
        self._read_back = opening.read_back
        self._directory = directory
        self._terms = terms
        self._live: set[bytes] = set()
        self._on_the_way: set[bytes] = set()  # requests with a record queued: a second one would be a wrong line
        self._left_open = LeftOpen(found.indeterminate)
        self._keeps_up = False
        self._landed: End  # where the record ends; known to the Trio side alone
        self._writer: Writer
        self._room: Room
        self._spare_maker: SpareMaker
        self._keeping: Keeping
        self._retaining: Retaining
        self._spares_wanted = spares_wanted(terms.requests_in_flight_max, terms.segment_bytes)
        self.recovery = found
        self._pressure = Pressure(files, directory, lambda: self._room, terms)

    # --- opening ----------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int,
        frame_bytes_max: int,
        requests_in_flight_max: int,
        files: DiskFiles | None = None,
        clock_unix_ms: Callable[[], int] = unix_ms,
        randbytes: Callable[[int], bytes] = secrets.token_bytes,
        threads: Threads = _THREADS,
        listeners: Listeners = _NOBODY,
        window_of: WindowOf | None = None,
        retention_days: int | None = None,
        on_pressure: Callable[[str | None], None] = lambda why: None,
        on_trouble: Callable[[str], None] = lambda why: None,
        on_dropped: Callable[[End, Dropped], None] = lambda end, dropped: None,
        watch: Watch = NOBODY_WATCHES,
    ) -> Ledger:
        """Raises LedgerHeld, LedgerDamaged, or OSError where the disk refuses; then nothing is held.

        `listeners` hear what is on record. `window_of` gives a caller's window in seconds, 0 for one that has
        none; without it no seals are made, whose sums are by these.
        Segments of which all is older than `retention_days` are dropped while it runs; None keeps all.
        `on_pressure` is told why when pressure begins, and None when it is over; `on_trouble` of upkeep that failed.
        """
        assert segment_bytes >= smallest_segment_bytes(frame_bytes_max)
        terms = Terms(
            segment_bytes=segment_bytes,
            requests_in_flight_max=requests_in_flight_max,
            clock_unix_ms=clock_unix_ms,
            randbytes=randbytes,
            threads=threads,
            window_of=window_of or (lambda caller: 0),
            makes_seals=window_of is not None,
            retention_days=retention_days,
            on_pressure=on_pressure,
            on_trouble=on_trouble,
            on_dropped=on_dropped,
            watch=watch,
        )
        files = files or DiskFiles()
        files.make_directory(directory)
        lock = take_lock(files, directory)
        with ExitStack() as if_it_fails:
            if_it_fails.callback(files.close, lock)
            if_it_fails.callback(files.let_directory_go)
            spares.remove_leftovers(files, directory)
            files.keep_directory(directory)
            files.sync_directory(directory)
            opening = Opening(files, directory, window_of=window_of, now_unix_ms=clock_unix_ms(), listeners=listeners)
            if_it_fails.callback(opening.close)
            found = opening.read()
            set_aside = recovery.set_aside(files, directory, found.tail) if found.tail else None
            if opening.index.book.number and not found.tail:  # else each start would keep a whole segment's space
                files.give_back_zeros(recovery.segment_path(directory, found.end.segment), found.end.offset)
            ledger = cls(lock, files, opening, opening.summary(set_aside), directory, terms)
            ledger._begin_segment(found.end, opening)
            if_it_fails.pop_all()
        return ledger

    def _begin_segment(self, end: End, opening: Opening) -> None:
        """A new segment behind what was found, with the Opened record as the probe that the disk takes writes."""
        terms = self._terms
        known = structs.replace(end, ledger_id=end.ledger_id or terms.randbytes(on_disk.SALT_BYTES))
        make = partial(spares.make_spare, self._files, self._directory, terms.segment_bytes, terms.randbytes)
        slot = make(lambda: True)
        try:
            self._begin_in(slot, known)
        except BaseException:
            self._files.close(slot.descriptor)
            raise
        pressure = self._pressure
        self._spare_maker = terms.threads.spares(make, pressure.explain, pressure.spare_made, pressure.spare_failed)
        self._retaining = Retaining(
            self._files, self._directory, opening, terms.retention_days, terms.clock_unix_ms, terms.on_dropped
        )
        self._keeping = Keeping(
            self._files,
            self._directory,
            self._index,
            self._retaining,
            makes_seals=terms.makes_seals,
            end=lambda: self._landed,
            append=self.append,
            on_trouble=terms.on_trouble,
            thread=terms.threads.keeping,
            watch=terms.watch,
        )

    def _begin_in(self, slot: Slot, end: End) -> None:
        clock_unix_ms, segment_bytes = self._terms.clock_unix_ms, self._terms.segment_bytes
        incarnation = end.incarnation + 1
        slot.number = end.segment + 1
        if self._index.book.number:
            self._index.ended(end)
        self._book(slot, structs.replace(end, incarnation=incarnation, closed=False))
        self._room = Room(segment_bytes, slot, on_disk.BLOCK_BYTES, lambda: self._spare_maker.want(1))
        self._writer = Writer(
            self._files,
            self._directory,
            end,
            incarnation,
            segment_bytes,
            clock_unix_ms,
            on_landed=self._batch_landed,
            thread=self._terms.threads.commit,
            watch=self._terms.watch,
        )
        opened = OpenedRecord(incarnation=incarnation, opened_at_unix_ms=clock_unix_ms(), clean=end.closed)
        framed = on_disk.encode_record(opened)
        self._writer.write_first(Append(framed, self._room.place_closed(len(framed)), lambda _: None))

    def _book(self, slot: Slot, before: End) -> None:
        """The book of the segment that begins, with where the one before it ended."""
        terms = self._terms
        self._index.book = Book(slot.number, terms.segment_bytes, before, terms.window_of, is_of_this_run=True)
        self._landed = structs.replace(before, segment=slot.number)
        self._segment_began_unix_ms = self._kept_up_unix_ms = self._terms.clock_unix_ms()

    # --- while it runs ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._pressure.start()
        self._writer.start()
        self._spare_maker.start()
        self._keeping.start()
        self._keeps_up = True
        self._spare_maker.want(self._spares_wanted)
        clean = False
        try:
            yield
            clean = True
        finally:
            with trio.CancelScope(shield=True):  # ends by itself: the threads finish what they hold
                await self._close(clean=clean)

    async def _close(self, *, clean: bool) -> None:
        """A clean exit says so in the ledger; one by an exception doesn't."""
        self._spare_maker.stop()
        self._keeping.stop()
        if clean and self.poisoned is None:
            framed = on_disk.encode_record(ClosedRecord(closed_at_unix_ms=self._terms.clock_unix_ms()))
            with suppress(LedgerUnavailable, NoRoom):  # the next open then finds no clean exit, which is the truth
                closing = Append(framed, self._room.place_closed(len(framed)), lambda _: None)
                self._writer.append(closing)
                self._writer.release()  # whatever has become of who does that while the ledger is in use
                await closing
        self._writer.stop()
        for join in (self._writer.join, self._spare_maker.join, self._keeping.join):
            try:
                await trio.to_thread.run_sync(join)
            except RuntimeError:  # no thread can be started to wait in; the loop has nothing else to do by now
                join()
        self._let_go()

    def _let_go(self) -> None:
        unused = [*self._room.planned_behind(self._writer.slot), *self._room.spares]
        let_go(self._files, self._writer.slot, unused, self._index.sealed, self._lock)

    @property
    def low_water_unix_ms(self) -> int:
        return self._landed.low_water_unix_ms

    @property
    def pressure(self) -> str | None:
        return self._pressure.why

    @property
    def poisoned(self) -> str | None:
        return self._writer.poisoned

    @property
    def landed_batch(self) -> int:
        return self._landed.batch

    async def wait_poisoned(self) -> None:
        await self._writer.wait_poisoned()

    async def answers(self) -> None:
        await self._writer.answers()

    def statistics(self) -> Statistics:
        return statistics_of(self._writer, self._room, live=len(self._live))

    def find(self, caller_runtime_id: str, request_id: str) -> Recorded | None:
        return self._index.find(key_of(caller_runtime_id, request_id))

    def indeterminate(self, caller_runtime_id: str, request_id: str) -> BeginRecord | None:
        return self._left_open.find(caller_runtime_id, request_id)

    def left_open_by(self, caller_runtime_id: str) -> int:
        return self._left_open.by(caller_runtime_id)

    def knows_caller(self, caller_runtime_id: str) -> bool:
        return self.left_open_by(caller_runtime_id) > 0 or self._index.knows_caller(caller_runtime_id)

    def change_bounds(self, *, requests_in_flight_max: int, retention_days: int) -> None:
        more = spares_wanted(requests_in_flight_max, self._terms.segment_bytes) - self._spares_wanted
        if more > 0:  # spares that are there stay
            self._spares_wanted += more
            self._spare_maker.want(more)
        self._retaining.retention_days = retention_days

    def begin(self, record: BeginRecord) -> Landing:
        if self.poisoned or self.pressure:
            return Landing.failed(LedgerUnavailable(self.poisoned or self.pressure))
        key = key_of(record.caller_runtime_id, record.request_id)
        assert key not in self._on_the_way, "a request begins twice"
        assert not self._index.has_begun(key), "a request begins twice"
        framed = on_disk.encode_record(record)
        try:
            slot = self._room.place_begin(len(framed))
        except NoRoom:
            why = "there is no room to settle one more request until a spare segment is ready"
            return Landing.failed(LedgerUnavailable(why))

        def enter(place: Place) -> None:
            self._on_the_way.discard(key)
            self._index.begun(key, record, place)
            self._live.add(key)

        self._on_the_way.add(key)
        append = Append(framed, slot, enter)
        self._writer.append(append)
        return append

    def _batch_landed(self, batch: Batch, framed_bytes: list[int]) -> None:
        """Before its records are entered: with the first of a segment, all of the segment before are."""
        book = self._index.book
        if batch.slot.number != book.number:
            self._index.ended(self._landed)
            self._book(batch.slot, self._landed)
            self._keeping.try_again()
        self._index.book.records += len(framed_bytes)
        self._landed = structs.replace(self._landed, offset=batch.end, head=batch.head, batch=batch.number)
        if self._keeps_up and not 0 <= (now := self._terms.clock_unix_ms()) - self._kept_up_unix_ms < _UPKEEP_MS:
            self._upkeep(now)
        self._room.landed(batch.slot, batch.end, framed_bytes)

    def _upkeep(self, now_unix_ms: int) -> None:
        """While records come: what retention may drop is in segments that have ended, so none lasts for ever."""
        self._kept_up_unix_ms = now_unix_ms
        self._segment_began_unix_ms = min(self._segment_began_unix_ms, now_unix_ms)  # a clock can be set back
        if now_unix_ms - self._segment_began_unix_ms >= DAY_MS:
            self._room.turn()
        self._keeping.try_again()

    def room_for(self, record: CompletedRecord) -> bool:
        if len(record.response) <= SURE_RESPONSE_BYTES:
            return True
        return self._room.has_room_for(len(on_disk.encode_record(record)))

    def complete(self, begin: BeginRecord, record: CompletedRecord) -> Landing:
        if self.poisoned:
            return Landing.failed(LedgerUnavailable(self.poisoned))
        key = key_of(begin.caller_runtime_id, begin.request_id)
        recorded = self._index.open.get(key)
        assert recorded is not None, "a request completes that is not open"
        assert key not in self._on_the_way, "a request completes twice"
        assert record.begin_segment == recorded.begin.segment, "a completion names another begin"
        assert record.begin_offset == recorded.begin.offset, "a completion names another begin"

        def enter(place: Place) -> None:
            self._on_the_way.discard(key)
            self._index.completed(key, begin.caller_runtime_id, record, place)
            self._left_open.settled(key)

        landing = self._settle(record, enter, live=key in self._live)
        if isinstance(landing, Append):
            self._live.discard(key)
            self._on_the_way.add(key)
        return landing

    def append(self, record: LowWaterRecord | CheckpointRecord) -> Landing:
        """A record that speaks of no request; what it says holds when it has landed."""
        if self.poisoned:
            return Landing.failed(LedgerUnavailable(self.poisoned))

        def enter(_: Place) -> None:
            self._landed = end_after(record, self._landed)

        return self._settle(record, enter, live=False)

    def _settle(self, record: Settling, enter: Callable[[Place], None], *, live: bool) -> Landing:
        """An Append where it is queued; failed already where there is no room for it."""
        framed = on_disk.encode_record(record)
        try:
            append = Append(framed, self._room.place_completion(len(framed), live=live), enter)
        except NoRoom:
            return Landing.failed(LedgerUnavailable("there is no room for this record until a spare segment is ready"))
        self._writer.append(append)
        return append

    # --- replay -----------------------------------------------------------------------------------------------

    async def read_response(self, recorded: Recorded) -> bytes:
        try:
            return await trio.to_thread.run_sync(self._read_back.response, recorded)
        except RuntimeError as fault:  # no thread can be started
            raise LedgerUnavailable(f"the recorded answer can't be read back: {fault}") from fault
