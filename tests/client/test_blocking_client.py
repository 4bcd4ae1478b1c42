"""What only the blocking client has: threads that share it, Ctrl-C, a fork, an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit import daemon_says
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import QUICK

import sidecar
from sidecar.client import Client, Disconnected, blocking_link, new_request


def asked(request_id: str = "r1") -> Any:
    return new_request("npc", "hello", request_id=request_id)


def answering(peer: Peer) -> None:
    peer.welcome()
    while (said := peer.frame()) is not None:
        if "request" in said:
            request_id = said["request"]["request_id"]
            peer.say(daemon_says.result(request_id, f"of {request_id}"))


def a_client(path: Path, **changes: Any) -> Client:
    return Client(path, caller="dungeon", **QUICK, **changes)


def test_threads_share_one_connection_and_each_gets_its_own_answer(path: Path) -> None:
    names = [f"r{number}" for number in range(200)]
    with fake_daemon(path, answering) as fake, a_client(path) as client, ThreadPoolExecutor(16) as threads:
        texts = list(threads.map(lambda name: client.invoke(asked(name)).text, names))
        assert texts == [f"of {name}" for name in names]
        assert len(fake.peers) == 1


def test_ctrl_c_stops_the_waiting_and_wedges_nothing(path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "r1"
        os.kill(os.getpid(), signal.SIGINT)
        peer.expect("status")
        peer.say(daemon_says.result("r1", "late"), daemon_says.status_report())
        peer.request_id()
        peer.say(daemon_says.result("r1", "late"))
        peer.until_hung_up()

    with fake_daemon(path, part), a_client(path) as client:
        invocation = client.prepare(asked())
        with pytest.raises(KeyboardInterrupt):
            client.invoke(invocation)
        client.status()
        assert client.invoke(invocation).text == "late"


def reporting(peer: Peer) -> None:
    peer.welcome()
    while peer.frame() is not None:
        peer.say(daemon_says.status_report())


def until(condition: Callable[[], bool]) -> None:
    """Spins until it holds; a test that never gets there is ended by its time limit."""
    while not condition():
        threading.Event().wait(0.001)


def test_what_goes_wrong_in_the_thread_is_told_to_whoever_asked_it_and_to_nobody_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    with fake_daemon(path, reporting), a_client(path) as client:
        client.status()
        monkeypatch.setattr(client._session, "cancel", broken)
        with pytest.raises(Disconnected, match="the client itself has failed: UnicodeEncodeError") as told:
            client.cancel("r1")
        assert told.value.fault == "crashed"
        client.status()


def test_ctrl_c_while_a_request_is_handed_over_leaves_nobody_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_client(path) as client:
        wake, presses = client._link._wake, [KeyboardInterrupt()]

        def pressed() -> None:
            wake()
            if presses:
                until(lambda: client._session.wants_connection)
                raise presses.pop()

        def pressed_at_once() -> bool:
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(client._link, "_wake", pressed)
        with pytest.raises(KeyboardInterrupt):
            client.invoke(asked())
        until(lambda: not client._session.wants_connection)
    with a_client(path) as client:  # and before anything was asked there is nothing to leave
        monkeypatch.setattr(client._link, "_is_started", pressed_at_once)
        with pytest.raises(KeyboardInterrupt):
            client.invoke(asked())


def test_whoever_could_not_leave_is_let_go_of_and_is_not_sent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking_link, "OVERDUE_SECONDS", 0.0)
    with a_client(path, connect_seconds_max=0.05) as client:
        monkeypatch.setattr(client._link, "leave", lambda _: None)
        with pytest.raises(Disconnected):
            client.invoke(asked())
        until(lambda: not client._session.wants_connection)


def test_closing_tells_threads_that_wait_and_those_that_come_later(path: Path) -> None:
    told: list[BaseException] = []
    is_out = threading.Event()

    def silent(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        is_out.set()
        peer.until_hung_up()

    def wait() -> None:
        try:
            client.invoke(asked())
        except Disconnected as error:
            told.append(error)

    with fake_daemon(path, silent):
        client = a_client(path)
        waiting = threading.Thread(target=wait)
        waiting.start()
        is_out.wait(20)
        client.close()
        client.close()
        waiting.join()
        assert [getattr(error, "fault", None) for error in told] == ["closed"]
        with pytest.raises(Disconnected, match="closed"):
            client.status()


def test_a_client_that_was_never_used_has_no_thread(path: Path) -> None:
    before = threading.active_count()
    client = a_client(path)
    assert threading.active_count() == before
    client.close()


FORKED = """
import os, sys
from sidecar.client import blocking_link
from sidecar.client import Client, Disconnected
client = Client(sys.argv[1], caller="dungeon")
client.status()
if (child := os.fork()) == 0:
    try:
        client.status()
    except Disconnected as error:
        with Client(sys.argv[1], caller="dungeon") as own:
            own.status()
        client.close()
        os._exit(0 if error.fault == "forked" else 3)
    os._exit(2)
_, status = os.waitpid(child, 0)
client.status()
client.close()
raise SystemExit(os.waitstatus_to_exitcode(status))
"""


def test_after_a_fork_the_child_makes_its_own_and_the_parents_goes_on(path: Path) -> None:
    def reporting(peer: Peer) -> None:
        peer.welcome()
        while peer.frame() is not None:
            peer.say(daemon_says.status_report())

    environ = {**os.environ, "PYTHONPATH": str(Path(sidecar.__file__).parent.parent)}
    with fake_daemon(path, reporting, reporting):
        forked = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORKED, str(path)], timeout=60, env=environ, check=False
        )
    assert forked.returncode == 0


def test_a_program_ends_although_its_client_is_open(path: Path) -> None:
    program = "import sys; from sidecar.client import Client; Client(sys.argv[1], caller='dungeon').status()"
    environ = {**os.environ, "PYTHONPATH": str(Path(sidecar.__file__).parent.parent)}

    def reporting(peer: Peer) -> None:
        peer.welcome()
        while peer.frame() is not None:
            peer.say(daemon_says.status_report())

    with fake_daemon(path, reporting):
        ended = subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, env=environ, check=False)
    assert ended.returncode == 0
