"""`sidecar ledger spend`: per caller, model and window, what was charged and what is held."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kit.dropped_segments import drop
from kit.ledger_view import LedgerView
from kit.small_ledgers import BLOCK, damage, mixed, three_segments

from sidecar.cli import ledger_spend
from sidecar.cli.main import main
from sidecar.rules.windows import Account

CONFIG = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = 1
spend_window_seconds = 172_800
[[connector]]
name = "rehearsal"
kind = "scripted"
[[model]]
name = "npc"
connector = "rehearsal"
upstream = "echo-1"
[[model.price]]
input = 0
cache_read = 0
cache_write_short = 0
cache_write_long = 0
output = 0
"""


def spent(capsys: pytest.CaptureFixture[str], directory: Path, *words: str) -> list[str]:
    assert main(["ledger", "spend", str(directory), *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


async def test_a_table_of_days_for_a_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await mixed(tmp_path)
    assert spent(capsys, tmp_path) == [
        "caller   model  window from (UTC)    seconds  requests  micro-USD charged  indeterminate  held",
        "arena    npc    1970-01-01 00:00:00    86400         1                100              0     0",
        "dungeon  npc    1970-01-01 00:00:00    86400         1                 60              0     0",
        "dungeon  npc    1970-01-02 00:00:00    86400         1                  0              1   250",
        "dungeon  sage   1970-01-02 00:00:00    86400         1                  7              0     0",
    ]


async def test_windows_of_another_length_and_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await mixed(tmp_path / "ledger")
    (tmp_path / "sidecar.toml").write_text(CONFIG)
    told = [json.loads(line) for line in spent(capsys, tmp_path / "ledger", "--json", "--window-seconds", "1_000_000")]
    members = ("caller_runtime_id", "model", "charged_micro_usd", "held_micro_usd")
    assert [tuple(one[name] for name in members) for one in told] == [
        ("arena", "npc", 100, 0),
        ("dungeon", "npc", 60, 250),
        ("dungeon", "sage", 7, 0),
    ]
    lines = spent(capsys, tmp_path / "ledger", "--json", "--config", str(tmp_path / "sidecar.toml"))
    told = [json.loads(line) for line in lines]
    assert [(one["caller_runtime_id"], one["model"], one["window_seconds"], one["requests"]) for one in told] == [
        ("arena", "npc", 86_400, 1), ("dungeon", "npc", 172_800, 2), ("dungeon", "sage", 172_800, 1),
    ]  # fmt: skip


async def test_it_comes_to_the_same_as_the_daemons_account(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await mixed(tmp_path)
    account = Account(3600, 10**9)
    for record in LedgerView(tmp_path).order:
        begin = record[0] if isinstance(record, tuple) else record
        if begin.caller_runtime_id == "dungeon" and isinstance(record, tuple):
            account.settle(begin.admitted_at_unix_ms, begin.reservation_micro_usd, record[1].charge_micro_usd)
        elif begin.caller_runtime_id == "dungeon":
            account.reserve(begin.admitted_at_unix_ms, begin.reservation_micro_usd)
    told = [json.loads(line) for line in spent(capsys, tmp_path, "--json", "--window-seconds", "3600")]
    mine = [one for one in told if one["caller_runtime_id"] == "dungeon"]
    for start in {one["window_start_unix_ms"] for one in mine}:
        rows = [one for one in mine if one["window_start_unix_ms"] == start]
        assert sum(one["charged_micro_usd"] for one in rows) == account.spent(start)
        assert sum(one["held_micro_usd"] for one in rows) == account.reserved(start)


async def test_a_damaged_ledger_is_summed_up_to_the_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await three_segments(tmp_path)
    damage(tmp_path, 1, 4 * BLOCK)
    assert main(["ledger", "spend", str(tmp_path), "--json"]) == os.EX_DATAERR
    out, err = capsys.readouterr()
    assert json.loads(out)["charged_micro_usd"] == 60
    assert "what stands before that place has been summed" in err


async def test_a_wrong_configuration_is_78_and_too_many_rows_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await mixed(tmp_path)
    assert main(["ledger", "spend", str(tmp_path), "--config", str(tmp_path / "none.toml")]) == os.EX_CONFIG
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'none.toml'}: the file")
    monkeypatch.setattr(ledger_spend, "ROWS_MAX", 3)
    assert main(["ledger", "spend", str(tmp_path)]) == os.EX_USAGE
    assert "take a longer --window-seconds" in capsys.readouterr().err


async def test_what_was_dropped_is_said_and_in_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await three_segments(tmp_path)
    await drop(tmp_path, 2)
    assert main(["ledger", "spend", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    [row] = [json.loads(line) for line in out.splitlines()]
    assert (row["requests"], row["charged_micro_usd"], row["indeterminate"], row["held_micro_usd"]) == (2, 60, 1, 100)
    assert "in no row is what was dropped up to segment 2: 4 requests charged 240 micro-USD" in err
