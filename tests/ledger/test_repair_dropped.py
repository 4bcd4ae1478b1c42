"""A damaged ledger of which segments were dropped: what a checkpoint says of them, and what is left without it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kit import records
from kit.dropped_segments import LOW_WATER, STEPS, drop
from kit.ledger_view import LedgerView
from kit.small_ledgers import BLOCK, contents_of, open_small, segment_name, session, three_segments
from msgspec import structs

from sidecar.cli.ledger_repair import repair
from sidecar.cli.main import main
from sidecar.contract.values import LowWaterRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Place
from sidecar.repair.salvage import Salvage

# `three_segments`, of which the first two were dropped: 1 to 4 had ended, 5 is open; in what is left 6 stands.
FIRST_LEFT = 3


def checkpoint_name(segment: int) -> str:
    return f"{segment:016d}.checkpoint"


async def end_of_5(directory: Path) -> None:
    ledger = open_small(directory)
    [begin] = ledger.recovery.indeterminate
    recorded = ledger.find(begin.caller_runtime_id, begin.request_id)
    assert recorded is not None
    async with ledger.running():
        place = Place(recorded.begin.segment, recorded.begin.offset, 0)
        await ledger.complete(begin, records.completed(place, charge=50))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trio.run(three_segments, tmp_path / "ledger")
    trio.run(drop, tmp_path / "ledger", 2)
    return tmp_path / "ledger"


def repaired(directory: Path) -> dict[str, Any]:
    """The report of a repair that succeeds; the damaged directory is as it was, and the new one is sound."""
    before, new = contents_of(directory), directory.with_name("new")
    shutil.rmtree(new, ignore_errors=True)
    assert repair(directory, new, as_json=False) == 0
    assert contents_of(directory) == before
    assert main(["ledger", "verify", str(new)]) == 0
    told: dict[str, Any] = json.loads((new / "repair-report.json").read_bytes())
    return told


def view(directory: Path) -> tuple[list[str], list[str]]:
    """What has begun and what has ended in the new ledger, in the order of its records."""
    new = LedgerView(directory.with_name("new"))
    return [one.request_id for one in new.begins], [one.request_id for one, _ in new.completes]


def low_water(directory: Path) -> int:
    return open_small(directory.with_name("new")).low_water_unix_ms


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# --- a checkpoint that is whole --------------------------------------------------------------------------------------


def test_a_sound_ledger_is_copied_without_what_was_dropped_and_says_so(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = repaired(directory)
    out = capsys.readouterr().out
    assert (told["verdict"], told["gaps"], told["read"]["left_behind"]) == ("sound", [], [])
    assert told["dropped"] == {
        "why": "dropped by retention earlier",
        "checkpoint": checkpoint_name(2),
        "until_segment": 2,
        "records": 10,
        "begins": 5,
        "completions": 4,
        "charged_micro_usd": 240,
        "open": 1,
    }
    assert "dropped:    segments up to 2, dropped by retention earlier (no loss): 4 requests that had ended, " in out
    assert view(directory) == (["request-5", "request-6"], ["request-6"])
    assert told["before_first_damage"]["charged_micro_usd"] == told["new"]["charged_micro_usd"] + 240
    assert told["new"]["held_micro_usd"] == 100
    assert told["low_water"] == {"expires_at_unix_ms": LOW_WATER, "why": None}
    assert low_water(directory) == LOW_WATER


def test_the_new_ledger_has_no_checkpoint_and_no_record_of_one(directory: Path) -> None:
    repaired(directory)
    new = directory.with_name("new")
    assert not list(new.glob("*.checkpoint"))
    assert b"Checkpoint" in (directory / segment_name(4)).read_bytes()
    assert not any(b"Checkpoint" in path.read_bytes() for path in new.glob("*.segment"))


def test_a_request_that_a_checkpoint_kept_is_ended_by_what_ended_it_later(directory: Path) -> None:
    trio.run(end_of_5, directory)
    flip(directory / segment_name(FIRST_LEFT), 100)  # the header
    told = repaired(directory)
    assert view(directory) == (["request-5", "request-6"], ["request-6", "request-5"])
    assert (told["verdict"], told["kept"], told["unattributed"]) == (
        "repaired",
        {"completed": 2, "indeterminate": 0},
        [],
    )
    assert told["new"]["charged_micro_usd"] == 110


def test_kept_requests_are_begun_first_in_the_order_of_their_places(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    for number in (9, 3, 7):
        trio.run(lambda number=number: session(directory, [], unfinished=[number], clean=False))
    trio.run(session, directory, [1])
    trio.run(drop, directory, 3)
    repaired(directory)
    assert view(directory)[0] == ["request-9", "request-3", "request-7", "request-1"]


def test_kept_requests_count_as_open_ones_until_they_end(directory: Path) -> None:
    """So the new ledger has room to settle each, and not for more."""
    salvage = Salvage(directory, DiskFiles(), is_damaged=False)
    [kept] = salvage.sources.start.begins
    assert salvage.holds(kept.segment, kept.offset)
    assert not salvage.holds(kept.segment, kept.offset + 1)
    assert salvage.seen.open_max == 1
    trio.run(end_of_5, directory)
    assert Salvage(directory, DiskFiles(), is_damaged=False).seen.open_max == 0


def test_a_ledger_of_a_checkpoint_alone_keeps_what_it_says_and_refuses_all_that_may_have_come_behind_it(
    directory: Path,
) -> None:
    for path in directory.glob("*.segment"):
        path.unlink()
    told = repaired(directory)
    assert view(directory) == (["request-5"], [])
    assert told["low_water"]["expires_at_unix_ms"] > told["created_at_unix_ms"]
    assert [gap["segment"] for gap in told["gaps"]] == [3]


def test_the_segment_behind_a_checkpoint_is_missed_although_no_name_tells_of_it(directory: Path) -> None:
    for path in (*directory.glob("*.segment"), *directory.glob("*.seal"), directory / "lock"):
        path.unlink()
    assert [gap["may_have_held"] for gap in repaired(directory)["gaps"]] == [True]


def test_the_low_water_stands_where_its_record_is_lost(directory: Path) -> None:
    path = directory / segment_name(4)
    at = path.read_bytes().index(b"LowWater")
    flip(path, at)
    assert repaired(directory)["low_water"]["expires_at_unix_ms"] >= LOW_WATER


def test_leftovers_are_named_and_not_taken_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "ledger"
    trio.run(three_segments, directory)
    trio.run(drop, directory, 1)
    trio.run(lambda: drop(directory, 2, steps=("low_water", "file", "record")))
    assert (directory / checkpoint_name(1)).exists()
    told = repaired(directory)
    assert (told["verdict"], told["read"]["left_behind"]) == ("sound", [checkpoint_name(1), segment_name(2)])
    assert f"not needed: {segment_name(2)}: {checkpoint_name(2)} stands for it" in capsys.readouterr().out
    assert view(directory) == (["request-5", "request-6"], ["request-6"])
    flip(directory / segment_name(2), 3 * BLOCK)  # damage that matters to nobody
    flip(directory / checkpoint_name(1), 40)
    assert repaired(directory)["verdict"] == "sound"


# --- a checkpoint that is not ----------------------------------------------------------------------------------------


def damage(directory: Path, kind: str, segment: int = 2) -> None:
    path = directory / checkpoint_name(segment)
    if kind == "missing":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif kind == "link":
        path.unlink()
        path.symlink_to("nothing")
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        flip(path, int(kind))


@pytest.mark.parametrize("kind", ["missing", "cut", "link", "directory", "empty", "0", "12", "16", "40", "300"])
def test_without_it_all_before_is_unknown_and_an_end_of_a_begin_there_is_of_a_lost_one(
    directory: Path, kind: str
) -> None:
    trio.run(end_of_5, directory)
    damage(directory, kind)
    told = repaired(directory)
    assert view(directory) == (["request-6"], ["request-6"])
    assert told["dropped"] is None
    assert [(one["what"], one["charge_micro_usd"]) for one in told["unattributed"]] == [
        ("Completed: its begin is lost", 50)
    ]
    assert (told["gaps"][0]["segment"], told["gaps"][0]["may_have_held"]) == (1, True)
    assert told["low_water"]["why"] is not None
    assert low_water(directory) >= 300_000
    is_told = [one["file"] for one in told["read"]["not_taken"]] == [checkpoint_name(2)]
    assert is_told == (kind != "missing")


def test_a_checkpoint_that_the_disk_does_not_give_is_the_damage_that_is_named(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(directory, "directory")
    repaired(directory)
    assert "bytes that can be read: Is a directory, in the first segment or a checkpoint" in capsys.readouterr().out


def test_a_version_that_a_flip_has_changed_is_no_other_version(directory: Path) -> None:
    damage(directory, "11")
    told = repaired(directory)
    assert view(directory)[0] == ["request-5", "request-6"]
    assert [gap for gap in told["gaps"] if gap["may_have_held"]] == []


def test_a_checkpoint_that_is_not_whole_says_nothing_of_another_version(directory: Path) -> None:
    damage(directory, "11")
    damage(directory, "cut")
    repaired(directory)
    assert view(directory)[0] == ["request-6"]


def test_a_checkpoint_of_a_newer_version_is_left_to_it(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = msgspec.msgpack.encode({"newer": 1})
    path = directory / checkpoint_name(2)
    head = [path.read_bytes()[:8], *(one.to_bytes(4, "big") for one in (2, len(document), checkpoints.crc32(document)))]
    path.write_bytes(b"".join(head) + document)
    assert repair(directory, directory.with_name("new"), as_json=False) == os.EX_DATAERR
    assert "open it with the version of sidecar that wrote it" in capsys.readouterr().err


def test_where_nothing_is_unlinked_yet_a_damaged_checkpoint_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(three_segments, directory)
    trio.run(lambda: drop(directory, 2, steps=("low_water", "file", "record")))
    damage(directory, "40")
    told = repaired(directory)
    assert view(directory)[0] == [f"request-{number}" for number in range(1, 7)]
    assert [gap for gap in told["gaps"] if gap["may_have_held"]] == []
    assert told["new"]["charged_micro_usd"] == 300


def test_an_older_checkpoint_and_leftovers_give_all_where_the_newest_one_is_damaged(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(three_segments, directory)
    trio.run(drop, directory, 1)
    trio.run(lambda: drop(directory, 2, steps=("low_water", "file", "record")))
    damage(directory, "40")
    told = repaired(directory)
    assert (told["dropped"]["checkpoint"], told["dropped"]["charged_micro_usd"]) == (checkpoint_name(1), 180)
    assert view(directory)[0] == ["request-4", "request-5", "request-6"]
    assert [gap for gap in told["gaps"] if gap["may_have_held"]] == []
    assert [one["file"] for one in told["read"]["not_taken"]] == [checkpoint_name(2)]


def test_a_leftover_that_is_gone_between_an_older_checkpoint_and_the_rest_may_have_held_records(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "ledger"
    trio.run(three_segments, directory)
    trio.run(drop, directory, 1)
    trio.run(lambda: drop(directory, 2, steps=("low_water", "file", "record")))
    (directory / segment_name(2)).unlink()
    damage(directory, "40")
    told = repaired(directory)
    assert view(directory)[0] == ["request-6"]
    assert [(gap["segment"], gap["may_have_held"]) for gap in told["gaps"]] == [(2, True)]
    assert "dropped, and what a checkpoint kept of them is lost" in told["gaps"][0]["why"]
    assert told["low_water"]["why"].startswith("the newest instant on record")  # and not: up to now


def test_a_checkpoint_that_is_whole_and_not_the_one_on_record_is_said_to_be_another(directory: Path) -> None:
    """Somebody has taken the open request out of it."""
    trio.run(end_of_5, directory)
    path = directory / checkpoint_name(2)
    said = checkpoints.decode(path.read_bytes())
    less = structs.replace(said, begins=(), dropped=structs.replace(said.dropped, begins=4, records=9))
    path.write_bytes(checkpoints.encode(less))
    told = repaired(directory)
    assert "is of another checkpoint" in told["contradictions"][0]["what"]
    assert [one["what"] for one in told["unattributed"]] == ["Completed: its begin is lost"]
    assert told["low_water"]["why"] is not None


def test_a_checkpoint_of_another_ledger_is_left_out(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    trio.run(three_segments, other)
    trio.run(drop, other, 3)
    shutil.copy(other / checkpoint_name(3), directory / checkpoint_name(3))
    told = repaired(directory)
    assert view(directory)[0] == ["request-5", "request-6"]
    assert told["read"]["not_taken"] == [{"file": checkpoint_name(3), "why": "it is of another ledger"}]


# --- low water -------------------------------------------------------------------------------------------------------


def test_a_low_water_above_what_a_loss_asks_for_stands(tmp_path: Path) -> None:
    """As a repair writes it that is repaired itself at once: it only rises."""
    directory = tmp_path / "ledger"

    async def raised() -> None:
        ledger = open_small(directory)
        async with ledger.running():
            await ledger.append(LowWaterRecord(expires_at_unix_ms=1 << 50))

    trio.run(session, directory, [1, 2])
    trio.run(raised)
    trio.run(session, directory, [3])
    flip(directory / segment_name(1), 3 * BLOCK)
    told = repaired(directory)
    assert told["low_water"]["expires_at_unix_ms"] == low_water(directory) == 1 << 50


def test_a_low_water_whose_record_was_dropped_stands_in_the_checkpoint_alone(tmp_path: Path) -> None:
    directory = tmp_path / "ledger"
    trio.run(session, directory, [1])
    trio.run(session, directory, [2])
    trio.run(lambda: drop(directory, 1, steps=STEPS[1:], low_water=1 << 50))
    assert repaired(directory)["verdict"] == "sound"
    assert low_water(directory) == 1 << 50
