"""The ledger on disk and the one in memory tell the same story, whatever is done and however often it is reopened."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import records
from kit.memory_ledger import MemoryLedger
from kit.records import Totals

from sidecar.ledger.ledger import Ledger

# One life of a process: its steps, and whether it ends cleanly. A number is a request; what can't be done is skipped.
NUMBERS = st.integers(0, 7)
STEP = st.one_of(
    st.tuples(st.just("begin"), NUMBERS, st.integers(0, 1000)),
    st.tuples(st.just("complete"), NUMBERS, st.integers(0, 70_000)),
    st.tuples(st.just("together"), NUMBERS, st.integers(1, 4)),
)
LIVES = st.lists(st.tuples(st.lists(STEP, max_size=12), st.booleans()), min_size=1, max_size=4)


class Both:
    """Does the same to both ledgers, each with the places that it gave itself."""

    def __init__(self, memory: MemoryLedger) -> None:
        self.disk: Any = None
        self.memory = memory
        self.live = Totals()

    async def begin(self, number: int, reservation: int) -> None:
        begin = records.begin(number, reservation=reservation)
        if self.memory.find("dungeon", begin.request_id) is None:
            await self.disk.begin(begin)
            await self.memory.begin(begin)
            self.live.on_begin(begin)

    async def complete(self, number: int, size: int) -> None:
        recorded = self.memory.find("dungeon", f"request-{number}")
        if recorded is None or recorded.completed:
            return
        begin = records.begin(number, reservation=recorded.reservation_micro_usd)
        on_disk = self.disk.find("dungeon", begin.request_id)
        end = records.completed(on_disk.begin, size, bytes([number]) * size)
        while not self.disk.room_for(end):
            await trio.lowlevel.checkpoint()
        await self.disk.complete(begin, end)
        await self.memory.complete(begin, records.completed(recorded.begin, size, bytes([number]) * size))
        self.live.on_completed(begin, end)

    async def together(self, first: int, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(first, first + count):
                nursery.start_soon(self.begin, number, number)
        async with trio.open_nursery() as nursery:
            for number in range(first, first + count):
                nursery.start_soon(self.complete, number, 3000 * count)

    async def assert_the_same(self) -> None:
        for number in range(12):
            disk, memory = (which.find("dungeon", f"request-{number}") for which in (self.disk, self.memory))
            assert (disk is None) == (memory is None)
            if disk is None or memory is None:
                continue
            for member in ("identity", "reservation_micro_usd", "admitted_at_unix_ms"):
                assert getattr(disk, member) == getattr(memory, member)
            assert (disk.completed is None) == (memory.completed is None)
            if disk.completed:
                assert await self.disk.read_response(disk) == await self.memory.read_response(memory)


class ProcessGone(Exception):
    """How a life ends that is not ended cleanly."""


async def lived(both: Both, steps: list[tuple[str, int, int]], *, clean: bool) -> None:
    try:
        async with both.disk.running():
            while both.disk.statistics().spares_ready < 1:
                await trio.lowlevel.checkpoint()
            await both.assert_the_same()
            for step, number, size in steps:
                await getattr(both, step)(number, size)
            await both.assert_the_same()
            if not clean:
                raise ProcessGone
    except* ProcessGone:
        pass


@settings(max_examples=25, deadline=None)
@given(lives=LIVES)
async def test_disk_and_memory_tell_the_same_through_every_reopen(
    lives: list[tuple[list[tuple[str, int, int]], bool]],
) -> None:
    both = Both(MemoryLedger())
    with tempfile.TemporaryDirectory() as folder:
        ended_cleanly = True
        for steps, clean in [*lives, ([], True)]:
            derived = Totals()
            both.disk = Ledger.open(
                Path(folder) / "ledger", segment_bytes=records.SEGMENT_BYTES, frame_bytes_max=records.FRAME_BYTES_MAX,
                requests_in_flight_max=4, listeners=derived.listeners, window_of=lambda caller: 1,
            )  # fmt: skip
            assert (derived.spent, derived.reserved) == (both.live.spent, both.live.reserved)
            assert all(both.disk.find("dungeon", name) for name in {begin.request_id for begin in both.memory.begins})
            assert both.disk.recovery.clean == ended_cleanly
            assert sorted(begin.request_id for begin in both.disk.recovery.indeterminate) == unfinished(both.memory)
            await lived(both, steps, clean=clean)
            ended_cleanly = clean


def unfinished(memory: MemoryLedger) -> list[str]:
    done = {begin.request_id for begin, _ in memory.completes}
    return sorted({begin.request_id for begin in memory.begins} - done)
