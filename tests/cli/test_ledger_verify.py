"""`sidecar ledger verify` and what all the tools share: exit codes, words, and a ledger that is left as it is."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from kit.dropped_segments import drop
from kit.small_ledgers import BLOCK, contents_of, damage, mixed, segment_name, session, three_segments

from sidecar.audit.reading import Reading
from sidecar.cli.ledger_reading import Progress, instant, may_be_held, write_lines
from sidecar.cli.main import main
from sidecar.cli.table import table
from sidecar.ledger.faults import RESTORE, SEAL_AGAIN
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.lock import take_lock

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
TOOLS = ("verify", "show", "spend", "export")


def ran(capsys: pytest.CaptureFixture[str], tool: str, directory: Path, *words: str) -> tuple[int, str, str]:
    code = main(["ledger", tool, str(directory), *words])
    out, err = capsys.readouterr()
    return code, out, err


async def test_a_sound_ledger_is_said_to_be_with_its_figures_and_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    before = contents_of(tmp_path)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[:8] == [
        f"{tmp_path}: sound",
        "segments:   3",
        "records:    14",
        "requests:   6, indeterminate 1",
        "charged:    300 micro-USD = $0.000300",
        "held:       100 micro-USD = $0.000100",
        "seals:      2, each as the records have it",
        "closed:     by a clean exit",
    ]
    assert re.fullmatch(r"chain head: [0-9a-f]{64}, after batch 14", out.splitlines()[8])
    assert contents_of(tmp_path) == before


async def test_the_same_as_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await three_segments(tmp_path)
    code, out, err = ran(capsys, "verify", tmp_path, "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert len(bytes.fromhex(told.pop("chain_head"))) == 32
    assert told == {
        "ok": True, "exit_code": 0, "directory": str(tmp_path), "segments": 3, "first_segment": 1, "batches": 14,
        "records": 14,
        "requests": 6, "indeterminate": 1, "may_be_running": 0, "charged_micro_usd": 300, "held_micro_usd": 100,
        "closed": True, "tails": [], "error": None, "damage": None, "seals": 2, "leftovers": [],
        "dropped": {"until_segment": 0, "records": 0, "requests": 0, "charged_micro_usd": 0},
        "checkpoint_on_record": True,
    }  # fmt: skip


async def test_damage_is_said_with_its_place_what_was_expected_and_which_command_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    path = damage(tmp_path, 2, 2 * BLOCK + 50)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert code == os.EX_DATAERR
    assert out.startswith(f"{tmp_path}: damaged; up to that place:\nsegments:   2\nrecords:    8\n")
    assert err.startswith(f"sidecar ledger verify: {path} is damaged at byte {2 * BLOCK}: expected a batch whose CRC")
    assert err.endswith(f"sidecar ledger export {tmp_path} gives it\n")
    assert "sidecar ledger verify says more" not in err
    code, out, err = ran(capsys, "verify", tmp_path, "--json")
    told = json.loads(out)
    assert (code, err, told["ok"], told["exit_code"], told["records"]) == (os.EX_DATAERR, "", False, os.EX_DATAERR, 8)
    assert (told["damage"]["segment"], told["damage"]["offset"]) == (str(path), 2 * BLOCK)
    repair = "keep the directory as it is; sidecar ledger repair writes what can be read into a new directory"
    assert told["damage"]["advice"] == repair == RESTORE.replace("sidecar ledger verify says more, and ", "")
    assert repair in told["error"]
    for tool in TOOLS[1:]:
        assert "sidecar ledger verify says more, and" in ran(capsys, tool, tmp_path)[2]


async def test_a_torn_tail_is_a_note_and_no_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await session(tmp_path, [1], clean=False)
    path = damage(tmp_path, 1, 3 * BLOCK)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert code == 0
    assert "requests:   1, indeterminate 1\n" in out
    assert f"note: {path}, from byte {3 * BLOCK} on: " in err
    code, out, _ = ran(capsys, "verify", tmp_path, "--json")
    assert [(one["offset"], one["state"]) for one in json.loads(out)["tails"]] == [(3 * BLOCK, "last")]


async def test_what_was_dropped_is_counted_and_said_and_what_is_left_over_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    await drop(tmp_path, 1)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert (code, err) == (0, "")
    for line in (
        "segments:   3, from number 2 on",
        "records:    18",
        "requests:   6, indeterminate 1",
        "charged:    300 micro-USD = $0.000300",
        "dropped:    up to segment 1: 3 requests charged 180 micro-USD, counted above",
        "seals:      2, each as the records have it",
    ):
        assert f"{line}\n" in out
    await drop(tmp_path, 2, steps=("low_water", "file"))
    code, out, err = ran(capsys, "verify", tmp_path)
    notes = err.splitlines()
    assert (code, len(notes)) == (0, 2)
    assert f"note: {segment_name(2)}, {1:016d}.checkpoint: left by a dropping that was interrupted" in notes[0]
    assert "note: no record speaks yet of the checkpoint of segment 2" in notes[1]
    told = json.loads(ran(capsys, "verify", tmp_path, "--json")[1])
    assert (told["first_segment"], told["segments"], told["requests"], told["charged_micro_usd"]) == (3, 3, 6, 300)
    assert told["dropped"] == {"until_segment": 2, "records": 10, "requests": 4, "charged_micro_usd": 240}
    assert told["leftovers"] == [segment_name(2), f"{1:016d}.checkpoint"]
    assert (told["checkpoint_on_record"], told["indeterminate"]) == (False, 1)


def seal_damaged(directory: Path, number: int) -> Path:
    seal = directory / f"{number:016d}-{number:016d}.seal"
    content = seal.read_bytes()
    seal.write_bytes(content[:1] + bytes([content[1] ^ 1]) + content[2:])
    return seal


async def test_a_damaged_seal_is_said_with_what_helps_and_the_figures_are_of_all_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    _, sound, _ = ran(capsys, "verify", tmp_path)
    seal = seal_damaged(tmp_path, 1)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert code == os.EX_DATAERR
    assert err == (
        f"sidecar ledger verify: {seal} is damaged at byte 0: expected a block whose CRC fits; {SEAL_AGAIN};"
        " the records are sound\n"
    )
    assert out == sound.replace(": sound\n", ": a seal is damaged; the records are sound:\n").replace(
        "seals:      2, each as the records have it\n", "seals:      1, each as the records have it; and 1 damaged\n"
    )
    told = json.loads(ran(capsys, "verify", tmp_path, "--json")[1])
    assert (told["exit_code"], told["records"], told["charged_micro_usd"]) == (os.EX_DATAERR, 14, 300)
    assert (told["damage"]["segment"], told["damage"]["advice"]) == (str(seal), SEAL_AGAIN)
    for tool in TOOLS[1:]:  # they don't read seals
        assert ran(capsys, tool, tmp_path)[0] == 0


async def test_damaged_seals_beside_another_damage_are_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    first, second = seal_damaged(tmp_path, 1), seal_damaged(tmp_path, 2)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert (code, "seals:      0; and 2 damaged\n" in out) == (os.EX_DATAERR, True)
    note, said = err.splitlines()
    assert note.startswith(f"sidecar ledger verify: note: {second} is damaged at byte 0")
    assert said.startswith(f"sidecar ledger verify: {first} is damaged at byte 0")
    path = damage(tmp_path, 3, 2 * BLOCK + 50)
    code, out, err = ran(capsys, "verify", tmp_path)
    assert (code, out.splitlines()[0]) == (os.EX_DATAERR, f"{tmp_path}: damaged; up to that place:")
    *notes, said = err.splitlines()
    assert [str(seal) for seal in (first, second) if any(f"note: {seal} is damaged" in note for note in notes)] == [
        str(first),
        str(second),
    ]
    assert said.startswith(f"sidecar ledger verify: {path} is damaged at byte {2 * BLOCK}")


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("gone", [(2, 3), (1, 2, 3)])
async def test_segments_that_only_their_seals_tell_of_are_missing_for_each_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str, gone: tuple[int, ...]
) -> None:
    await three_segments(tmp_path)
    for number in gone:
        (tmp_path / segment_name(number)).unlink()
    if gone[0] == 1:
        (tmp_path / "lock").unlink()
    code, _, err = ran(capsys, tool, tmp_path)
    path = tmp_path / segment_name(gone[0])
    assert (code, f"{path} is damaged at byte 0: expected this segment, which has a seal; it is missing" in err) == (
        os.EX_DATAERR,
        True,
    )


@pytest.mark.parametrize("tool", TOOLS)
def test_no_ledger_is_66(tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        code, out, err = ran(capsys, tool, directory)
        assert (code, err.startswith(f"sidecar ledger {tool}: {directory}")) == (os.EX_NOINPUT, True)
        assert "Traceback" not in out + err
    code, out, _ = ran(capsys, "verify", tmp_path, "--json")
    assert (code, json.loads(out)["exit_code"]) == (os.EX_NOINPUT, os.EX_NOINPUT)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_ledger_that_cannot_be_read_is_74(tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str) -> None:
    (tmp_path / segment_name(1)).mkdir()
    code, _, err = ran(capsys, tool, tmp_path)
    assert (code, err) == (os.EX_IOERR, f"sidecar ledger {tool}: {tmp_path}: Is a directory\n")


FIGURES = (
    "segments", "first_segment", "batches", "records", "requests", "indeterminate", "may_be_running",
    "charged_micro_usd", "held_micro_usd", "closed", "chain_head", "dropped", "seals", "leftovers",
    "checkpoint_on_record", "tails",
)  # fmt: skip


async def test_what_was_not_read_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / segment_name(1)).mkdir()
    for directory, code in ((tmp_path, os.EX_IOERR), (tmp_path / "nowhere", os.EX_NOINPUT)):
        told = json.loads(ran(capsys, "verify", directory, "--json")[1])
        assert {name: told.pop(name) for name in FIGURES} == dict.fromkeys(FIGURES)
        assert (told["ok"], told["exit_code"], told["damage"]) == (False, code, None)
        assert set(told) == {"ok", "exit_code", "directory", "error", "damage"}


async def test_of_what_is_read_only_up_to_a_place_the_end_is_null(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await three_segments(tmp_path)
    third = tmp_path / segment_name(3)
    kept = third.read_bytes()
    third.unlink()
    third.mkdir()
    told = json.loads(ran(capsys, "verify", tmp_path, "--json")[1])
    assert (told["exit_code"], told["segments"], told["charged_micro_usd"]) == (os.EX_IOERR, 2, 240)
    assert (told["closed"], told["checkpoint_on_record"]) == (None, None)
    third.rmdir()
    third.write_bytes(kept)
    damage(tmp_path, 3, 2 * BLOCK + 50)
    told = json.loads(ran(capsys, "verify", tmp_path, "--json")[1])
    assert (told["exit_code"], told["segments"]) == (os.EX_DATAERR, 3)
    assert (told["closed"], told["checkpoint_on_record"]) == (None, None)


async def test_a_request_may_be_running_only_where_a_daemon_holds_the_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await session(tmp_path, [1], unfinished=[2], clean=False)  # as a kill leaves it
    before = contents_of(tmp_path)

    def may_run() -> int:
        told = json.loads(ran(capsys, "verify", tmp_path, "--json")[1])
        assert told["indeterminate"] == 1
        running = " (1 of them may be running)" if told["may_be_running"] else ""
        assert f"requests:   2, indeterminate 1{running}\n" in ran(capsys, "verify", tmp_path)[1]
        return told["may_be_running"]

    assert may_run() == 0
    lock = take_lock(DiskFiles(), tmp_path)
    assert may_run() == 1
    DiskFiles().close(lock)
    assert may_run() == 0
    (tmp_path / "lock").write_bytes(before["lock"])
    assert contents_of(tmp_path) == before
    (tmp_path / "lock").unlink()
    assert may_run() == 0


async def test_where_the_lock_can_not_be_asked_a_daemon_may_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").touch()
    assert not may_be_held(tmp_path)
    monkeypatch.setattr("sidecar.cli.ledger_reading.hold_as_it_is", lambda files, directory: None)
    assert may_be_held(tmp_path)


async def test_a_ledger_in_which_nothing_can_be_running_is_not_asked_for_its_lock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_segments(tmp_path)
    monkeypatch.delattr("sidecar.cli.ledger_verify.may_be_held")
    assert ran(capsys, "verify", tmp_path)[0] == 0


@pytest.mark.parametrize("tool", [*TOOLS, "resolve", "check", "repair"])
def test_the_help_says_every_default_and_every_exit_code(capsys: pytest.CaptureFixture[str], tool: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["ledger", tool, "--help"])
    out, _ = capsys.readouterr()
    assert raised.value.code == 0
    flags = re.split(r"\n  (?=-)", out.split("\noptions:\n")[1].split("\n\n")[0])
    told = [" ".join(flag.split()) for flag in flags if "-h, --help" not in flag]
    assert [flag for flag in told if not re.search(r"default: \S|always wanted$", flag)] == []
    assert re.findall(r"^ +(\d+)  ", out.split("exit codes:")[1], re.MULTILINE)[:3] == ["0", "64", "65"]


def test_a_wrong_command_line_is_64_with_the_usage_of_the_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        [], ["verify"], ["verify", "a", "b"], ["show", "a", "--since", "noon"], ["spend", "a", "--window-seconds", "0"],
        ["resolve", "a", "--caller", "c", "--request", "r", "--charge", "half", "--who", "w", "--why", "y"],
        ["resolve", "a", "--caller", "c", "--request", "r", "--charge", "nothing", "--who", " ", "--why", "y"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as raised:
            main(["ledger", *words])
        assert raised.value.code == os.EX_USAGE
        assert capsys.readouterr().err.startswith(" ".join(["usage: sidecar ledger", *words[:1]]))


async def test_the_readme_shows_each_tool_with_an_output_of_its_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures, hashes and widths aside."""
    blocks = re.findall(r"```\n\$ sidecar ledger (\w+) [^\n]*\n(.*?)```", README, re.DOTALL)
    assert [tool for tool, _ in blocks] == [*TOOLS, "resolve", "check", "repair"]
    await mixed(tmp_path)
    for tool, output in blocks[: len(TOOLS)]:
        code, out, _ = ran(capsys, tool, tmp_path)
        assert code == 0
        first = "titles" if tool in ("show", "spend") else "labels"
        forms = {"titles": r"\A.*\n", "labels": r"^[a-z ]+:|\"\w+\":"}[first]
        shown, told = (re.findall(forms, text, re.MULTILINE) for text in (output, out))
        assert [part.split() for part in shown] == [part.split() for part in told[: len(shown)]]


