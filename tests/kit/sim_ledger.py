"""A ledger on a simulated disk, in one thread and by one seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
from kit import records
from kit.sim_disk import SimDisk

from sidecar.ledger.commit_thread import CommitThread, Job, Told
from sidecar.ledger.keeping import KeepingThread
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.spares import SpareMaker
from sidecar.ledger.threads import Threads

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
    _turns = 1

    def stop(self) -> None:
        self._jobs_later.clear()  # what is not done is not told of

    def hand_over(self, job: Job) -> None:
        self._wait_turns = self._turns
        CommitInLine.hand_over(self, job)

    def _do_what_waits(self) -> None:
        self._wait_turns -= 1
        if self._wait_turns and self._jobs_later:
            trio.lowlevel.current_trio_token().run_sync_soon(self._do_what_waits)
            return
        while self._jobs_later:
            KeepingInLine.keeping = True
            try:
                told = self._work(self._jobs_later.popleft())
            finally:
                KeepingInLine.keeping = False
            self._told_later(told)

    def _told_later(self, told: Told) -> None:
        self._tell(told)

    @staticmethod
    def breathe() -> None:
        return


class KeepingSlowly(KeepingInLine[Job]):
    """Batches land, and segments end, before a job is begun, and again before it is told of. The last one is finished
    when the ledger is closed, and nobody told."""

    _turns = 7
    _stopped = False

    def stop(self) -> None:
        self._stopped = True
        while self._jobs_later:
            self._work(self._jobs_later.popleft())

    def _told_later(self, told: Told) -> None:
        self._tell_in(self._turns, told)

    def _tell_in(self, turns: int, told: Told) -> None:
        if self._stopped:
            return
        if turns:
            trio.lowlevel.current_trio_token().run_sync_soon(self._tell_in, turns - 1, told)
        else:
            self._tell(told)


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
SLOWLY = Threads(commit=CommitInLine, spares=SparesInLine, keeping=KeepingSlowly)


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
