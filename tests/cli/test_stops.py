"""A command that is stopped, or whose stdout is lost: a line at most, the right exit code, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kit.daemon_process import running_daemon, wait_until, write_config
from kit.ledger_view import view_of_live

from sidecar.cli.stops import Stopped, Stops

ROOT = Path(__file__).resolve().parents[2]
STOP_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def spawned(*words: str, folder: Path | None = None, **more: Any) -> subprocess.Popen[bytes]:
    ends: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    environ = {**os.environ, **({"TMPDIR": str(folder)} if folder else {})}
    return subprocess.Popen([sys.executable, "-m", "sidecar", *words], env=environ, **ends)


def daemons_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed if b"\0serve\0" in command_line(child)]


def command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


@pytest.fixture
def stdout_without_reader() -> Iterator[int]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    yield write_end
    os.close(write_end)


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


# --- stopped ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stopped_demo_ends_its_daemon_and_removes_its_folder(tmp_path: Path, number: signal.Signals) -> None:
    demo = spawned("demo", folder=tmp_path)
    wait_until(lambda: daemons_of(demo.pid) != [])
    [daemon] = daemons_of(demo.pid)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=60)
    assert (demo.returncode, err) == (128 + number, b"")
    assert not Path(f"/proc/{daemon}").exists()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_modules_are_read_is_quiet() -> None:
    source = """
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "msgspec":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from sidecar.__main__ import run
sys.exit(run())
"""
    done = subprocess.run([sys.executable, "-c", source, "check"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_console_script_begins_where_the_module_does() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"sidecar": "sidecar.__main__:run"}


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stopped_call_says_under_which_id_it_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    with running_daemon(tmp_path, script="[[rule]]\nhang = true\n") as daemon:
        words = ("--socket", str(daemon.socket_path), "--caller", "dungeon", "--model", "npc", "--request-id", "r-1")
        process = spawned("call", *words, "hang")
        wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    by = "stopped by hand" if number == signal.SIGINT else f"stopped by {number.name}"
    assert (process.returncode, out) == (128 + number, b"")
    assert err.startswith(f"sidecar call: interrupted: {by}; what was sent goes on, and is paid for; ".encode())
    assert b"--request-id r-1 --expires-at-unix-ms " in err


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stops() as stops, stops.raising():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_waits_for_a_stretch_that_can_take_it_or_for_the_end() -> None:
    reached = []

    def disturbed() -> None:
        with Stops() as stops:
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("not disturbed")
            with pytest.raises(Stopped), stops.raising():
                reached.append("never")
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("not disturbed either")

    with pytest.raises(Stopped) as stopped:
        disturbed()
    assert reached == ["not disturbed", "not disturbed either"]
    assert stopped.value.exit_code == 130


# --- a stdout that takes nothing --------------------------------------------------------------------------------


def without_stdout(words: Sequence[str], stdout: int, folder: Path) -> tuple[int, bytes]:
    process = spawned(*words, folder=folder, stdout=stdout)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize("command", ["demo", "check", "check --json", "--help"])
def test_a_full_stdout_is_one_line_and_74(tmp_path: Path, full: int, command: str) -> None:
    code, err = without_stdout(words_of(command, tmp_path), full, tmp_path)
    assert (code, err) == (os.EX_IOERR, b"sidecar: stdout can't be written: No space left on device\n")


@pytest.mark.parametrize("command", ["demo", "check", "check --json", "--help"])
def test_a_reader_that_has_left_is_74_without_a_word(tmp_path: Path, stdout_without_reader: int, command: str) -> None:
    assert without_stdout(words_of(command, tmp_path), stdout_without_reader, tmp_path) == (os.EX_IOERR, b"")
    assert not list(tmp_path.glob("sidecar-*"))


def test_a_closed_stdout_is_one_line_and_74(tmp_path: Path) -> None:
    process = spawned(*words_of("check", tmp_path), stdout=None, preexec_fn=lambda: os.close(1))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (os.EX_IOERR, b"sidecar: stdout can't be written: it is closed\n")


@pytest.mark.parametrize("command", ["check", "serve"])
def test_complaints_that_nobody_can_read_do_not_change_the_exit_code(tmp_path: Path, full: int, command: str) -> None:
    process = spawned(command, "--config", str(tmp_path / "none.toml"), stderr=full)
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == os.EX_CONFIG


def words_of(command: str, folder: Path) -> list[str]:
    if not command.startswith("check"):
        return [command]
    config = write_config(folder, price_input=4_000_000)
    config.write_text(config.read_text().replace("drain_seconds_max = 20\n", ""))  # nothing to warn of
    return [*command.split(), "--config", str(config)]
