"""The field's cases that a Responses answer can meet, over the whole road: money, streams, calls, ends, states."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import pytest
from kit import build
from kit.chat_road import ChatRoad, Told, one_piece_a_byte
from kit.connector_cases import responses_at
from kit.responses_events import (
    USED,
    added,
    arguments,
    call,
    completed,
    done,
    event,
    incomplete,
    message,
    said,
)
from kit.road import Road
from kit.stub_http import Reply, chunked, stub_provider, whole

from sidecar.connectors.openai_responses_states import state_of_reasoning
from sidecar.contract.values import PriceRow, Usage
from sidecar.rules.pricing import charge_micro_usd

CHARGED = -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)  # USED, at the prices of `kit.road`


@asynccontextmanager
async def road(reply: Reply | Callable[[int], Reply], **changes: Any) -> AsyncIterator[ChatRoad]:
    async with stub_provider(reply) as stub:
        connector = responses_at(stub.url)
        yield ChatRoad(Road(connector=connector, **changes), stub)
        await connector.aclose()


async def told(reply: Reply | str, **changes: Any) -> Told:
    """One invocation that is answered so: a reply, or the text of a stream."""
    async with road(chunked(reply.encode()) if isinstance(reply, str) else reply, **changes) as asked:
        return await asked.ask()


def counts(input: int, output: int, cached: Any = None, written: Any = None, reasoning: Any = None) -> dict[str, Any]:
    return {
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
    }


def priced(answer: Told, input: str, output: str, cache_read: str = "0", cache_write: str = "0") -> int:
    """The receipt's usage at prices in USD per million tokens."""
    row = {
        "input": input,
        "cache_read": cache_read,
        "output": output,
        "cache_write_short": cache_write,
        "cache_write_long": cache_write,
    }
    assert answer.usage is not None
    rows = (PriceRow(**{name: int(Fraction(price) * 1_000_000) for name, price in row.items()}),)
    return charge_micro_usd(rows, Usage(**answer.usage), None)


# --- C, D: recording and money ----------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [whole("{}", 500), whole("{}", 408), whole("{}", 409), Reply((), "reset")])
async def test_c12_exactly_one_post_is_made_for_what_sdks_try_again(reply: Reply) -> None:
    async with road(reply) as asked:
        await asked.ask()
        assert len(asked.stub.requests) == 1


@pytest.mark.parametrize(
    ("input", "cached", "output", "prices", "micro_usd"),
    [
        (1_239_328, 1_188_096, 12_909, ("1.25", "10", "0.125"), 341_642),
        (2006, 1920, 300, ("2.5", "10", "1.25"), 5_615),
    ],
)
async def test_d3_cached_tokens_are_priced_as_reads_and_not_as_input(
    input: int, cached: int, output: int, prices: tuple[str, str, str], micro_usd: int
) -> None:
    answer = await told(said("Hi") + completed(counts(input, output, cached)))
    assert priced(answer, *prices) == micro_usd


async def test_d4_streamed_and_whole_the_same_usage_costs_the_same() -> None:
    used = counts(2459, 23, 2455)
    document = {"object": "response", "status": "completed", "output": [message("Hi")], "usage": used, "error": None}
    streamed, at_once = await told(said("Hi") + completed(used)), await told(whole(json.dumps(document)))
    assert priced(streamed, "0.80", "4", "0.08") == priced(at_once, "0.80", "4", "0.08") == 292
    assert (streamed.charge, streamed.text) == (at_once.charge, at_once.text)


async def test_d6_more_cached_than_sent_is_clamped_noted_and_no_refund() -> None:
    answer = await told(said("Hi") + completed(counts(100, 3, 120)))
    assert answer.usage is not None
    assert (answer.usage["input_tokens"], answer.usage["cache_read_tokens"]) == (0, 100)
    assert "usage_clamped" in answer.notes


async def test_d1_d7_written_tokens_are_priced_once_and_as_writes() -> None:
    answer = await told(said("Hi") + completed(counts(4020, 10, 8, 4000)))
    assert priced(answer, "2", "10", "0.1", "2.5") == 10_125  # (12 x 2 + 8 x 0.1 + 4000 x 2.5 + 10 x 10), rounded up


async def test_d9_reasoning_is_inside_the_output_and_never_counted_again() -> None:
    assert priced(await told(said("Hi") + completed(counts(14_746, 1_944, reasoning=1_360))), "30", "180") == 792_300


async def test_d11_zero_usage_costs_nothing_and_absent_usage_costs_the_reservation() -> None:
    assert (await told(said("Hi") + completed(counts(0, 0)))).charge == 0
    for absent in (None, {}):
        answer = await told(said("Hi") + completed(absent))
        assert (answer.word, answer.charge) == ("provider", answer.reservation)


