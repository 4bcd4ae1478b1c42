"""What the ledger promises, on the real disk: durable, found again, one writer, and final when it fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from kit import records
from kit.memory_ledger import MemoryLedger
from kit.records import Totals, WatchedFiles

from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import LedgerHeld, LedgerUnavailable
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.writer import Append

OpenLedger = Callable[..., Ledger]


async def carried(ledger: Any, number: int, charge: int = 60, response: bytes = b"answer") -> None:
    begin = records.begin(number)
    place = await ledger.begin(begin)
    await ledger.complete(begin, records.completed(place, charge, response))


@pytest.mark.parametrize("kind", ["disk", "memory"])
async def test_the_ledger_and_its_fake_pass_the_same_checks(kind: str, open_ledger: OpenLedger) -> None:
    ledger: Any = open_ledger() if kind == "disk" else MemoryLedger()
    async with ledger.running():
        assert ledger.find("dungeon", "request-1") is None
        begin = records.begin(1)
        place = await ledger.begin(begin)
        found = ledger.find("dungeon", "request-1")
        assert (found.identity, found.reservation_micro_usd, found.completed) == (
            bytes(begin.identity_sha256),
            100,
            None,
        )
        end = records.completed(place, 42, b"the frame")
        assert ledger.room_for(end)
        assert ledger.indeterminate("dungeon", "request-1") is None, "it runs in this process"
        landed = ledger.landed_batch
        await ledger.complete(begin, end)
        assert await ledger.read_response(ledger.find("dungeon", "request-1")) == b"the frame"
        assert ledger.find("dungeon", "request-2") is None
        assert ledger.landed_batch == landed + 1
        assert ledger.poisoned is None


@pytest.mark.parametrize("kind", ["disk", "memory"])
async def test_what_an_earlier_run_left_open_is_indeterminate_until_its_completion_has_landed(
    kind: str, open_ledger: OpenLedger
) -> None:
    begin = records.begin(1)
    ledger: Any = open_ledger() if kind == "disk" else MemoryLedger()
    async with ledger.running():
        await carried(ledger, 2)
        await ledger.begin(begin)
        place = ledger.find("dungeon", "request-1").begin
    if kind == "disk":
        ledger = open_ledger()
    else:
        ledger.reopen()
    async with ledger.running():
        pressed: Any = ledger._pressure if kind == "disk" else ledger
        setattr(pressed, "why" if kind == "disk" else "pressure", "no spare segment can be made")
        before = ledger.landed_batch
        for request_id, known in (("request-1", begin), ("request-2", None), ("request-3", None)):
            assert ledger.indeterminate("dungeon", request_id) == known
        landing = ledger.complete(begin, records.completed(place, 0))
        assert ledger.indeterminate("dungeon", "request-1") == begin
        await landing
        assert ledger.indeterminate("dungeon", "request-1") is None
        assert ledger.landed_batch == before + 1


async def test_everything_is_there_after_a_reopen_and_totals_are_the_live_ones(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    async with ledger.running():
        for number in range(5):
            await carried(ledger, number, charge=number, response=b"answer %d" % number)
        await ledger.begin(records.begin(9, reservation=77))
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert (totals.spent, totals.reserved) == (10, 77)
    assert ledger.recovery.clean
    assert [begin.request_id for begin in ledger.recovery.indeterminate] == ["request-9"]
    async with ledger.running():
        for number in range(5):
            recorded = ledger.find("dungeon", f"request-{number}")
            assert recorded is not None
            assert await ledger.read_response(recorded) == b"answer %d" % number
        open_one = ledger.find("dungeon", "request-9")
        assert open_one is not None
        assert open_one.completed is None
        await ledger.complete(records.begin(9, reservation=77), records.completed(open_one.begin, 0))


async def test_many_appends_share_few_syncs(open_ledger: OpenLedger) -> None:
    files = WatchedFiles()
    ledger = open_ledger(files, requests_in_flight_max=64, segment_bytes=1 << 20)
    async with ledger.running():
        files.calls.clear()
        async with trio.open_nursery() as nursery:
            for number in range(64):
                nursery.start_soon(carried, ledger, number)
        statistics = ledger.statistics()
    assert statistics.records == 1 + 128
    assert statistics.batches <= 1 + 128 // 4


async def test_an_append_is_written_and_synced_before_it_returns(open_ledger: OpenLedger) -> None:
    files = WatchedFiles()
    ledger = open_ledger(files)
    async with ledger.running():
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        files.calls.clear()
        await ledger.begin(records.begin())
        assert files.calls == ["write", "sync"]


async def test_a_segment_gets_its_header_name_and_directory_sync_before_its_first_batch(
    open_ledger: OpenLedger,
) -> None:
    files = WatchedFiles()
    ledger = open_ledger(files)
    put_to_use = files.calls.index("rename")
    assert files.calls[put_to_use - 2 :] == ["write", "sync", "rename", "sync_directory", "write", "sync"]
    async with ledger.running():
        pass


async def test_records_go_on_over_many_segments(open_ledger: OpenLedger, directory: Path) -> None:
    ledger = open_ledger()
    async with ledger.running():
        for number in range(200):
            while not (ledger.statistics().spares_ready):
                await trio.lowlevel.checkpoint()
            await carried(ledger, number, response=bytes(3000))
    assert len(list(directory.glob("*.segment"))) > 4
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert (totals.spent, totals.reserved) == (200 * 60, 0)
    assert all(ledger.find("dungeon", f"request-{number}") for number in range(200))
    async with ledger.running():
        pass


async def test_cancelling_a_waiter_does_not_tear_its_append(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    async with ledger.running():
        with trio.CancelScope() as scope:
            scope.cancel()
            place = await ledger.begin(records.begin(1))
        assert place.length > 0
        assert ledger.find("dungeon", "request-1") is not None


# --- one writer -------------------------------------------------------------------------------------------------


async def test_a_second_daemon_is_told_who_holds_the_ledger(open_ledger: OpenLedger, directory: Path) -> None:
    ledger = open_ledger()
    async with ledger.running():
        script = (
            "import sys; from pathlib import Path; from sidecar.ledger.ledger import Ledger\n"
            "Ledger.open(Path(sys.argv[1]), segment_bytes=1<<20, frame_bytes_max=4096, requests_in_flight_max=1)"
        )
        done = await trio.run_process([sys.executable, "-c", script, str(directory)], capture_stderr=True, check=False)
        assert f"LedgerHeld: the ledger {directory} is held by pid {os.getpid()}" in done.stderr.decode()


def test_the_lock_dies_with_its_process(open_ledger: OpenLedger, directory: Path) -> None:
    script = (
        "import sys, os; from pathlib import Path; from sidecar.ledger.ledger import Ledger\n"
        "Ledger.open(Path(sys.argv[1]), segment_bytes=1<<20, frame_bytes_max=4096, requests_in_flight_max=1)\n"
        "os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(directory)], check=False).returncode == 9
    ledger = open_ledger()
    assert not ledger.recovery.clean
    with pytest.raises(LedgerHeld):
        open_ledger()
    os.close(ledger._lock)


# --- failure ----------------------------------------------------------------------------------------------------


class Fault:
    """Raises the given error in place of the named calls, once it is armed."""

    def __init__(self, call: str, code: int) -> None:
        self.call = call
        self.code = code
        self.armed = False

    def __call__(self, call: str) -> None:
        if self.armed and call == self.call:
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EFBIG])
async def test_a_failed_write_or_sync_is_final(call: str, code: int, open_ledger: OpenLedger) -> None:
    fault = Fault(call, code)
    files = WatchedFiles(fault)
    ledger = open_ledger(files)
    async with ledger.running():
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        await carried(ledger, 1)
        place = await ledger.begin(records.begin(2))
        fault.armed = True
        with pytest.raises(LedgerUnavailable, match=os.strerror(code)):
            await ledger.complete(records.begin(2), records.completed(place))
        await ledger.wait_poisoned()
        fault.armed = False
        calls = len(files.calls)
        with pytest.raises(LedgerUnavailable):
            await ledger.begin(records.begin(3))
        assert len(files.calls) == calls, "nothing is tried again"
        recorded = ledger.find("dungeon", "request-1")
        assert recorded is not None
        assert await ledger.read_response(recorded) == b"answer"
        unfinished = ledger.find("dungeon", "request-2")
        assert unfinished is not None
        assert unfinished.completed is None
    assert not open_ledger().recovery.clean


async def test_every_waiter_of_a_failed_batch_and_behind_it_is_told(open_ledger: OpenLedger) -> None:
    fault = Fault("sync", errno.EIO)
    ledger = open_ledger(WatchedFiles(fault))
    told = []

    async def waits(number: int) -> None:
        try:
            await ledger.begin(records.begin(number))
        except LedgerUnavailable:
            told.append(number)

    async with ledger.running():
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        fault.armed = True
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(waits, number)
    assert sorted(told) == list(range(8))


async def test_pressure_refuses_begins_says_why_and_passes(open_ledger: OpenLedger) -> None:
    fault = Fault("write_zeros", errno.ENOSPC)
    ledger = open_ledger(WatchedFiles(fault))
    async with ledger.running():
        place = await ledger.begin(records.begin(1))
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        fault.armed = True
        for number in range(10, 100):
            if ledger.pressure is not None:
                break
            begin = records.begin(number)
            await ledger.complete(begin, records.completed(await ledger.begin(begin), response=bytes(3900)))
        while ledger.pressure is None:
            await trio.lowlevel.checkpoint()
        with pytest.raises(
            LedgerUnavailable, match=rf"No space left.*{records.SEGMENT_BYTES} bytes are needed and \d+ are free"
        ):
            await ledger.begin(records.begin(2))
        await ledger.complete(records.begin(1), records.completed(place))  # room to settle was kept
        fault.armed = False
        while ledger.pressure is not None:
            await trio.lowlevel.checkpoint()
        await ledger.begin(records.begin(2))
        assert ledger.poisoned is None


async def test_room_to_settle_every_live_request_is_kept(open_ledger: OpenLedger) -> None:
    fault = Fault("write_zeros", errno.ENOSPC)
    ledger = open_ledger(WatchedFiles(fault), requests_in_flight_max=10_000)
    fault.armed = True
    begun = []
    async with ledger.running():
        for number in range(10_000):
            try:
                begun.append((number, await ledger.begin(records.begin(number))))
            except LedgerUnavailable:
                break
        assert begun, "some must fit"
        big = records.completed(begun[0][1], response=bytes(60_000))
        if not ledger.room_for(big):
            big = records.completed(begun[0][1])
        await ledger.complete(records.begin(0), big)
        for number, place in begun[1:]:
            settled = records.completed(place, outcome="result_size", response=bytes(5_000))
            assert ledger.room_for(settled)
            await ledger.complete(records.begin(number), settled)
        assert ledger.poisoned is None


async def test_a_changed_byte_on_disk_is_never_replayed(open_ledger: OpenLedger, directory: Path) -> None:
    ledger = open_ledger()
    async with ledger.running():
        await carried(ledger, 1, response=b"the very answer")
        path = next(directory.glob("*.segment"))
        content = bytearray(path.read_bytes())
        at = content.index(b"the very answer")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"T")
        recorded = ledger.find("dungeon", "request-1")
        assert recorded is not None
        with pytest.raises(LedgerUnavailable, match="can't be read back"):
            await ledger.read_response(recorded)


async def test_a_low_water_mark_is_read_at_open(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    async with ledger.running():
        framed = on_disk.encode_record(v.LowWaterRecord(expires_at_unix_ms=777))
        append = Append(framed, ledger._room.place_closed(len(framed)), lambda _: None)
        ledger._writer.append(append)
        await append
    again = open_ledger()
    assert again.low_water_unix_ms == 777
    os.close(again._lock)
