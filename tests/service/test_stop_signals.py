"""A signal to stop is heard whenever it comes, from the ledger's opening to the exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.daemon_process import READY as READY_LINE
from kit.daemon_process import wait_until, write_config
from kit.service_manager import Manager

# The daemon in a process that sends itself a signal just before each call of what stands at one place.
SENDS_ITSELF = """
import importlib, os, signal, sys
from pathlib import Path
from sidecar.cli.serve import serve

first, config, number, module, owner, name = sys.argv[1:]
place = importlib.import_module(module)
place = getattr(place, owner) if owner else place
real = getattr(place, name)

def signalled(*arguments, **named):
    os.kill(os.getpid(), int(number))
    return real(*arguments, **named)

setattr(place, name, signalled)
exec(first)
sys.exit(serve(Path(config), None))
"""
STOPPED = "from sidecar.service.signals import hold_signals; hold_signals(); os.kill(os.getpid(), signal.SIGTERM)"
OPEN = ("sidecar.ledger.ledger", "Ledger", "open")
SEGMENT = ("sidecar.ledger.ledger", "Ledger", "_begin_segment")
BIND = ("sidecar.service.listening", "", "Bound")
LOOP = ("trio", "", "run")
RECEIVER = ("trio", "", "open_signal_receiver")
READY = ("trio", "", "serve_listeners")
GOODBYE = ("sidecar.ledger.ledger", "Ledger", "_let_go")
REMOVAL = ("sidecar.service.listener", "Bound", "remove")


def ended(folder: Path, number: int, place: tuple[str, str, str], first: str = "", **environ: str) -> tuple[int, str]:
    command = [sys.executable, "-c", SENDS_ITSELF, first, str(folder / "sidecar.toml"), str(int(number)), *place]
    told = {**os.environ, **environ}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=told) as process:
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
@pytest.mark.parametrize("place", [OPEN, SEGMENT, BIND, LOOP, RECEIVER, READY], ids=lambda place: place[2])
def test_a_signal_at_any_moment_of_the_start_stops_the_daemon_cleanly(
    tmp_path: Path, number: int, place: tuple[str, str, str]
) -> None:
    write_config(tmp_path)
    code, said = ended(tmp_path, number, place)
    assert code == 0, said
    assert "draining" in said
    assert "Traceback" not in said


def test_the_thread_that_asks_for_more_time_takes_no_signal_away(tmp_path: Path) -> None:
    write_config(tmp_path)
    with Manager.in_folder(tmp_path) as manager:
        code, said = ended(tmp_path, signal.SIGTERM, SEGMENT, NOTIFY_SOCKET=manager.address)
        manager.hear_all()
    assert code == 0, said
    assert "draining" in said
    assert [told for told in manager.said if "READY" in told or "STOPPING" in told] == [
        {"READY": "1"},
        {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "15000000"},
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
@pytest.mark.parametrize("place", [GOODBYE, REMOVAL], ids=lambda place: place[2])
def test_a_signal_at_the_very_end_changes_nothing(tmp_path: Path, number: int, place: tuple[str, str, str]) -> None:
    """The daemon is stopped by one signal at its start, and meets another one on its way out."""
    write_config(tmp_path)
    code, said = ended(tmp_path, number, place, first=STOPPED)
    assert code == 0, said
    assert "Traceback" not in said


def test_a_start_that_fails_keeps_its_exit_code_whatever_signal_comes(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "s.sock").write_text("no socket")
    code, said = ended(tmp_path, signal.SIGINT, BIND)
    assert code == 73, said
    assert "Traceback" not in said


IN_A_TERMINAL = """
import os, pty, signal, sys
pid, terminal = pty.fork()
if not pid:
    signal.signal(signal.SIGHUP, getattr(signal, sys.argv[2]))
    os.dup2(os.open(sys.argv[3], os.O_WRONLY), 2)
    os.execv(sys.executable, [sys.executable, "-m", "sidecar", "serve", "--config", sys.argv[1]])
print(pid, flush=True)
sys.stdin.readline()
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("before", ["SIG_DFL", "SIG_IGN"])
def test_a_terminal_that_is_closed_stops_its_daemon_unless_it_was_to_outlive_it(tmp_path: Path, before: str) -> None:
    config, log = write_config(tmp_path), tmp_path / "log"
    log.touch()
    command = [sys.executable, "-c", IN_A_TERMINAL, str(config), before, str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as terminal:
        assert terminal.stdout is not None
        assert terminal.stdin is not None
        pid = int(terminal.stdout.readline())
        try:
            wait_until(lambda: READY_LINE.search(log.read_text()) is not None)
            os.kill(pid, signal.SIGHUP)
            wait_until(lambda: log.read_text().count("reloaded by=") == 1)
            terminal.stdin.write("\n")
            terminal.stdin.flush()
            if before == "SIG_IGN":
                wait_until(lambda: log.read_text().count("reloaded by=") == 2)
                os.kill(pid, signal.SIGTERM)
            assert terminal.stdout.readline() == "0\n"
        finally:
            terminal.kill()
    assert log.read_text().count(" draining ") == 1
