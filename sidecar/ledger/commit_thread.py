"""The thread in which batches reach the disk, and how the event loop waits for it.

A batch that is handed over and told of through the loop costs the loop more
than a fast disk does: both threads want the interpreter at the same time, and
each system call of one lets the other in. So whoever hands a batch over waits
for it, up to `PATIENCE_SECONDS`, in which the thread has the interpreter to
itself. A batch that takes longer is told of through the loop, and so are all
that are handed over in the next `IMPATIENCE_SECONDS`: a slow disk, or one that
hangs, takes at most a twentieth of the loop's time.
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
IMPATIENCE_SECONDS: Final = 20 * PATIENCE_SECONDS

Job = TypeVar("Job")
Tell = Callable[[], None]


class CommitThread(Generic[Job]):
    """Does one job at a time; what `work` returns is called on the Trio side, exactly once for each job.

    The next job is handed over only when the last one has been told of. `work`
    must not raise. Once the loop has ended nobody is told any more.
    """

    def __init__(self, work: Callable[[Job], Tell], clock: Callable[[], float] = time.perf_counter) -> None:
        self._work = work
        self._clock = clock
        self._thread = threading.Thread(target=self._run, name="ledger-commit", daemon=True)
        self._token: trio.lowlevel.TrioToken | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._impatient_until = -math.inf
        # Under the lock: whether the loop's side waits now, and what it then finds.
        self._lock = threading.Lock()
        self._awaited = False
        self._done: Tell | None = None
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
        awaited = self._awaited = self._clock() >= self._impatient_until
        self._jobs.put(job)
        if not awaited:
            return
        in_time = self._ready.acquire(timeout=PATIENCE_SECONDS)
        with self._lock:
            done, self._done = self._done, None
            self._awaited = False
        if done is None:
            self._impatient_until = self._clock() + IMPATIENCE_SECONDS
            return
        if not in_time:
            self._ready.acquire()  # it was done in the very moment in which we gave up
        done()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._tell(self._work(job))

    def _tell(self, done: Tell) -> None:
        with self._lock:
            if self._awaited:
                self._done = done
                self._ready.release()
                return
        assert self._token is not None
        try:
            self._token.run_sync_soon(done)
        except trio.RunFinishedError:
            return  # nobody is left to tell; what is on disk is on disk
