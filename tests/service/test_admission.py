"""Every refusal of the contract's section 3, in its order."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import trio
from kit import build
from kit.memory_ledger import MemoryLedger
from kit.road import Road, said

from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.service.decision import Admitted

NOBODY: frozenset[str] = frozenset()


def broken(frame: bytes) -> bytes:
    """The same frame with a member that the schema doesn't know."""
    return bytes(msgpack.packb({**msgpack.unpackb(frame), "extra": 1}))


# One frame that breaks every rule from its own on; dropping the first fault uncovers the next rule.
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("PayloadBound", {"instructions": "x" * 30_000}),
    ("Malformed", {"conversation_id": "not an id"}),
    ("Expired", {}),
    ("ProviderDigestSubstitution", {}),
    ("ModelNotAllowed", {"model": "npc-private"}),
    ("OutputBound", {"max_output_tokens": 501}),
    ("CostBound", {}),
]


def faulty(first: int) -> bytes:
    changes: dict[str, Any] = {}
    for _, change in reversed(FAULTS[first:]):
        changes |= change
    asked = build.request(**changes)
    members: dict[str, Any] = {"max_cost_micro_usd": 1}
    names = [name for name, _ in FAULTS[first:]]
    if "Expired" in names:
        members["expires_at_unix_ms"] = build.NOW
    if "ProviderDigestSubstitution" in names:
        members["provider_request_sha256"] = (1,) * 32
    return build.frame(asked, **members)


async def test_the_first_rule_that_applies_is_the_answer() -> None:
    road = Road()
    assert road.refusal(faulty(0), NOBODY) == "IdentitySubstitution"
    for at, (name, _) in enumerate(FAULTS):
        assert road.refusal(faulty(at)) == name
    assert not road.ledger.begins


async def test_1_identity() -> None:
    road = Road()
    assert road.refusal(build.frame(), frozenset({"other"})) == "IdentitySubstitution"
    assert road.refusal(build.frame(caller_runtime_id="unknown"), frozenset({"unknown"})) == "IdentitySubstitution"
    assert road.refusal(broken(build.frame()), NOBODY) == "IdentitySubstitution"


async def test_2_payload_bound_exactly() -> None:
    road = Road()
    assert road.refusal(frame_of(20_000)) is None
    assert road.refusal(frame_of(20_001)) == "PayloadBound"


def frame_of(size: int) -> bytes:
    """A valid frame of exactly this many bytes; the length of a digest varies with its integers, so it is searched."""
    frames = (
        build.frame(build.request(instructions="x" * length, conversation_id=f"c{salt}"))
        for salt in range(10)
        for length in range(size - 1000, size - 500)
    )
    return next(frame for frame in frames if len(frame) == size)


async def test_2_comes_before_3() -> None:
    assert Road().refusal(broken(build.frame(build.request(instructions="x" * 30_000)))) == "PayloadBound"


async def test_3_malformed_by_schema_and_by_rule() -> None:
    road = Road()
    assert road.refusal(broken(build.frame())) == "Malformed"
    assert road.refusal(build.frame(build.request(max_output_tokens=0))) == "Malformed"


async def test_a3_output_bounds_reserve_nothing() -> None:
    road = Road()
    assert road.refusal(build.frame(build.request(max_output_tokens=0))) == "Malformed"
    assert road.refusal(build.frame(build.request(max_output_tokens=999_999_999))) == "OutputBound"
    assert road.accounts["dungeon"].reserved(road.accounts["dungeon"].window_start(road.now)) == 0


async def test_4_expiry_on_both_sides() -> None:
    road = Road()
    assert road.refusal(build.frame(expires_at_unix_ms=road.now)) == "Expired"
    assert road.refusal(build.frame(expires_at_unix_ms=road.now + 1)) is None
    assert road.refusal(build.frame(expires_at_unix_ms=road.now + 300_000)) is None
    assert road.refusal(build.frame(expires_at_unix_ms=road.now + 300_001)) == "Expired"
    road.ledger.low_water_unix_ms = road.now + 60_000
    assert road.refusal(build.frame(expires_at_unix_ms=road.now + 60_000)) == "Expired"
    assert road.refusal(build.frame(expires_at_unix_ms=road.now + 60_001)) is None


async def test_6_model_unknown_or_not_this_callers() -> None:
    road = Road()
    for model in ("unknown", "npc-private"):
        assert road.refusal(build.frame(build.request(model=model))) == "ModelNotAllowed"


async def test_7_output_bound_of_the_caller_and_of_the_model() -> None:
    road = Road()
    assert road.refusal(build.frame(build.request(max_output_tokens=500))) is None
    assert road.refusal(build.frame(build.request(max_output_tokens=501))) == "OutputBound"
    assert road.refusal(build.frame(build.request(model="npc-refusing", max_output_tokens=1000))) is None
    assert road.refusal(build.frame(build.request(model="npc-refusing", max_output_tokens=1001))) == "OutputBound"


