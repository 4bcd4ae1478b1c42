"""The command line itself: what its help says, which version it is, and hints where a text was typed wrong."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

from sidecar.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
CALL = ("call", "--socket", "s", "--model", "m")


def ended(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as raised:
        main(words)
    out, err = capsys.readouterr()
    return raised.value.code, out, err


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ended(capsys, "--version") == (0, f"sidecar {project['version']}\n", "")


@pytest.mark.parametrize("words", [("-dash",), ("hi", "-dash"), ("hi", "there")])
def test_a_text_that_was_typed_wrong_gets_a_hint_and_the_usage_of_call(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    code, out, err = ended(capsys, *CALL, *words)
    assert (code, out) == (os.EX_USAGE, "")
    assert err.startswith("usage: sidecar call ")
    assert err.splitlines()[-1].startswith("sidecar call: ")
    assert err.endswith("begins with a dash is written after --\n")
    assert ("a text of several words is quoted" in err) == (words[0] == "hi")


def test_what_another_command_does_not_know_is_said_with_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ended(capsys, "check", "--config", "c", "more")
    assert code == os.EX_USAGE
    assert err.startswith("usage: sidecar check ")
    assert err.endswith("sidecar check: unrecognized arguments: more\n")


@pytest.mark.parametrize("command", ["serve", "check", "call"])
def test_the_help_says_of_every_flag_what_it_is_by_default(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = ended(capsys, command, "--help")
    assert code == 0
    flags = re.split(r"\n  (?=-)", out.split("\noptions:\n")[1].split("\n\n")[0])
    told = [" ".join(flag.split()) for flag in flags if "-h, --help" not in flag]
    assert told
    assert [flag for flag in told if not re.search(r"default: \S|always wanted$", flag)] == []


def test_the_help_of_call_says_how_long_it_may_wait(capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(ended(capsys, "call", "--help")[1].split())
    assert "expiry_skew_seconds_max (300 unless configured)" in told
    assert "is waited for 10 s more; default: 60 " in told


@pytest.mark.parametrize(("tool", "takes"), [("verify", False), ("show", False), ("export", False), ("spend", True)])
def test_a_tool_that_takes_no_configuration_lists_no_code_of_one(
    capsys: pytest.CaptureFixture[str], tool: str, takes: bool
) -> None:
    _, out, _ = ended(capsys, "ledger", tool, "--help")
    assert ("   78  the configuration is wrong" in out) == takes
