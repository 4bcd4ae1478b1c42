"""A request that has ended and a connection that has left are freed at once: they wait for no collection of cycles."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

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


_KINDS = (Answer, Lowered, Admitted, Connection, Outgoing)


def _there() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, _KINDS)]


@pytest.fixture
def left() -> Iterator[Callable[[], list[str]]]:
    """What is there that was not there before the test, by kind; nothing is collected meanwhile."""
    gc.collect()
    before = _there()  # a test that failed keeps what it had
    gc.disable()
    yield lambda: sorted(type(one).__name__ for one in _there() if not any(one is other for other in before))
    gc.enable()


@pytest.mark.parametrize("stream_events", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=["completed", "failed"])
async def test_an_answered_request_and_a_connection_that_said_all_are_freed_at_once(
    left: Callable[[], list[str]], rule: Rule, stream_events: bool
) -> None:
    async with served(Road(connector=Scripted((rule,)))) as client:
        await client.send(hello(stream_events=stream_events))
        await client.send(asked("r1"))
        while "disposition" not in await client.value():
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert left() == ["Connection", "Outgoing"]
    assert left() == []
