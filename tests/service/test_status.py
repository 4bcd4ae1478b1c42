"""A status says what the daemon holds, and a peer sees only what it may be."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from kit import build
from kit.connected import STATUS, Client, answering, asked, cancel, served
from kit.road import STRANGER, Road
from service.test_quoting import left_open

from sidecar.connectors.script import Rule
from sidecar.connectors.scripted import Scripted
from sidecar.contract.values import Usage


async def status(client: Client) -> dict[str, Any]:
    await client.send(STATUS)
    return await client.value()


def of_caller(report: dict[str, Any], caller: str = "dungeon") -> dict[str, Any]:
    [ours] = [one for one in report["callers"] if one["caller_runtime_id"] == caller]
    return dict(ours)


async def test_a13_a_status_says_limit_window_start_and_length_spent_and_reserved() -> None:
    road = Road(connector=answering(), ceiling=1_000_003)
    day_ms = 86_400_000
    async with served(road) as client:
        await client.send(asked("r1"))
        assert await client.heard(1) == ["end_turn"]
        charge = road.ledger.completes[0][1].charge_micro_usd
        assert of_caller(await status(client)) == {
            "caller_runtime_id": "dungeon",
            "live_requests": 0,
            "window_start_unix_ms": build.NOW - build.NOW % day_ms,
            "window_seconds": 86_400,
            "spent_micro_usd": charge,
            "reserved_micro_usd": 0,
            "ceiling_micro_usd": 1_000_003,
            "over_runs": 0,
            "indeterminate": 0,
        }


async def test_what_runs_is_live_and_reserved_and_then_spent() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(asked("r1"), asked("r2"))
        await trio.testing.wait_all_tasks_blocked()
        report = await status(client)
        ours = of_caller(report)
        reserved = sum(begin.reservation_micro_usd for begin in road.ledger.begins)
        assert (ours["live_requests"], ours["reserved_micro_usd"], ours["spent_micro_usd"]) == (2, reserved, 0)
        assert report["daemon"]["live_requests"] == 2
        assert report["connectors"] == [
            {"name": "echo", "kind": "scripted", "live_requests": 2, "concurrent_requests_max": 1000}
        ]
        await client.send(cancel("r1"), cancel("r2"))
        await client.heard(2)
        ours = of_caller(await status(client))
    assert (ours["live_requests"], ours["reserved_micro_usd"], ours["spent_micro_usd"]) == (0, 0, reserved)


async def test_an_over_run_is_counted() -> None:
    usage = Usage(input_tokens=10**6, cache_read_tokens=0, cache_write_tokens=0, output_tokens=1)
    road = Road(connector=Scripted((Rule(deltas=("hi",), usage=usage),)))
    async with served(road) as client:
        await client.send(asked("r1"))
        await client.heard(1)
        assert of_caller(await status(client))["over_runs"] == 1


async def test_what_a_crash_left_open_is_counted_and_what_is_resolved_no_longer() -> None:
    road = Road(ledger=left_open())
    async with served(road) as client:
        ours = of_caller(await status(client))
        assert (ours["indeterminate"], ours["live_requests"]) == (1, 0)
        assert ours["reserved_micro_usd"] == road.ledger.begins[0].reservation_micro_usd
        begin = road.ledger.begins[0]
        road.reservations.settle_left_open("dungeon", begin.admitted_at_unix_ms, begin.reservation_micro_usd, 0)
        assert of_caller(await status(client))["indeterminate"] == 0


@pytest.mark.parametrize(
    ("callers", "operator", "seen", "models"),
    [
        ({"dungeon"}, None, ["dungeon"], ["npc", "npc-refusing"]),
        ({"other"}, None, ["other"], ["npc"]),
        ({"dungeon", "other"}, None, ["dungeon", "other"], ["npc", "npc-refusing"]),
        (set(), STRANGER, ["dungeon", "other"], ["npc", "npc-private", "npc-refusing"]),
        ({"other"}, STRANGER, ["dungeon", "other"], ["npc", "npc-private", "npc-refusing"]),
    ],
    ids=["one", "the other", "both", "an operator", "an operator that is a caller"],
)
async def test_a_peer_sees_only_the_callers_that_it_may_be_an_operator_all(
    callers: set[str], operator: Any, seen: list[str], models: list[str]
) -> None:
    async with served(Road(), callers=frozenset(callers), operator=operator) as client:
        report = await status(client)
    assert [one["caller_runtime_id"] for one in report["callers"]] == seen
    assert [one["name"] for one in report["models"]] == models
    assert [one["name"] for one in report["connectors"]] == ["echo"]


async def test_a8_prices_of_zero_are_written_out() -> None:
    async with served(Road()) as client:
        model = (await status(client))["models"][0]
    assert model["prices"] == [
        {
            "input": 2_000_003,
            "cache_read": 3_000_017,
            "cache_write_short": 5_000_011,
            "cache_write_long": 7_000_003,
            "output": 11_000_027,
        }
    ]


async def test_the_daemon_says_what_state_it_is_in() -> None:
    road = Road()
    async with served(road) as client:
        daemon = (await status(client))["daemon"]
        assert (daemon["server"], daemon["now_unix_ms"], daemon["ledger"]) == ("sidecar test", build.NOW, "ready")
        assert (daemon["connections"], daemon["connections_max"], daemon["draining"]) == (1, 256, False)
        road.ledger.pressure = "no space left"
        assert (await status(client))["daemon"]["ledger"] == "pressure"
        road.exchange.draining = True
        road.ledger.poison("the disk is gone")
        daemon = (await status(client))["daemon"]
        assert (daemon["ledger"], daemon["draining"]) == ("failed", True)


async def test_a_new_window_begins_empty() -> None:
    road = Road(connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"))
        await client.heard(1)
        road.now += 86_400_000
        ours = of_caller(await status(client))
    assert (ours["spent_micro_usd"], ours["window_start_unix_ms"]) == (0, road.now - road.now % 86_400_000)
