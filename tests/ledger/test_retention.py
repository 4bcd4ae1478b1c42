"""What is old goes, in whole segments, and what still counts of it stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from kit import records
from kit.records import Totals

from sidecar.ledger.ledger import Ledger
from sidecar.ledger.retention import DAY_MS, going
from sidecar.ledger.room import Room, Slot
from sidecar.ledger.seal_format import SegmentRow
from sidecar.rules.conservation import Tally
from sidecar.rules.windows import Account
from sidecar.service.accounts import listeners_of

OpenLedger = Callable[..., Ledger]


class Days:
    """A clock that is set by the day, and a ledger that keeps two of them."""

    def __init__(self, open_ledger: OpenLedger) -> None:
        self._open = open_ledger
        self.now = 100 * DAY_MS
        self.totals = Totals()

    def opened(self) -> Ledger:
        self.totals = Totals()
        return self._open(clock_unix_ms=lambda: self.now, retention_days=2, listeners=self.totals.listeners)

    async def requests(self, ledger: Ledger, numbers: range) -> None:
        for number in numbers:
            begin = self.begin(number)
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            await ledger.complete(begin, records.completed(await ledger.begin(begin), response=bytes(60_000)))

    def begin(self, number: int, **changes: Any) -> Any:
        return records.begin(number, admitted_at_unix_ms=self.now, expires_at_unix_ms=self.now + 60_000, **changes)

    async def quiet(self, ledger: Ledger) -> None:
        while ledger._index.waiting or ledger._keeping._under_way:
            await trio.lowlevel.checkpoint()

    async def day(self, numbers: range, days: int = 1) -> None:
        ledger = self.opened()
        async with ledger.running():
            await self.requests(ledger, numbers)
            await self.quiet(ledger)
        self.now += days * DAY_MS


def names(directory: Path, ending: str) -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{ending}"))


async def test_old_segments_go_behind_a_low_water_mark_and_a_checkpoint(
    open_ledger: OpenLedger, directory: Path
) -> None:
    days = Days(open_ledger)
    await days.day(range(10), days=3)
    ledger = days.opened()
    async with ledger.running():
        await days.requests(ledger, range(10, 12))
        await days.quiet(ledger)
        assert ledger.find("dungeon", "request-1") is None
        assert ledger.low_water_unix_ms == 100 * DAY_MS + 60_000
        recorded = ledger.find("dungeon", "request-11")
        assert recorded is not None
        assert await ledger.read_response(recorded) == bytes(60_000)
    first = int(names(directory, "segment")[0].split(".")[0])
    assert names(directory, "checkpoint") == [f"{first - 1:016d}.checkpoint"]
    assert len(names(directory, "seal")) <= 4
    again = days.opened()
    assert again.low_water_unix_ms == 100 * DAY_MS + 60_000
    assert again.find("dungeon", "request-1") is None
    assert again.find("dungeon", "request-10")


async def test_what_is_younger_than_the_retention_stays(open_ledger: OpenLedger, directory: Path) -> None:
    days = Days(open_ledger)
    await days.day(range(10), days=2)  # they expired two days ago but for a minute
    await days.day(range(10, 12), days=0)
    assert names(directory, "checkpoint") == []
    assert days.opened().find("dungeon", "request-1")


async def test_what_nothing_has_ended_stays_through_any_number_of_droppings_and_can_be_resolved(
    open_ledger: OpenLedger, directory: Path
) -> None:
    days = Days(open_ledger)
    begin = days.begin(1000, reservation=77)
    ledger = days.opened()
    async with ledger.running():
        await ledger.begin(begin)
        await days.requests(ledger, range(5))
    for round_ in range(1, 4):
        days.now += 3 * DAY_MS
        await days.day(range(10 * round_, 10 * round_ + 8), days=0)
        assert len(names(directory, "checkpoint")) == 1
        assert days.totals.reserved == 77
        ledger = days.opened()
        assert ledger.recovery.indeterminate == (begin,)
        assert ledger.find("dungeon", "request-1000")
        async with ledger.running():
            assert ledger.indeterminate("dungeon", "request-1000") == begin
    ledger = days.opened()
    async with ledger.running():
        recorded = ledger.find("dungeon", "request-1000")
        assert recorded is not None
        await ledger.complete(begin, records.completed(recorded.begin, 77, response=b"resolved"))
    ledger = days.opened()
    assert ledger.recovery.indeterminate == ()
    recorded = ledger.find("dungeon", "request-1000")
    assert recorded is not None
    assert await ledger.read_response(recorded) == b"resolved"


async def test_a_segment_lasts_a_day_at_most_while_requests_come(open_ledger: OpenLedger, directory: Path) -> None:
    days = Days(open_ledger)
    ledger = days.opened()
    async with ledger.running():
        for number in range(6):
            while ledger.statistics().spares_ready < 2:
                await trio.lowlevel.checkpoint()
            await days.requests(ledger, range(number, number + 1))
            days.now += DAY_MS
        await days.quiet(ledger)
        assert ledger.find("dungeon", "request-0") is None
        assert ledger.find("dungeon", "request-5")
    assert names(directory, "checkpoint")


def row(number: int, expires_until_unix_ms: int, begins: int = 1) -> SegmentRow:
    return SegmentRow(
        number=number, segment_bytes=1, incarnation=1, end=1, head=bytes(32), batch=1, closed=False, records=1,
        begins=begins, completions=0, charged_micro_usd=0, admitted_until_unix_ms=0,
        expires_until_unix_ms=expires_until_unix_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "last", "low_water"),
    [
        ([row(1, 100), row(2, 50), row(3, 101)], 2, 100),
        ([row(1, 101), row(2, 50)], None, 0),
        ([row(1, 0, begins=0)], None, 0),
        ([row(1, 0, begins=0), row(2, 7), row(3, 0, begins=0)], 2, 7),
        ([], None, 0),
    ],
)
def test_what_goes_is_the_front_of_which_all_is_old(rows: list[SegmentRow], last: int | None, low_water: int) -> None:
    gone = going(rows, now_unix_ms=DAY_MS + 100, retention_days=1)
    assert (gone.last.number, gone.low_water_unix_ms) == (last, low_water) if gone else last is None


async def test_an_id_that_was_dropped_can_be_used_again_and_its_old_entry_is_in_nobodys_way(
    open_ledger: OpenLedger, directory: Path
) -> None:
    """The seal that spans the border still holds the old one when it is merged with that of the new."""
    days = Days(open_ledger)
    said: list[str] = []
    ledger = open_ledger(clock_unix_ms=lambda: days.now, retention_days=2, on_trouble=said.append)
    async with ledger.running():
        again = 0
        for round_ in range(12):
            await days.requests(ledger, range(100 + round_, 101 + round_))
            await days.quiet(ledger)
            for number in range(8):
                if ledger.find("dungeon", f"request-{number}") is None:
                    again += 1
                    await days.requests(ledger, range(number, number + 1))
            await days.quiet(ledger)
            days.now += 3 * DAY_MS
    assert said == []
    assert again > 8
    assert len(names(directory, "seal")) <= 3 + 2
    ledger = days.opened()
    assert sum(ledger.find("dungeon", f"request-{number}") is not None for number in range(8)) >= 1


async def test_segments_of_starts_without_a_request_go_when_they_are_many(
    open_ledger: OpenLedger, directory: Path
) -> None:
    days = Days(open_ledger)
    for _ in range(70):
        ledger = days.opened()
        async with ledger.running():
            await days.quiet(ledger)
    assert len(names(directory, "segment")) < 70


async def test_where_segments_were_dropped_by_a_clock_that_was_ahead_nothing_is_admitted_to_their_window(
    open_ledger: OpenLedger,
) -> None:
    """What was spent in it is no longer known."""
    days = Days(open_ledger)
    await days.day(range(10), days=30)
    await days.day(range(0), days=-30)
    account = Account(86_400, 1_000_000)
    listeners = listeners_of({"dungeon": account}, Tally({"dungeon": 86_400}))
    ledger = open_ledger(clock_unix_ms=lambda: days.now, retention_days=2, listeners=listeners)
    assert ledger.low_water_unix_ms >= days.now
    assert not account.allows(days.now, 1)
    assert account.allows(days.now + DAY_MS, 1)


async def test_upkeep_goes_on_when_the_clock_is_set_back(open_ledger: OpenLedger, directory: Path) -> None:
    days = Days(open_ledger)
    days.now += 30 * DAY_MS
    ledger = days.opened()
    async with ledger.running():
        await days.requests(ledger, range(1))
        days.now -= 30 * DAY_MS
        for number in range(1, 7):
            await days.requests(ledger, range(number, number + 1))
            days.now += DAY_MS
        await days.quiet(ledger)
    assert len(names(directory, "segment")) > 3


def test_a_segment_in_which_nothing_is_placed_is_not_left_for_another() -> None:
    """It has no file yet: its number would be missing."""
    first = Slot(Path("1"), 3, b"")
    first.number = 1
    room = Room(64 * 4096, first, 4096)
    room.spares.extend(Slot(Path(str(number)), 3, b"") for number in (2, 3))
    assert not room.turn()
    assert room.place_begin(100) is first
    assert room.turn()
    assert not room.turn()
    assert room.place_begin(100).number == 2
