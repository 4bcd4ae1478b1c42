"""A game's async tests under pytest-trio."""

from __future__ import annotations

import pytest

from sidecar.client import new_request
from sidecar.testing.daemon import Daemon

pytestmark = pytest.mark.trio


async def test_an_answer_is_said_by_the_test(sidecar_daemon: Daemon) -> None:
    sidecar_daemon.on(text="dragon").says("It ", "sleeps.")
    async with sidecar_daemon.async_client() as client:
        result = await client.invoke(new_request("npc-fast", "Where is the dragon?"))
        assert result.text == "It sleeps."
        async with client.stream(new_request("npc-fast", "And the dragon's hoard?")) as stream:
            said = "".join([event.payload.text_delta.text async for event in stream if event.payload.text_delta])
        assert said == "It sleeps."
    assert [request.model for request in sidecar_daemon.asked] == ["npc-fast"] * 2
    assert sidecar_daemon.charged_micro_usd == sum(one.charge_micro_usd or 0 for one in sidecar_daemon.requests) > 0
    assert sidecar_daemon.refused == []


async def test_the_shared_daemon_is_as_new_for_each_test(sidecar_shared_daemon: Daemon) -> None:
    assert sidecar_shared_daemon.asked == []
    sidecar_shared_daemon.says("It wakes.")
    async with sidecar_shared_daemon.async_client() as client:
        assert (await client.invoke(new_request("npc-fast", "hello"))).text == "It wakes."


async def test_the_shared_daemon_has_forgotten_what_was_said(sidecar_shared_daemon: Daemon) -> None:
    assert (sidecar_shared_daemon.asked, sidecar_shared_daemon.requests) == ([], [])
    async with sidecar_shared_daemon.async_client() as client:
        assert (await client.invoke(new_request("npc-fast", "hello"))).text == "hello"
