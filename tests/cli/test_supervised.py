"""Real daemons under a service manager: what it hears from the start to the end, and sockets that it hands over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.daemon_process import Client, Process, invocation, running_daemon, spawn, wait_until, write_config
from kit.ledger_view import view_of_live
from kit.road import said
from kit.service_manager import Manager, activated, handed_over, listening_at

from sidecar.client import blocking_client, new_request

SLOW = '[[rule]]\ntext = "wait"\ndelay_ms = 400\ndeltas = ["done"]\n[[rule]]\ndeltas = ["at once"]\n'


@contextmanager
def managed(folder: Path, *, environ: dict[str, str] | None = None, **config: Any) -> Iterator[tuple[Process, Manager]]:
    with Manager.in_folder(folder) as manager:
        told = {"NOTIFY_SOCKET": manager.address, **(environ or {})}
        with running_daemon(folder, environ=told, **config) as daemon:
            yield daemon, manager


def first_of_each(manager: Manager) -> list[str]:
    """The keys in the order in which they were first said."""
    return list(dict.fromkeys(key for told in manager.said for key in told))


# --- notices ----------------------------------------------------------------------------------------------------


def test_a_manager_hears_of_the_opening_then_that_all_is_ready_then_of_the_stop(tmp_path: Path) -> None:
    with managed(tmp_path) as (daemon, manager):
        manager.wait_for("READY", "1")
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"
        manager.wait_for("STATUS", "0 in flight, 1 caller, ledger ")
        assert daemon.stop() == 0
        manager.hear_all()
    assert manager.said[0] == {"STATUS": "opening the ledger", "EXTEND_TIMEOUT_USEC": "15000000"}
    assert [key for key in first_of_each(manager) if key != "EXTEND_TIMEOUT_USEC"] == ["STATUS", "READY", "STOPPING"]
    assert manager.values("READY") == manager.values("STOPPING") == ["1"]
    assert manager.values("WATCHDOG") == []


def test_an_abstract_address_is_one_too(tmp_path: Path) -> None:
    address = f"@sidecar-test-{os.getpid()}"
    with Manager(address) as manager, running_daemon(tmp_path, environ={"NOTIFY_SOCKET": address}):
        manager.wait_for("READY", "1")


def test_a_daemon_that_does_not_start_is_never_ready(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "s.sock").write_text("no socket")
    with Manager.in_folder(tmp_path) as manager:
        assert spawn(tmp_path, environ={"NOTIFY_SOCKET": manager.address}).process.wait(timeout=30) == 73
        manager.hear_all()
        assert manager.said
        assert manager.values("READY") == []


def test_the_status_line_tells_what_runs_and_what_was_spent(tmp_path: Path) -> None:
    hang = '[[rule]]\ntext = "wait"\nhang = true\n[[rule]]\nusage = {output = 1000}\n'
    running = managed(tmp_path, script=hang, ceiling=5_000_000, price_input=1_000_000_000)
    with running as (daemon, manager), daemon.connect() as client:
        client.send(invocation("r1", "wait"))
        told = manager.wait_for("STATUS", "1 in flight")["STATUS"]
        assert "1 caller, ledger 2, spent 0.00 of 5.00 USD today" in told
        client.ask(invocation("r2"))
        told = manager.wait_for("STATUS", "1 in flight, 1 caller, ledger 4")["STATUS"]
        assert "spent 0.00" not in told
        os.kill(daemon.pid, signal.SIGTERM)
        manager.wait_for("STATUS", "draining; 1 in flight")
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.process.wait(timeout=30) == 0


def test_no_child_hears_whom_it_could_tell_in_our_name(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path / 'environ')!r}, 'w').write(' '.join(os.environ))\n"
        f"open({str(tmp_path / 'files')!r}, 'w').write(' '.join(os.listdir('/proc/self/fd')))\n"
        "sys.stdin.read()\n"
    )
    connector = f'kind = "process"\nargv = ["{sys.executable}", "{child}"]'
    write_config(tmp_path, connector=connector)
    with Manager.in_folder(tmp_path) as manager, listening_at(tmp_path / "s.sock") as held:
        environ = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "60000000"}
        with handed_over(tmp_path, held, held, names="requests:more", **environ):
            wait_until(lambda: (tmp_path / "files").exists() and bool((tmp_path / "files").read_text()))
            names = (tmp_path / "environ").read_text().split()
            assert not [name for name in names if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]
            assert set((tmp_path / "files").read_text().split()) <= {"0", "1", "2", "3", "4"}


@pytest.mark.parametrize(
    ("written", "how"), [("", "reloaded, changes: 0"), ("nonsense", "reload refused, complaints: 1")]
)
def test_a_reload_is_begun_and_ended_for_the_manager_also_where_it_is_refused(
    tmp_path: Path, written: str, how: str
) -> None:
    with managed(tmp_path) as (daemon, manager):
        manager.wait_for("READY", "1")
        config = tmp_path / "sidecar.toml"
        config.write_text(config.read_text() + written)
        os.kill(daemon.pid, signal.SIGHUP)
        told = manager.wait_for("RELOADING", "1")
        assert int(told["MONOTONIC_USEC"]) > 0
        assert manager.wait_for("READY", "1")["STATUS"].startswith(how)
        assert how in manager.wait_for("STATUS", "0 in flight")["STATUS"]
        assert daemon.stop() == 0


# --- the watchdog -----------------------------------------------------------------------------------------------

# The daemon in a process whose syncs in the commit thread wait as long as a file is there.
HANGS_ON_DEMAND = """
import pathlib, sys, threading, time
from sidecar.cli.serve import serve
from sidecar.ledger.files import DiskFiles

