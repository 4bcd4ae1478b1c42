"""A connection that is lost, a daemon that is not there yet or goes away: the same bytes again, and nothing twice."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from kit import daemon_says
from kit.fake_daemon import FakeDaemon, Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import DaemonError, Disconnected, RequestFailed, SidecarError, new_request
from sidecar.contract.values import Failed, TransportInvocation


def asked(request_id: str = "r1", text: str = "hello") -> Any:
    return new_request("npc", text, request_id=request_id)


async def raised(kind: type[SidecarError], call: Any) -> Any:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


def answering(peer: Peer) -> None:
    peer.welcome()
    while (said := peer.frame()) is not None:
        if "request" in said:
            request_id = said["request"]["request_id"]
            peer.say(daemon_says.result(request_id, f"of {request_id}"))


# --- ways to lose it, once the request was read -------------------------------------------------------------------


def _closes(_: Peer) -> None:
    """Nothing more."""


def _truncates(peer: Peer) -> None:
    whole = daemon_says.result("r1", "never whole")
    peer.raw(len(whole).to_bytes(4, "big") + whole[:-5])


def _cuts_the_prefix(peer: Peer) -> None:
    peer.raw(b"\0\0")


def _says_it_was_too_slow(peer: Peer) -> None:
    peer.say(daemon_says.error("frame_timeout"))


@pytest.mark.parametrize(
    "lose", [_closes, _truncates, _cuts_the_prefix, _says_it_was_too_slow], ids=lambda lose: lose.__name__
)
def test_the_identical_bytes_are_sent_again_on_the_next_connection(way: Way, path: Path, lose: Any) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        lose(peer)

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, losing, losing, losing, answering) as fake:
        way.run(body)
        sent = fake.frames("invocation")
        assert len(sent) == 4
        assert len(set(sent)) == 1
        assert len(fake.frames("hello")) == 4


def test_a_reset_is_a_lost_connection_as_well(way: Way, path: Path) -> None:
    def resetting(peer: Peer) -> None:
        peer.welcome()
        peer.connection.recv(1, socket.MSG_PEEK)  # what stays unread at the close is a reset on the other side

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, resetting, resetting, answering):
        way.run(body)


def test_after_it_was_lost_for_good_the_error_has_what_sends_the_same_bytes(way: Way, path: Path) -> None:
    """Told by each call that has an invocation, a stream's loop among them."""

    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        fake.listening_no_more()

    async def streamed(client: Any, request: Any) -> None:
        async with client.stream(request, timeout_seconds=0.2) as stream:
            async for _ in stream:
                pass

    async def body(streams: bool) -> TransportInvocation:
        async with way.client(path, connect_seconds_max=0.1, grace_seconds=0.1) as client:
            call = streamed(client, asked()) if streams else client.invoke(asked(), timeout_seconds=0.2)
            error = await raised(Disconnected, call)
            assert error.retry == "same_bytes"
            assert "invoke(error.invocation)" in error.what_to_do
            assert (await raised(Disconnected, client.quote(asked("r2")))).invocation.request.request_id == "r2"
            assert (await raised(Disconnected, client.status())).invocation is None
            return pickle.loads(pickle.dumps(error)).invocation

    async def again(invocation: TransportInvocation) -> None:
        async with way.client(path) as client:
            assert (await client.invoke(invocation)).text == "of r1"

    for streams in (False, True):
        with fake_daemon(path, losing) as fake:
            invocation = way.run(partial(body, streams))
            sent = fake.frames("invocation")
        with fake_daemon(path, answering) as back:
            way.run(partial(again, invocation))
            assert back.frames("invocation") == sent


