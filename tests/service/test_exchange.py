"""What follows admission: begin, ask, complete, answer; deadlines, usage, sizes, and what is kept."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from kit import build
from kit.memory_ledger import MemoryLedger
from kit.road import HeldConnector, Road, receipt, said

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.script import Rule, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import VERIFY, RecordDamaged
from sidecar.service.decision import Admitted
from sidecar.service.errors import error_frame


def scripted(**members: Any) -> Scripted:
    return Scripted((Rule(**members),))


def usage(input: int = 0, read: int = 0, write: int = 0, output: int = 0) -> v.Usage:
    return v.Usage(input_tokens=input, cache_read_tokens=read, cache_write_tokens=write, output_tokens=output)


async def ended(road: Road, **changes: Any) -> dict[str, Any]:
    return receipt(await road.answer(build.frame(**changes)))


def account(road: Road) -> tuple[int, int]:
    """(spent, reserved) of the window of now."""
    held = road.accounts["dungeon"]
    start = held.window_start(road.now)
    return held.spent(start), held.reserved(start)


# --- order ------------------------------------------------------------------------------------------------------


async def test_begin_is_durable_before_the_connector_is_asked_and_complete_before_the_answer() -> None:
    seen = []
    road = Road()
    road.connector.let_go.set()
    road.connector.on_ask = lambda: seen.append((len(road.ledger.begins), len(road.ledger.completes)))
    await road.answer(build.frame())
    assert seen == [(1, 0)]
    assert len(road.ledger.completes) == 1


async def test_slot_and_record_are_settled_before_the_answer() -> None:
    road = Road(concurrent=1, connector=scripted(usage=usage(input=7, output=3)))
    for number in range(20):
        frame = build.frame(build.request(request_id=f"r{number}"))
        answer = await road.answer(frame)
        assert said(answer) == "end_turn"
        assert await road.answer(frame) == answer
    assert account(road)[1] == 0


async def test_c2_an_answer_that_could_not_be_recorded_is_not_given() -> None:
    road = Road(concurrent=1)
    road.ledger.fail_complete_with = "No space left on device"
    road.connector.let_go.set()
    frame = await road.answer(build.frame())
    assert said(frame) == "ledger_unavailable"
    assert b"hello" not in frame
    spent, reserved = account(road)
    assert spent == 0
    assert reserved > 0
    assert len(road.reservations) == 0, "the slot is free"


# --- money ------------------------------------------------------------------------------------------------------

PRIMES = {"input": 2_000_003, "read": 3_000_017, "write": 5_000_011, "output": 11_000_027}


@pytest.mark.parametrize("kind", PRIMES)
async def test_the_charge_tells_the_kinds_of_token_apart(kind: str) -> None:
    road = Road(connector=scripted(usage=usage(**{kind: 10})))
    end = await ended(road)
    assert end["cost_micro_usd"] == -(-PRIMES[kind] * 10 // 1_000_000)
    assert account(road) == (end["cost_micro_usd"], 0)


async def test_d11_explicit_zeros_cost_nothing_and_absent_usage_the_reservation() -> None:
    road = Road(connector=scripted(usage=usage()))
    assert (await ended(road))["cost_micro_usd"] == 0
    assert account(road) == (0, 0)
    road = Road(connector=scripted(usage="absent"))
    end = await ended(road)
    assert end["outcome"]["Failed"]["kind"] == "provider"
    assert "usage" not in end["outcome"]["Failed"]
    assert account(road) == (road.ledger.begins[0].reservation_micro_usd, 0)


async def test_a7_a_model_without_a_price_is_refused_before_anything_is_written() -> None:
    road = Road()
    assert road.refusal(build.frame(build.request(model="npc-unpriced"))) == "ModelNotAllowed"
    assert not road.ledger.begins


async def test_a7_usage_bound_reports_the_bound_charges_the_reservation_and_notes_it() -> None:
    road = Road(connector=scripted(usage="absent"), usage="bound")
    end = await ended(road)
    begin, record = road.ledger.completes[0]
    assert end["outcome"]["Completed"]["usage"]["input_tokens"] == begin.input_bound_tokens
    assert end["outcome"]["Completed"]["usage"]["output_tokens"] == 100
    assert record.charge_micro_usd == begin.reservation_micro_usd
    assert record.notes == ("usage_bound",)


async def test_an_over_run_is_charged_in_full_noted_and_closes_the_window() -> None:
    road = Road(connector=scripted(usage=usage(output=10**9)), ceiling=10**7)
    end = await ended(road)
    assert end["cost_micro_usd"] == 11_000_027 * 1000
    assert road.ledger.completes[0][1].notes == ("over_run",)
    assert "warning completed" in road.log.getvalue()
    assert road.refusal(build.frame(build.request(request_id="next"))) == "SpendCeiling"


async def test_usage_that_is_no_money_is_a_provider_failure_at_the_whole_reservation() -> None:
    road = Road(connector=scripted(usage=usage(output=2**64 - 1)))
    end = await ended(road)
    assert end["outcome"]["Failed"]["kind"] == "provider"
    assert end["cost_micro_usd"] == road.ledger.begins[0].reservation_micro_usd


async def test_b2_a_request_that_ends_in_the_next_window_is_charged_to_its_own() -> None:
    road = Road()
    day = 86_400_000
    road.now = build.NOW - build.NOW % day + day - 1000
    frame = build.frame(expires_at_unix_ms=road.now + 60_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.answer, frame)
        await trio.testing.wait_all_tasks_blocked()
        road.now += 2000
        road.connector.let_go.set()
    held = road.accounts["dungeon"]
    assert held.spent(held.window_start(road.now)) == 0
    assert held.spent(held.window_start(road.now - day)) > 0


@pytest.mark.parametrize(
    "kind", ["authentication", "rate_limited", "invalid_request", "unavailable", "provider", "timeout"]
)
async def test_a_failure_costs_nothing_known_or_everything(kind: Any) -> None:
    failure = ScriptedFailure(kind, "so it is")
    for rule, cost in (
        ({"nothing_sent": True}, 0),
        ({"usage": usage(input=10)}, 21),
        ({}, None),
    ):
        road = Road(connector=scripted(fail=failure, **rule))
        end = await ended(road)
        assert end["outcome"]["Failed"]["kind"] == kind
        assert end["cost_micro_usd"] == (road.ledger.begins[0].reservation_micro_usd if cost is None else cost)
        assert ("usage" in end["outcome"]["Failed"]) == (cost is not None)


async def test_a12_a_connection_lost_after_sending_costs_the_reservation_and_its_retry_sends_nothing() -> None:
    class Lost(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            self.asked.append(lowered)
            answer.sent = True
            answer.fail("unavailable", "the connection was lost")

    connector = Lost()
    road = Road(connector=connector)
    first = await road.answer(build.frame())
    assert said(first) == "unavailable"
    assert receipt(first)["cost_micro_usd"] == road.ledger.begins[0].reservation_micro_usd
    assert await road.answer(build.frame()) == first
    assert len(connector.asked) == 1


# --- deadlines --------------------------------------------------------------------------------------------------


async def test_deadlines_a_thousand_times_over(autojump_clock: trio.testing.MockClock) -> None:
    """The connector is dropped, the outcome is timeout, the slot is free: cap 1, and the next one is admitted."""
    dropped = []

    class Hanging(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            answer.sent = True
            answer.text("half an ans")
            try:
                await trio.sleep_forever()
            finally:
                dropped.append(lowered.request.request_id)

    road = Road(connector=Hanging(), concurrent=1, ceiling=10**12)
    for number in range(1000):
        began = trio.current_time()
        frame = build.frame(build.request(request_id=f"r{number}"), expires_at_unix_ms=road.now + 5_000)
        answer = await road.answer(frame)
        assert said(answer) == "timeout"
        assert trio.current_time() - began == pytest.approx(5.0)
        assert len(road.reservations) == 0
    assert dropped == [f"r{number}" for number in range(1000)]
    assert account(road) == (sum(b.reservation_micro_usd for b in road.ledger.begins), 0)


async def test_the_connectors_time_limit_is_a_deadline_too(autojump_clock: trio.testing.MockClock) -> None:
    road = Road(time_limit=3)
    began = trio.current_time()
    assert said(await road.answer(build.frame())) == "timeout"
    assert trio.current_time() - began == pytest.approx(3.0)


async def test_i4_a_deadline_that_passes_while_begin_syncs_sends_nothing_and_costs_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledger = MemoryLedger()
    ledger.delay_seconds = 6
    road = Road(ledger=ledger)
    answer = await road.answer(build.frame(expires_at_unix_ms=build.NOW + 5_000))
    assert said(answer) == "timeout"
    assert receipt(answer)["cost_micro_usd"] == 0
    assert not road.connector.asked


async def test_an_outcome_that_was_read_stands_though_the_deadline_strikes_while_closing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class SlowToClose(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            answer.sent = True
            answer.text("done")
            answer.complete("end_turn", usage(input=1, output=1))
            await trio.sleep_forever()

    assert said(await Road(connector=SlowToClose()).answer(build.frame())) == "end_turn"


async def test_a15_a_connector_that_breaks_frees_its_slot_every_time() -> None:
    class Broken(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            answer.sent = True
            raise ZeroDivisionError("a bug")

    road = Road(connector=Broken(), concurrent=1, ceiling=10**12)
    for number in range(100):
        assert said(await road.answer(build.frame(build.request(request_id=f"r{number}")))) == "provider"
    assert "connector_bug" in road.log.getvalue()


# --- size -------------------------------------------------------------------------------------------------------


async def test_a_bug_of_a_connector_in_one_group_with_the_cancellation_is_a_failure_of_its_request() -> None:
    class Messy(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            async def clean_up_badly() -> None:
                try:
                    await trio.sleep_forever()
                finally:
                    raise ZeroDivisionError("a bug")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(clean_up_badly)
                await trio.sleep_forever()

    road = Road(connector=Messy())
    assert said(await road.answer(build.frame(expires_at_unix_ms=road.now + 20))) == "provider"
    assert len(road.reservations) == 0
    assert "connector_bug" in road.log.getvalue()


async def test_a_bug_met_while_deciding_answers_internal_and_reserves_nothing() -> None:
    class Odd(HeldConnector):
        def lower(self, request: v.ProviderRequest, upstream: str) -> Lowered:
            raise ZeroDivisionError("a bug")

    road = Road(connector=Odd())
    assert said(await road.answer(build.frame())) == "internal"
    assert len(road.reservations) == 0
    assert "internal" in road.log.getvalue()
    assert not road.ledger.begins


async def test_an_answer_above_the_connectors_bound_is_result_size_with_no_events_at_the_reservation() -> None:
    road = Road(connector=scripted(deltas=("x" * 100,), repeat=100), response_bytes_max=5000)
    answer = await road.answer(build.frame())
    assert said(answer) == "result_size"
    assert msgpack.unpackb(answer)["disposition"]["Transported"]["events"] == []
    assert receipt(answer)["cost_micro_usd"] == road.ledger.begins[0].reservation_micro_usd


async def test_an_answer_that_the_ledger_has_no_room_for_is_result_size_with_its_usage() -> None:
    road = Road(connector=scripted(deltas=("x" * 5000,), usage=usage(input=10)))
    road.ledger.room_bytes = 2000
    answer = await road.answer(build.frame())
    assert said(answer) == "result_size"
    assert receipt(answer)["cost_micro_usd"] == 21
    assert road.ledger.completes[0][1].notes == ("result_degraded",)


async def test_a_result_above_the_frame_bound_is_result_size_with_its_usage() -> None:
    road = Road(connector=scripted(deltas=("x" * 1000,), repeat=4190, usage=usage(input=10)), response_bytes_max=2**30)
    frame = await road.answer(build.frame())
    assert said(frame) == "end_turn"
    road = Road(connector=scripted(deltas=("x" * 1000,), repeat=4195, usage=usage(input=10)), response_bytes_max=2**30)
    frame = await road.answer(build.frame())
    assert said(frame) == "result_size"
    assert receipt(frame)["cost_micro_usd"] == 21


# --- concurrency ------------------------------------------------------------------------------------------------


async def test_64_at_once_against_a_ceiling_of_ten_worst_cases() -> None:
    """Exactly 10 run and 54 are refused; no prefix of the records is above the ceiling; others go on meanwhile."""
    frames = [build.frame(build.request(request_id=f"request-{number:02}")) for number in range(64)]
    probe = Road().decide(frames[0])
    assert isinstance(probe, Admitted)
    one = probe.begin.reservation_micro_usd
    road = Road(ceiling=10 * one)
    words: list[str] = []
    others: list[str] = []

    async def ask(frame: bytes, into: list[str]) -> None:
        into.append(said(await road.answer(frame)))

    async with trio.open_nursery() as nursery:
        for frame in frames:
            nursery.start_soon(ask, frame, words)
        await trio.testing.wait_all_tasks_blocked()
        assert words == ["SpendCeiling"] * 54
        for number in range(8):
            nursery.start_soon(
                ask, build.frame(build.request(request_id=f"o{number}"), caller_runtime_id="other"), others
            )
        await trio.testing.wait_all_tasks_blocked()
        assert len(road.connector.asked) == 18
        road.connector.let_go.set()
    assert sorted(words) == ["SpendCeiling"] * 54 + ["end_turn"] * 10
    assert others == ["end_turn"] * 8
    held = 0
    for begin in road.ledger.begins:
        if begin.caller_runtime_id == "dungeon":
            held += begin.reservation_micro_usd
            assert held <= 10 * one


@pytest.mark.parametrize("caller", ["dungeon", "other"])
async def test_a1_and_a2_parallel_calls_of_any_caller_cannot_pass_the_ceiling(caller: str) -> None:
    """Ceiling 10,000, each bound 4,000, eight at once: two are admitted."""
    road = Road(ceiling=10_000)
    road.accounts["other"].ceiling_micro_usd = 10_000
    frames = [build.frame(padded_to(4_000, request_id=f"r{number}"), caller_runtime_id=caller) for number in range(8)]
    words: list[str] = []

    async def ask(frame: bytes) -> None:
        words.append(said(await road.answer(frame)))

    async with trio.open_nursery() as nursery:
        for frame in frames:
            nursery.start_soon(ask, frame)
        await trio.testing.wait_all_tasks_blocked()
        assert {begin.reservation_micro_usd for begin in road.ledger.begins} <= set(range(3_900, 4_001))
        road.connector.let_go.set()
    assert sorted(words) == ["SpendCeiling"] * 6 + ["max_output_tokens"] * 2


def padded_to(micro_usd: int, request_id: str) -> v.ProviderRequest:
    """A request whose worst case is as near below this as bytes allow."""
    asked = build.request(request_id=request_id, max_output_tokens=1)
    bytes_wanted = (micro_usd * 1_000_000 - 11_000_027) // 5_000_011
    missing = bytes_wanted - len(canonical.encode(asked))
    return build.request(request_id=request_id, max_output_tokens=1, instructions="x" * (missing - 2))


async def test_an_answer_too_large_to_carry_whose_usage_was_the_bound_still_costs_the_reservation() -> None:
    road = Road(connector=scripted(deltas=("x" * 5000,), usage="absent"), usage="bound")
    road.ledger.room_bytes = 2000
    answer = await road.answer(build.frame())
    assert said(answer) == "result_size"
    assert receipt(answer)["cost_micro_usd"] == road.ledger.begins[0].reservation_micro_usd


def test_a_transport_error_is_short_whatever_the_client_sent() -> None:
    frame = msgpack.unpackb(error_frame("malformed_frame", "the key " + "\n\x00" * 8_000_000))
    assert len(frame["message"]) <= 1024
    assert frame["message"].isprintable()


async def test_an_answer_that_a_disk_has_damaged_is_internal_and_the_log_says_where_and_what_helps() -> None:
    class Damaged(MemoryLedger):
        async def read_response(self, recorded: Recorded) -> bytes:
            raise RecordDamaged("the recorded answer can't be read back: expected a CRC that fits")

    road = Road(ledger=Damaged())
    road.connector.let_go.set()
    await road.answer(build.frame())
    assert said(await road.answer(build.frame())) == "internal"
    [line] = [line for line in road.log.getvalue().splitlines() if " record_unreadable " in line]
    file = road.config.ledger.directory / "0000000000000001.segment"
    assert f'file={file} offset=2 advice="{VERIFY}"' in line
