"""What only the async client has: its waiting can be cancelled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit import daemon_says
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import AsyncClient, Disconnected, TransportInvocation, WhichCaller, new_request


@pytest.fixture(params=["trio", "asyncio"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


def asked(request_id: str = "r1") -> Any:
    return new_request("npc", "hello", request_id=request_id)


async def abandoned(client: AsyncClient, invocation: TransportInvocation) -> None:
    """Invokes it, and stops waiting once it has gone out."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as both:
            both.start_soon(client.invoke, invocation)
            while not client._session._due.get(("invocation", "dungeon", "r1")):
                await anyio.sleep(0)
            scope.cancel()


def test_a_cancelled_wait_leaves_the_request_running_and_its_bytes_get_the_answer(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "r1"
        peer.expect("status")  # by now nobody waits
        peer.say(daemon_says.result("r1", "late"), daemon_says.status_report())
        assert peer.request_id() == "r1"
        peer.say(daemon_says.result("r1", "late"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            invocation = client.prepare(asked())
            await abandoned(client, invocation)
            await client.status()
            assert (await client.invoke(invocation)).text == "late"

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert len(set(fake.frames("invocation"))) == 1
        assert fake.frames("cancel") == []


def test_asking_again_while_the_abandoned_one_runs_waits_for_the_same_answer(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.expect("status")
        peer.say(daemon_says.status_report(), daemon_says.result("r1", "once"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            invocation = client.prepare(asked())
            await abandoned(client, invocation)
            async with anyio.create_task_group() as both:
                both.start_soon(client.status)
                assert (await client.invoke(invocation)).text == "once"

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert len(fake.frames("invocation")) == 1


def test_an_abandoned_request_is_not_waited_for_once_the_client_is_closed(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            invocation = client.prepare(asked())
            await abandoned(client, invocation)
        assert client._session._invocations == {}
        for call in (partial(client.invoke, invocation), partial(client.cancel, "r1"), client.status, client.connect):
            with pytest.raises(Disconnected) as caught:
                await call()
            assert caught.value.fault == "closed"

    with fake_daemon(path, part):
        way.run(body)


def test_the_whole_client_can_be_cancelled(way: Way, path: Path) -> None:
    async def body() -> None:
        with anyio.move_on_after(0.05) as scope:
            async with way.client(path) as client:
                await client.invoke(asked())
        assert scope.cancelled_caught

    with fake_daemon(path, Peer.until_hung_up):
        way.run(body)


def test_a_broken_invariant_in_the_background_is_told_to_who_waits_and_to_who_closes(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            client._session.receive = None
            with pytest.raises(Disconnected, match="itself has failed") as caught:
                await client.invoke(asked())
            assert caught.value.fault == "crashed"

    with fake_daemon(path, part), pytest.raises(ExceptionGroup) as crash:
        way.run(body)
    assert crash.group_contains(TypeError)


def test_it_may_be_closed_before_its_block_ends_and_again(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            await client.status()
            await client.aclose()
            with pytest.raises(Disconnected, match="was closed"):
                await client.status()
            await client.aclose()
        await client.aclose()
        await AsyncClient(path).aclose()  # never opened: there is nothing to close

    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("status")
        peer.say(daemon_says.status_report())
        peer.until_hung_up()

    with fake_daemon(path, part):
        way.run(body)


def test_it_may_be_opened_in_one_task_and_closed_in_another(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("status")
        peer.say(daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        client = AsyncClient(path, caller="dungeon")
        for step in (client.__aenter__, client.status, client.__aexit__):
            async with anyio.create_task_group() as one_task:
                one_task.start_soon(step)

    with fake_daemon(path, part):
        way.run(body)


def test_a_client_that_nobody_closes_ends_with_the_event_loop(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.expect("status")
        peer.say(daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        client = await AsyncClient(path, caller="dungeon").__aenter__()
        await client.status()

    with fake_daemon(path, part):
        way.run(body)


def test_outside_its_block_a_client_says_so(way: Way, path: Path) -> None:
    async def body() -> None:
        client = AsyncClient(path, caller="dungeon")
        with pytest.raises(RuntimeError, match="async with"):
            await client.invoke(asked())
        async with client:
            pass
        with pytest.raises(Disconnected, match="closed"):
            await client.invoke(asked())
        with pytest.raises(RuntimeError, match="another"):
            await client.__aenter__()

    way.run(body)


def test_prepare_needs_a_caller_that_is_known(path: Path) -> None:
    with pytest.raises(WhichCaller, match="connect"):
        AsyncClient(path).prepare(asked())
