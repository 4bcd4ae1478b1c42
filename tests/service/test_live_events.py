"""Live events: asked for by a hello, in order, only of a connection's own requests, and a prefix of the result's."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from kit.connected import Client, answering, asked, cancel, hello, served
from kit.road import Road

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.service import outgoing

EVENT = "gamecult.model.transport_event.v1"
RESULT = "gamecult.model.transport_result.v1"


async def until_result(client: Client) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The live events that come before the next result, and that result."""
    heard: list[dict[str, Any]] = []
    while (said := await client.value())["schema_id"] == EVENT:
        heard.append(said)
    return heard, said


def kinds(events: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(one["event"]["sequence"], next(iter(one["event"]["payload"]))) for one in events]


def text_of(events: list[dict[str, Any]], sequence: int) -> str:
    ours = [one["event"]["payload"] for one in events if one["event"]["sequence"] == sequence]
    return "".join(payload["TextDelta"]["text"] for payload in ours)


SPOKEN = Rule(
    reasoning=("first a thought",),
    deltas=("It ", "sleeps", "."),
    calls=(ScriptedCall("look", "{}", "call_1"), ScriptedCall("go", "{}", None)),
)


@pytest.mark.parametrize("delay_ms", [0, 5], ids=["at once", "waited for"])
async def test_events_come_as_they_are_produced_and_the_result_holds_them_all(
    autojump_clock: trio.testing.MockClock, delay_ms: int
) -> None:
    rule = Rule(reasoning=SPOKEN.reasoning, deltas=SPOKEN.deltas, calls=SPOKEN.calls, delta_delay_ms=delay_ms)
    async with served(Road(connector=Scripted((rule,)))) as client:
        await client.greet(stream_events=True)
        await client.send(asked("r1"))
        heard, result = await until_result(client)
    assert kinds(heard) == [
        (0, "ReasoningState"),
        (1, "TextDelta"),
        (1, "TextDelta"),
        (1, "TextDelta"),
        (2, "ToolCall"),
        (3, "ToolCall"),
    ]
    events = result["disposition"]["Transported"]["events"]
    assert [event["sequence"] for event in events] == [0, 1, 2, 3]
    assert events[1]["payload"] == {"TextDelta": {"text": text_of(heard, 1)}}
    for one in heard:
        assert (one["caller_runtime_id"], one["request_id"]) == ("dungeon", "r1")
        if one["event"]["sequence"] != 1:
            assert one["event"] in events


async def test_without_a_hello_that_asks_for_them_there_are_none() -> None:
    async with served(Road(connector=answering(deltas=("a", "b")))) as client:
        await client.send(asked("r1"), hello(join=True), asked("r2"))
        answers = [(await client.value())["schema_id"] for _ in range(3)]
    assert EVENT not in answers


async def test_a_replay_sends_none() -> None:
    async with served(Road(connector=answering(deltas=("a", "b")))) as client:
        await client.greet(stream_events=True, join=True)
        await client.send(asked("r1"))
        heard, result = await until_result(client)
        assert len(heard) == 2
        await client.send(asked("r1"))
        assert await client.value() == result