# --- what they share ----------------------------------------------------------------------------------------------


def test_a_table_is_as_wide_as_its_first_rows_and_grows_for_a_later_one() -> None:
    rows = [("a", "1")] * 300 + [("long one", "1000")] + [("b", "2")]
    lines = list(table(("who", ">n"), iter(rows)))
    assert lines[:2] == ["who  n\n", "a    1\n"]
    assert lines[-2:] == ["long one  1000\n", "b            2\n"]


def test_a_table_gives_the_rows_before_a_fault() -> None:
    def rows() -> object:
        yield ("a",)
        raise KeyError("b")

    lines = table(("who",), rows())
    assert [next(lines), next(lines)] == ["who\n", "a\n"]
    with pytest.raises(KeyError):
        next(lines)


def test_lines_before_a_fault_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        write_lines(f"{1 // at}\n" for at in (1, 0))
    assert capsys.readouterr().out == "1\n"


def test_an_instant_that_no_calendar_holds_stays_a_number() -> None:
    assert instant(1_000) == "1970-01-01 00:00:01.000"
    assert instant(2**64 - 1) == f"{2**64 - 1} ms"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_progress_is_said_on_a_terminal_only_and_after_a_second_only_and_goes_away(tmp_path: Path) -> None:
    await mixed(tmp_path)
    reading = Reading(tmp_path)
    list(reading.batches())
    for err, expected in (
        (Terminal(), "\rreading segment 2 of 2: 9 records\x1b[K" * 2 + "\r\x1b[K"),
        (io.StringIO(), ""),
    ):
        times = iter((0.0, 0.9, 1.0, 1.0, 1.1, 1.3, 1.3, 1.3))
        progress = Progress(err, lambda: next(times))
        for _ in range(4):
            progress.at(reading, 2)
        progress.over()
        assert err.getvalue() == expected
