"""A ledger on a simulated disk, in one thread and by one seed; and the story of what it was told, to hold it to.

A story is the records in the order in which they were queued. The writer is
one and its batches are a chain, so what a disk holds after any crash must be a
front part of that order, and all that was acknowledged must be in it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from kit import records
from kit.sim_disk import NONE_LANDED, SimDisk

from sidecar.contract.values import BeginRecord, CompletedRecord, RecordBody
from sidecar.ledger import recovery
from sidecar.ledger.commit_thread import CommitThread, Job, Told
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.keeping import KeepingThread
from sidecar.ledger.landing import Landed, Landing, Place
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.spares import SpareMaker
from sidecar.ledger.threads import Threads
from sidecar.ledger.writer import Append

DIRECTORY = Path("/state/ledger")
FRAME_BYTES_MAX = records.FRAME_BYTES_MAX


class CommitInLine(CommitThread[Job]):
    """Works when it is handed a job, and tells at once, as with a quick disk; or both a moment later."""

    later = False

    def __init__(self, work: Callable[[Job], Told]) -> None:
        self._work = work
        self._busy = False
        self._jobs_later: deque[Job] = deque()

    def start(self) -> None:
        return

    def stop(self) -> None:
        self._do_what_waits()

    def join(self) -> None:
        return

    def hand_over(self, job: Job) -> None:
        assert not self._busy
        self._busy = True
        self._jobs_later.append(job)
        if self.later:
            trio.lowlevel.current_trio_token().run_sync_soon(self._do_what_waits)
        else:
            self._do_what_waits()

    def _do_what_waits(self) -> None:
        while self._jobs_later:
            self._tell(self._work(self._jobs_later.popleft()))


class CommitLater(CommitInLine[Job]):
    later = True


class KeepingInLine(CommitInLine[Job], KeepingThread[Job]):
    """Upkeep after what is going on on the Trio side, so that it comes between two batches; `keeping` while it does."""

    later = True
    keeping = False

    def stop(self) -> None:
        return  # what is not done is not told of

    def hand_over(self, job: Job) -> None:
        CommitInLine.hand_over(self, job)

    def _do_what_waits(self) -> None:
        KeepingInLine.keeping = True
        try:
            while self._jobs_later:
                told = self._work(self._jobs_later.popleft())
                self._busy = False
                told()
        finally:
            KeepingInLine.keeping = False

    @staticmethod
    def breathe() -> None:
        return


class SparesInLine(SpareMaker):
    """Makes spares when they are asked for; those that couldn't be made are tried again with the next that are.

    `making` while it does.
    """

    making = False

    def start(self) -> None:
        return

    def join(self) -> None:
        return

    def want(self, count: int) -> None:
        super().want(count)
        self.making = True
        while self._wanted and not self._stopping and self.make_one():
            pass
        self.making = False


IN_LINE = Threads(commit=CommitInLine, spares=SparesInLine, keeping=KeepingInLine)
LATER = Threads(commit=CommitLater, spares=SparesInLine, keeping=KeepingInLine)


def opened(disk: SimDisk, seed: int = 0, threads: Threads = IN_LINE, **changes: Any) -> Ledger:
    terms: dict[str, Any] = {
        "segment_bytes": records.SEGMENT_BYTES,
        "frame_bytes_max": FRAME_BYTES_MAX,
        "requests_in_flight_max": 4,
        "files": disk,
        "clock_unix_ms": lambda: 1000,
        "window_of": lambda caller: 1,
        "randbytes": random.Random(seed).randbytes,
        "threads": threads,
        **changes,
    }
    return Ledger.open(DIRECTORY, **terms)


Line = BeginRecord | tuple[BeginRecord, CompletedRecord]


class Found:
    """What an open finds: every record in order, also those in sealed segments that it doesn't read, and the spend
    that it comes to as the daemon counts it."""

    def __init__(self, disk: SimDisk) -> None:
        self.lines: list[Line] = []
        self.totals = records.Totals()
        self._open: dict[tuple[int, int], BeginRecord] = {}
        copy = disk.after_exit()
        if copy.exists(DIRECTORY):
            with suppress(LedgerDamaged):  # that is for the open to meet
                recovery.read(copy, DIRECTORY, self._take, cold=True)

    def _take(self, body: RecordBody, place: Place) -> None:
        if body.begin:
            self._open[place.segment, place.offset] = body.begin
            self.lines.append(body.begin)
        elif body.completed:
            begin = self._open.pop((body.completed.begin_segment, body.completed.begin_offset))
            self.lines.append((begin, body.completed))


class Waiting:
    """For one record that was queued, or refused before it was."""

    def __init__(self) -> None:
        self._landed: Landed | None = None
        self._event = trio.Event()

    def land(self, landed: Landed) -> None:
        self._landed = landed
        self._event.set()

    async def landed(self) -> Landed:
        await self._event.wait()
        assert self._landed is not None
        return self._landed

    async def place(self) -> Place:
        """Raises LedgerUnavailable."""
        landed = await self.landed()
        if isinstance(landed, LedgerUnavailable):
            raise landed
        return landed


class Story:
    """What was queued, in order, and how much of it was acknowledged.

    `clean` is what the next open must say of the exit before it; None where either is true.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.acknowledged = 0
        self.clean: bool | None = True

    def opening(self) -> None:
        self.clean = None if self.clean else self.clean

    def opened(self, found: Found) -> None:
        """What was found is for good."""
        self.lines, self.acknowledged, self.clean = found.lines, len(found.lines), False

    def begin(self, ledger: Ledger, record: BeginRecord) -> Waiting:
        return self._follow(record, ledger.begin(record))

    def complete(self, ledger: Ledger, begin: BeginRecord, record: CompletedRecord) -> Waiting:
        return self._follow((begin, record), ledger.complete(begin, record))

    def _follow(self, line: Line, landing: Landing) -> Waiting:
        waiting = Waiting()
        if isinstance(landing, Append):  # else it was refused at once
            self.lines.append(line)
            number = len(self.lines)
        else:
            number = 0

        def told(landed: Landed) -> None:
            if isinstance(landed, Place):
                assert number == self.acknowledged + 1, "records land in the order in which they were queued"
                self.acknowledged = number
            waiting.land(landed)

        landing.then(told)
        return waiting

    def so_far(self) -> Story:
        copy = Story()
        copy.lines, copy.acknowledged, copy.clean = list(self.lines), self.acknowledged, self.clean
        return copy


