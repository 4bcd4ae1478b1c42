"""What a crash can leave, and what it can't: row by row, byte by byte, block by block."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import records
from kit.records import Totals

from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.format import BLOCK_BYTES
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.recovery import DECISIONS

OpenLedger = Callable[..., Ledger]


async def written(open_ledger: OpenLedger, count: int = 3, *, clean: bool = True, start: int = 0) -> None:
    """A session of a daemon that completes this many requests and then exits, or is gone."""
    ledger = open_ledger()
    try:
        async with ledger.running():
            for number in range(start, start + count):
                begin = records.begin(number)
                await ledger.complete(begin, records.completed(await ledger.begin(begin)))
            if not clean:
                raise KeyError("the process is gone")
    except* KeyError:
        pass


def totals_of(open_ledger: OpenLedger) -> tuple[Totals, Ledger]:
    totals = Totals()
    ledger = open_ledger(listeners=totals.listeners)
    os.close(ledger._lock)
    return totals, ledger


def segment(directory: Path, number: int) -> Path:
    return directory / f"{number:016d}.segment"


def end_of(path: Path) -> int:
    """Where the last byte that is not zero stands, up to its block's end."""
    used = len(path.read_bytes().rstrip(b"\0"))
    return -(-used // BLOCK_BYTES) * BLOCK_BYTES


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def test_the_table_has_a_decision_for_every_combination() -> None:
    assert set(DECISIONS) == {
        (last, closed, behind)
        for last in (True, False)
        for closed in (True, False)
        for behind in ("zeros", "bytes", "batch")
    }


async def test_a_clean_exit_is_told_and_zeros_go_on(open_ledger: OpenLedger) -> None:
    await written(open_ledger)
    totals, ledger = totals_of(open_ledger)
    assert (totals.spent, ledger.recovery.clean, ledger.recovery.set_aside) == (180, True, None)


async def test_a_crash_without_a_tail_goes_on_and_is_not_clean(open_ledger: OpenLedger) -> None:
    await written(open_ledger, clean=False)
    totals, ledger = totals_of(open_ledger)
    assert (totals.spent, ledger.recovery.clean, ledger.recovery.set_aside) == (180, False, None)


async def test_a_torn_tail_is_set_aside_kept_and_never_appended_to(open_ledger: OpenLedger, directory: Path) -> None:
    await written(open_ledger, clean=False)
    path = segment(directory, 1)
    end = end_of(path)
    overwrite(path, end, b"torn" * 2000)
    before = path.read_bytes()
    totals, ledger = totals_of(open_ledger)
    assert totals.spent == 180
    assert ledger.recovery.set_aside is not None
    assert ledger.recovery.set_aside.read_bytes() == b"torn" * 2000
    assert path.read_bytes() == before
    await written(open_ledger, start=10)
    totals, ledger = totals_of(open_ledger)
    assert (totals.spent, ledger.recovery.clean) == (360, True)


async def test_any_byte_after_a_clean_exit_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await written(open_ledger)
    path = segment(directory, 1)
    overwrite(path, end_of(path) + 12_345, b"x")
    with pytest.raises(LedgerDamaged, match="zeros after a clean exit"):
        open_ledger()


async def test_a_broken_batch_before_a_whole_one_is_damage_with_its_place(
    open_ledger: OpenLedger, directory: Path
) -> None:
    await written(open_ledger, clean=False)
    path = segment(directory, 1)
    overwrite(path, 2 * BLOCK_BYTES + 200, b"x")
    with pytest.raises(LedgerDamaged) as damage:
        open_ledger()
    assert (damage.value.segment, damage.value.offset) == (path, 2 * BLOCK_BYTES)
    assert damage.value.advice


async def test_a_broken_batch_in_an_earlier_segment_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await written(open_ledger, clean=False)
    await written(open_ledger, start=10)
    without_seals(directory)
    path = segment(directory, 1)
    last = end_of(path) - BLOCK_BYTES
    overwrite(path, last + 100, b"x")
    with pytest.raises(LedgerDamaged, match="segment before ended"):
        open_ledger()


def without_seals(directory: Path) -> None:
    for path in directory.glob("*.seal"):
        path.unlink()


async def test_a_missing_segment_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    for start in (0, 10, 20):
        await written(open_ledger, start=start)
    segment(directory, 2).unlink()
    with pytest.raises(LedgerDamaged, match="missing"):
        open_ledger()


async def test_a_segment_of_another_ledger_is_damage(open_ledger: OpenLedger, directory: Path, tmp_path: Path) -> None:
    await written(open_ledger)
    await written(open_ledger, start=10)
    other = Ledger.open(
        tmp_path / "other", segment_bytes=records.SEGMENT_BYTES, frame_bytes_max=records.FRAME_BYTES_MAX,
        requests_in_flight_max=1,
    )  # fmt: skip
    os.close(other._lock)
    segment(directory, 2).write_bytes(segment(tmp_path / "other", 1).read_bytes())
    with pytest.raises(LedgerDamaged, match="this ledger's id"):
        open_ledger()


async def test_spares_of_a_process_that_is_gone_are_removed(open_ledger: OpenLedger, directory: Path) -> None:
    await written(open_ledger, clean=False)
    (directory / "0123456789abcdef.spare").write_bytes(b"left over")
    totals_of(open_ledger)
    assert not list(directory.glob("*.spare"))


async def test_no_changed_byte_ever_gives_other_totals(open_ledger: OpenLedger, directory: Path) -> None:
    """Each byte of a small ledger: refused, or a torn tail that at most loses what nothing proves was acknowledged."""
    await written(open_ledger, count=2, clean=False)
    await written(open_ledger, count=1, start=10)
    names = {path.name: path.read_bytes() for path in directory.glob("*.segment")}
    chance = random.Random(5)
    for name, content in names.items():
        used = len(content.rstrip(b"\0"))
        for at in sorted(chance.sample(range(used + BLOCK_BYTES), 300)):
            changed = bytearray(content)
            changed[at] ^= 1 << chance.randrange(8)
            restore(directory, {**names, name: bytes(changed)})
            try:
                totals, ledger = totals_of(open_ledger)
            except LedgerDamaged:
                continue
            behind_the_record = at >= -(-used // BLOCK_BYTES) * BLOCK_BYTES  # where a tail set aside once may stand
            assert ledger.recovery.set_aside is not None or behind_the_record
            assert (totals.spent, totals.reserved) == (180, 0)


def restore(directory: Path, names: dict[str, bytes]) -> None:
    """These segments and no seals, so that an open reads all of them."""
    without_seals(directory)
    for path in directory.glob("*.segment"):
        path.unlink()
    for name, content in names.items():
        (directory / name).write_bytes(content)


async def test_a_ledger_cut_at_any_block_loses_only_the_end_or_is_refused(
    open_ledger: OpenLedger, directory: Path
) -> None:
    await written(open_ledger, count=2, clean=False)
    path = segment(directory, 1)
    content = path.read_bytes()
    end = end_of(path)
    spent_at = []
    for cut in range(2 * BLOCK_BYTES, end + 1, BLOCK_BYTES):
        restore(directory, {path.name: content[:cut] + bytes(len(content) - cut)})
        totals, ledger = totals_of(open_ledger)
        assert ledger.recovery.set_aside is None
        spent_at.append((totals.spent, totals.reserved))
    assert spent_at == [(0, 0), (0, 100), (60, 0), (60, 100), (120, 0)]


async def test_an_empty_header_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await written(open_ledger)
    overwrite(segment(directory, 1), 0, bytes(BLOCK_BYTES))
    with pytest.raises(LedgerDamaged, match="magic"):
        open_ledger()


async def test_b4_totals_after_a_crash_between_windows_are_the_live_ones(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    live = Totals()
    try:
        async with ledger.running():
            for number in range(6):
                begin = records.begin(number, admitted_at_unix_ms=86_399_000 + number * 1000)
                live.on_begin(begin)
                end = records.completed(await ledger.begin(begin))
                if number % 2:
                    await ledger.complete(begin, end)
                    live.on_completed(begin, end)
            raise KeyError("the process is gone")
    except* KeyError:
        pass
    totals, _ = totals_of(open_ledger)
    assert (totals.spent, totals.reserved) == (live.spent, live.reserved) == (180, 300)
