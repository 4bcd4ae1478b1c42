"""`sidecar check`: 0 or 78, every complaint on a line of its own, and nothing left on disk."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.check import check
from sidecar.cli.main import main

CONFIG = """
[daemon]
socket = "{socket}"
drain_seconds_max = {drain}
[ledger]
directory = "{ledger}"
[[caller]]
id = "dungeon"
models = {models}
spend_ceiling_micro_usd = 1
spend_window_seconds = 1
[[connector]]
name = "rehearsal"
kind = "scripted"
{connector}
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
LEAST: dict[str, Any] = {
    "socket": "run/s.sock",
    "ledger": "ledger",
    "drain": 300,
    "models": '["npc"]',
    "connector": "",
}


def written(tmp_path: Path, more: str = "", **changes: Any) -> Path:
    path = tmp_path / "sidecar.toml"
    path.write_text(CONFIG.format(**{**LEAST, **changes}) + more)
    return path


def complaints(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a refused configuration is told, without the file's name that each line begins with."""
    assert check(path, as_json=False) == os.EX_CONFIG
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.startswith(f"{path}:") and " — " in line for line in err.splitlines())
    return [line.removeprefix(f"{path}:").removeprefix(" ") for line in err.splitlines()]


def warnings(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert check(path, as_json=False) == os.EX_OK
    out, err = capsys.readouterr()
    assert out == f"{path}: good\n"
    return [line.removeprefix(f"{path}:") for line in err.splitlines()]


def test_a_good_configuration_is_told_so_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warnings(written(tmp_path), capsys) == []
    assert [path.name for path in tmp_path.iterdir()] == ["sidecar.toml"]


def test_every_complaint_has_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "[[operator]]\nuesr = 5\n", models='["ncp"]', drain='"long"')
    assert complaints(path, capsys) == [
        "4:1: daemon.drain_seconds_max: must be a number of seconds"
        " — write a number of seconds from 0 to 86_400, without quotes",
        '9:11: caller "dungeon".models[0]: no model is named ncp — did you mean npc?',
        "27:1: operator[0].uesr: unknown key — did you mean user?",
    ]


def test_a_file_that_is_not_there_or_no_text_is_one_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaints(tmp_path / "none.toml", capsys) == [
        "the file: can't be read: No such file or directory — name a file that this user may read"
    ]
    assert complaints(tmp_path, capsys) == [
        "the file: can't be read: Is a directory — name a file that this user may read"
    ]
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# \xe9")
    assert complaints(path, capsys) == ["1:3: the file: is not UTF-8 — save the file as UTF-8"]


def test_credentials_are_looked_for_and_never_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    key = tmp_path / "key"
    key.write_text("sk-secret")
    key.chmod(0o644)
    [complaint] = complaints(written(tmp_path, connector='credential = {file = "key"}'), capsys)
    assert complaint == (
        f'15:1: connector "rehearsal".credential: {key} is open to other users (mode 0644) — chmod 600 {key}'
    )
    [complaint] = complaints(written(tmp_path, connector='credential = "key"'), capsys)
    assert complaint.startswith('15:1: connector "rehearsal".credential: key: $CREDENTIALS_DIRECTORY is not set')
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert warnings(written(tmp_path, connector='credential = "key"'), capsys) == []
    key.chmod(0o600)
    assert warnings(written(tmp_path, connector='credential = {file = "key"}'), capsys) == []


def test_what_only_building_a_connector_finds_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, connector='script = "script.toml"')
    [missing] = complaints(path, capsys)
    assert missing.startswith(f'15:1: connector "rehearsal".script: {tmp_path / "script.toml"}: No such file or dir')
    (tmp_path / "script.toml").write_text("[[rule]]\ntxet = 'a'\n")
    [misspelt] = complaints(path, capsys)
    assert (
        '15:1: connector "rehearsal".script: script.toml:2:1: rule[0].txet: unknown key — did you mean text?'
        in misspelt
    )


def test_a_program_that_is_not_there_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, connector='argv = ["./parrot"]')
    path.write_text(path.read_text().replace('kind = "scripted"', 'kind = "process"'))
    assert complaints(path, capsys) == [
        f'15:1: connector "rehearsal".argv: {tmp_path / "parrot"} is no file'
        " — write a program of PATH without a slash, or a path from cwd"
    ]
    (tmp_path / "parrot").write_text("#!/bin/sh\n")
    (tmp_path / "parrot").chmod(0o755)
    assert warnings(path, capsys) == []


