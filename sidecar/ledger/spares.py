"""Spare segments, written out with zeros and synced ahead of use by a thread of their own.

A prewritten file commits about twice as fast as one that grows, and a full
disk is met here, where it is only pressure: the failure is reported, nothing
in use is touched, and making the spare is tried again until it succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import SALT_BYTES
from sidecar.ledger.room import Slot

_SUFFIX: Final = ".spare"
RETRY_SECONDS: Final = 0.5


def make_spare(
    files: DiskFiles,
    directory: Path,
    segment_bytes: int,
    randbytes: Callable[[int], bytes],
    go_on: Callable[[], bool] = lambda: True,
) -> Slot:
    """A synced file of zeros; what was begun is removed if it fails."""
    began_at = time.perf_counter()
    path = directory / f"{randbytes(8).hex()}{_SUFFIX}"
    descriptor = files.create(path)
    try:
        files.write_in_place(descriptor)
        files.write_zeros(descriptor, segment_bytes, go_on)
        files.sync(descriptor)
    except BaseException:
        try:
            files.close(descriptor)
        finally:
            files.unlink(path)
        raise
    slot = Slot(path, descriptor, randbytes(SALT_BYTES))
    slot.made_in_seconds = time.perf_counter() - began_at
    return slot


def remove_leftovers(files: DiskFiles, directory: Path) -> None:
    """Spares of a process that is gone: they hold nothing."""
    for name in files.names(directory):
        if name.endswith(_SUFFIX):
            files.unlink(directory / name)


def let_go(files: DiskFiles, unused: Iterable[Slot], slots: Iterable[Slot]) -> None:
    """Removes the files of the unused ones, as far as that can be done, and closes all."""
    for spare in unused:
        with suppress(OSError):
            files.unlink(spare.path)
    for slot in slots:
        with suppress(OSError):
            files.close(slot.descriptor)


class SpareMaker:
    """Makes as many spares as were asked for, one after the other, in its own thread."""

    def __init__(
        self,
        make: Callable[[Callable[[], bool]], Slot],
        explain: Callable[[Exception], str],
        on_made: Callable[[Slot], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._make = make
        self._explain = explain
        self._on_made = on_made
        self._on_failed = on_failed
        self._wanted = 0
        self._change = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ledger-spares", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self, count: int) -> None:
        with self._change:
            self._wanted += count
            self._change.notify()

    def stop(self) -> None:
        with self._change:
            self._stopping = True
            self._change.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._wanted > 0 or self._stopping)
                if self._stopping:
                    return
            if not self.make_one():
                with self._change:
                    self._change.wait_for(lambda: self._stopping, timeout=RETRY_SECONDS)

    def make_one(self) -> bool:
        """Tells of the spare, or why there is none; whether there is one."""
        try:
            spare = self._make(lambda: not self._stopping)
        except Exception as error:
            # A bug too is pressure that says why: begins must not be refused without a word.
            if not self._stopping:  # a spare half made holds up no exit
                self._on_failed(self._explain(error))
            return False
        with self._change:
            self._wanted -= 1
        self._on_made(spare)
        return True
