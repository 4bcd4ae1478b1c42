"""A cancel makes the deadline of a running request now, and its result says what that costs."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from kit.connected import Client, asked, cancel, served
from kit.memory_ledger import MemoryLedger
from kit.road import Road, receipt

from sidecar.connectors.promise import Answer


async def receipt_of(client: Client) -> dict[str, Any]:
    frame = await client.receive()
    assert frame is not None
    return receipt(frame)


async def asked_and_waiting(road: Road, client: Client, *frames: bytes) -> None:
    await client.send(*(frames or (asked("r1"),)))
    await trio.testing.wait_all_tasks_blocked()


async def test_what_was_sent_costs_the_whole_reservation_and_frees_its_slot() -> None:
    road = Road(concurrent=1)
    async with served(road) as client:
        await asked_and_waiting(road, client)
        await client.send(cancel("r1"))
        told = await receipt_of(client)
        assert told["outcome"]["Failed"] == {
            "kind": "timeout",
            "message": "its caller cancelled it before the provider had ended",
        }
        assert told["cost_micro_usd"] == road.ledger.begins[0].reservation_micro_usd > 0
        road.connector.let_go.set()
        await client.send(asked("r2"))
        assert await client.heard(1) == ["end_turn"]


async def test_what_was_not_sent_yet_costs_nothing(mock_clock: trio.testing.MockClock) -> None:
    ledger = MemoryLedger()
    ledger.delay_seconds = 1
    road = Road(ledger=ledger)
    async with served(road) as client:
        await client.send(asked("r1"), cancel("r1"))
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1.5)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1.5)
        told = await receipt_of(client)
    assert told["cost_micro_usd"] == 0
    assert told["outcome"]["Failed"]["message"] == "its caller cancelled it; nothing was sent"
    assert not road.connector.asked


async def test_the_result_of_a_cancelled_request_is_replayed() -> None:
    road = Road()
    async with served(road) as client:
        await asked_and_waiting(road, client)
        await client.send(cancel("r1"))
        first = await client.receive()
        await client.send(asked("r1"))
        assert await client.receive() == first


async def test_an_end_that_was_read_before_the_cancel_stands() -> None:
    class Lingering:
        """The provider has ended, and its connection is still being closed."""

        def __init__(self) -> None:
            self._road_connector = Road().connector
            self.lower = self._road_connector.lower
            self.aclose = self._road_connector.aclose

        def at_once(self, *_: Any) -> bool:
            return False

        async def exchange(self, lowered: Any, answer: Answer) -> None:
            answer.sent = True
            answer.text("done")
            answer.complete("end_turn", None, "msg_1")
            await trio.sleep_forever()

    road = Road(connector=Lingering(), usage="bound")
    async with served(road) as client:
        await asked_and_waiting(road, client)
        await client.send(cancel("r1"))
        told = await receipt_of(client)
    assert told["outcome"]["Completed"]["stop_reason"] == "end_turn"


async def test_another_connection_of_the_same_caller_may_cancel() -> None:
    road = Road()
    async with served(road) as client, served(road) as other:
        await asked_and_waiting(road, client)
        await other.send(cancel("r1"))
        assert await client.heard(1) == ["timeout"]


async def test_all_who_joined_get_the_cancelled_result() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await asked_and_waiting(road, client, asked("r1"), asked("r1"))
        await client.send(cancel("r1"))
        assert await client.heard(2) == ["timeout", "timeout"]


async def test_a_cancel_is_ignored_where_nothing_runs_or_the_peer_may_not_be_the_caller() -> None:
    road = Road()
    async with served(road) as client, served(road, callers=frozenset({"other"})) as stranger:
        await asked_and_waiting(road, client)
        await stranger.send(cancel("r1"), cancel("r1", caller="other"), cancel("never"), cancel("not an id \n"))
        await client.send(cancel("never"), cancel("r1", caller="other"), cancel("r1", caller="unheard-of"))
        await trio.testing.wait_all_tasks_blocked()
        road.connector.let_go.set()
        assert await client.heard(1) == ["end_turn"]
        await client.send(cancel("r1"))
        await client.send(asked("r1"))
        assert await client.heard(1) == ["end_turn"], "what has ended stays as it is"
