"""Files of a ledger that are gone: both readings miss the same ones, with one place and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
from kit.dropped_segments import drop
from kit.small_ledgers import Contents, MemoryFiles, contents_of, open_small, segment_name, three_segments

from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading
from sidecar.audit.requests import requests_of
from sidecar.ledger.faults import RESTORE, LedgerDamaged

LEDGER = Path("ledger")


def by_the_daemon(contents: Contents, directory: Path) -> LedgerDamaged | None:
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    try:
        open_small(directory)._let_go()
    except LedgerDamaged as damage:
        return damage
    return None


def by_the_second_reading(contents: Contents, *, prove_seals: bool) -> LedgerDamaged | None:
    reading = Reading(LEDGER, files=MemoryFiles(contents), prove_seals=prove_seals)
    try:
        list(requests_of(reading))
    except LedgerDamaged as damage:
        return damage
    return None


def with_some_removed(contents: Contents) -> Iterator[tuple[Contents, tuple[str, ...]]]:
    names = sorted(name for name in contents if name != "lock")
    for count in range(1, len(names)):
        for gone in combinations(names, count):
            yield {name: content for name, content in contents.items() if name not in gone}, gone


@pytest.mark.parametrize("dropped_until", [0, 1])
async def test_whatever_files_are_gone_the_second_reading_refuses_what_the_daemon_refuses(
    tmp_path: Path, dropped_until: int
) -> None:
    """And where the daemon misses a segment, it says so of the same place in the same words."""
    await three_segments(tmp_path / "whole")
    if dropped_until:
        await drop(tmp_path / "whole", dropped_until)
    whole = contents_of(tmp_path / "whole")
    causes = set()
    for at, (rest, gone) in enumerate(with_some_removed(whole)):
        damage = by_the_daemon(rest, tmp_path / str(at))
        if damage is None:
            continue
        for prove_seals in (False, True):
            other = by_the_second_reading(rest, prove_seals=prove_seals)
            assert other is not None, gone
            if "missing" in damage.expected:
                told = (other.segment.name, other.offset, other.expected, other.advice)
                assert told == (damage.segment.name, 0, damage.expected, RESTORE), gone
        causes.add(damage.expected)
    assert "this segment, which has a seal; it is missing" in causes
    assert f"segment {1}, or a checkpoint of segment {2}; both are missing" in causes


async def test_segments_that_seals_tell_of_are_missed_wherever_the_record_seems_to_end(tmp_path: Path) -> None:
    await three_segments(tmp_path)
    whole = contents_of(tmp_path)
    seals = {name: content for name, content in whole.items() if name.endswith(".seal")}
    assert len(seals) == 2
    for kept, missing in (((1,), 2), ((), 1), ((1, 3), 2)):
        for lock in ({"lock": b""}, {}):
            rest = {**lock, **seals, **{segment_name(number): whole[segment_name(number)] for number in kept}}
            damage = by_the_second_reading(rest, prove_seals=False)
            assert damage is not None
            assert (damage.segment, damage.offset) == (LEDGER / segment_name(missing), 0)
    with pytest.raises(NoLedger):
        by_the_second_reading({"other": b""}, prove_seals=False)


class Vanishing(MemoryFiles):
    """The files from the next look on are others."""

    def __init__(self, states: list[Contents]) -> None:
        super().__init__(states[0])
        self._states = iter(states)

    def names(self, directory: Path) -> list[str]:
        self.contents = next(self._states, self.contents)
        return super().names(directory)


async def test_a_segment_that_its_seal_still_tells_of_was_dropped_since_where_a_newer_checkpoint_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no damage: the reading has been overtaken."""
    monkeypatch.setattr("sidecar.audit.look.HELD_MAX", 1)
    await three_segments(tmp_path)
    before = contents_of(tmp_path)
    await drop(tmp_path, 2)
    after = contents_of(tmp_path)
    assert segment_name(2) not in after
    seals = {name: content for name, content in before.items() if name.endswith(".seal")}
    reading = Reading(LEDGER, files=Vanishing([before, {**after, segment_name(1): before[segment_name(1)], **seals}]))
    with pytest.raises(OSError, match="segment 2 was dropped while those before it were read: read again"):
        list(reading.batches())
