"""`sidecar ledger export`: every record with its place and the chain's head, always the same bytes; requests as CSV."""

from __future__ import annotations

import base64
import csv
import json
import os
from pathlib import Path

import pytest
from kit.dropped_segments import drop
from kit.independent import is_valid
from kit.ledger_view import LedgerView
from kit.small_ledgers import BLOCK, damage, mixed, segment_name, session, three_segments

from sidecar.cli.main import main


def exported(capsys: pytest.CaptureFixture[str], directory: Path, *words: str) -> str:
    assert main(["ledger", "export", str(directory), *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


async def test_every_record_is_there_with_its_place_and_as_its_schema_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    told = [json.loads(line) for line in exported(capsys, tmp_path).splitlines()]
    kinds = [next(iter(one["record"])) for one in told]
    pair = ["Begin", "Completed"]
    assert kinds == ["Opened", *pair * 4, "Begin", "Opened", *pair, "Closed"]
    assert [one["batch"] for one in told] == list(range(1, 15))
    for one in told:
        record = one["record"]
        if "Completed" in record:
            record["Completed"]["response"] = base64.b64decode(record["Completed"]["response"])
            assert record["Completed"]["response"] == b"\x00the answer"
        assert is_valid("replay_record.v2", {"schema_id": "gamecult.model.replay_record.v2", "record": record})
        content = (tmp_path / segment_name(one["segment"])).read_bytes()
        assert int.from_bytes(content[one["offset"] : one["offset"] + 4], "big") == one["length"] - 12
        batch = one["offset"] // BLOCK * BLOCK
        assert content[batch + 48 : batch + 80].hex() == one["head"]


async def test_it_is_the_same_each_time_and_the_begin_of_a_later_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await session(tmp_path, [1], clean=False)
    first = exported(capsys, tmp_path)
    assert exported(capsys, tmp_path) == first
    await session(tmp_path, [2])
    assert exported(capsys, tmp_path).startswith(first)
    assert main(["ledger", "verify", str(tmp_path), "--json"]) == 0
    head = json.loads(capsys.readouterr().out)["chain_head"]
    assert json.loads(exported(capsys, tmp_path).splitlines()[-1])["head"] == head


async def test_a_csv_has_a_row_for_each_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await mixed(tmp_path)
    rows = list(csv.DictReader(exported(capsys, tmp_path, "--csv").splitlines()))
    assert [(row["request_id"], row["state"], row["charge_micro_usd"], row["output_tokens"]) for row in rows] == [
        ("request-1", "completed", "60", "0"),
        ("request-2", "completed", "7", "0"),
        ("request-3", "failed", "100", ""),
        ("request-4", "indeterminate", "", ""),
    ]


def test_a_csv_of_no_request_has_its_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lock").touch()
    assert exported(capsys, tmp_path, "--csv").startswith("caller_runtime_id,request_id,model,")


async def test_of_a_damaged_ledger_what_stands_before_is_given_and_then_65(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    sound = exported(capsys, tmp_path)
    assert len(list(LedgerView(tmp_path).order)) == 11
    damage(tmp_path, 3, 0)
    assert main(["ledger", "export", str(tmp_path)]) == os.EX_DATAERR
    out, err = capsys.readouterr()
    assert out == "".join(sound.splitlines(keepends=True)[:10])
    assert "what stands before that place has been given" in err


async def test_a_first_line_says_what_was_dropped_and_begins_of_it_that_are_open_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    whole = [json.loads(line) for line in exported(capsys, tmp_path).splitlines()]
    await drop(tmp_path, 2)
    first, begun, *rest = [json.loads(line) for line in exported(capsys, tmp_path).splitlines()]
    last = whole[9]
    assert first == {
        "dropped": {"until_segment": 2, "batch": last["batch"], "head": last["head"], "records": 10, "requests": 4,
                    "charged_micro_usd": 240},
    }  # fmt: skip
    [known] = [one for one in whole if one["record"].get("Begin", {}).get("request_id") == "request-5"]
    assert begun == {**known, "batch": None, "head": None}
    assert rest[: len(whole) - 10] == whole[10:]
    assert exported(capsys, tmp_path) == exported(capsys, tmp_path)
    assert main(["ledger", "export", str(tmp_path), "--csv"]) == 0
    out, err = capsys.readouterr()
    assert [row["request_id"] for row in csv.DictReader(out.splitlines())] == ["request-6", "request-5"]
    assert "in no row is what was dropped up to segment 2: 4 requests charged 240 micro-USD" in err
