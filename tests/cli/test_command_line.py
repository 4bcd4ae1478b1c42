"""The command line itself: what its help says, which version it is, and hints where a text was typed wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from kit.daemon_process import wait_until, write_config

from sidecar.cli.main import COMMANDS, main

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


# --- what a command loads ---------------------------------------------------------------------------------------

ENDING = """
import atexit, sys
from sidecar.cli.main import main
atexit.register(lambda: print(*sys.modules))
sys.exit(main())
"""
NOT_FOR_SERVE = ("asyncio", "anyio", "sidecar.conformance", "sidecar.client", "sidecar.testing", "sidecar.cli.demo")


def started(*words: str) -> subprocess.Popen[bytes]:
    """The command in a fresh interpreter, which says at its end what it has loaded."""
    command = [sys.executable, "-c", ENDING, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ, cwd=ROOT)


def test_a_daemon_has_loaded_nothing_of_the_other_commands_when_it_ends(tmp_path: Path) -> None:
    with started("serve", "--config", str(write_config(tmp_path))) as process:
        try:
            wait_until(lambda: (tmp_path / "s.sock").exists() or process.poll() is not None)
            process.terminate()
            loaded = process.communicate(timeout=30)[0].decode().split()
        finally:
            process.kill()
    assert process.returncode == 0
    assert "sidecar.service.daemon" in loaded
    assert [name for name in loaded if name.startswith(NOT_FOR_SERVE)] == []


@pytest.mark.parametrize("words", [("--help",), ("call", "--help"), ("status", "--help")])
def test_what_only_asks_loads_nothing_of_a_daemon_and_neither_client(words: tuple[str, ...]) -> None:
    with started(*words) as process:
        loaded = process.communicate(timeout=30)[0].decode().splitlines()[-1].split()
    assert process.returncode == 0
    assert "sidecar.cli.main" in loaded
    of_others = ("trio", "asyncio", "anyio", "sidecar.service", "sidecar.conformance", "sidecar.client.async_client")
    assert [name for name in loaded if name.startswith((*of_others, "sidecar.client.blocking_client"))] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_module_that_says_what_it_takes(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = ended(capsys, command, "--help")
    assert code == 0
    assert out.startswith(f"usage: sidecar {command} ")


def test_a_command_is_found_wherever_it_stands_and_a_text_may_be_the_name_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = ended(capsys, "--never", "check", "--config", "c")
    assert code == os.EX_USAGE
    assert err.endswith("sidecar check: unrecognized arguments: --never\n")
    assert main(["call", "--socket", "/nowhere", "--model", "m", "demo"]) == os.EX_UNAVAILABLE