config, hang = map(pathlib.Path, sys.argv[1:])
real = DiskFiles.sync

def sync(self, descriptor):
    while threading.current_thread().name == "ledger-commit" and hang.exists():
        time.sleep(0.005)
    real(self, descriptor)

DiskFiles.sync = sync
sys.exit(serve(config, None))
"""


@contextmanager
def hanging_on_demand(folder: Path, manager: Manager) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    hang = folder / "hang"
    command = [sys.executable, "-c", HANGS_ON_DEMAND, str(write_config(folder)), str(hang)]
    environ = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environ) as process:
        try:
            manager.wait_for("READY", "1")
            yield process, hang
        finally:
            process.kill()


def test_a_watchdog_hears_of_an_idle_daemon_again_and_again(tmp_path: Path) -> None:
    with managed(tmp_path, environ={"WATCHDOG_USEC": "200000"}) as (daemon, manager):
        for _ in range(5):
            manager.wait_for("WATCHDOG", "1")
        assert daemon.stop() == 0


def test_a_watchdog_of_another_process_hears_nothing(tmp_path: Path) -> None:
    with managed(tmp_path, environ={"WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}) as (daemon, manager):
        manager.wait_for("STATUS", "0 in flight")
        assert manager.hear(1.0) is None
        assert daemon.stop() == 0


def test_a_sync_that_hangs_ends_the_pings_while_the_daemon_still_talks_and_they_come_again_behind_it(
    tmp_path: Path,
) -> None:
    with Manager.in_folder(tmp_path) as manager, hanging_on_demand(tmp_path, manager) as (_, hang):
        manager.wait_for("WATCHDOG", "1")
        hang.touch()
        while manager.hear(2.0) is not None:  # until a silence that is longer than the watchdog would wait
            pass
        with Client(tmp_path / "s.sock") as client:
            assert said(client.ask(invocation("r1", model="unknown"))) == "ModelNotAllowed"
        assert manager.hear(0.5) is None
        hang.unlink()
        manager.wait_for("WATCHDOG", "1")


def test_a_poisoned_ledger_is_a_stop_and_no_ping_follows(tmp_path: Path) -> None:
    program = HANGS_ON_DEMAND.replace("        time.sleep(0.005)", "        raise OSError(5, 'Input/output error')")
    hang = tmp_path / "hang"
    with Manager.in_folder(tmp_path) as manager:
        environ = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
        command = [sys.executable, "-c", program, str(write_config(tmp_path)), str(hang)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environ) as process:
            try:
                manager.wait_for("WATCHDOG", "1")
                hang.touch()
                manager.wait_for("STOPPING", "1")
                before = len(manager.said)
                assert process.wait(timeout=30) == 74, "the question itself has found it"
            finally:
                process.kill()
        manager.hear_all()
    assert not [told for told in manager.said[before:] if "WATCHDOG" in told]


# --- sockets that are handed over -------------------------------------------------------------------------------


def kept(path: Path) -> tuple[int, ...]:
    """Of a file, all that nobody may change."""
    status = os.lstat(path)
    return status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_ctime_ns


def test_a_socket_that_is_handed_over_is_served_and_left_as_it_is(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s.sock") as held:
        os.chmod(tmp_path / "s.sock", 0o600)
        before = kept(tmp_path / "s.sock")
        for number in range(2):
            with activated(tmp_path, held) as daemon:
                assert f"ready socket={tmp_path}/s.sock activated=True" in daemon.log()
                with daemon.connect() as client:
                    assert said(client.ask(invocation(f"r{number}"))) == "end_turn"
                assert daemon.stop() == 0
            assert kept(tmp_path / "s.sock") == before
        lines = [line for line in daemon.log().splitlines() if " warning " in line]
        assert all(" config_warning " in line for line in lines), lines


def test_our_own_socket_is_told_apart_in_the_ready_line(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        assert "s.sock activated=False" in daemon.log()


def test_one_that_is_named_after_its_unit_is_served_with_a_line(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s.sock") as held, activated(tmp_path, held, names="sidecar.socket") as daemon:
        assert "socket_name name=sidecar.socket" in daemon.log()
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"


def test_what_was_meant_for_another_process_is_not_served(tmp_path: Path) -> None:
    with listening_at(tmp_path / "other") as held, activated(tmp_path, held, OFF_BY="1") as daemon:
        assert "sockets_not_ours count=1" in daemon.log()
        assert "activated=False" in daemon.log()


@pytest.mark.parametrize(
    ("names", "count", "why"),
    [("requests:requests", 2, "2 descriptors are named requests"), ("a:b", 2, "none is named requests")],
)
def test_sockets_of_which_none_can_be_chosen_refuse_the_start(tmp_path: Path, names: str, count: int, why: str) -> None:
    with listening_at(tmp_path / "s.sock") as held, handed_over(tmp_path, *[held] * count, names=names) as daemon:
        assert daemon.process.wait(timeout=30) == 73
        assert why in daemon.log()
    assert (tmp_path / "s.sock").is_socket()


# --- a restart --------------------------------------------------------------------------------------------------


def test_a_client_that_connects_before_the_daemon_runs_is_served_by_it(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s.sock") as held, Client(tmp_path / "s.sock") as early:
        early.send(invocation("r1"))
        with activated(tmp_path, held):
            answer = early.receive()
            assert answer is not None
            assert said(answer) == "end_turn"


class Crowd:
    """Clients that connect, ask and hang up, again and again; `what_came` counts how each attempt ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.what_came: dict[str, int] = {}
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(6)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Each has its last answer; somebody must still give it."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            ended = self._one(invocation(f"c{number}-{turn}"))
            with self._lock:
                self.what_came[ended] = self.what_came.get(ended, 0) + 1

    def _one(self, frame: bytes) -> str:
        try:
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(60)
            with connected:
                connected.connect(str(self._path))
                try:
                    connected.sendall(len(frame).to_bytes(4, "big") + frame)
                except BrokenPipeError:
                    return "refused to be sent"
                stream = connected.makefile("rb")
                with stream:
                    length = stream.read(4)
                    return said(stream.read(int.from_bytes(length, "big"))) if length else "end of file"
        except OSError as error:
            return type(error).__name__


