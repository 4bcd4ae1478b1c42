"""An identical retry of a running request waits for its result, on a connection that asked to join."""

from __future__ import annotations

import msgpack
import trio
import trio.testing
from kit import build
from kit.connected import Client, asked, cancel, served
from kit.memory_ledger import MemoryLedger
from kit.narrow_stream import NarrowStream, narrow_pair
from kit.road import Road, said


async def waiting() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_a_joined_retry_gets_the_recorded_result_byte_for_byte() -> None:
    road = Road()
    async with served(road) as first, served(road) as second:
        await first.send(asked("r1"))
        await waiting()
        await second.greet(join=True)
        await second.send(asked("r1"))
        await waiting()
        road.connector.let_go.set()
        answers = [await first.receive(), await second.receive()]
        await second.send(asked("r1"))
        replayed = await second.receive()
    assert answers[0] == answers[1] == replayed
    assert len(road.connector.asked) == 1
    assert len(road.ledger.begins) == 1


async def test_waiting_takes_no_slot_and_reserves_nothing() -> None:
    road = Road(concurrent=1)
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"))
        await waiting()
        held = road.accounts["dungeon"].figures().reserved
        await client.send(*[asked("r1")] * 5)
        await waiting()
        assert road.reservations.live_of_caller("dungeon") == 1
        assert road.accounts["dungeon"].figures().reserved == held
        road.connector.let_go.set()
        assert await client.heard(6) == ["end_turn"] * 6


async def test_one_result_for_each_frame_that_was_sent_also_on_one_connection() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"), asked("r1"), asked("r2"), asked("r1"))
        await waiting()
        road.connector.let_go.set()
        frames = [await client.receive() for _ in range(4)]
        ids = sorted(msgpack.unpackb(frame)["request_id"] for frame in frames if frame)
    assert ids == ["r1", "r1", "r1", "r2"]
    assert len(road.connector.asked) == 2


async def test_another_invocation_under_the_id_of_a_running_one_is_a_conflict_and_joins_nothing() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"), asked("r1", max_cost_micro_usd=999_999))
        assert await client.heard(1) == ["ReplayConflict"]
        await client.send(cancel("r1"))
        assert await client.heard(1) == ["timeout"]


async def test_who_joins_a_request_whose_begin_fails_is_told_that_the_ledger_is_unavailable(
    mock_clock: trio.testing.MockClock,
) -> None:
    ledger = MemoryLedger()
    ledger.delay_seconds = 1
    road = Road(ledger=ledger)
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"), asked("r1"))
        await waiting()
        ledger.poison("the disk is gone")
        mock_clock.jump(2)
        assert await client.heard(2) == ["ledger_unavailable"] * 2
    assert len(road.reservations) == 0
    assert not road.accounts["dungeon"].figures().reserved
    assert not road.connector.asked


async def test_the_joined_request_goes_on_when_its_first_caller_has_hung_up() -> None:
    road = Road()
    async with served(road) as second:
        await second.greet(join=True)
        theirs, ours = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(road.connection(ours, nursery).serve)
            first = Client(theirs)
            await first.send(asked("r1"))
            await waiting()
            await first.hang_up()
            await second.send(asked("r1"))
            await waiting()
            road.connector.let_go.set()
            assert await second.heard(1) == ["end_turn"]


async def test_a_drain_refuses_what_is_new_and_lets_a_retry_join() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"))
        await waiting()
        road.exchange.draining = True
        await client.send(asked("r1"), asked("r2"))
        assert await client.heard(1) == ["shutting_down"]
        road.connector.let_go.set()
        assert await client.heard(2) == ["end_turn", "end_turn"]


async def test_a_too_small_budget_under_a_running_id_is_refused_before_it_could_join() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await client.send(asked("r1"), asked("r1", max_cost_micro_usd=1))
        frame = await client.receive()
        assert frame is not None
        assert said(frame) == "CostBound"
        await client.send(cancel("r1"))
        assert await client.heard(1) == ["timeout"]


async def test_a_caller_joins_its_own_requests_only() -> None:
    road = Road()
    async with served(road) as client, served(road, callers=frozenset({"other"})) as stranger:
        await client.send(asked("r1"))
        await waiting()
        await stranger.greet(join=True)
        await stranger.send(asked("r1"), build.frame(build.request(request_id="r1"), caller_runtime_id="other"))
        assert await stranger.heard(1) == ["IdentitySubstitution"]
        road.connector.let_go.set()
        assert await stranger.heard(1) == ["end_turn"]
        assert await client.heard(1) == ["end_turn"]
    assert len(road.connector.asked) == 2


async def test_who_has_hung_up_holds_no_place_at_the_request_that_it_joined() -> None:
    road = Road()
    async with served(road) as first:
        await first.send(asked("r1"))
        await waiting()
        left: list[bool] = []
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                theirs, ours = narrow_pair(up_bytes=65_536, down_bytes=65_536)

                async def serve(stream: NarrowStream = ours) -> None:
                    await road.connection(stream, nursery).serve()
                    left.append(True)

                nursery.start_soon(serve)
                client = Client(theirs)
                await client.greet(join=True, stream_events=True)
                await client.send(asked("r1"))
                await waiting()
                await client.hang_up()
            await waiting()
            assert len(left) == 50, "their connections have ended, and the request has not"
        [carried] = road.exchange._carrier._carried.values()
        assert (carried._joined, carried._listeners) == ([], {})
        road.connector.let_go.set()
        assert await first.heard(1) == ["end_turn"]


async def test_who_only_ends_its_sending_still_gets_its_answer() -> None:
    road = Road()
    theirs, ours = narrow_pair(up_bytes=65_536, down_bytes=65_536)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.connection(ours, nursery).serve)
        client = Client(theirs)
        await client.send(asked("r1"))
        await client.stream.send_eof()
        await waiting()
        road.connector.let_go.set()
        assert await client.heard(1) == ["end_turn"]
