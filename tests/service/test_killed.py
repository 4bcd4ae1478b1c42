"""kill -9 from outside at each point of the road, and what the next daemon then says.

A system call is chosen by its number within the commit thread: a request alone
makes two writes and two syncs there, and four requests before the one that is
killed put the number beyond what any other thread reaches. A connector that
kills on being asked is a provider on a loopback port that ends the daemon.
"""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kit.daemon_process import invocation, running_daemon, wait_until
from kit.ledger_view import LedgerView, view_of_live
from kit.road import said

STREAM = (
    'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"the answer"},"finish_reason":null}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    "data: [DONE]\n\n"
)
WARM_UPS = 4
NTH_BEGIN = 2 * WARM_UPS + 1
NTH_COMPLETE = NTH_BEGIN + 1


class Provider:
    """Counts what it is asked; `on_ask` runs before it answers."""

    def __init__(self) -> None:
        self.asked = 0
        self.on_ask: Callable[[], None] = lambda: None
        provider = self

        class Answering(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                provider.asked += 1
                provider.on_ask()
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                self.wfile.write(STREAM.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self.connector = f'kind = "openai_chat"\nbase_url = "http://127.0.0.1:{self.server.server_port}/v1"'


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def wrapped(call: str, nth: int) -> list[str]:
    """A wrapper that kills at the nth such call of a thread."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    inject = f"inject={call}:signal=KILL:when={nth}"
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject]


@contextmanager
def killed_at(folder: Path, provider: Provider, call: str, nth: int) -> Iterator[bytes]:
    """Warm-ups, then one request whose daemon is killed at this call; gives the request's frame."""
    frame = invocation("killed")
    with running_daemon(folder, wrapper=wrapped(call, nth), connector=provider.connector) as daemon:
        with daemon.connect() as client:
            for number in range(WARM_UPS):
                assert said(client.ask(invocation(f"warm-{number}"))) == "end_turn"
            client.send(frame)
            assert client.receive() is None, "nothing was answered"
        daemon.process.wait(timeout=20)
    yield frame


def held(folder: Path) -> list[str]:
    return [begin.request_id for begin in LedgerView(folder / "ledger").open.values()]


def test_killed_before_begin_is_written_it_runs_on_the_retry(tmp_path: Path, provider: Provider) -> None:
    with killed_at(tmp_path, provider, "pwritev2", NTH_BEGIN) as frame:
        assert held(tmp_path) == []
        assert provider.asked == WARM_UPS
        with running_daemon(tmp_path) as daemon, daemon.connect() as client:
            assert said(client.ask(frame)) == "end_turn"
    assert provider.asked == WARM_UPS + 1


def test_killed_before_begin_is_synced_nothing_was_sent_and_nothing_is_sent_unknown(
    tmp_path: Path, provider: Provider
) -> None:
    """Written and not synced: the record may have survived, and then the id is indeterminate; never asked twice."""
    with killed_at(tmp_path, provider, "fdatasync", NTH_BEGIN) as frame:
        assert provider.asked == WARM_UPS
        survived = held(tmp_path) == ["killed"]
        with running_daemon(tmp_path) as daemon, daemon.connect() as client:
            assert said(client.ask(frame)) == ("Indeterminate" if survived else "end_turn")
    assert provider.asked == WARM_UPS + (not survived)


def test_c10_and_c11_killed_while_the_connector_is_asked_it_is_indeterminate_and_holds_its_reservation(
    tmp_path: Path, provider: Provider
) -> None:
    frame = invocation("killed")
    with running_daemon(tmp_path, connector=provider.connector) as daemon:
        provider.on_ask = lambda: os.kill(daemon.pid, signal.SIGKILL)
        with daemon.connect() as client:
            client.send(frame)
            assert client.receive() is None
        daemon.process.wait(timeout=20)
    provider.on_ask = lambda: None
    reservation = LedgerView(tmp_path / "ledger").begins[0].reservation_micro_usd
    with running_daemon(tmp_path, connector=provider.connector, ceiling=2 * reservation - 1) as daemon:
        assert f"indeterminate caller=dungeon request=killed held_micro_usd={reservation}" in daemon.log()
        with daemon.connect() as client:
            assert said(client.ask(frame)) == "Indeterminate"
            assert said(client.ask(invocation("others"))) == "SpendCeiling"
    assert provider.asked == 1


@pytest.mark.parametrize("call", ["pwritev2", "fdatasync"])
def test_killed_after_the_connector_answered_it_is_indeterminate_or_replayed_and_never_asked_again(
    tmp_path: Path, provider: Provider, call: str
) -> None:
    with killed_at(tmp_path, provider, call, NTH_COMPLETE) as frame:
        assert provider.asked == WARM_UPS + 1
        lost = held(tmp_path) == ["killed"]
        assert lost or call == "fdatasync"
        with running_daemon(tmp_path) as daemon, daemon.connect() as client:
            answer = client.ask(frame)
            assert said(answer) == ("Indeterminate" if lost else "end_turn")
            assert client.ask(frame) == answer
    assert provider.asked == WARM_UPS + 1


def test_killed_after_complete_is_durable_the_answer_is_replayed_byte_for_byte(
    tmp_path: Path, provider: Provider
) -> None:
    frames = [invocation(f"r{number}") for number in range(5)]
    with running_daemon(tmp_path, connector=provider.connector) as daemon, daemon.connect() as client:
        answers = [client.ask(frame) for frame in frames[:4]]
        client.send(frames[4])
        wait_until(lambda: len(view_of_live(tmp_path / "ledger").completes) == 5)
        daemon.kill()
    recorded = [record.response[1:] for _, record in LedgerView(tmp_path / "ledger").completes]
    assert recorded[:4] == answers
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert [client.ask(frame) for frame in frames] == recorded
    assert provider.asked == 5


def test_c8_two_at_once_under_one_id_are_one_ask(tmp_path: Path, provider: Provider) -> None:
    release = threading.Event()
    provider.on_ask = lambda: release.wait(20) and None
    frame = invocation("twice")
    running = running_daemon(tmp_path, connector=provider.connector)
    with running as daemon, daemon.connect() as one, daemon.connect() as other:
        one.send(frame)
        wait_until(lambda: provider.asked == 1)
        assert said(other.ask(frame)) == "InFlight"
        release.set()
        answer = one.receive()
        assert other.ask(frame) == answer
    assert provider.asked == 1
