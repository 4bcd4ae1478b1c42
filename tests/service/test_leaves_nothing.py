"""A request that has ended and a connection that has left are freed at once: they wait for no collection of cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import trio.testing
from kit.connected import asked, hello, served
from kit.road import Road

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.script import Rule, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.service.connection import Connection
from sidecar.service.decision import Admitted
from sidecar.service.outgoing import Outgoing

RULES = (Rule(deltas=("It ", "sleeps.")), Rule(fail=ScriptedFailure("unavailable", "it sleeps")))


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[str]:
    kinds = (Answer, Lowered, Admitted, Connection, Outgoing)
    return [type(there).__name__ for there in gc.get_objects() if isinstance(there, kinds)]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("stream_events", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=["completed", "failed"])
async def test_an_answered_request_and_a_connection_that_said_all_are_freed_at_once(
    rule: Rule, stream_events: bool
) -> None:
    assert left() == []
    async with served(Road(connector=Scripted((rule,)))) as client:
        await client.send(hello(stream_events=stream_events))
        await client.send(asked("r1"))
        while "disposition" not in await client.value():
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(left()) == ["Connection", "Outgoing"]
    assert left() == []