class Spoken:
    """Says what the test tells it to, piece by piece."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.ends: dict[str, trio.Event] = {}
        self._scripted = Scripted()
        self.lower = self._scripted.lower
        self.aclose = self._scripted.aclose

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        answer.sent = True
        self.answers[lowered.request.request_id] = answer
        self.ends[lowered.request.request_id] = trio.Event()
        await self.ends[lowered.request.request_id].wait()
        await self._scripted.exchange(lowered, answer)


async def test_who_joins_late_hears_from_then_on_and_each_piece_once() -> None:
    road = Road(connector=Spoken())
    async with served(road) as first, served(road) as second:
        await first.greet(stream_events=True, join=True)
        await first.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        answer = road.connector.answers["r1"]
        answer.text("early ")
        await second.greet(stream_events=True, join=True)
        await second.send(asked("r1"), asked("r1"))
        await first.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        answer.text("late")
        answer.tool_call("call_9", "look", "")
        road.connector.ends["r1"].set()
        of_first, result = await until_result(first)
        of_second, joined = await until_result(second)
        assert result == joined == await second.value() == await first.value()
    assert text_of(of_first, 0) == "early late"
    assert text_of(of_second, 0) == "late"
    assert (1, "ToolCall") in kinds(of_first)
    assert [sequence for sequence, _ in kinds(of_second)[:2]] == [0, 1]


async def test_a_connection_hears_its_own_requests_only() -> None:
    road = Road(connector=Spoken())
    async with served(road) as first, served(road) as second:
        for client, name in ((first, "r1"), (second, "r2")):
            await client.greet(stream_events=True)
            await client.send(asked(name))
        await trio.testing.wait_all_tasks_blocked()
        for name in ("r1", "r2"):
            road.connector.answers[name].text(name)
            road.connector.ends[name].set()
        for client, name in ((first, "r1"), (second, "r2")):
            heard, result = await until_result(client)
            assert {one["request_id"] for one in heard} == {name} == {result["request_id"]}


async def test_a_hello_in_mid_request_turns_them_on_and_off() -> None:
    road = Road(connector=Spoken())
    async with served(road) as client:
        await client.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        answer = road.connector.answers["r1"]
        answer.text("unheard ")
        await client.greet(stream_events=True)
        answer.text("heard ")
        await trio.testing.wait_all_tasks_blocked()
        heard = [await client.value()]
        await client.greet(stream_events=False)
        answer.text("unheard again")
        answer.complete("end_turn", None)
        road.connector.ends["r1"].set()
        result = await client.value()
    assert text_of(heard, 0) == "heard "
    assert result["schema_id"] == RESULT


async def test_a_failure_behind_events_leaves_them_in_the_result() -> None:
    rule = Rule(deltas=("half an ", "ans"), fail=ScriptedFailure("unavailable", "cut"))
    async with served(Road(connector=Scripted((rule,)))) as client:
        await client.greet(stream_events=True)
        await client.send(asked("r1"))
        heard, result = await until_result(client)
    assert text_of(heard, 0) == "half an ans"
    assert result["disposition"]["Transported"]["events"][0]["payload"] == {"TextDelta": {"text": "half an ans"}}


async def test_a_reader_that_falls_behind_loses_the_rest_of_its_live_events_and_nothing_of_the_result() -> None:
    road = Road(connector=Spoken())
    pieces = [f"{number:05d} " * 200 for number in range(2 * outgoing.LIVE_BYTES_MAX // 1200)]
    async with served(road, lambda: trio.testing.lockstep_stream_pair()) as client:
        await client.greet(stream_events=True)
        await client.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        answer = road.connector.answers["r1"]
        for piece in pieces:
            answer.text(piece)
        await trio.testing.wait_all_tasks_blocked()
        answer.tool_call("call_1", "look", "")
        road.connector.ends["r1"].set()
        heard, result = await until_result(client)
    live = text_of(heard, 0)
    whole = result["disposition"]["Transported"]["events"][0]["payload"]["TextDelta"]["text"]
    assert 0 < len(live) < len(whole)
    assert whole.startswith(live)
    assert {sequence for sequence, _ in kinds(heard)} == {0}, "behind a dropped one none is sent"


async def test_a_cancelled_request_ends_its_live_events_with_its_result() -> None:
    road = Road(connector=Spoken())
    async with served(road) as client:
        await client.greet(stream_events=True)
        await client.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        road.connector.answers["r1"].text("so far")
        await client.send(cancel("r1"))
        heard, result = await until_result(client)
    assert text_of(heard, 0) == "so far"
    assert result["disposition"]["Transported"]["receipt"]["outcome"]["Failed"]["kind"] == "timeout"


async def test_one_event_above_the_bound_is_sent_live_to_a_client_that_keeps_up() -> None:
    road = Road(connector=Spoken())
    async with served(road) as client:
        await client.greet(stream_events=True)
        await client.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        answer = road.connector.answers["r1"]
        answer.text("x" * (outgoing.LIVE_BYTES_MAX + 1))
        await trio.testing.wait_all_tasks_blocked()
        answer.text("y")
        road.connector.ends["r1"].set()
        heard, _ = await until_result(client)
    assert [len(one["event"]["payload"]["TextDelta"]["text"]) for one in heard[:2]] == [outgoing.LIVE_BYTES_MAX + 1, 1]
