"""Segments that have ended are indexed on disk: what an opening reads, what a look-up finds, what windows come to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from kit import records
from kit.records import SEGMENT_BYTES, Totals

from sidecar.audit.tallying import tallied
from sidecar.contract.values import U64_MAX
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable, RecordDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.keeping import SEALS_MAX
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.seal_format import End
from sidecar.ledger.sealed import Sealed, merged, pair_to_merge
from sidecar.rules.conservation import Tally
from sidecar.rules.windows import Account
from sidecar.service.accounts import listeners_of

OpenLedger = Callable[..., Ledger]
A_BIG_ANSWER = bytes(60_000)


async def fill(ledger: Ledger, numbers: range, **changes: Any) -> None:
    for number in numbers:
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        begin = records.begin(number, **changes)
        await ledger.complete(begin, records.completed(await ledger.begin(begin), response=A_BIG_ANSWER))


async def upkeep_done(ledger: Ledger) -> None:
    while ledger._index.waiting or len(ledger._index.sealed) > SEALS_MAX or ledger._keeping._under_way:
        await trio.lowlevel.checkpoint()


async def filled(open_ledger: OpenLedger, count: int, **changes: Any) -> None:
    ledger = open_ledger(**changes)
    async with ledger.running():
        await fill(ledger, range(count))
        await upkeep_done(ledger)


def seals(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seal"))


async def test_an_opening_reads_only_the_segment_that_was_in_use(open_ledger: OpenLedger, directory: Path) -> None:
    await filled(open_ledger, 40)
    assert len(list(directory.glob("*.segment"))) > 8
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert ledger.recovery.records == 40 * 2 + 2
    assert ledger.recovery.records_read < 12
    assert (totals.spent, totals.reserved) == (40 * 60, 0)
    async with ledger.running():
        for number in range(40):
            recorded = ledger.find("dungeon", f"request-{number}")
            assert recorded is not None
            assert recorded.identity == number.to_bytes(32, "big")
            assert await ledger.read_response(recorded) == A_BIG_ANSWER
        assert ledger.find("dungeon", "request-40") is None
        assert ledger.find("arena", "request-4") is None


async def test_seals_are_merged_until_an_unknown_id_costs_three_searches(
    open_ledger: OpenLedger, directory: Path
) -> None:
    ledger = open_ledger()
    async with ledger.running():
        await fill(ledger, range(60))
        await upkeep_done(ledger)
        assert len(ledger._index.sealed) <= 3
        assert all(ledger.find("dungeon", f"request-{number}") for number in range(60))
    assert len(seals(directory)) <= 3 + 2  # two that another has come in place of may still be there


async def test_an_open_request_is_found_over_seals_and_restarts_and_can_end_then(open_ledger: OpenLedger) -> None:
    begin = records.begin(99, reservation=77)
    ledger = open_ledger()
    async with ledger.running():
        await ledger.begin(begin)
        await fill(ledger, range(10))
    for _ in range(2):
        totals = Totals()
        ledger = open_ledger(listeners=totals.listeners)
        assert totals.reserved == 77
        assert ledger.recovery.indeterminate == (begin,)
        async with ledger.running():
            recorded = ledger.find("dungeon", "request-99")
            assert recorded is not None
            assert recorded.completed is None
    ledger = open_ledger()
    async with ledger.running():
        await ledger.complete(begin, records.completed(recorded.begin, 5))
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert (totals.spent, totals.reserved) == (605, 0)
    recorded = ledger.find("dungeon", "request-99")
    assert recorded is not None
    assert recorded.completed is not None


async def test_a_seal_that_is_removed_is_made_again(open_ledger: OpenLedger, directory: Path) -> None:
    await filled(open_ledger, 20)
    for keep in (0, 1):
        for seal in seals(directory)[keep:]:
            seal.unlink()
        totals = Totals()
        ledger = open_ledger(listeners=totals.listeners)
        assert totals.spent == 20 * 60
        async with ledger.running():
            assert all(ledger.find("dungeon", f"request-{number}") for number in range(20))
            await upkeep_done(ledger)
    assert open_ledger().recovery.records_read < 12


@pytest.mark.parametrize("at", [0, 1019, -1, -20, -200])
async def test_a_seal_that_is_damaged_is_refused_by_an_opening(
    open_ledger: OpenLedger, directory: Path, at: int
) -> None:
    await filled(open_ledger, 20)
    seal = changed(seals(directory)[0], at)
    with pytest.raises(LedgerDamaged, match="with the daemon stopped remove this file") as refused:
        open_ledger()
    assert refused.value.segment == seal


async def test_a_seal_that_is_damaged_while_it_is_in_use_says_so_and_never_that_an_id_is_new(
    open_ledger: OpenLedger, directory: Path
) -> None:
    await filled(open_ledger, 20)
    ledger = open_ledger()
    seal = changed(seals(directory)[0], 0)
    said = set()
    for number in range(20):
        try:
            assert ledger.find("dungeon", f"request-{number}")
        except RecordDamaged as fault:
            said.add(str(fault))
    assert said == {f"{seal.name} is damaged at byte 0"}


def changed(path: Path, at: int) -> Path:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    return path


async def test_a_segment_that_is_missing_behind_its_seal_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await filled(open_ledger, 20)
    gone = directory / f"{2:016d}.segment"
    gone.unlink()
    with pytest.raises(LedgerDamaged, match="which has a seal; it is missing") as refused:
        open_ledger()
    assert refused.value.segment == gone


@pytest.mark.parametrize(("seconds", "spent"), [(1, 5 * 60), (2, 10 * 60), (3600, 20 * 60)])
async def test_where_a_window_has_another_length_now_the_present_one_is_read_again(
    open_ledger: OpenLedger, seconds: int, spent: int
) -> None:
    """Four seconds of five requests each, sealed by windows of a second; the clock stands in the last of them."""
    ledger = open_ledger()
    async with ledger.running():
        for second in range(4):
            for number in range(5):
                await fill(ledger, range(10 * second + number, 10 * second + number + 1),
                           admitted_at_unix_ms=1000 * second + number)  # fmt: skip
        await upkeep_done(ledger)
    in_window: dict[int, int] = {}

    def on_sum(caller: str, at_unix_ms: int, charged: int) -> None:
        start = at_unix_ms - at_unix_ms % (1000 * seconds)
        in_window[start] = in_window.get(start, 0) + charged

    told = records.Listeners(on_sum=on_sum)
    open_ledger(listeners=told, window_of=lambda caller: seconds, clock_unix_ms=lambda: 3500)
    assert in_window[3500 - 3500 % (1000 * seconds)] == spent


async def test_a_caller_that_the_configuration_did_not_know_is_summed_once_it_does(open_ledger: OpenLedger) -> None:
    await filled(open_ledger, 10, window_of=lambda caller: 0)
    totals = Totals()
    open_ledger(listeners=totals.listeners, window_of=lambda caller: 86_400, clock_unix_ms=lambda: 5000)
    assert totals.spent == 600


async def test_upkeep_that_fails_is_said_refuses_nothing_and_is_made_good(
    open_ledger: OpenLedger, directory: Path
) -> None:
    class NoSeals(DiskFiles):
        fails = True

        def create(self, path: Path) -> int:
            if self.fails and path.name.endswith(".tmp"):
                raise OSError(28, "No space left on device")
            return super().create(path)

    said: list[str] = []
    files = NoSeals()
    ledger = open_ledger(files, on_trouble=said.append)
    async with ledger.running():
        await fill(ledger, range(10))
        assert said
        assert {why.split(": ")[1] for why in said} == {"No space left on device"}
        assert said[0].startswith("sealing segment ")
        assert ledger.poisoned is None
        assert ledger.pressure is None
        assert all(ledger.find("dungeon", f"request-{number}") for number in range(10))
        files.fails = False
        await fill(ledger, range(10, 20))
        await upkeep_done(ledger)
    assert seals(directory)
    assert open_ledger().recovery.records_read < 12


async def test_what_a_seal_names_and_a_disk_does_not_give_back_is_unavailable(
    open_ledger: OpenLedger, directory: Path
) -> None:
    class Unreadable(DiskFiles):
        fails = False

        def read(self, descriptor: int, length: int, offset: int) -> bytes:
            if self.fails:
                raise OSError(5, "Input/output error")
            return super().read(descriptor, length, offset)

    await filled(open_ledger, 10)
    files = Unreadable()
    ledger = open_ledger(files)
    files.fails = True
    with pytest.raises(LedgerUnavailable, match="can't be read: Input/output error"):
        ledger.find("dungeon", "request-1")
    files.fails = False
    assert ledger.find("dungeon", "request-1")


class Sized:
    """Of a seal only how many entries it has."""

    def __init__(self, entries: int) -> None:
        self.document = SimpleNamespace(entries=entries)


def chosen(seals: list[Any]) -> int:
    older, newer = pair_to_merge(seals)
    assert seals.index(newer) == seals.index(older) + 1
    return seals.index(older)


def test_what_is_least_work_is_merged_first() -> None:
    assert chosen([Sized(entries) for entries in (9, 1, 1, 5)]) == 1
    assert chosen([Sized(1) for _ in range(4)]) == 2
    seals: list[Sized] = []
    written = 0
    for _ in range(200):
        seals.append(Sized(1))
        while len(seals) > SEALS_MAX:
            at = chosen(seals)
            both = Sized(seals[at].document.entries + seals[at + 1].document.entries)
            seals[at : at + 2] = [both]
            written += both.document.entries
    assert written < 200 * 30  # by one after the other it would be 200 * 100


async def test_a_seal_that_overlaps_another_is_not_counted_twice(open_ledger: OpenLedger, directory: Path) -> None:
    """As a copy of an older state may bring one back."""
    await filled(open_ledger, 20)
    files = DiskFiles()
    for seal in seals(directory):
        seal.unlink()
    open_ledger()._let_go()
    made = [Sealed.open(files, path) for path in seals(directory)]
    both = [merged(files, directory, made[at], made[at + 1], End()) for at in (0, 1)]
    assert len({*both, *seals(directory)}) == len(made) + 2
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    assert totals.spent == 20 * 60
    async with ledger.running():
        await fill(ledger, range(20, 40))
        await upkeep_done(ledger)
        assert all(ledger.find("dungeon", f"request-{number}") for number in range(40))


def test_the_smallest_segment_holds_some_requests() -> None:
    assert 4 * len(A_BIG_ANSWER) < SEGMENT_BYTES


async def test_a_seal_of_another_ledger_is_blamed_and_not_the_segments(
    open_ledger: OpenLedger, directory: Path, tmp_path: Path
) -> None:
    await filled(open_ledger, 20)
    other = Ledger.open(
        tmp_path / "other",
        segment_bytes=SEGMENT_BYTES,
        frame_bytes_max=records.FRAME_BYTES_MAX,
        requests_in_flight_max=8,
        window_of=lambda caller: 1,
    )
    async with other.running():
        await fill(other, range(8))
        await upkeep_done(other)
    foreign = seals(tmp_path / "other")[0]
    for seal in seals(directory):
        seal.unlink()
    (directory / foreign.name).write_bytes(foreign.read_bytes())
    with pytest.raises(LedgerDamaged, match="a seal of the segments from 1 on that are here") as refused:
        open_ledger()
    assert refused.value.segment == directory / foreign.name


async def test_sums_above_64_bits_are_held_at_the_most_that_can_be_said(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    async with ledger.running():
        for number in range(12):
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            begin = records.begin(number, admitted_at_unix_ms=7)
            end = records.completed(await ledger.begin(begin), U64_MAX - 1, response=A_BIG_ANSWER)
            await ledger.complete(begin, end)
        await upkeep_done(ledger)
    totals = Totals()
    open_ledger(listeners=totals.listeners)
    assert totals.spent >= U64_MAX


async def test_a_clock_that_jumps_an_hour_while_the_ledger_is_opened_is_no_matter(open_ledger: OpenLedger) -> None:
    now = 0

    def clock() -> int:
        nonlocal now
        now += 7_200_000
        return now

    ledger = open_ledger(clock_unix_ms=clock)
    async with ledger.running():
        await fill(ledger, range(3))


@pytest.mark.parametrize(("seconds", "now"), [(2, 3500), (3600, 3500), (2, 90_000)])
async def test_accounts_with_windows_of_another_length_are_what_a_check_adds_up(
    open_ledger: OpenLedger, directory: Path, seconds: int, now: int
) -> None:
    """Of windows before the present one it is not known what was charged, and they are not compared."""
    await filled(open_ledger, 20, clock_unix_ms=lambda: 3500)
    account = Account(seconds, U64_MAX)
    listeners = listeners_of({"dungeon": account}, Tally({"dungeon": seconds}))
    ledger = open_ledger(listeners=listeners, window_of=lambda caller: seconds, clock_unix_ms=lambda: now)
    async with ledger.running():
        await fill(ledger, range(20, 21), admitted_at_unix_ms=now)
        account.settle(now, 0, 60)
        tally = tallied(directory, {"dungeon": seconds}, up_to_batch=ledger.landed_batch).tally
    compared = tally.compared({"dungeon": account.figures()})
    assert compared.mismatches == ()
    assert compared.settled_micro_usd >= 60


async def test_a_seal_behind_a_gap_is_still_a_witness_of_its_segment(open_ledger: OpenLedger, directory: Path) -> None:
    for number in range(3):
        ledger = open_ledger()
        async with ledger.running():
            await fill(ledger, range(number, number + 1))
            await upkeep_done(ledger)
    first, second = seals(directory)[:2]
    first.unlink()
    for gone in (2, 3):
        (directory / f"{gone:016d}.segment").unlink()
    with pytest.raises(LedgerDamaged, match=f"since {second.name} is there") as refused:
        open_ledger()
    assert refused.value.segment == directory / f"{2:016d}.segment"
    assert second.exists()