def worst_case(asked: v.ProviderRequest) -> int:
    bound = len(canonical.encode(asked))
    return -(-(bound * 5_000_011 + asked.max_output_tokens * 11_000_027) // 1_000_000)


async def test_8_cost_bound_exactly() -> None:
    road = Road()
    exact = worst_case(build.request())
    assert road.refusal(build.frame(max_cost_micro_usd=exact)) is None
    assert road.refusal(build.frame(max_cost_micro_usd=exact - 1)) == "CostBound"


async def test_8_a_too_small_budget_under_a_recorded_id_is_cost_bound() -> None:
    road = Road()
    road.connector.let_go.set()
    await road.answer(build.frame())
    assert road.refusal(build.frame(max_cost_micro_usd=1)) == "CostBound"
    assert road.refusal(build.frame(max_cost_micro_usd=999_999)) == "ReplayConflict"


async def test_9_in_flight_then_replay_then_conflict() -> None:
    road = Road()
    answers = []
    async with trio.open_nursery() as nursery:

        async def first() -> None:
            answers.append(await road.answer(build.frame()))

        nursery.start_soon(first)
        await trio.testing.wait_all_tasks_blocked()
        assert road.refusal(build.frame()) == "InFlight"
        assert road.refusal(build.frame(max_cost_micro_usd=999_999)) == "ReplayConflict"
        road.connector.let_go.set()
    assert await road.answer(build.frame()) == answers[0]
    assert len(road.connector.asked) == 1


async def test_9_a_begin_without_an_end_is_indeterminate_and_keeps_its_reservation() -> None:
    road = Road()
    road.ledger.fail_complete_with = "the process is gone"
    road.connector.let_go.set()
    assert said(await road.answer(build.frame())) == "ledger_unavailable"
    again = Road(ledger=road.ledger)
    assert again.refusal(build.frame()) == "Indeterminate"
    account = again.accounts["dungeon"]
    assert account.reserved(account.window_start(again.now)) == worst_case(build.request())


async def test_on_record_no_change_of_clock_config_or_price_hides_the_answer() -> None:
    road = Road()
    road.connector.let_go.set()
    frame = build.frame()
    answer = await road.answer(frame)
    later = Road(ledger=road.ledger)
    later.now += 10**9
    assert await later.answer(frame) == answer
    gone = Road(ledger=road.ledger)
    gone.config.models.pop("npc")
    assert await gone.answer(frame) == answer


async def test_10_foreign_states_are_dropped_and_counted_or_refused() -> None:
    asked = build.request(build.text(), build.state(provider="claude"), build.state(provider="gpt"), build.said("so"))
    decision = Road().decide(build.frame(asked))
    assert isinstance(decision, Admitted)
    assert decision.begin.foreign_reasoning_dropped == 2
    assert len(decision.lowered.request.input) == 2
    assert Road(foreign="refuse").refusal(build.frame(asked)) == "ForeignReasoningState"


@pytest.mark.parametrize("policy", ["drop", "refuse"])
async def test_10_own_states_that_this_model_cannot_use_are_dropped_under_either_policy(policy: str) -> None:
    asked = build.request(build.text(), build.state(opaque=b"not ours"), build.said("so"))
    decision = Road(foreign=policy).decide(build.frame(asked))
    assert isinstance(decision, Admitted)
    assert decision.begin.foreign_reasoning_dropped == 1


async def test_h5_a_state_of_another_connector_never_reaches_this_one() -> None:
    foreign = build.state(provider="claude", model="echo-1", opaque=b'{"k":"scripted","m":"echo-1","t":"x","v":1}')
    decision = Road().decide(build.frame(build.request(build.text(), foreign)))
    assert isinstance(decision, Admitted)
    assert not any(item.reasoning_state for item in decision.lowered.request.input)


async def test_11_nothing_left_without_states_is_provider_rejected() -> None:
    for lonely in (build.state(provider="claude"), build.state(opaque=b"not ours")):
        assert Road().refusal(build.frame(build.request(lonely))) == "ProviderRejected"


async def test_12_capacity_before_13_and_nothing_is_written() -> None:
    road = Road(concurrent=1, ceiling=worst_case(build.request()))
    assert isinstance(road.decide(build.frame(build.request(request_id="a"))), Admitted)
    assert road.refusal(build.frame(build.request(request_id="b"))) == "Capacity"
    road = Road(connector_concurrent=1)
    assert isinstance(road.decide(build.frame(build.request(request_id="a"))), Admitted)
    assert road.refusal(build.frame(build.request(request_id="b"))) == "Capacity"
    assert not road.ledger.begins


async def test_13_exactly_at_the_ceiling_is_allowed() -> None:
    one = worst_case(build.request())
    road = Road(ceiling=2 * one)
    for request_id in ("request-a", "request-b"):
        assert isinstance(road.decide(build.frame(build.request(request_id=request_id))), Admitted)
    assert road.refusal(build.frame(build.request(request_id="request-c"))) == "SpendCeiling"
    road = Road(ceiling=2 * one - 1)
    assert isinstance(road.decide(build.frame(build.request(request_id="request-a"))), Admitted)
    assert road.refusal(build.frame(build.request(request_id="request-b"))) == "SpendCeiling"
    assert f"{one} micro-USD are needed" in road.log.getvalue()


async def test_14_draining_replaces_the_last_step_only() -> None:
    road = Road()
    road.exchange.draining = True
    assert road.refusal(build.frame()) == "shutting_down"
    assert road.refusal(build.frame(max_cost_micro_usd=1)) == "CostBound"


async def test_a_begin_that_fails_gives_everything_back_and_asks_nobody() -> None:
    road = Road(concurrent=1)
    road.ledger.fail_begin_with = "the disk is full"
    assert said(await road.answer(build.frame())) == "ledger_unavailable"
    assert not road.connector.asked
    assert len(road.reservations) == 0
    road.ledger.fail_begin_with = None
    road.connector.let_go.set()
    assert said(await road.answer(build.frame())) == "end_turn"


async def test_two_at_once_cannot_both_have_one_id() -> None:
    ledger = MemoryLedger()
    ledger.delay_seconds = 0.001
    road = Road(ledger=ledger)
    road.connector.let_go.set()
    words = []

    async def ask() -> None:
        words.append(said(await road.answer(build.frame())))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert sorted(words) == ["InFlight"] * 4 + ["end_turn"]
    assert len(road.connector.asked) == 1
