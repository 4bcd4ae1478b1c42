"""Spares: a full disk is met while they are made, at the latest by their own sync, and never in a segment in use."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio
from kit import records

from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.spares import make_spare

OpenLedger = Callable[..., Ledger]


class LateFull(DiskFiles):
    """Takes every write, and says only at the sync of a new file that there was no room: as thin devices do."""

    def __init__(self) -> None:
        self.full = False

    def sync(self, descriptor: int) -> None:
        if self.full and threading.current_thread().name == "ledger-spares":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().sync(descriptor)


async def test_a_disk_that_is_full_only_at_the_sync_is_pressure_and_poisons_nothing(open_ledger: OpenLedger) -> None:
    files = LateFull()
    ledger = open_ledger(files)
    files.full = True
    async with ledger.running():
        while ledger.pressure is None and not ledger.statistics().spares_ready:
            await trio.lowlevel.checkpoint()
        with pytest.raises(LedgerUnavailable, match="No space left on device"):
            await ledger.begin(records.begin(1))
        assert ledger.poisoned is None


def test_a_spare_is_all_zeros_and_synced_or_it_is_gone(tmp_path: Path) -> None:
    files = LateFull()
    spare = make_spare(files, tmp_path, 8192, os.urandom)
    assert spare.path.read_bytes() == bytes(8192)
    files.close(spare.descriptor)
    files.unlink(spare.path)

    class Failing(DiskFiles):
        def __init__(self, fault: Exception) -> None:
            self._fault = fault

        def sync(self, descriptor: int) -> None:
            raise self._fault

    for fault in (OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError("no memory")):
        before = os.listdir("/proc/self/fd")
        with pytest.raises(type(fault)):
            make_spare(Failing(fault), tmp_path, 8192, os.urandom)
        assert not list(tmp_path.iterdir())
        assert os.listdir("/proc/self/fd") == before


async def test_a_spare_that_is_half_made_holds_up_no_exit(open_ledger: OpenLedger) -> None:
    class Slow(DiskFiles):
        """A disk that takes one bite more only once the ledger is closing."""

        bites = 0

        def write(self, descriptor: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
            if threading.current_thread().name == "ledger-spares":
                self.bites += 1
                begun.set()
                closing.wait()
            super().write(descriptor, pieces, offset)

    begun, closing = threading.Event(), threading.Event()
    files = Slow()
    ledger = open_ledger(files, segment_bytes=4 << 20)

    async def let_go() -> None:
        """The stop comes before the bite ends: it is the first thing that a close does."""
        while not ledger._spare_maker._stopping:
            await trio.lowlevel.checkpoint()
        closing.set()

    async with trio.open_nursery() as nursery, ledger.running():
        await trio.to_thread.run_sync(begun.wait)
        nursery.start_soon(let_go)
    assert files.bites == 1
    assert ledger.pressure is None
    assert not [name for name in os.listdir(ledger._directory) if name.endswith(".spare")]
