"""The one writer: records in, batches out, one sync and one wake-up for each batch.

Whoever appends queues a record and is told when it has landed. The commit
thread takes all that waits, up to a bound, makes one batch of it, writes it
with one call, syncs it with one call, and wakes the Trio side once; there the
whole batch is entered into the index and whoever waits is told. There is no timer: while
a sync runs, the next batch gathers. The thread does little but call C, because
what Python it runs is time taken from the event loop.

The wait can't be cancelled: a record that is queued may reach the disk, so
whoever queued it must hear what became of it. The first call that fails ends
all writing for good (`poisoned`): a failed sync may have dropped what it was to
write, and a second one would say that all is well. Nothing is tried again. A bug
on either side must leave nobody waiting: one in the thread poisons, one met
while a landed record is entered or told ends the run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import outcome
import trio

from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BATCH_HEADER_BYTES, BLOCK_BYTES, SegmentHeader
from sidecar.ledger.landing import Landing, Place
from sidecar.ledger.recovery import End, segment_path
from sidecar.ledger.room import Slot

BATCH_BYTES_MAX: Final = 4 << 20
BATCH_RECORDS_MAX: Final = 512


class Append(Landing):
    """One record and the segment it goes to; `enter` takes it into memory before whoever waits hears of it."""

    __slots__ = ("enter", "framed", "slot")

    def __init__(self, framed: bytes, slot: Slot, enter: Callable[[Place], None]) -> None:
        super().__init__()
        self.framed = framed
        self.slot = slot
        self.enter = enter


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
        on_landed: Callable[[Slot, int, list[int]], None],
    ) -> None:
        assert end.ledger_id is not None
        self._files = files
        self._directory = directory
        self._ledger_id = end.ledger_id
        self._incarnation = incarnation
        self._segment_bytes = segment_bytes
        self._clock_unix_ms = clock_unix_ms
        self._on_landed = on_landed
        # Known to the commit thread alone, once it runs.
        self._slot: Slot | None = None
        self._end = end.offset
        self._head = end.head
        self._batch = end.batch
        self.syncs = 0
        # Shared. The queue is appended to on the Trio side and taken from in the thread, which needs no lock; the
        # condition is for the thread's sleep.
        self._queue: deque[Append] = deque()
        self._change = threading.Condition()
        self._asleep = False
        self._stopping = False
        # Known to the Trio side alone.
        self.poisoned: str | None = None
        self._poison = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._run, name="ledger-commit", daemon=True)
        self.batches = 0
        self.records = 0
        self.written_bytes = 0

    # --- the Trio side ----------------------------------------------------------------------------------------

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()

    def append(self, append: Append) -> None:
        """Queues it; it lands with its batch, or fails, and then nothing more is written."""
        if self.poisoned is not None:
            append.land(outcome.Error(LedgerUnavailable(self.poisoned)))
            return
        self._queue.append(append)
        if self._asleep:
            with self._change:
                self._asleep = False
                self._change.notify()

    @property
    def queued(self) -> int:
        """Records that wait for the batch under way to land."""
        return len(self._queue)

    async def wait_poisoned(self) -> None:
        await self._poison.wait()

    def stop(self) -> None:
        """The thread ends when the queue is empty."""
        with self._change:
            self._stopping = True
            self._change.notify()

    def join(self) -> None:
        self._thread.join()

    @property
    def slot(self) -> Slot:
        """The segment that was written last."""
        assert self._slot is not None
        return self._slot

    def _landed(self, appends: list[Append], slot: Slot, offset: int, end: int) -> None:
        self.batches += 1
        self.records += len(appends)
        self.written_bytes += end - offset
        self._on_landed(slot, end, [len(append.framed) for append in appends])
        at = offset + BATCH_HEADER_BYTES
        bug: Exception | None = None
        for append in appends:
            place = Place(slot.number, at, len(append.framed))
            at += place.length
            try:
                append.enter(place)
                append.land(outcome.Value(place))
            except Exception as fault:  # it ends the run, but first the others hear of their records
                bug = bug or fault
        if bug is not None:
            raise bug

    def _failed(self, appends: list[Append], why: str) -> None:
        self.poisoned = why
        self._poison.set()
        with self._change:
            waiting = [*appends, *self._queue]
            self._queue.clear()
        for append in waiting:
            append.land(outcome.Error(LedgerUnavailable(why)))

    # --- the commit thread ------------------------------------------------------------------------------------

    def write_first(self, append: Append) -> Place:
        """One record before the thread runs: the write probe of an open. Raises OSError."""
        assert self._token is None
        offset, _ = self._write([append])
        self.batches, self.records, self.written_bytes = 1, 1, self._end - offset
        self._on_landed(append.slot, self._end, [len(append.framed)])
        return Place(append.slot.number, offset + BATCH_HEADER_BYTES, len(append.framed))

    def _run(self) -> None:
        assert self._token is not None
        while appends := self._next_appends():
            slot = appends[0].slot
            try:
                offset, end = self._write(appends)
            except Exception as error:
                cause = (
                    error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__} {error}"
                )
                why = f"writing {segment_path(self._directory, slot.number).name} failed: {cause}"
                self._wake(self._failed, appends, why)
                return
            self._wake(self._landed, appends, slot, offset, end)

    def _wake(self, callback: Callable[..., None], *arguments: object) -> None:
        assert self._token is not None
        try:
            self._token.run_sync_soon(callback, *arguments)
        except trio.RunFinishedError:
            return  # nobody is left to tell; what is on disk is on disk

    def _next_appends(self) -> list[Append]:
        """What waits, up to the bounds and to the end of its segment; empty when the writer is to stop."""
        appends: list[Append] = []
        size = 0
        with self._change:
            while not self._queue and not self._stopping:
                self._asleep = True
                if self._queue:  # it was queued by one who still saw us awake
                    break
                self._change.wait()
            self._asleep = False
            while self._queue and len(appends) < BATCH_RECORDS_MAX:
                first = self._queue[0]
                if appends and (first.slot is not appends[0].slot or size + len(first.framed) > BATCH_BYTES_MAX):
                    break
                size += len(first.framed)
                appends.append(self._queue.popleft())
        return appends

    def _write(self, appends: list[Append]) -> tuple[int, int]:
        """Where the batch stands and ends, once it is on disk."""
        slot = appends[0].slot
        if slot is not self._slot:
            self._put_to_use(slot)
        offset = self._end
        batch = on_disk.encode_batch(
            [append.framed for append in appends],
            salt=slot.salt,
            segment=slot.number,
            number=self._batch + 1,
            previous_head=self._head,
        )
        self._files.write(slot.descriptor, batch.pieces, offset)
        self._sync(slot)
        self._end, self._head, self._batch = offset + batch.total_bytes, batch.head, self._batch + 1
        return offset, self._end

    def _put_to_use(self, slot: Slot) -> None:
        """The spare becomes the next segment: header, sync, name, sync of the directory, and only then a batch."""
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
        if self._slot is not None:
            self._files.close(self._slot.descriptor)
        slot.path = path
        self._slot, self._end = slot, BLOCK_BYTES

    def _sync(self, slot: Slot) -> None:
        self._files.sync(slot.descriptor)
        self.syncs += 1
