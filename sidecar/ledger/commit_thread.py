"""The thread in which batches reach the disk, and how the event loop waits for it.

A batch that is handed over and told of through the loop costs the loop more
than a fast disk does: both threads want the interpreter at the same time, and
each system call of one lets the other in. So whoever hands a batch over waits
for it, up to `PATIENCE_SECONDS`, in which the thread has the interpreter to
itself. What a wait takes above `FREE_SECONDS` is paid for: for so many times as
long the loop doesn't wait again, and batches are told of through it. So a disk
of one or two milliseconds takes a quarter of the loop's time at most, and one
that is slower, or hangs, a twentieth.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import trio

PATIENCE_SECONDS: Final = 0.002
FREE_SECONDS: Final = 0.0004
_PAUSE_AFTER_A_WAIT: Final = 4.0  # times what it took above what is free
_PAUSE_AFTER_A_WAIT_IN_VAIN: Final = 20 * PATIENCE_SECONDS

Job = TypeVar("Job")
Told = Callable[[], None]


class CommitThread(Generic[Job]):
    """Does one job at a time; what `work` returns is called on the Trio side, exactly once for each job.

    The next job is handed over only when the last one has been told of. `work`
    must not raise. Once the loop has ended nobody is told any more.
    """

    name = "ledger-commit"

    def __init__(self, work: Callable[[Job], Told], clock: Callable[[], float] = time.perf_counter) -> None:
        self._work = work
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._busy = False  # known to the loop's side alone
        self._impatient_until = -math.inf
        # Under the lock: whether the loop's side waits now, and what it then finds.
        self._lock = threading.Lock()
        self._awaited = False
        self._done: Told | None = None
        self._ready = threading.Lock()
        self._ready.acquire()

    def start(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._thread.start()

    def stop(self) -> None:
        """The thread ends behind the job that it has."""
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join()

    def hand_over(self, job: Job) -> None:
        """Starts a job; if it is quick, it has been done and told of when this returns."""
        assert not self._busy, "a job is handed over before the last one has been told of"
        self._busy = True
        began_at = self._clock()
        awaited = self._awaited = began_at >= self._impatient_until
        self._jobs.put(job)
        if not awaited:
            return
        in_time = self._ready.acquire(timeout=PATIENCE_SECONDS)
        with self._lock:
            done, self._done = self._done, None
            self._awaited = False
        now = self._clock()
        if done is None:
            self._impatient_until = now + _PAUSE_AFTER_A_WAIT_IN_VAIN
            return
        self._impatient_until = now + _PAUSE_AFTER_A_WAIT * max(0.0, now - began_at - FREE_SECONDS)
        if not in_time:
            self._ready.acquire()  # it was done in the very moment in which we gave up
        self._tell(done)

    def _tell(self, done: Told) -> None:
        self._busy = False
        done()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._hand_back(self._work(job))

    def _hand_back(self, done: Told) -> None:
        with self._lock:
            if self._awaited:
                self._done = done
                self._ready.release()
                return
        assert self._token is not None
        try:
            self._token.run_sync_soon(self._tell, done)
        except trio.RunFinishedError:
            return  # nobody is left to tell; what is on disk is on disk
