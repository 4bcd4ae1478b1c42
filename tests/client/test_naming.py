"""What can't be the name of anything never goes out: the daemon would end a connection that others share over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from kit import daemon_says
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import IdentitySubstitution, new_request
from sidecar.client.naming import CLIENT_NAME_CHARACTERS_MAX

NO_IDS = [(None, TypeError), (5, TypeError), (b"r1", TypeError)]
NO_IDS += [(text, ValueError) for text in ("", "x y", "é", "x" * 300, "\ud800", "new\nline")]


def asked(request_id: str = "r1") -> Any:
    return new_request("npc", "hello", request_id=request_id)


def test_a_cancel_of_what_is_no_id_is_told_to_its_caller_and_to_nobody_else(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "r1"
        peer.expect("status")
        peer.say(daemon_says.result("r1", "mine"), daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client, anyio.create_task_group() as both:

            async def wait() -> None:
                assert (await client.invoke(asked("r1"))).text == "mine"

            both.start_soon(wait)
            session = getattr(client, "client", client)._session
            with anyio.fail_after(20):
                while not session._due.get(("invocation", "dungeon", "r1")):
                    await anyio.sleep(0)
            for no_id, told_as in NO_IDS:
                with pytest.raises(told_as, match="request_id is") as told:
                    await client.cancel(no_id)
                str(told.value).encode()
                if no_id is not None:
                    with pytest.raises(told_as, match="caller is"):
                        await client.cancel("r1", caller=no_id)
            await client.status()

    with fake_daemon(path, part) as fake:
        way.run(body)
        assert fake.frames("cancel") == []


@pytest.mark.parametrize(("no_id", "told_as"), [pair for pair in NO_IDS if pair[0] is not None])
def test_a_client_is_made_for_a_caller_only(way: Way, path: Path, no_id: Any, told_as: type[Exception]) -> None:
    async def body() -> None:
        with pytest.raises(told_as, match="caller is"):
            async with way.client(path, caller=no_id):
                pass

    way.run(body)


@pytest.mark.parametrize(
    ("name", "told_as"),
    [(None, TypeError), (5, TypeError)]
    + [(text, ValueError) for text in ("", "\ud800", "a\0b", "x" * (CLIENT_NAME_CHARACTERS_MAX + 1))],
)
def test_a_client_has_a_name_that_can_be_shown(way: Way, path: Path, name: Any, told_as: type[Exception]) -> None:
    async def body() -> None:
        with pytest.raises(told_as, match="name is"):
            async with way.client(path, name=name):
                pass

    way.run(body)


def test_a_cancel_for_a_caller_that_this_user_may_not_be_is_told_and_not_sent(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.expect("cancel")["caller_runtime_id"] == "dungeon"
        peer.expect("status")
        peer.say(daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            for _ in range(2):  # before there is a connection, and on it
                with pytest.raises(IdentitySubstitution, match="this user may call as dungeon") as told:
                    await client.cancel("r1", caller="tavern")
                assert (told.value.caller, told.value.request_id, told.value.retry) == ("tavern", "r1", "no")
            await client.cancel("r1")
            await client.status()

    with fake_daemon(path, part):
        way.run(body)