def test_quotes_and_status_are_asked_again_too(way: Way, path: Path) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.frame()

    def quoting(peer: Peer) -> None:
        peer.welcome()
        peer.expect("quote")
        peer.say(daemon_says.quoted("r1"))
        peer.expect("status")

    def reporting(peer: Peer) -> None:
        peer.welcome()
        peer.expect("status")
        peer.say(daemon_says.status_report(3))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.quote(asked("r1"))).worst_case_micro_usd == 5
            assert (await client.status()).daemon.live_requests == 3

    with fake_daemon(path, losing, losing, quoting, reporting) as fake:
        way.run(body)
        assert len(set(fake.frames("quote"))) == 1


def answers_r2(peer: Peer) -> None:
    """The daemon that comes next."""
    peer.welcome()
    assert peer.request_id() == "r2"
    peer.say(daemon_says.result("r2", "second"))
    peer.until_hung_up()


def test_only_what_is_not_answered_is_sent_again(way: Way, path: Path) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        ids = {peer.request_id(), peer.request_id()}
        peer.say(daemon_says.result("r1", "first"))
        assert ids == {"r1", "r2"}

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def one() -> None:
                assert (await client.invoke(asked("r1"))).text == "first"

            both.start_soon(one)
            assert (await client.invoke(asked("r2"))).text == "second"

    with fake_daemon(path, losing, answers_r2):
        way.run(body)


