"""Room runs out and comes back, again and again, under a ledger that is in use (CONTRACT section 4)."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kit import records
from kit.disk_trial import sound
from kit.records import WatchedFiles

from sidecar.contract.values import BeginRecord
from sidecar.ledger import spares
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Place
from sidecar.ledger.ledger import Ledger

ROUNDS = 6
CALLERS = 8
ANSWER = bytes(3900)
NEEDED_AND_HAD = re.compile(rf"No space left.*{records.SEGMENT_BYTES} bytes are needed and \d+ are free")


class Full(WatchedFiles):
    """A disk that has room for what is written out, and for nothing more while it is `full`."""

    def __init__(self) -> None:
        super().__init__(self._refuse)
        self.full = False

    def _refuse(self, call: str) -> None:
        if self.full and call == "write_zeros":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_each_time_that_room_runs_out_all_that_runs_settles_and_admission_comes_back_by_itself(
    open_ledger: Callable[..., Ledger], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "RETRY_SECONDS", 0.001)
    files, told = Full(), list[str | None]()
    ledger = open_ledger(files, requests_in_flight_max=2 * CALLERS, on_pressure=told.append)
    load = Load(ledger)
    async with ledger.running():
        for number in range(ROUNDS):
            running = [await load.begin() for _ in range(CALLERS)]
            files.full = True
            async with trio.open_nursery() as nursery:
                for _ in range(CALLERS):
                    nursery.start_soon(load.ask_until_pressed)
            assert len(told) == 2 * number + 1, "it is told once, whatever is tried meanwhile"
            with pytest.raises(LedgerUnavailable, match=NEEDED_AND_HAD):
                await load.begin()
            for begin, place in running:
                await load.settle(begin, place)
            recorded = ledger.find("dungeon", running[0][0].request_id)
            assert recorded is not None
            assert await ledger.read_response(recorded) == ANSWER, "replays go on"
            files.full = False
            while ledger.pressure is not None:
                await trio.lowlevel.checkpoint()
        await load.settle(*await load.begin())
        assert ledger.poisoned is None
    assert [why is None for why in told] == [False, True] * ROUNDS
    assert all(NEEDED_AND_HAD.search(why) for why in told if why is not None)
    requests = sound(directory)
    assert len(requests) == load.settled
    assert all(request.charge_micro_usd == 60 for request in requests)


class Load:
    """Requests one after the other, each under an id of its own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._begun = 0
        self.settled = 0

    async def begin(self) -> tuple[BeginRecord, Place]:
        """Waits while only the next spare is not ready; raises LedgerUnavailable under pressure."""
        self._begun += 1
        begin = records.begin(self._begun)
        while True:
            try:
                return begin, await self._ledger.begin(begin)
            except LedgerUnavailable:
                if self._ledger.pressure is not None:
                    raise
                await trio.lowlevel.checkpoint()

    async def settle(self, begin: BeginRecord, place: Place) -> None:
        whole = records.completed(place, response=ANSWER)
        assert self._ledger.room_for(whole), "an answer this short always has room"
        await self._ledger.complete(begin, whole)
        self.settled += 1

    async def ask_until_pressed(self) -> None:
        while True:
            try:
                begun = await self.begin()
            except LedgerUnavailable:
                return
            await self.settle(*begun)
