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
from msgspec import Struct, structs

from sidecar.config.values import smallest_segment_bytes
from sidecar.contract.values import (
    STORED_AS_IS,
    BeginRecord,
    ClosedRecord,
    CompletedRecord,
    LowWaterRecord,
    OpenedRecord,
    RecordBody,
)
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery, spares
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.index import key_of
from sidecar.ledger.landing import Landing, Place
from sidecar.ledger.lock import take_lock
from sidecar.ledger.recovery import Replayed
from sidecar.ledger.room import SETTLE_BYTES, NoRoom, Room, Slot, spares_wanted
from sidecar.ledger.spares import SpareMaker
from sidecar.ledger.threads import Threads
from sidecar.ledger.writer import Append, Writer
from sidecar.ops.clock import unix_ms

_THREADS: Final = Threads()
# A record of a response this long fits into what is kept for each settlement, whatever else stands in it.
SURE_RESPONSE_BYTES: Final = SETTLE_BYTES - on_disk.BATCH_HEADER_BYTES - 1024
_DISK_FULL_ADVICE: Final = "it goes on by itself when there is room"


class Recovery(Struct, frozen=True, kw_only=True):
    """What opening found: for the log, and for spend that is still held."""

    clean: bool
    segments: int
    records: int
    set_aside: Path | None
    set_aside_bytes: int
    indeterminate: tuple[BeginRecord, ...]


class Statistics(Struct, frozen=True, kw_only=True):
    """Counted since the open, its own record included; `settlements` is how many would still fit."""

    records: int
    batches: int
    syncs: int
    written_bytes: int
    queued: int
    live: int
    settlements: int
    spares_ready: int


