"""The records added up again beside the daemon that writes them: exactly up to a batch, and nothing kept open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from kit import records
from kit.dropped_segments import drop
from kit.small_ledgers import BLOCK, DAY_MS, damage, mixed, open_small, session, three_segments

from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading
from sidecar.audit.tallying import GivenUp, tallied
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.rules.windows import Figures

WINDOWS = {"dungeon": 86_400}


def figures(spent: dict[int, int], reserved: dict[int, int]) -> Figures:
    return Figures(window_seconds=86_400, kept_from_unix_ms=0, spent=spent, reserved=reserved)


def sums(directory: Path, batch: int) -> tuple[int, int]:
    compared = tallied(directory, WINDOWS, up_to_batch=batch).tally.compared({"dungeon": figures({}, {})})
    return compared.settled_micro_usd, compared.open_micro_usd


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_every_batch_has_its_own_sums_and_head_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    trio.run(three_segments, tmp_path)
    settled = held = 0
    before = descriptors()
    for batch in Reading(tmp_path).batches():
        for line in batch.lines:
            held += 100 * ((line.kind == "Begin") - (line.kind == "Completed"))
            settled += 60 * (line.kind == "Completed")
        assert sums(tmp_path, batch.number) == (settled, held)
        assert tallied(tmp_path, WINDOWS, up_to_batch=batch.number).head == batch.head
    assert (settled, held) == (300, 100)
    assert descriptors() == before


def test_windows_are_those_of_admission_and_callers_are_kept_apart(tmp_path: Path) -> None:
    trio.run(mixed, tmp_path)
    last = max(batch.number for batch in Reading(tmp_path).batches())
    tally = tallied(tmp_path, {"dungeon": 86_400, "arena": 86_400}, up_to_batch=last).tally
    accounts = {"dungeon": figures({0: 60, DAY_MS: 7}, {DAY_MS: 250}), "arena": figures({0: 100}, {})}
    assert tally.compared(accounts).mismatches == ()


async def test_behind_a_checkpoint_what_it_kept_is_open_and_windows_of_what_was_dropped_are_not_compared(
    tmp_path: Path,
) -> None:
    await three_segments(tmp_path)
    await session(tmp_path, [], unfinished=[7], clean=False)
    await drop(tmp_path, 3, low_water=DAY_MS + 1)
    last = max(batch.number for batch in Reading(tmp_path).batches())
    tally = tallied(tmp_path, WINDOWS, up_to_batch=last).tally
    for wrong in (0, 1):
        accounts = {"dungeon": figures({0: 300 + wrong, DAY_MS: wrong}, {0: 200})}
        assert tally.compared(accounts).mismatches == ()
    said = [str(mismatch) for mismatch in tally.compared({"dungeon": figures({}, {0: 199})}).mismatches]
    assert len(said) == 1
    assert "200 open" in said[0]


async def test_a_live_ledger_is_read_up_to_what_has_landed(tmp_path: Path) -> None:
    await session(tmp_path, [1], unfinished=[2], clean=False)
    ledger = open_small(tmp_path)
    async with ledger.running():
        while ledger.statistics().spares_ready < 2:
            await trio.lowlevel.checkpoint()
        assert sums(tmp_path, ledger.landed_batch) == (60, 100)
        begin = records.begin(3)
        on_its_way = ledger.begin(begin)
        before = ledger.landed_batch
        assert sums(tmp_path, before) == (60, 100)
        place = await on_its_way
        assert ledger.landed_batch == before + 1
        assert sums(tmp_path, ledger.landed_batch) == (60, 200)
        await ledger.complete(begin, records.completed(place, charge=9))
        assert sums(tmp_path, ledger.landed_batch) == (69, 100)
        assert sums(tmp_path, before) == (60, 100)


def test_a_ledger_that_ends_before_the_batch_is_damaged(tmp_path: Path) -> None:
    trio.run(three_segments, tmp_path)
    last = max(batch.number for batch in Reading(tmp_path).batches())
    with pytest.raises(LedgerDamaged, match=f"batch {last + 1}, and the ledger ends after {last}"):
        tallied(tmp_path, WINDOWS, up_to_batch=last + 1)
    damage(tmp_path, 1, 4 * BLOCK)
    with pytest.raises(LedgerDamaged, match="is damaged at byte"):
        tallied(tmp_path, WINDOWS, up_to_batch=last)
    with pytest.raises(NoLedger):
        tallied(tmp_path / "nowhere", WINDOWS, up_to_batch=1)


def test_it_is_given_up_between_two_batches_when_nobody_wants_it(tmp_path: Path) -> None:
    trio.run(three_segments, tmp_path)
    before = descriptors()
    with pytest.raises(GivenUp):
        tallied(tmp_path, WINDOWS, up_to_batch=3, goes_on=lambda: False)
    assert descriptors() == before


def test_a_reading_that_is_left_or_fails_in_the_middle_closes_what_it_opened(tmp_path: Path) -> None:
    class Counted(DiskFiles):
        opened = 0

        def open_to_read(self, path: Path) -> int:
            descriptor = super().open_to_read(path)
            self.opened += 1
            return descriptor

        def close(self, descriptor: int) -> None:
            self.opened -= 1
            super().close(descriptor)

    trio.run(three_segments, tmp_path)
    files = Counted()
    batches = Reading(tmp_path, files=files).batches()
    next(batches)
    assert files.opened == 3  # all of them are held
    batches.close()
    assert files.opened == 0
