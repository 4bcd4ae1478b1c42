"""A ledger of many completed requests, made by the ledger's own code as fast as that goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from benchmarks.ledger_records import Requests, window_of
from msgspec import Struct

from sidecar.contract.values import BeginRecord
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.keeping import SEALS_MAX
from sidecar.ledger.landing import Landed, Landing
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.recovery import segments_in
from sidecar.ledger.seal_format import segments_of_name

SEGMENT_BYTES = 64 << 20
FRAME_BYTES_MAX = 1 << 20
IN_FLIGHT = 64
_A_MOMENT_SECONDS = 0.002
_UPKEEP_SECONDS_MAX = 600


class Made(Struct, frozen=True):
    """A ledger that is at rest."""

    directory: Path
    requests: int
    segments: int
    disk_bytes: int  # as the file system counts what it holds
    written_bytes: int  # batches alone
    records_per_batch: float
    seconds: float


def opened(directory: Path) -> Ledger:
    return Ledger.open(
        directory,
        segment_bytes=SEGMENT_BYTES,
        frame_bytes_max=FRAME_BYTES_MAX,
        requests_in_flight_max=IN_FLIGHT,
        window_of=window_of,
    )


def make(directory: Path, requests: int) -> Made:
    began = time.monotonic()
    ledger = opened(directory)
    seconds = trio.run(_fill, ledger, requests, directory) - began
    counted = ledger.statistics()
    files = [path.stat() for path in directory.iterdir()]
    return Made(
        directory=directory,
        requests=requests,
        segments=len(list(directory.glob("*.segment"))),
        disk_bytes=sum(file.st_blocks * 512 for file in files),
        written_bytes=counted.written_bytes,
        records_per_batch=counted.records / counted.batches,
        seconds=seconds,
    )


async def _fill(ledger: Ledger, requests: int, directory: Path) -> float:
    """When the last request had ended. Behind that it waits for the upkeep, which has more time in a real life."""
    async with ledger.running():
        filling = _Filling(ledger, requests)
        for number in range(min(IN_FLIGHT, requests)):
            filling.begin(number)
        while not await filling.is_done():
            filling.try_again()
        done_at = time.monotonic()
        with trio.fail_after(_UPKEEP_SECONDS_MAX):
            while not _is_sealed(directory):
                await trio.sleep(_A_MOMENT_SECONDS)
    return done_at


def _is_sealed(directory: Path) -> bool:
    """All segments but the last, in few seals."""
    names = [path.name for path in directory.iterdir()]
    seals = [found for name in names if (found := segments_of_name(name)) is not None]
    return max((last for _, last in seals), default=0) + 1 >= len(segments_in(DiskFiles(), directory)) and (
        len(seals) <= SEALS_MAX
    )


class _Filling:
    """Requests that follow each other in the turn in which a record lands: no task, no wait."""

    def __init__(self, ledger: Ledger, requests: int) -> None:
        self._ledger = ledger
        self._requests = Requests(requests)
        self._left = requests
        self._next = iter(range(min(IN_FLIGHT, requests), requests))
        self._put_off: list[Callable[[], None]] = []  # until a spare segment is ready
        self._done = trio.Event()

    def begin(self, number: int) -> None:
        begin = self._requests.begin(number)
        self._write(partial(self._ledger.begin, begin), partial(self._begun, begin))

    def _begun(self, begin: BeginRecord, landed: Landed) -> None:
        assert not isinstance(landed, LedgerUnavailable)
        completed = self._requests.completed(begin, landed)
        self._write(partial(self._ledger.complete, begin, completed), self._completed)

    def _completed(self, _: Landed) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()
        number = next(self._next, None)
        if number is not None:
            self.begin(number)

    def _write(self, write: Callable[[], Landing], then: Callable[[Landed], None]) -> None:
        def told(landed: Landed) -> None:
            if not isinstance(landed, LedgerUnavailable):
                then(landed)
            elif self._ledger.poisoned:
                raise landed
            else:
                self._put_off.append(partial(self._write, write, then))

        write().then(told)

    def try_again(self) -> None:
        again, self._put_off = self._put_off, []
        for call in again:
            call()

    async def is_done(self) -> bool:
        """Waits a moment for it."""
        with trio.move_on_after(_A_MOMENT_SECONDS):
            await self._done.wait()
        return self._done.is_set()