class Ledger:
    """One ledger directory, held by this process. Made by `Ledger.open`."""

    def __init__(
        self, lock: int, files: DiskFiles, replayed: Replayed, found: Recovery, low_water_unix_ms: int, directory: Path
    ) -> None:
        self._lock = lock
        self._files = files
        self._index = replayed.index
        self._directory = directory
        self._live: set[bytes] = set()
        self._on_the_way: set[bytes] = set()  # requests with a record queued: a second one would be a wrong line
        self._low_water_unix_ms = low_water_unix_ms
        self._writer: Writer
        self._room: Room
        self._spare_maker: SpareMaker
        self._spares_wanted = 0
        self._clock_unix_ms: Callable[[], int] = unix_ms
        self._on_pressure: Callable[[str | None], None]
        self.recovery = found
        self.pressure: str | None = None

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
        on_begin: Callable[[BeginRecord], None] | None = None,
        on_completed: Callable[[BeginRecord, CompletedRecord], None] | None = None,
        on_pressure: Callable[[str | None], None] = lambda why: None,
    ) -> Ledger:
        """Raises LedgerHeld, LedgerDamaged, or OSError where the disk refuses; then nothing is held.

        `on_pressure` is told why when pressure begins, and None when it is over.
        """
        assert segment_bytes >= smallest_segment_bytes(frame_bytes_max)
        files = files or DiskFiles()
        files.make_directory(directory)
        lock = take_lock(files, directory)
        with ExitStack() as if_it_fails:
            if_it_fails.callback(files.close, lock)
            if_it_fails.callback(files.let_directory_go)
            replayed = Replayed(on_begin, on_completed)
            spares.remove_leftovers(files, directory)
            files.keep_directory(directory)
            files.sync_directory(directory)
            found = recovery.read(files, directory, replayed.take, cold=True)
            set_aside = recovery.set_aside(files, directory, found.tail) if found.tail else None
            if found.end.segment and not found.tail:
                path = recovery.segment_path(directory, found.end.segment)
                files.give_back_zeros(path, found.end.offset)  # else each start would keep a whole segment's space
            summary = Recovery(
                clean=found.end.closed,
                segments=found.segments,
                records=found.records,
                set_aside=set_aside,
                set_aside_bytes=found.tail.length if found.tail else 0,
                indeterminate=tuple(replayed.open.values()),
            )
            ledger = cls(lock, files, replayed, summary, found.low_water_unix_ms, directory)
            ledger._begin_segment(found.end, segment_bytes, clock_unix_ms, randbytes, threads)
            if_it_fails.pop_all()
        ledger._spares_wanted = spares_wanted(requests_in_flight_max, segment_bytes)
        ledger._on_pressure = on_pressure
        return ledger

    def _begin_segment(
        self,
        end: recovery.End,
        segment_bytes: int,
        clock_unix_ms: Callable[[], int],
        randbytes: Callable[[int], bytes],
        threads: Threads,
    ) -> None:
        """A new segment behind what was found, with the Opened record as the probe that the disk takes writes."""
        known = structs.replace(end, ledger_id=end.ledger_id or randbytes(on_disk.SALT_BYTES))
        make = partial(spares.make_spare, self._files, self._directory, segment_bytes, randbytes)
        slot = make(lambda: True)
        try:
            self._begin_in(slot, known, segment_bytes, clock_unix_ms, threads)
        except BaseException:
            self._files.close(slot.descriptor)
            raise
        explain = partial(self._explain, segment_bytes)
        self._spare_maker = threads.spares(make, explain, self._spare_made, self._spare_failed)

    def _begin_in(
        self, slot: Slot, end: recovery.End, segment_bytes: int, clock_unix_ms: Callable[[], int], threads: Threads
    ) -> None:
        incarnation = end.incarnation + 1
        slot.number = end.segment + 1
        self._room = Room(segment_bytes, slot, on_disk.BLOCK_BYTES, lambda: self._spare_maker.want(1))
        self._clock_unix_ms = clock_unix_ms
        self._writer = Writer(
            self._files,
            self._directory,
            end,
            incarnation,
            segment_bytes,
            clock_unix_ms,
            on_landed=self._room.landed,
            thread=threads.commit,
        )
        opened = OpenedRecord(incarnation=incarnation, opened_at_unix_ms=clock_unix_ms(), clean=end.closed)
        framed = on_disk.encode_record(opened)
        self._writer.write_first(Append(framed, self._room.place_closed(len(framed)), lambda _: None))

    def _explain(self, needed_bytes: int, error: Exception) -> str:
        try:
            had = f"{self._files.free_bytes(self._directory)} are free"
        except OSError as unknown:
            had = f"how many are free can't be told ({unknown.strerror or unknown})"
        return (
            f"no spare segment can be made ({getattr(error, 'strerror', None) or error}):"
            f" {needed_bytes} bytes are needed and"
            f" {had} in {self._directory}; {_DISK_FULL_ADVICE}"
        )

    # --- while it runs ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._token = trio.lowlevel.current_trio_token()
        self._writer.start()
        self._spare_maker.start()
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
        if clean and self.poisoned is None:
            framed = on_disk.encode_record(ClosedRecord(closed_at_unix_ms=self._clock_unix_ms()))
            with suppress(LedgerUnavailable, NoRoom):  # the next open then finds no clean exit, which is the truth
                closing = Append(framed, self._room.place_closed(len(framed)), lambda _: None)
                self._writer.append(closing)
                self._writer.release()  # whatever has become of who does that while the ledger is in use
                await closing
        self._writer.stop()
        for join in (self._writer.join, self._spare_maker.join):
            try:
                await trio.to_thread.run_sync(join)
            except RuntimeError:  # no thread can be started to wait in; the loop has nothing else to do by now
                join()
        self._let_go()

    def _let_go(self) -> None:
        """Spares, segments, and last the lock. What fails here loses nothing: all that was acknowledged is synced, the
        next open removes spares, and how the process ends is for `poisoned` to say."""
        unused = [*self._room.planned_behind(self._writer.slot), *self._room.spares]
        for spare in unused:
            with suppress(OSError):
                self._files.unlink(spare.path)
        for slot in [self._writer.slot, *unused]:
            with suppress(OSError):
                self._files.close(slot.descriptor)
        with suppress(OSError):
            self._files.let_directory_go()
        with suppress(OSError):
            self._files.close(self._lock)

    @property
    def low_water_unix_ms(self) -> int:
        return self._low_water_unix_ms

    @property
    def poisoned(self) -> str | None:
        return self._writer.poisoned

    async def wait_poisoned(self) -> None:
        await self._writer.wait_poisoned()

    def statistics(self) -> Statistics:
        return Statistics(
            records=self._writer.records,
            batches=self._writer.batches,
            syncs=self._writer.syncs,
            written_bytes=self._writer.written_bytes,
            queued=self._writer.queued,
            live=len(self._live),
            settlements=self._room.settlements(),
            spares_ready=len(self._room.spares),
        )

    def find(self, caller_runtime_id: str, request_id: str) -> Recorded | None:
        return self._index.find(key_of(caller_runtime_id, request_id))

    def begin(self, record: BeginRecord) -> Landing:
        if self.poisoned or self.pressure:
            return Landing.failed(LedgerUnavailable(self.poisoned or self.pressure))
        key = key_of(record.caller_runtime_id, record.request_id)
        assert key not in self._on_the_way, "a request begins twice"
        assert self._index.find(key) is None, "a request begins twice"
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

        return self._append(key, Append(framed, slot, enter))

    def room_for(self, record: CompletedRecord) -> bool:
        if len(record.response) <= SURE_RESPONSE_BYTES:
            return True
        return self._room.has_room_for(len(on_disk.encode_record(record)))

    def complete(self, begin: BeginRecord, record: CompletedRecord) -> Landing:
        if self.poisoned:
            return Landing.failed(LedgerUnavailable(self.poisoned))
        key = key_of(begin.caller_runtime_id, begin.request_id)
        recorded = self._index.find(key)
        assert recorded is not None, "a request completes that has not begun"
        assert recorded.completed is None, "a request completes twice"
        assert key not in self._on_the_way, "a request completes twice"
        assert record.begin_segment == recorded.begin.segment, "a completion names another begin"
        assert record.begin_offset == recorded.begin.offset, "a completion names another begin"
        framed = on_disk.encode_record(record)
        try:
            slot = self._room.place_completion(len(framed), live=key in self._live)
        except NoRoom:
            return Landing.failed(LedgerUnavailable("there is no room for this record until a spare segment is ready"))
        self._live.discard(key)

        def enter(place: Place) -> None:
            self._on_the_way.discard(key)
            self._index.completed(key, record, place)

        return self._append(key, Append(framed, slot, enter))

    def raise_low_water(self, expires_at_unix_ms: int) -> Landing:
        """Nothing that expires at or before this instant may run from now on; durable when it lands."""
        framed = on_disk.encode_record(LowWaterRecord(expires_at_unix_ms=expires_at_unix_ms))
        try:
            slot = self._room.place_closed(len(framed))
        except NoRoom:
            return Landing.failed(LedgerUnavailable("there is no room for this record until a spare segment is ready"))

        def enter(_: Place) -> None:
            self._low_water_unix_ms = max(self._low_water_unix_ms, expires_at_unix_ms)

        append = Append(framed, slot, enter)
        self._writer.append(append)
        return append

    def _append(self, key: bytes, append: Append) -> Landing:
        self._on_the_way.add(key)
        self._writer.append(append)
        return append

    def _spare_made(self, spare: Slot) -> None:
        def ready() -> None:
            self._room.spares.append(spare)
            self._pressed(None)

        self._on_trio_side(ready)

    def _spare_failed(self, why: str) -> None:
        self._on_trio_side(partial(self._pressed, why))

    def _pressed(self, why: str | None) -> None:
        """Tells of the first failure and of the success that ends it, not of each try in between."""
        changed = (why is None) != (self.pressure is None)
        self.pressure = why
        if changed:
            self._on_pressure(why)

    def _on_trio_side(self, callback: Callable[[], None]) -> None:
        try:
            self._token.run_sync_soon(callback)
        except trio.RunFinishedError:
            return

    # --- replay -----------------------------------------------------------------------------------------------

    async def read_response(self, recorded: Recorded) -> bytes:
        assert recorded.completed is not None
        try:
            body = await trio.to_thread.run_sync(self._read_back, recorded.completed)
        except (OSError, FormatFault, RuntimeError) as fault:  # the last one: no thread can be started
            raise LedgerUnavailable(f"the recorded answer can't be read back: {fault}") from fault
        completed = body.completed
        if not completed or (completed.begin_segment, completed.begin_offset) != (
            recorded.begin.segment,
            recorded.begin.offset,
        ):
            raise LedgerUnavailable("the recorded answer can't be read back: another record stands in its place")
        if completed.response[:1] != STORED_AS_IS:
            raise LedgerUnavailable("the recorded answer is stored in a form that this version doesn't know")
        return completed.response[1:]

    def _read_back(self, place: Place) -> RecordBody:
        descriptor = self._files.open_to_read(recovery.segment_path(self._directory, place.segment))
        try:
            return on_disk.decode_record(self._files.read(descriptor, place.length, place.offset))
        finally:
            self._files.close(descriptor)
