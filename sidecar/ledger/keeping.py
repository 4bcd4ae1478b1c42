"""Keeps a running ledger light: seals the segments that have ended, drops what is old, and merges seals, in a thread.

What fails here loses nothing and stops nothing: what is not sealed stays in
memory, it is said once, and tried again when the next segment has ended, or
after an hour. The index changes on the Trio side, when a job has been told of.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.contract.values import CheckpointRecord, LowWaterRecord
from sidecar.ledger.commit_thread import CommitThread, Told
from sidecar.ledger.commit_thread import Job as WorkOfThread
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.index import Book, Index
from sidecar.ledger.landing import Landed, Landing
from sidecar.ledger.recovery import segment_path
from sidecar.ledger.retaining import Retaining, ToRecord, Work
from sidecar.ledger.seal_format import End
from sidecar.ledger.sealed import Sealed, merged, pair_to_merge
from sidecar.ledger.watch import NOBODY_WATCHES, Job, Watch
from sidecar.ops.tracebacks import in_a_word

SEALS_MAX: Final = 3  # so many searches an unknown id costs
_BREATH_SECONDS: Final = 0.003


class KeepingThread(CommitThread[WorkOfThread]):
    """Nobody waits for its jobs."""

    name = "ledger-upkeep"

    def hand_over(self, job: WorkOfThread) -> None:
        assert not self._busy, "a job is handed over before the last one has been told of"
        self._busy = True
        self._jobs.put(job)

    @staticmethod
    def breathe() -> None:
        """Leaves the interpreter to the event loop for a while: there is no hurry here."""
        time.sleep(_BREATH_SECONDS)


class Keeping:
    """The upkeep of one running ledger."""

    def __init__(
        self,
        files: DiskFiles,
        directory: Path,
        index: Index,
        retaining: Retaining,
        *,
        end: Callable[[], End],
        append: Callable[[LowWaterRecord | CheckpointRecord], Landing],
        makes_seals: bool,
        on_trouble: Callable[[str], None],
        thread: type[KeepingThread[Work]] = KeepingThread,
        watch: Watch = NOBODY_WATCHES,
    ) -> None:
        self._files = files
        self._directory = directory
        self._index = index
        self._retaining = retaining
        self._end = end
        self._append = append
        self._makes_seals = makes_seals
        self._on_trouble = on_trouble
        self._watch = watch
        self._thread = thread(self._done)
        self._under_way = False
        self._stopping = False
        self._trouble: str | None = None
        self._replaced: list[Sealed] = []

    def start(self) -> None:
        self._thread.start()
        self.go_on()

    def stop(self) -> None:
        """What is under way is given up where it can be, and made again another time."""
        self._stopping = True
        self._thread.stop()

    def join(self) -> None:
        self._thread.join()

    def try_again(self) -> None:
        """What there is to do now, also what failed before: where a segment has ended, and from time to time."""
        self._trouble = None
        self.go_on()

    def go_on(self) -> None:
        """The next job, if the thread has none and there is one."""
        if self._under_way or self._stopping or self._trouble is not None:
            return
        work = self._next()
        if isinstance(work, ToRecord):
            self._under_way = True
            self._append(work.record).then(partial(self._recorded, work.then))
        elif work is not None:
            self._under_way = True
            self._thread.hand_over(work)

    def _next(self) -> Work | ToRecord | None:
        if self._replaced:
            replaced, self._replaced = self._replaced, []
            return Work("remove", "removing seals that others have replaced", partial(self._remove, replaced))
        if self._index.waiting and self._makes_seals:
            book = self._index.waiting[0]
            return Work("seal", f"sealing segment {book.number}", partial(self._seal, book))
        sealed = self._index.sealed
        gone = [seal for seal in sealed if seal.document.last <= self._retaining.base.segment]
        if gone:
            del sealed[: len(gone)]
            return Work("remove", "removing seals of what is gone", partial(self._remove, gone))
        if (step := self._retaining.next(self._end(), self._breathe)) is not None:
            return step
        if len(sealed) > SEALS_MAX:
            older, newer = pair_to_merge(sealed)
            name = f"merging {older.path.name} and {newer.path.name}"
            return Work("merge", name, partial(self._merge, older, newer, self._retaining.base))
        return None

    # --- in the thread ----------------------------------------------------------------------------------------

    def _done(self, work: Work) -> Told:
        began_at = time.perf_counter()
        try:
            told = work.do()
        except Exception as error:  # a bug too: upkeep must not end without a word
            if self._stopping:
                return self._finished
            return partial(self._failed, f"{work.name}: {_cause(error)}")
        return partial(self._worked, work.job, time.perf_counter() - began_at, told)

    def _seal(self, book: Book) -> Told:
        path = book.write_seal(self._files, self._directory, self._thread.breathe)
        with suppress(OSError):  # a file system that makes no holes: the zeros stay
            if book.is_of_this_run:  # one that was found may have a torn tail, which stays where it is
                self._files.give_back_zeros(segment_path(self._directory, book.number), book.end.offset)
        return partial(self._adopt, Sealed.open(self._files, path, self._thread.breathe))

    def _merge(self, older: Sealed, newer: Sealed, base: End) -> Told:
        path = merged(self._files, self._directory, older, newer, base, self._breathe)
        return partial(self._replace, older, newer, Sealed.open(self._files, path, self._breathe))

    def _remove(self, seals: list[Sealed]) -> Told:
        for seal in seals:
            with suppress(OSError):  # the next open removes what another seal covers
                seal.close()
            with suppress(OSError):
                self._files.unlink(seal.path)
        return lambda: None

    def _breathe(self) -> None:
        if self._stopping:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        self._thread.breathe()

    # --- on the Trio side -------------------------------------------------------------------------------------

    def _recorded(self, then: Told, landed: Landed) -> None:
        if isinstance(landed, LedgerUnavailable):
            self._failed(str(landed))
        else:
            self._told(then)

    def _finished(self) -> None:
        self._under_way = False

    def _worked(self, job: Job, seconds: float, told: Told) -> None:
        self._watch.on_upkeep(job, seconds)
        self._told(told)

    def _told(self, told: Told) -> None:
        self._under_way = False
        told()
        self.go_on()

    def _failed(self, why: str) -> None:
        self._under_way = False
        self._trouble = why
        self._on_trouble(why)

    def _adopt(self, seal: Sealed) -> None:
        self._index.waiting.pop(0)
        self._index.sealed.append(seal)

    def _replace(self, older: Sealed, newer: Sealed, both: Sealed) -> None:
        sealed = self._index.sealed
        at = sealed.index(older)
        sealed[at : at + 2] = [both]
        self._replaced.extend((older, newer))


def _cause(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if isinstance(error, LedgerDamaged) else in_a_word(error)