def test_a_daemon_that_hears_no_more_still_answers_what_it_has_heard(way: Way, path: Path) -> None:
    """As one does at its end: what is asked then can't be sent, and goes to the next; the answer under way arrives."""
    stopped, asked_in_vain = threading.Event(), threading.Event()

    def stopping(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "r1"
        peer.connection.shutdown(socket.SHUT_RD)
        stopped.set()
        assert asked_in_vain.wait(30)
        peer.say(daemon_says.result("r1", "first"))

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def one() -> None:
                assert (await client.invoke(asked("r1"))).text == "first"

            async def two() -> None:
                assert (await client.invoke(asked("r2"))).text == "second"

            both.start_soon(one)
            assert await to_thread.run_sync(stopped.wait, 30)
            both.start_soon(two)
            await anyio.wait_all_tasks_blocked()
            asked_in_vain.set()

    with fake_daemon(path, stopping, answers_r2):
        way.run(body)


def test_a_cancel_goes_again_with_its_request_and_never_without_it(way: Way, path: Path) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.expect("cancel")

    def ending(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.expect("cancel")
        peer.say(daemon_says.result("r1", failed=Failed(kind="timeout", message="cancelled")))

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def wait() -> None:
                assert (await raised(RequestFailed, client.invoke(asked("r1")))).kind == "timeout"
                assert (await client.invoke(asked("r2"))).text == "of r2"

            both.start_soon(wait)
            await until_out(client, "r1")
            await client.cancel("r1")

    with fake_daemon(path, losing, ending, answering) as fake:
        way.run(body)
        assert len(fake.frames("cancel")) == 2


async def until_out(client: Any, request_id: str) -> None:
    session = getattr(client, "client", client)._session
    with anyio.fail_after(20):
        while not session._due.get(("invocation", "dungeon", request_id)):
            await anyio.sleep(0)


# --- a daemon that is not there -----------------------------------------------------------------------------------


def test_a_socket_that_appears_late_is_waited_for(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:
            texts: list[str] = []

            async def ask() -> None:
                texts.append((await client.invoke(asked("r1"))).text)

            both.start_soon(ask)
            session = getattr(client, "client", client)._session
            with anyio.fail_after(20):
                while session.trouble is None:
                    await anyio.sleep(0)
            late.append(FakeDaemon(path, (answering,)))
        assert texts == ["of r1"]

    late: list[FakeDaemon] = []
    try:
        way.run(body)
    finally:
        late[0].end()


def test_while_the_backlog_is_full_it_is_tried_no_oftener_than_the_backoff_says(
    way: Way, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    connect = socket.socket.connect

    def counted(self: socket.socket, address: Any) -> None:
        tried.append(address)
        connect(self, address)

    async def body() -> None:
        settings = {"connect_seconds_max": 0.2, "backoff_seconds_first": 60, "backoff_seconds_max": 60}
        async with way.client(path, **settings) as client:
            error = await raised(Disconnected, client.invoke(asked("r1")))
            assert "takes no more connections just now" in str(error)
            assert error.retry == "same_bytes"
            for _ in range(100):  # and nobody tries for nobody
                await anyio.sleep(0)

    with contextlib.ExitStack() as sockets:
        listening = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(str(path))
        listening.listen(0)
        filler = sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        filler.connect(str(path))  # a backlog of 0 holds one
        monkeypatch.setattr(socket.socket, "connect", counted)
        way.run(body)
        assert tried == [str(path)]


def test_once_there_is_room_in_the_backlog_it_is_connected(way: Way, path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(0)
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    filler.connect(str(path))

    async def body() -> None:
        async with anyio.create_task_group() as both, way.client(path) as client:

            async def wait() -> None:
                assert (await client.connect()).callers == ("dungeon",)

            both.start_soon(wait)
            session = getattr(client, "client", client)._session
            with anyio.fail_after(20):
                while "no more connections" not in str(session.trouble):
                    await anyio.sleep(0)
            listening.accept()[0].close()
            both.start_soon(to_thread.run_sync, accepted)
            await client.connect()

    def accepted() -> None:
        peer = Peer(listening.accept()[0], 0)
        peer.welcome()
        peer.until_hung_up()
        peer.close()

    with listening, filler:
        way.run(body)


def test_a_stale_socket_is_waited_for_as_well(way: Way, path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(str(path))
    stale.close()

    async def body() -> None:
        async with way.client(path, connect_seconds_max=0.5) as client:
            assert "no daemon listens" in str(await raised(Disconnected, client.invoke(asked("r1"))))

    way.run(body)


def test_a_file_in_the_sockets_place_is_named_as_that(way: Way, path: Path) -> None:
    path.write_text("not a socket")

    async def body() -> None:
        async with way.client(path, connect_seconds_max=0.5) as client:
            assert "something else than a socket" in str(await raised(Disconnected, client.status()))

    way.run(body)


def test_a_daemon_that_does_not_come_back_is_told_once_expiry_and_grace_are_over(way: Way, path: Path) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        fake.listening_no_more()

    async def body() -> None:
        async with way.client(path, grace_seconds=0.2) as client:
            error = await raised(Disconnected, client.invoke(asked("r1"), timeout_seconds=0.3))
        assert error.retry == "same_bytes"

    with fake_daemon(path, losing) as fake:
        way.run(body)


def test_a_path_that_no_socket_can_have_is_told_where_it_is_given(way: Way) -> None:
    async def body() -> None:
        with pytest.raises(ValueError, match="107"):
            async with way.client(Path("/" + "x" * 200)):
                pass

    way.run(body)


# --- a daemon that stops ------------------------------------------------------------------------------------------


def stopping(peer: Peer) -> None:
    peer.welcome()
    peer.say(daemon_says.error("shutting_down", peer.request_id()))


def test_what_a_stopping_daemon_has_not_run_is_sent_again_after_its_restart(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == "of r1"

    with fake_daemon(path, stopping, answering) as fake:
        way.run(body)
        assert len(set(fake.frames("invocation"))) == 1
        assert len(fake.frames("invocation")) == 2


def test_it_is_not_sent_again_to_the_daemon_that_stops(way: Way, path: Path) -> None:
    def lingering(peer: Peer) -> None:
        peer.welcome()
        peer.say(daemon_says.error("shutting_down", peer.request_id()))
        assert peer.request_id() == "r2"  # what is on record is still answered
        peer.say(daemon_says.result("r2", "replayed"))

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def one() -> None:
                assert (await client.invoke(asked("r1"))).text == "of r1"

            both.start_soon(one)
            await until_parked(client, "r1")
            assert (await client.invoke(asked("r2"))).text == "replayed"

    with fake_daemon(path, lingering, answering):
        way.run(body)


async def until_parked(client: Any, request_id: str) -> None:
    session = getattr(client, "client", client)._session
    with anyio.fail_after(20):
        while (known := session._invocations.get(("dungeon", request_id))) is None or known.parked is None:
            await anyio.sleep(0)


def test_waiting_for_the_restart_ends_with_the_request(way: Way, path: Path) -> None:
    def staying(peer: Peer) -> None:
        peer.welcome()
        peer.say(daemon_says.error("shutting_down", peer.request_id()))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path, grace_seconds=0.2) as client:
            error = await raised(DaemonError, client.invoke(asked("r1"), timeout_seconds=0.3))
        assert error.code == "shutting_down"
        assert error.retry == "same_bytes"

    with fake_daemon(path, staying):
        way.run(body)


def test_who_does_not_wait_for_a_restart_is_told_at_once(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path, wait_for_restart=False) as client:
            assert (await raised(DaemonError, client.invoke(asked("r1")))).code == "shutting_down"

    with fake_daemon(path, stopping):
        way.run(body)


def test_a_cancel_ends_what_waits_for_a_restart(way: Way, path: Path) -> None:
    def staying(peer: Peer) -> None:
        peer.welcome()
        peer.say(daemon_says.error("shutting_down", peer.request_id()))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def wait() -> None:
                assert (await raised(DaemonError, client.invoke(asked("r1")))).code == "shutting_down"

            both.start_soon(wait)
            await until_parked(client, "r1")
            await client.cancel("r1")

    with fake_daemon(path, staying) as fake:
        way.run(body)
        assert fake.frames("cancel") == []


def test_a_cancel_ends_what_was_never_sent(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def wait() -> None:
                assert (await raised(Disconnected, client.invoke(asked("r1")))).fault == "cancelled_unsent"

            both.start_soon(wait)
            session = getattr(client, "client", client)._session
            with anyio.fail_after(20):
                while ("dungeon", "r1") not in session._invocations:
                    await anyio.sleep(0)
            await client.cancel("r1")

    way.run(body)


# --- the client's own end -----------------------------------------------------------------------------------------


def test_closing_tells_those_who_wait(way: Way, path: Path) -> None:
    def silent(peer: Peer) -> None:
        peer.welcome()
        peer.until_hung_up()

    async def body() -> None:
        async with anyio.create_task_group() as both, way.client(path) as client:

            async def wait() -> None:
                assert (await raised(Disconnected, client.invoke(asked("r1")))).fault == "closed"

            both.start_soon(wait)
            await until_out(client, "r1")

    with fake_daemon(path, silent):
        way.run(body)


def test_an_error_in_the_block_comes_out_as_it_is(way: Way, path: Path) -> None:
    class Mishap(BaseException):
        """As a KeyboardInterrupt is one."""

    async def body(kind: type[BaseException]) -> None:
        async with way.client(path) as client:
            await client.invoke(asked("r1"))
            raise kind

    with fake_daemon(path, answering, answering):
        for kind in (ZeroDivisionError, Mishap):
            with pytest.raises(kind):
                way.run(partial(body, kind))


def test_an_idle_connection_that_is_lost_is_made_again_when_it_is_wanted(way: Way, path: Path) -> None:
    def once(peer: Peer) -> None:
        peer.welcome()
        request_id = peer.request_id()
        peer.say(daemon_says.result(request_id, f"of {request_id}"))

    async def body() -> None:
        async with way.client(path, backoff_seconds_first=60, backoff_seconds_max=60) as client:
            session = getattr(client, "client", client)._session
            for number in range(5):
                assert (await client.invoke(asked(f"r{number}"))).text == f"of r{number}"
                with anyio.fail_after(20):
                    while session.welcome is not None:
                        await anyio.sleep(0)

    with fake_daemon(path, *[once] * 5) as fake:
        way.run(body)
        assert len(fake.frames("invocation")) == 5