async def test_d15_a_dated_model_is_the_one_that_was_asked_for_and_another_family_is_noted() -> None:
    for model, notes in (("echo-1-2026-11-30", ()), ("gpt-4o", ("other_model",))):
        answer = await told(said("Hi") + completed(model=model))
        assert (answer.charge, answer.notes) == (CHARGED, notes)


# --- A, E: streams ----------------------------------------------------------------------------------------------


async def test_a12_a_connection_that_dies_is_unavailable_costs_the_reservation_and_is_replayed() -> None:
    async with road(chunked(said("Hi").encode(), ends=False, then="reset")) as asked:
        answer = await asked.ask()
        assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)
        await asked.road.answer(build.frame())
        assert len(asked.stub.requests) == 1


async def test_e1_e3_lines_and_characters_split_anywhere_give_the_same_answer() -> None:
    body = (said("北京🙂") + completed()).replace("\n", "\r\n").encode()
    assert (await told(one_piece_a_byte(body))).text == "北京🙂"


async def test_e4_e5_comments_and_keep_alives_are_nothing_and_other_events_that_are_no_json_fail() -> None:
    alive = ": OPENROUTER PROCESSING\n\ndata:\n\ndata: : keepalive\n\n"
    answer = await told(alive + said("Hi") + alive + completed() + alive)
    assert (answer.word, answer.text) == ("end_turn", "Hi")
    assert (await told(said("Hi") + "data: ping\n\n" + completed())).word == "provider"


async def test_e6_an_error_behind_text_is_unavailable_and_costs_what_is_not_known() -> None:
    failed = completed(None, "failed", error={"code": "server_is_overloaded", "message": "Overloaded"})
    answer = await told(said("Part") + event("error", code="server_is_overloaded", message="Overloaded") + failed)
    assert (answer.word, answer.message, answer.charge) == ("unavailable", "Overloaded", answer.reservation)


async def test_e8_a_body_of_200_that_is_an_error_is_one() -> None:
    assert (await told(whole('{"error":{"code":429}}'))).word == "rate_limited"
    assert (await told(whole('{"object":"response"}'))).word == "provider"


async def test_e9_an_error_of_null_is_none() -> None:
    answer = await told(said("Hi") + completed(error=None, incomplete_details=None))
    assert (answer.word, answer.charge) == ("end_turn", CHARGED)


async def test_e10_an_end_before_response_completed_is_never_end_turn() -> None:
    for body in (
        said("Hi"),
        said("Hi") + done(message("Hi")),
        said("Hi") + completed()[:-5],
        said("Hi") + "data: [DONE]\n\n",
    ):
        answer = await told(body)
        assert (answer.word, answer.charge) == ("unavailable", answer.reservation)


async def test_e12_an_answer_above_its_bound_is_result_size_and_its_charge_is_kept() -> None:
    answer = await told(said("x" * 5000) + completed(), response_bytes_max=4096)
    assert (answer.word, answer.charge) == ("result_size", answer.reservation)
    answer = await told(completed(output=[message("x" * 5000)]), response_bytes_max=4096)
    assert (answer.word, answer.charge) == ("result_size", CHARGED), "its usage had come"


# --- F: tool calls ----------------------------------------------------------------------------------------------


async def test_f1_pieces_go_to_the_call_of_their_index() -> None:
    answer = await told(
        added(call("", "A"), 0) + added(call("", "B"), 1)
        + arguments('{"t":"A"}', 0) + arguments('{"t":"B"}', 1)
        + done(call("", "A"), 0) + done(call("", "B"), 1) + completed()
    )  # fmt: skip
    assert answer.calls == [("A", "look", '{"t":"A"}'), ("B", "look", '{"t":"B"}')]


async def test_f3_calls_without_an_index_are_two_calls_in_order() -> None:
    body = "".join(done(call("{}", name), None) for name in ("a", "b")) + completed()
    assert [made[0] for made in (await told(body)).calls] == ["a", "b"]


@pytest.mark.parametrize("said_arguments", ["", None])
async def test_f5_no_arguments_are_an_empty_object(said_arguments: Any) -> None:
    assert (await told(done(call(said_arguments)) + completed())).calls == [("c1", "look", "{}")]


async def test_f6_broken_arguments_of_a_whole_turn_are_a_failure_and_never_an_empty_object() -> None:
    for body in (done(call('{"a":')), added(call("")) + arguments('{"a":') + done(call("")), arguments('{"a":')):
        answer = await told(body + completed())
        assert (answer.word, answer.calls, answer.charge) == ("provider", [], CHARGED)