def test_directories_that_can_not_be_made_are_complaints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    told = complaints(written(tmp_path, ledger="file/ledger", socket="astray/s.sock"), capsys)
    assert told == [
        f"3:1: daemon.socket: {tmp_path / 'astray'} is no directory"
        " — move it away, or write a path through directories",
        f"6:1: ledger.directory: {tmp_path / 'file'} is no directory"
        " — move it away, or write a path through directories",
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_directories_without_rights_are_complaints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(0o500)
    told = complaints(written(tmp_path, ledger="closed/ledger", socket="closed/s.sock"), capsys)
    assert told == [
        f"3:1: daemon.socket: this user may not write in {closed} — chmod u+rwx {closed}, or write another path",
        f"6:1: ledger.directory: this user may not write in {closed} — chmod u+rwx {closed}, or write another path",
    ]
    of_root = complaints(written(tmp_path, ledger="/ledger", socket="/run/s.sock"), capsys)
    assert of_root == [
        f"3:1: daemon.socket: this user may not write in /run — let uid {os.geteuid()} own it (now uid 0 does),"
        " or write another path",
        "6:1: ledger.directory: this user may not write in /"
        f" — as root: install -d -o {os.geteuid()} /ledger, or write another path",
    ]
    closed.chmod(0)  # a folder that can't even be looked into
    assert complaints(written(tmp_path, ledger="closed/a/ledger"), capsys)
    closed.chmod(0o700)


def test_what_stands_in_the_socket_s_place_must_be_a_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "s.sock"
    place.write_text("")
    path = written(tmp_path, socket="s.sock")
    assert complaints(path, capsys) == [
        f"3:1: daemon.socket: {place} is there and is no socket — move away what is there, or write another path"
    ]
    place.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place))
    assert warnings(path, capsys) == []


def test_a_socket_path_that_the_kernel_can_not_take_is_a_complaint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [complaint] = complaints(written(tmp_path, socket="s" * 108), capsys)
    assert "the kernel takes 107 for a socket — make it" in complaint


def test_what_is_allowed_but_odd_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spare = '[[connector]]\nname = "spare"\nkind = "scripted"\ntime_limit_seconds = 5\n'
    assert warnings(written(tmp_path, spare, drain=60, models="[]"), capsys) == [
        "4:1: daemon.drain_seconds_max: warning: 60 s is below the 240 s that connector rehearsal may take:"
        " a stop can cut its requests off, at their whole reservation — write 240 or more",
        '9:1: caller "dungeon".models: warning: is empty, so this caller can run nothing — name models of this file',
        '16:1: model "npc": warning: no caller may use it — name it in a caller\'s models',
        '26:1: connector "spare": warning: no model uses it — name it in a model, or take it out',
    ]


def test_json_says_the_same_for_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, models='["ncp"]')
    assert check(path, as_json=True) == os.EX_CONFIG
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "complaints": [
            {
                "path": 'caller "dungeon".models[0]',
                "line": 9,
                "column": 11,
                "what": "no model is named ncp",
                "hint": "did you mean npc?",
            }
        ],
        "warnings": [],
    }
    assert check(written(tmp_path), as_json=True) == os.EX_OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, "complaints": [], "warnings": []}


def test_the_command_line_reaches_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path)
    assert main(["check", "--config", str(path)]) == os.EX_OK
    assert main(["check", "--json", "--config", str(tmp_path / "none.toml")]) == os.EX_CONFIG
    with pytest.raises(SystemExit) as raised:
        main(["check"])
    assert raised.value.code == os.EX_USAGE
    assert "--config" in capsys.readouterr().err


def test_the_repository_s_example_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "config.example.toml"
    copied.write_text((Path(__file__).resolve().parents[2] / copied.name).read_text())
    assert warnings(copied, capsys) == []


def test_what_is_sound_and_hardly_meant_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sidecar.toml"
    stack = '[[connector]]\nname = "stack"\nkind = "llama_stack"\nbase_url = "http://127.0.0.1:8321"\n'
    cloud = '[[connector]]\nname = "cloud"\nkind = "gemini"\nbase_url = "https://h.test"\n'
    example = Path(__file__).resolve().parents[2] / "config.example.toml"
    path.write_text(example.read_text() + stack + cloud)
    assert check(path, as_json=True) == os.EX_OK
    told = {one["path"]: one["what"] for one in json.loads(capsys.readouterr().out)["warnings"]}
    assert 'is "required"' in told['connector "stack".usage']
    assert "is missing" in told['connector "cloud".credential']


def test_a_file_without_an_end_is_told_and_not_read_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Path("/dev/zero"), as_json=False) == os.EX_CONFIG
    assert "/dev/zero: the file: is larger than 4194304 bytes" in capsys.readouterr().err
