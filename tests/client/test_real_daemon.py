"""The clients against the daemon itself, killed and stopped in mid-request: an answer or Indeterminate, paid once.

The provider counts what it is asked and never says a thing twice.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from kit.counted_provider import CountedProvider, counted_provider
from kit.daemon_process import Process, running_daemon, spawn, wait_ready, wait_until, write_config
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import DaemonError, Indeterminate, RequestFailed, SpendCeiling, new_request


@pytest.fixture
def provider() -> Iterator[CountedProvider]:
    with counted_provider() as counted:
        yield counted


@pytest.fixture
def folder(path: Path) -> Path:
    return path.parent


def asked(words: str = "hello there", request_id: str | None = None) -> Any:
    return new_request("npc", words, request_id=request_id, max_output_tokens=64)


async def until(condition: Callable[[], bool]) -> None:
    """Another process or thread brings it about."""
    with anyio.fail_after(30):
        while not condition():
            await anyio.sleep(0.005)


async def until_draining(client: Any) -> None:
    """It has taken note of the signal."""
    with anyio.fail_after(30):
        while not (await client.status()).daemon.draining:
            await anyio.sleep(0.005)


def started_again(folder: Path) -> Process:
    daemon = spawn(folder)
    wait_ready(daemon)
    return daemon


# --- what runs ----------------------------------------------------------------------------------------------------


def test_invoke_stream_quote_status_and_replay(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        async with way.client(path, caller=None) as client:
            quote = await client.quote(asked("one two three"))
            assert quote.refusal is None
            result = await client.invoke(quote.invocation)
            assert result.text == "one two three"
            assert 0 < result.charge_micro_usd <= quote.worst_case_micro_usd
            assert await client.invoke(quote.invocation) == result
            async with client.stream(asked("four five six")) as stream:
                pieces = [event.payload.chosen.text async for event in stream]
            assert "".join(pieces) == stream.result.text == "four five six"
            report = await client.status()
            assert [caller.caller_runtime_id for caller in report.callers] == ["dungeon"]
            assert report.callers[0].spent_micro_usd == result.charge_micro_usd + stream.result.charge_micro_usd

    with running_daemon(folder):
        way.run(body)


def test_many_at_once_each_get_their_own(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        texts: dict[str, str] = {}
        async with way.client(path) as client, anyio.create_task_group() as all_of_them:

            async def ask(words: str, streams: bool) -> None:
                if not streams:
                    texts[words] = (await client.invoke(asked(words))).text
                    return
                async with client.stream(asked(words)) as stream:
                    texts[words] = "".join([event.payload.chosen.text async for event in stream])

            for number in range(60):
                all_of_them.start_soon(ask, f"words of {number}", number % 3 == 0)
        assert texts == {words: words for words in texts}
        assert len(texts) == 60

    with running_daemon(folder):
        way.run(body)


def test_a_daemon_that_is_started_later_is_waited_for(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        async with way.client(path, connect_seconds_max=60) as client, anyio.create_task_group() as both:

            async def ask() -> None:
                assert (await client.invoke(asked())).text == "hello there"

            both.start_soon(ask)
            daemons.append(spawn(folder))

    write_config(folder)
    daemons: list[Process] = []
    try:
        way.run(body)
    finally:
        daemons[0].kill()


def test_what_is_quoted_is_what_is_reserved(way: Way, path: Path, folder: Path, provider: CountedProvider) -> None:
    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:
            quote = await client.quote(asked())
            both.start_soon(client.invoke, quote.invocation)
            await until(lambda: provider.requests == 1)
            assert (await client.status()).callers[0].reserved_micro_usd == quote.worst_case_micro_usd
            provider.release()

    provider.held.add("hello there")
    with running_daemon(folder, connector=provider.connector):
        way.run(body)


def test_a_quote_and_its_invocation_meet_the_same_ceiling(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            quote = await client.quote(asked())
            assert quote.refusal == "SpendCeiling"
            with pytest.raises(SpendCeiling):
                await client.invoke(quote.invocation)

    with running_daemon(folder, ceiling=1):
        way.run(body)


def test_a_cancelled_request_ends_as_timeout_and_costs_its_reservation(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:
            quote = await client.quote(asked(request_id="r1"))

            async def ask() -> None:
                with pytest.raises(RequestFailed) as caught:
                    await client.invoke(quote.invocation)
                assert caught.value.kind == "timeout"
                assert caught.value.usage is None
                assert caught.value.charge_micro_usd == quote.worst_case_micro_usd

            both.start_soon(ask)
            await until(lambda: provider.requests == 1)
            await client.cancel("r1")

    provider.held.add("hello there")
    with running_daemon(folder, connector=provider.connector):
        way.run(body)


def test_two_clients_with_the_same_bytes_get_one_answer(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body() -> None:
        texts: list[str] = []
        async with way.client(path) as one, way.client(path) as two, anyio.create_task_group() as both:
            invocation = one.prepare(asked())

            async def ask(client: Any) -> None:
                texts.append((await client.invoke(invocation)).text)

            both.start_soon(ask, one)
            await until(lambda: provider.requests == 1)
            both.start_soon(ask, two)
            await two.status()
            provider.release()
        assert len(texts) == 2
        assert len(set(texts)) == 1

    provider.held.add("hello there")
    with running_daemon(folder, connector=provider.connector):
        way.run(body)
    assert provider.requests == 1


# --- what is lost in mid-request ----------------------------------------------------------------------------------


def test_killed_in_mid_request_is_indeterminate_and_is_not_asked_twice(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body(daemon: Process) -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def ask() -> None:
                with pytest.raises(Indeterminate) as caught:
                    await client.invoke(asked())
                assert "person" in caught.value.what_to_do

            both.start_soon(ask)
            await until(lambda: provider.requests == 1)
            daemon.kill()
            daemons.append(started_again(folder))

    provider.held.add("hello there")
    daemons: list[Process] = []
    with running_daemon(folder, connector=provider.connector) as daemon:
        try:
            way.run(lambda: body(daemon))
        finally:
            for again in daemons:
                again.kill()
    assert provider.requests == 1


def test_stopped_in_mid_request_the_drain_brings_the_answer(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body(daemon: Process) -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def ask() -> None:
                assert (await client.invoke(asked())).text.startswith("answer 1")

            both.start_soon(ask)
            await until(lambda: provider.requests == 1)
            os.kill(daemon.pid, signal.SIGTERM)
            provider.release()

    provider.held.add("hello there")
    with running_daemon(folder, connector=provider.connector) as daemon:
        way.run(lambda: body(daemon))
        assert daemon.process.wait(timeout=30) == 0
    assert provider.requests == 1


def test_stopped_at_once_in_mid_request_it_has_failed_and_is_not_asked_twice(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body(daemon: Process) -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def ask() -> None:
                with pytest.raises(RequestFailed) as caught:
                    await client.invoke(asked())
                assert caught.value.kind == "unavailable"

            both.start_soon(ask)
            await until(lambda: provider.requests == 1)
            os.kill(daemon.pid, signal.SIGTERM)
            await until_draining(client)
            os.kill(daemon.pid, signal.SIGTERM)  # the second doesn't wait for what runs
            await until(lambda: daemon.process.poll() is not None)

    provider.held.add("hello there")
    with running_daemon(folder, connector=provider.connector) as daemon:
        way.run(lambda: body(daemon))
    assert provider.requests == 1


def test_what_comes_while_it_stops_runs_once_after_its_restart(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    async def body(daemon: Process) -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:
            texts: dict[str, str] = {}

            async def ask(words: str) -> None:
                texts[words] = (await client.invoke(asked(words))).text

            both.start_soon(ask, "hello there")
            await until(lambda: provider.requests == 1)
            os.kill(daemon.pid, signal.SIGTERM)
            await until_draining(client)
            both.start_soon(ask, "and then")
            session = getattr(client, "client", client)._session
            await until(lambda: any(waits.parked for waits in [*session._waiting]))
            provider.release()
            await until(lambda: daemon.process.poll() is not None)
            daemons.append(started_again(folder))
        assert sorted(texts) == ["and then", "hello there"]

    provider.held.add("hello there")
    daemons: list[Process] = []
    with running_daemon(folder, connector=provider.connector) as daemon:
        try:
            way.run(lambda: body(daemon))
        finally:
            for again in daemons:
                again.kill()
    assert provider.asked == {"hello there": 1, "and then": 1}


def test_a_lost_connection_is_joined_again_and_answered_once(
    way: Way, path: Path, folder: Path, provider: CountedProvider
) -> None:
    """Between the client and the daemon stands something that drops the first connections."""

    def dropping(peer: Peer) -> None:
        with daemon.connect() as through:
            peer.expect("hello")
            peer.say(through.ask(peer.frames[-1]))
            peer.expect("invocation")
            through.send(peer.frames[-1])
            wait_until(lambda: provider.requests == 1)

    def passing(peer: Peer) -> None:
        with daemon.connect() as through:
            peer.expect("hello")
            peer.say(through.ask(peer.frames[-1]))
            peer.expect("invocation")
            through.send(peer.frames[-1])
            provider.release()
            answer = through.receive()
            assert answer is not None
            peer.say(answer)
            peer.until_hung_up()

    async def body() -> None:
        async with way.client(folder / "between.sock") as client:
            assert (await client.invoke(asked())).text.startswith("answer 1")

    provider.held.add("hello there")
    with (
        running_daemon(folder, connector=provider.connector) as daemon,
        fake_daemon(folder / "between.sock", dropping, dropping, dropping, passing),
    ):
        way.run(body)
    assert provider.requests == 1


# --- who may come in ----------------------------------------------------------------------------------------------


def test_a_user_that_nobody_admits_is_told_so(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            with pytest.raises(DaemonError) as caught:
                await client.invoke(asked())
            assert caught.value.code == "not_admitted"

    config = write_config(folder)
    config.write_text(config.read_text().replace('id = "dungeon"', f'id = "dungeon"\nuid = {os.getuid() + 1}'))
    with running_daemon(folder):
        way.run(body)


def test_a_full_daemon_is_waited_for(way: Way, path: Path, folder: Path) -> None:
    async def body() -> None:
        async with (
            way.client(path, connect_seconds_max=60) as second,
            anyio.create_task_group() as both,
            way.client(path) as first,
        ):
            await first.status()

            async def ask() -> None:
                assert (await second.invoke(asked())).text == "hello there"

            both.start_soon(ask)
            session = getattr(second, "client", second)._session
            await until(lambda: isinstance(session.trouble, DaemonError))

    with running_daemon(folder, daemon="connections_max = 1"):
        way.run(body)
