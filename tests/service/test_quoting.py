"""A quote says what the invocation would be answered now and what it could cost; it writes, sends and holds nothing."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import build, wire
from kit.connected import answering, asked, cancel, quote, served
from kit.memory_ledger import MemoryLedger
from kit.road import Road, said

from sidecar.contract import frames
from sidecar.contract.frames import Quote
from sidecar.service.decision import Admitted, Answered


def quoted(road: Road, frame: bytes, *, joins: bool = False) -> dict[str, Any]:
    parsed = frames.parse(quote(frame))
    assert isinstance(parsed, Quote), parsed
    return dict(msgpack.unpackb(road.exchange.quote(parsed, frozenset({"dungeon", "other"}), joins=joins)))


def held(road: Road) -> tuple[object, ...]:
    return (
        len(road.reservations),
        [account.figures() for account in road.accounts.values()],
        len(road.ledger.begins),
        len(getattr(road.connector, "asked", ())),
    )


FRAMES = {
    "admitted": build.frame(),
    "IdentitySubstitution": build.frame(caller_runtime_id="stranger"),
    "PayloadBound": build.frame(build.request(build.text("x" * 20_000))),
    "Malformed": build.frame(build.request(build.text(""))),
    "Expired": build.frame(expires_at_unix_ms=build.NOW),
    "ProviderDigestSubstitution": build.frame(provider_request_sha256=(1,) * 32),
    "ModelNotAllowed": build.frame(build.request(model="npc-private")),
    "OutputBound": build.frame(build.request(max_output_tokens=501)),
    "CostBound": build.frame(max_cost_micro_usd=1),
    "ProviderRejected": build.frame(build.request(build.state(opaque=b"x"))),
}


@pytest.mark.parametrize("refusal", FRAMES)
async def test_a_quote_is_the_decision_and_its_worst_case_is_the_reservation(refusal: str) -> None:
    road = Road()
    before = held(road)
    told = quoted(road, FRAMES[refusal])
    assert held(road) == before
    decision = road.decide(FRAMES[refusal])
    if isinstance(decision, Admitted):
        assert "refusal" not in told
        assert told["worst_case_micro_usd"] == decision.begin.reservation_micro_usd > 0
    else:
        assert isinstance(decision, Answered)
        assert told["refusal"] == said(decision.frame) == refusal
        assert ("worst_case_micro_usd" in told) == (refusal in ("CostBound", "ProviderRejected"))


@settings(max_examples=60)
@given(st.data())
def test_whatever_the_state_a_quote_and_the_same_invocation_are_decided_alike(data: st.DataObject) -> None:
    async def play() -> None:
        road = Road(
            concurrent=data.draw(st.integers(1, 3)),
            connector_concurrent=data.draw(st.integers(1, 3)),
            ceiling=data.draw(st.integers(1, 12_000)),
            foreign=data.draw(st.sampled_from(["drop", "refuse"])),
        )
        for _ in range(data.draw(st.integers(1, 8))):
            items = data.draw(st.lists(st.sampled_from([build.text("hi"), build.state("another")]), min_size=1))
            request = build.request(
                *items,
                request_id=data.draw(st.sampled_from(["r1", "r2", "r3", "r4"])),
                max_output_tokens=data.draw(st.integers(0, 600)),
            )
            frame = build.frame(request, max_cost_micro_usd=data.draw(st.sampled_from([1, 3_000, 10**6])))
            joins, before = data.draw(st.booleans()), held(road)
            told = quoted(road, frame, joins=joins)
            assert held(road) == before
            parsed = frames.parse(frame)
            assert isinstance(parsed, frames.Invocation)
            decision = road.exchange.decide(parsed, frozenset({"dungeon", "other"}), joins=joins)
            if isinstance(decision, Answered):
                assert told["refusal"] == said(decision.frame)
            else:
                assert "refusal" not in told
            if isinstance(decision, Admitted):
                assert told["worst_case_micro_usd"] == decision.begin.reservation_micro_usd

    trio.run(play)


async def test_a_quote_of_what_is_on_record_names_its_reservation_whatever_it_would_cost_today() -> None:
    road = Road(connector=answering())
    frame = build.frame()
    await road.answer(frame)
    road.now += 120_000  # its expiry has passed
    told = quoted(road, frame)
    assert "refusal" not in told
    assert told["worst_case_micro_usd"] == road.ledger.begins[0].reservation_micro_usd


async def test_a_quote_of_what_runs_is_in_flight_unless_this_connection_would_join() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(asked("r1"))
        await trio.testing.wait_all_tasks_blocked()
        await client.send(quote(asked("r1")))
        told = await client.value()
        assert told["refusal"] == "InFlight"
        assert told["worst_case_micro_usd"] == road.ledger.begins[0].reservation_micro_usd
        await client.greet(join=True)
        await client.send(quote(asked("r1")))
        assert "refusal" not in await client.value()
        await client.send(cancel("r1"))
        assert await client.heard(1) == ["timeout"]


async def test_a_quote_of_what_a_crash_left_open_is_indeterminate_with_what_is_held_for_it() -> None:
    road = Road(ledger=left_open())
    told = quoted(road, build.frame())
    assert told["refusal"] == "Indeterminate"
    assert told["worst_case_micro_usd"] == road.ledger.begins[0].reservation_micro_usd


def left_open() -> MemoryLedger:
    """A ledger of which the process died between begin and complete."""
    ledger = MemoryLedger()
    decision = Road(ledger=ledger).decide(build.frame())
    assert isinstance(decision, Admitted)
    ledger._begin(decision.begin)
    ledger.reopen()
    return ledger


async def test_ledger_and_draining_states_are_not_asked() -> None:
    road = Road()
    road.exchange.draining = True
    road.ledger.pressure = "the disk is full"
    assert "refusal" not in quoted(road, build.frame())


async def test_the_payload_bound_counts_the_quotes_own_frame() -> None:
    texts = (build.text("x" * characters) for characters in range(19_000, 20_000))
    asking = sorted(map(build.frame, map(build.request, texts)), key=lambda frame: len(quote(frame)))
    fits = [frame for frame in asking if len(quote(frame)) <= 20_000][-1]  # not every length is there: digests vary
    over = next(frame for frame in asking if len(quote(frame)) > 20_000)
    road = Road()
    assert "refusal" not in quoted(road, fits)
    assert quoted(road, over)["refusal"] == "PayloadBound"
    assert road.refusal(over) is None, "the invocation's own frame fits"


@pytest.mark.parametrize(
    ("invocation", "answer"),
    [
        ({**msgpack.unpackb(build.frame()), "extra": 1}, "Malformed"),
        ({**msgpack.unpackb(build.frame()), "schema_id": "gamecult.model.transport_quote.v1"}, "Malformed"),
        ({**msgpack.unpackb(build.frame()), "caller_runtime_id": "no id"}, "malformed_frame"),
        ({"request": {}}, "malformed_frame"),
        ([1], "malformed_frame"),
        (None, "malformed_frame"),
    ],
    ids=["a member too many", "not an invocation's schema_id", "an id that can't be read", "no ids", "array", "nil"],
)
async def test_an_invocation_inside_a_quote_is_judged_like_one_outside(invocation: Any, answer: str) -> None:
    async with served(Road()) as client:
        await client.send(wire.write({"schema_id": "gamecult.model.transport_quote.v1", "invocation": invocation}))
        told = await client.value()
    assert answer in (told.get("refusal"), told.get("code"))