async def test_f8_a_whole_call_is_tool_use_though_the_response_is_completed() -> None:
    assert (await told(said("Hm.") + done(call(), 1) + completed())).word == "tool_use"


# --- G: ends ----------------------------------------------------------------------------------------------------


async def test_g1_a_refusal_is_one_and_a_reason_that_is_not_known_fails_and_is_charged() -> None:
    refused = event("response.refusal.delta", delta="I won't.", output_index=0)
    part = {"type": "message", "content": [{"type": "refusal", "refusal": "I won't."}]}
    for body in (refused, done(part), refused + done(part), refused + done(call(), 1)):
        answer = await told(body + completed())
        assert (answer.word, answer.text, answer.charge) == ("refusal", "I won't.", CHARGED)
    for reason in ("max_messages", "steered", "mystery"):
        answer = await told(said("Hi") + incomplete(reason))
        assert (answer.word, answer.charge) == ("provider", CHARGED)


@pytest.mark.parametrize(
    ("reason", "word"),
    [("content_filter", "refusal"), ("max_output_tokens", "max_output_tokens"), (None, "provider"), (7, "provider")],
)
async def test_g3_incomplete_is_what_its_reason_says_and_a_failure_without_one(reason: Any, word: str) -> None:
    answer = await told(said("Hi") + incomplete(reason))
    assert (answer.word, answer.charge) == (word, CHARGED)


async def test_g4_a_failed_response_is_a_failure_of_its_codes_kind_and_never_an_empty_turn() -> None:
    for error, word in (
        ({"code": "rate_limit_exceeded", "message": "slow"}, "rate_limited"),
        ({"code": "server_error", "message": "oh"}, "unavailable"),
        (None, "provider"),
    ):
        assert (await told(completed(None, "failed", error=error))).word == word


async def test_g5_529_and_an_overload_inside_the_stream_are_unavailable() -> None:
    assert (await told(whole("{}", 529))).word == "unavailable"
    assert (await told(event("error", error={"type": "overloaded_error", "message": "busy"}))).word == "unavailable"


async def test_g7_a_context_that_is_too_long_is_an_invalid_request_that_says_so_and_costs_nothing() -> None:
    error = {"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."}
    answer = await told(whole(json.dumps({"error": error}), 400))
    assert (answer.word, answer.message, answer.charge) == ("invalid_request", error["message"], 0)


async def test_g10_a_budget_spent_on_reasoning_ends_well_without_text_and_is_charged() -> None:
    answer = await told(incomplete("max_output_tokens", counts(11, 100, reasoning=100)))
    assert (answer.word, answer.text) == ("max_output_tokens", "")
    assert answer.charge == -(-(11 * 2_000_003 + 100 * 11_000_027) // 1_000_000)


# --- H: reasoning state -----------------------------------------------------------------------------------------


async def test_h1_a_reasoning_state_goes_back_in_the_next_request_without_its_id() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA=="}
    state = state_of_reasoning(item, "echo-1")
    assert state is not None
    async with road(chunked((said("Hi") + completed()).encode())) as asked:
        turn = (build.text(), build.state(opaque=state), build.call("c1"), build.result("c1"))
        answer = await asked.ask(*turn)
        assert asked.body()["input"][1] == {"type": "reasoning", "summary": [], "encrypted_content": "gAAA=="}
        assert answer.receipt["foreign_reasoning_dropped"] == 0


async def test_h5_a_state_of_another_provider_or_model_is_removed_and_counted_though_its_fields_match() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA=="}
    ours, of_another_model = state_of_reasoning(item, "echo-1"), state_of_reasoning(item, "echo-2")
    assert ours is not None
    assert of_another_model is not None
    async with road(chunked((said("Hi") + completed()).encode())) as asked:
        states = (build.state("elsewhere", opaque=ours), build.state(opaque=of_another_model))
        answer = await asked.ask(build.text(), *states, build.said("Hm."), build.text())
        assert [item["type"] for item in asked.body()["input"]] == ["message"] * 3
        assert answer.receipt["foreign_reasoning_dropped"] == 2


async def test_h6_a_history_that_the_provider_finds_changed_is_an_invalid_request_and_not_tried_again() -> None:
    error = {"type": "invalid_request_error", "code": None, "message": "Encrypted content could not be verified."}
    async with road(whole(json.dumps({"error": error}), 400)) as asked:
        answer = await asked.ask()
        assert (answer.word, answer.charge, len(asked.stub.requests)) == ("invalid_request", 0, 1)


async def test_a_state_that_the_provider_did_not_read_is_noted_in_the_record() -> None:
    removed = [{"action": "removed", "reason": "model_mismatch"}]
    assert (await told(said("Hi") + completed(USED, input_transformations=removed))).notes == (
        "state_dropped_upstream",
    )