def continued(disk: SimDisk, story: Story) -> Story:
    """Opens what a crash left, and holds it to the story; that of what was found, all of which now is for good."""
    before = segments_of(disk)
    found = Found(disk)
    ledger = opened(disk, seed=len(before), told=found.totals.told)
    count = len(found.lines)
    assert found.lines == story.lines[:count], "what is on record is not what was written, in its order"
    assert count >= story.acknowledged, f"of {story.acknowledged} records acknowledged {count} are there"
    _hold_to_the_lines(ledger, found, story.lines)
    assert story.clean in (None, ledger.recovery.clean), f"the exit before is told as clean={ledger.recovery.clean}"
    after = segments_of(disk)
    assert {name: after[name] for name in before} == before, "a segment that was there has changed"
    left_over = [name for name in disk.names_in(DIRECTORY) if name.endswith(".spare")]
    assert not left_over, "spares of a process that is gone are removed"
    _hold_the_tail(disk, ledger)
    went_on = Story()
    went_on.opened(found)
    return went_on


def _hold_to_the_lines(ledger: Ledger, found: Found, lines: list[Line]) -> None:
    begun = {line.request_id: line for line in found.lines if isinstance(line, BeginRecord)}
    ends = {line[0].request_id: line[1] for line in found.lines if isinstance(line, tuple)}
    still_open = [record for name, record in begun.items() if name not in ends]
    assert list(ledger.recovery.indeterminate) == still_open, "Indeterminate is what was begun and not completed"
    assert found.totals.spent == sum(end.charge_micro_usd for end in ends.values())
    assert found.totals.reserved == sum(record.reservation_micro_usd for record in still_open)
    for line in lines:
        name = line.request_id if isinstance(line, BeginRecord) else line[0].request_id
        recorded = ledger.find("dungeon", name)
        assert (recorded is not None) == (name in begun)
        assert recorded is None or (recorded.completed is not None) == (name in ends)


def _hold_the_tail(disk: SimDisk, ledger: Ledger) -> None:
    if ledger.recovery.set_aside is None:
        return
    kept, _ = disk.file(ledger.recovery.set_aside).shown()
    assert len(kept) == ledger.recovery.set_aside_bytes > 0
    segment, offset = ledger.recovery.set_aside.stem.split("-")
    torn, _ = disk.file(DIRECTORY / f"{segment}.segment").shown()
    assert torn[int(offset) :] == kept, "the tail is kept as it was found"
    durable = disk.after_power_cut(NONE_LANDED)
    assert durable.file(ledger.recovery.set_aside).shown()[0] == kept, "the tail that was set aside is synced"


def segments_of(disk: SimDisk) -> dict[str, tuple[bytes, int]]:
    """What is read of each now and will be read from now on."""
    files = {name: disk.file(DIRECTORY / name) for name in disk.names_in(DIRECTORY) if name.endswith(".segment")}
    return {name: file.shown() for name, file in files.items() if not file.shows_what_is_lost()}
