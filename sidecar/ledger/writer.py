"""The one writer: records in, batches out, one sync and one wake-up for each batch.

Whoever appends queues a record and is told when it has landed. What has
gathered when all that can run has run goes to the commit thread, up to a bound;
it makes one batch of it, writes it with one call, syncs it with one call, and
tells the Trio side once. There the whole batch is entered into the index and
whoever waits is told. Nothing is held back for a fuller batch: what comes while
one is under way is the next. The thread does little but call C, because what Python it runs is time
taken from the event loop.

The wait can't be cancelled: a record that is queued may reach the disk, so
whoever queued it must hear what became of it. The first call that fails ends
all writing for good (`poisoned`): a failed sync may have dropped what it was to
write, and a second one would say that all is well. Nothing is tried again. A bug
on either side must leave nobody waiting: one in the thread poisons, one met
while a landed record is entered or told ends the run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from sidecar.ledger import format as on_disk
from sidecar.ledger.commit_thread import CommitThread, Told
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BATCH_HEADER_BYTES, BLOCK_BYTES, SegmentHeader
from sidecar.ledger.landing import Landed, Landing, Place
from sidecar.ledger.recovery import segment_path
from sidecar.ledger.room import Slot
from sidecar.ledger.seal_format import End
from sidecar.ledger.watch import NOBODY_WATCHES, Watch
from sidecar.ops.tracebacks import in_a_word

BATCH_BYTES_MAX: Final = 4 << 20
BATCH_RECORDS_MAX: Final = 512
_TURNS_TO_GATHER: Final = 2  # in the first, answers leave and their callers wake; by the second, what they send is read


class Append(Landing):
    """One record and the segment it goes to; `enter` takes it into memory before whoever waits hears of it."""

    __slots__ = ("enter", "framed", "slot")

    def __init__(self, framed: bytes, slot: Slot, enter: Callable[[Place], None]) -> None:
        super().__init__()
        self.framed = framed
        self.slot = slot
        self.enter = enter


class Batch(Struct, frozen=True):
    """A batch that is on disk: from `offset` to `end` in its segment, with the chain's head and its number.

    How long its write and its sync took is measured in the thread, and comes over with it.
    """

    slot: Slot
    offset: int
    end: int
    head: bytes
    number: int
    write_seconds: float = 0.0
    sync_seconds: float = 0.0


class Writer:
    """Appends records to the chain that ends at `end`, in the segments that the plan gives."""

    def __init__(
        self,
        files: DiskFiles,
        directory: Path,
        end: End,
        incarnation: int,
        segment_bytes: int,
        clock_unix_ms: Callable[[], int],
        on_landed: Callable[[Batch, list[int]], None],
        thread: type[CommitThread[list[Append]]] = CommitThread,
        watch: Watch = NOBODY_WATCHES,
    ) -> None:
        assert end.ledger_id is not None
        self._files = files
        self._directory = directory
        self._ledger_id = end.ledger_id
        self._incarnation = incarnation
        self._segment_bytes = segment_bytes
        self._clock_unix_ms = clock_unix_ms
        self._on_landed = on_landed
        self._watch = watch
        # Known to the commit thread alone, once it runs.
        self._slot: Slot | None = None
        self._end = end.offset
        self._head = end.head
        self._batch = end.batch
        self.syncs = 0
        self._thread = thread(self._commit)
        # Known to the Trio side alone.
        self._gathered: deque[Append] = deque()
        self._gathered_bytes = 0
        self._first_gathered_at = 0.0
        self._waited_seconds = 0.0  # the first of the batch under way
        self._under_way = False
        self._releasing = trio.CancelScope()
        self._asleep: trio.lowlevel.Task | None = None
        self.poisoned: str | None = None
        self._poison = trio.Event()
        self._answered: trio.Event | None = None  # somebody waits for the thread's next sign of life
        self.batches = 0
        self.records = 0
        self.written_bytes = 0

    # --- the Trio side ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        trio.lowlevel.spawn_system_task(self._release_what_gathers)

    async def _release_what_gathers(self) -> None:
        with self._releasing:
            while True:
                if self._under_way or not self._gathered:
                    self._asleep = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._no_longer_asleep)
                for _ in range(_TURNS_TO_GATHER):
                    await trio.lowlevel.checkpoint()
                self.release()

    def _no_longer_asleep(self, _: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
        self._asleep = None
        return trio.lowlevel.Abort.SUCCEEDED

    def append(self, append: Append) -> None:
        """Queues it; it lands with its batch, or fails, and then nothing more is written."""
        if self.poisoned is not None:
            append.land(LedgerUnavailable(self.poisoned))
            return
        if not self._gathered:
            self._first_gathered_at = time.perf_counter()
        self._gathered.append(append)
        self._gathered_bytes += len(append.framed)
        self._release_soon()

    @property
    def queued(self) -> int:
        """Records that wait for the batch under way to land."""
        return len(self._gathered)

    def _release_soon(self) -> None:
        """When more has had time to gather: each batch is a sync."""
        if self._asleep is not None and not self._under_way:
            trio.lowlevel.reschedule(self._asleep)
            self._asleep = None

    def release(self) -> None:
        """One batch goes to the thread, if it has none: what has gathered, up to the bounds and its segment's end."""
        if self._under_way or not self._gathered:
            return
        self._waited_seconds = time.perf_counter() - self._first_gathered_at
        appends = self._all_gathered() or self._first_gathered()
        self._under_way = True
        self._thread.hand_over(appends)

    def _all_gathered(self) -> list[Append]:
        """What has gathered, where one batch holds it; else nothing. Segments follow each other, so two ends tell."""
        gathered = self._gathered
        if (
            len(gathered) > BATCH_RECORDS_MAX
            or self._gathered_bytes > BATCH_BYTES_MAX
            or gathered[0].slot is not gathered[-1].slot
        ):
            return []
        appends = list(gathered)
        gathered.clear()
        self._gathered_bytes = 0
        return appends

    def _first_gathered(self) -> list[Append]:
        """As much as one batch holds, one record at least."""
        appends: list[Append] = []
        size = 0
        while self._gathered and len(appends) < BATCH_RECORDS_MAX:
            first = self._gathered[0]
            size += len(first.framed)
            if appends and (first.slot is not appends[0].slot or size > BATCH_BYTES_MAX):
                break
            appends.append(self._gathered.popleft())
            self._gathered_bytes -= len(first.framed)
        return appends

    async def wait_poisoned(self) -> None:
        await self._poison.wait()

    async def answers(self) -> None:
        """Returns when the batch under way has landed; where there is none, when the thread has synced the segment.

        Either has gone through the thread, and through a sync of the file that is written. The sync writes nothing,
        so what is on record stays as it is; one that fails poisons like any other. Raises LedgerUnavailable.
        """
        if self.poisoned is None:
            answered = self._answered = trio.Event() if self._answered is None else self._answered
            if not self._under_way:
                self._under_way = True
                self._thread.hand_over([])
            await answered.wait()
        if self.poisoned is not None:
            raise LedgerUnavailable(self.poisoned)

    def _has_answered(self) -> None:
        if self._answered is not None:
            self._answered.set()
            self._answered = None

    def stop(self) -> None:
        """The thread ends when the batch under way has landed; what has only gathered is not written."""
        self._releasing.cancel()
        self._thread.stop()

    def join(self) -> None:
        self._thread.join()

    @property
    def slot(self) -> Slot:
        """The segment that was written last."""
        assert self._slot is not None
        return self._slot

    def _synced(self) -> None:
        """The thread has done a job in which nothing was to be written."""
        self._under_way = False
        self._has_answered()
        if self._gathered:
            self._release_soon()

    def _landed(self, appends: list[Append], landed: Batch) -> None:
        self._under_way = False
        self._has_answered()
        slot, offset = landed.slot, landed.offset
        self.batches += 1
        self.records += len(appends)
        self.written_bytes += landed.end - offset
        self._watch.on_batch(
            len(appends), landed.end - offset, self._waited_seconds, landed.write_seconds, landed.sync_seconds
        )
        sizes = [len(append.framed) for append in appends]
        self._on_landed(landed, sizes)
        begins = accumulate(sizes, initial=offset + BATCH_HEADER_BYTES)
        self._tell(appends, map(Place, repeat(slot.number), begins, sizes))
        if self._gathered:
            self._release_soon()

    def _failed(self, appends: list[Append], why: str) -> None:
        self.poisoned = why
        self._poison.set()
        self._has_answered()
        waiting = [*appends, *self._gathered]
        self._gathered.clear()
        self._gathered_bytes = 0
        self._tell(waiting, [LedgerUnavailable(why) for _ in waiting])

    def _tell(self, appends: Iterable[Append], landed: Iterable[Landed]) -> None:
        """A bug met on the way ends the run, but first the others hear of their records."""
        bug: Exception | None = None
        for append, how in zip(appends, landed, strict=True):
            try:
                if isinstance(how, Place):
                    append.enter(how)
                append.land(how)
            except Exception as fault:
                bug = bug or fault
        if bug is not None:
            raise bug

    # --- the commit thread ------------------------------------------------------------------------------------

    def write_first(self, append: Append) -> Place:
        """One record before the thread runs: the write probe of an open. Raises OSError."""
        batch = self._write([append])
        self.batches, self.records, self.written_bytes = 1, 1, batch.end - batch.offset
        self._watch.on_batch(1, batch.end - batch.offset, 0.0, batch.write_seconds, batch.sync_seconds)
        self._on_landed(batch, [len(append.framed)])
        return Place(append.slot.number, batch.offset + BATCH_HEADER_BYTES, len(append.framed))

    def _commit(self, appends: list[Append]) -> Told:
        slot = appends[0].slot if appends else self.slot
        try:
            if not appends:
                self._files.sync(slot.descriptor)
                return self._synced
            batch = self._write(appends)
        except Exception as error:
            cause = error.strerror or str(error) if isinstance(error, OSError) else in_a_word(error)
            why = f"writing {segment_path(self._directory, slot.number).name} failed: {cause}"
            return partial(self._failed, appends, why)
        return partial(self._landed, appends, batch)

    def _write(self, appends: list[Append]) -> Batch:
        """Once it is on disk."""
        slot = appends[0].slot
        if slot is not self._slot:
            self._put_to_use(slot)
        batch = on_disk.encode_batch(
            [append.framed for append in appends],
            salt=slot.salt,
            segment=slot.number,
            number=self._batch + 1,
            previous_head=self._head,
        )
        began_at = time.perf_counter()
        self._files.write(slot.descriptor, batch.pieces, self._end)
        written_at = time.perf_counter()
        self._sync(slot)
        wrote, synced = written_at - began_at, time.perf_counter() - written_at
        written = Batch(slot, self._end, self._end + batch.total_bytes, batch.head, self._batch + 1, wrote, synced)
        self._end, self._head, self._batch = written.end, batch.head, written.number
        return written

    def _put_to_use(self, slot: Slot) -> None:
        """The spare becomes the next segment: header, sync, name, sync of the directory, and only then a batch."""
        assert self._slot is None or slot.number == self._slot.number + 1, "a segment is left out"
        header = SegmentHeader(
            ledger_id=self._ledger_id,
            salt=slot.salt,
            incarnation=self._incarnation,
            segment=slot.number,
            created_at_unix_ms=self._clock_unix_ms(),
            segment_bytes=self._segment_bytes,
            previous_end=self._end,
            previous_head=self._head,
        )
        self._files.write(slot.descriptor, [on_disk.encode_segment_header(header)], 0)
        self._sync(slot)
        path = segment_path(self._directory, slot.number)
        self._files.rename(slot.path, path)
        self._files.sync_directory(self._directory)
        slot.path = path
        before, self._slot, self._end = self._slot, slot, BLOCK_BYTES
        if before is not None:
            self._files.close(before.descriptor)  # behind all else: it is gone even where this fails, and closed once

    def _sync(self, slot: Slot) -> None:
        self._files.sync(slot.descriptor)
        self.syncs += 1