def test_whoever_connects_at_any_moment_of_a_restart_is_served_or_finds_the_end(tmp_path: Path) -> None:
    """Nobody is refused the connection, reset or left waiting. Half of the drains have something to wait for."""
    write_config(tmp_path, script=SLOW)
    path, ledger = tmp_path / "s.sock", tmp_path / "ledger"
    with listening_at(path, backlog=1024) as held, Crowd(path) as crowd:
        for number in range(6):
            with activated(tmp_path, held) as daemon, daemon.connect() as waits:
                wait_until(lambda log=daemon.log: log().count(" completed ") > 50)
                if number % 2:
                    frame = invocation(f"w{number}", "wait")
                    waits.send(frame)
                    wait_until(lambda id=f"w{number}": id in {b.request_id for b in view_of_live(ledger).begins})
                os.kill(daemon.pid, signal.SIGTERM)
                if number % 2:
                    answer = waits.receive()
                    assert answer is not None
                    assert said(answer) == "end_turn"
                assert waits.receive() is None
                assert daemon.process.wait(timeout=40) == 0
        with activated(tmp_path, held):
            crowd.end()
    assert set(crowd.what_came) <= {"end_turn", "shutting_down", "end of file", "refused to be sent"}, crowd.what_came
    assert crowd.what_came["end_turn"] > 300
    assert crowd.what_came["shutting_down"] > 0


def test_games_that_use_the_client_notice_nothing_of_restarts(tmp_path: Path) -> None:
    """Every request has its answer, over connections that are kept and over new ones, however often it is stopped."""
    path, over, answered = write_config(tmp_path).parent / "s.sock", threading.Event(), [0, 0, 0, 0]
    troubles: list[BaseException] = []

    def play(number: int) -> None:
        try:
            while not over.is_set():
                with blocking_client.Client(path, caller="dungeon") as client:
                    for _ in range(1 if number % 2 else 20):
                        client.invoke(new_request("npc", "hello"), max_cost_micro_usd=10**9)
                        answered[number] += 1
        except BaseException as trouble:
            troubles.append(trouble)

    games = [threading.Thread(target=play, args=(number,)) for number in range(len(answered))]
    with listening_at(path, backlog=1024) as held:
        for game in games:
            game.start()
        try:
            for _ in range(5):
                with activated(tmp_path, held) as daemon:
                    wait_until(lambda log=daemon.log: log().count(" completed ") > 30)
                    assert daemon.stop() == 0
            with activated(tmp_path, held):
                over.set()
                for game in games:
                    game.join(timeout=60)
        finally:
            over.set()
    assert troubles == []
    assert min(answered) > 10
