"""The field's cases that a Messages answer turns into money, a turn or a failure: C to H, on the whole road."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import msgpack
import pytest
from kit import build
from kit.chat_road import ChatRoad, Told
from kit.connector_cases import messages_at
from kit.messages_streams import (
    STOP,
    USED,
    begun,
    called,
    document,
    event,
    finished,
    opened,
    piece,
    said,
    stopped,
    thought,
)
from kit.road import Road
from kit.stub_http import Reply, chunked, stub_provider, whole

from sidecar.contract.values import PriceRow, Usage
from sidecar.rules.pricing import charge_micro_usd

USED_CHARGE = -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)  # at the prices of `kit.road`


@asynccontextmanager
async def road_to(reply: Reply, **changes: Any) -> AsyncIterator[ChatRoad]:
    async with stub_provider(reply) as stub:
        connector = messages_at(stub.url)
        yield ChatRoad(Road(connector=connector, **changes), stub)
        await connector.aclose()


async def told(*pieces: bytes, asked: dict[str, Any] | None = None, **road: Any) -> Told:
    """One invocation that is answered so."""
    async with road_to(chunked(*pieces), **road) as made:
        return await made.ask(**(asked or {}))


def priced(usage: dict[str, Any] | None, retention: Any = None, **prices: str) -> int:
    """A receipt's usage at prices in USD per million tokens; one that is not said is the input's."""
    assert usage is not None
    names = ("input", "cache_read", "cache_write_short", "cache_write_long", "output")
    row = {name: int(Fraction(prices.get(name, prices["input"])) * 1_000_000) for name in names}
    return charge_micro_usd((PriceRow(**row),), Usage(**usage), retention)


def counts(input: int, output: int, read: int = 0, write: int = 0, **more: Any) -> dict[str, Any]:
    cache = {"cache_read_input_tokens": read, "cache_creation_input_tokens": write}
    return {"input_tokens": input, "output_tokens": output, **cache, **more}


# --- D: usage to money ------------------------------------------------------------------------------------------


async def test_d1_written_tokens_are_charged_once() -> None:
    split = {"ephemeral_5m_input_tokens": 12_304, "ephemeral_1h_input_tokens": 0}
    used = counts(3, 550, write=12_304, cache_creation=split)
    answer = await told(begun({**used, "output_tokens": 1}), said("Hi"), finished(usage=used))
    assert priced(answer.usage, input="3", cache_write_short="3.75", cache_read="0.30", output="15") == 54_399


async def test_d4_streamed_and_whole_the_same_usage_costs_the_same() -> None:
    used = counts(4, 23, read=2_455)
    streamed = await told(begun({**used, "output_tokens": 1}), said("Hi"), finished(usage={"output_tokens": 23}))
    async with road_to(whole(document({"type": "text", "text": "Hi"}, usage=used))) as road:
        at_once = await road.ask()
    for answer in (streamed, at_once):
        assert priced(answer.usage, input="0.80", cache_read="0.08", output="4") == 292
    assert streamed.charge == at_once.charge


async def test_d7_written_tokens_are_charged_at_the_price_of_the_time_that_was_asked_for() -> None:
    """A request asks for one time, so its writes have one price: 600k at 6.25 and 400k at 10 are two requests."""
    prices = {"input": "5", "cache_write_short": "6.25", "cache_write_long": "10", "output": "25"}
    total = 0
    for retention, name, tokens in (("short", "5m", 600_000), ("long", "1h", 400_000)):
        split = {f"ephemeral_{name}_input_tokens": tokens}
        used = counts(0, 0, write=tokens, cache_creation=split)
        answer = await told(begun(used), said("Hi"), finished(usage=used), asked={"cache_retention": retention})
        assert answer.notes == ("over_run",), "the road's bound is below so many tokens"
        total += priced(answer.usage, retention, **prices)
    assert total == 7_750_000


async def test_d7_a_mix_costs_the_dearer_price_whichever_time_was_asked_for() -> None:
    split = {"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4}
    used = counts(11, 3, write=10, cache_creation=split)
    asked_long = await told(begun(used), said("Hi"), finished(usage=used), asked={"cache_retention": "long"})
    assert (asked_long.notes, asked_long.charge) == (
        (),
        -(-(11 * 2_000_003 + 10 * 7_000_003 + 3 * 11_000_027) // 10**6),
    )
    unasked = await told(begun(used), said("Hi"), finished(usage=used), asked={"cache_retention": "short"})
    assert (unasked.notes, unasked.charge) == (("cache_kept_longer",), asked_long.charge)


async def test_d9_thinking_is_inside_output_and_not_on_top_of_it() -> None:
    used = counts(51, 136, output_tokens_details={"thinking_tokens": 31})
    answer = await told(begun(counts(51, 1)), said("Hi"), finished(usage=used))
    assert answer.usage is not None
    assert answer.usage["reasoning_tokens"] == 31
    assert priced(answer.usage, input="3", output="15") == 2_193


async def test_d11_usage_of_zeros_costs_nothing_and_absent_usage_the_reservation() -> None:
    zeros = await told(begun(), said("Hi"), finished(usage=counts(0, 0)))
    assert (zeros.word, zeros.charge) == ("end_turn", 0)
    absent = await told(begun(), said("Hi"), finished(usage=None))
    assert (absent.word, absent.usage, absent.charge) == ("provider", None, absent.reservation)


async def test_d15_a_dated_snapshot_settles_at_the_requests_row_and_another_family_is_flagged() -> None:
    dated = await told(begun(model="echo-1-20251001"), said("Hi"), finished())
    other = await told(begun(model="claude-haiku-4-5"), said("Hi"), finished())
    assert (dated.notes, other.notes) == ((), ("other_model",))
    assert dated.charge == other.charge == USED_CHARGE


@pytest.mark.parametrize("reason", ["end_turn", "a_future_one"])
async def test_d20_a_fallback_of_the_provider_costs_the_reservation_at_least(reason: str) -> None:
    rounds = [{"type": "message", "model": "echo-1"}, {"type": "fallback_message", "model": "other"}]
    answer = await told(begun(), said("Hi"), finished(reason, {**USED, "iterations": rounds}))
    assert "provider_fallback" in answer.notes
    assert answer.charge == answer.reservation > USED_CHARGE
    dear = {**USED, "output_tokens": 1_000_000, "iterations": rounds}
    answer = await told(begun(), said("Hi"), finished(reason, dear))
    assert answer.charge > answer.reservation


# --- E, G: streams and failures ---------------------------------------------------------------------------------


async def test_e6_an_overload_behind_text_is_a_failure_at_the_whole_reservation() -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    answer = await told(begun(), opened(0, "text"), piece(0, "text_delta", text="Part"), error)
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


async def test_e10_a_cut_before_the_stop_reason_is_a_failure_at_the_whole_reservation() -> None:
    answer = await told(begun(), said("The answer"))
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


async def test_g5_an_overload_before_the_stream_is_unavailable_and_costs_nothing() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with road_to(whole(json.dumps(body), 529)) as road:
        answer = await road.ask()
        assert (answer.word, answer.message, answer.charge) == ("unavailable", "Overloaded", 0)
        assert len(road.stub.requests) == 1


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("refusal", "refusal"),
        ("model_context_window_exceeded", "context_window"),
        ("pause_turn", "provider"),
        ("a_future_one", "provider"),
    ],
)
async def test_g1_g8_every_stop_settles_its_usage(reason: str, word: str) -> None:
    answer = await told(begun(), said("Hi"), finished(reason))
    assert (answer.word, answer.charge) == (word, USED_CHARGE)


async def test_a_refusal_before_output_is_charged_as_reported() -> None:
    answer = await told(begun(counts(18, 1)), stopped("refusal", counts(18, 5)), STOP)
    assert (answer.word, answer.text, answer.charge) == ("refusal", "", -(-(18 * 2_000_003 + 5 * 11_000_027) // 10**6))


async def test_g7_a_prompt_that_is_too_long_is_an_invalid_request_with_its_words() -> None:
    why = "prompt is too long: 210000 tokens > 200000 maximum"
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    async with road_to(whole(json.dumps(body), 400)) as road:
        answer = await road.ask()
        assert (answer.word, answer.message, answer.charge) == ("invalid_request", why, 0)


# --- F, H: what is refused, and what goes back ------------------------------------------------------------------


async def test_f9_what_has_no_result_is_malformed_and_what_the_api_cannot_take_refused_before_anything_is_sent() -> (
    None
):
    async with road_to(chunked()) as road:
        for items, word in (
            ((build.text(), build.call("c1")), "Malformed"),
            ((build.text(), build.call("c1"), build.result("c2")), "Malformed"),
            ((build.text(), build.said("Hi")), "ProviderRejected"),
        ):
            assert road.road.refusal(build.frame(build.request(*items))) == word
        assert road.stub.requests == []


async def test_h1_what_was_lifted_goes_back_in_its_place_byte_for_byte() -> None:
    stream = (
        begun(),
        thought(0, "Let me ", "see 北."),
        said("I look.", index=1),
        called(2, "c1", "look", '{"at": "door"}'),
    )
    async with road_to(chunked(*stream, finished("tool_use"))) as road:
        first = await road.road.answer(build.frame())
        items = [build.text("hello there")]
        for payload in (event["payload"] for event in msgpack.unpackb(first)["disposition"]["Transported"]["events"]):
            if payload.get("ReasoningState"):
                items.append(build.state("echo", "npc", payload["ReasoningState"]["state"]))
            elif payload.get("TextDelta"):
                items.append(build.said(payload["TextDelta"]["text"]))
            else:
                call = payload["ToolCall"]
                items += [build.call(call["call_id"], call["name"], call["arguments"]), build.result(call["call_id"])]
        again = await road.ask(*items, request_id="request-2")
        assert again.receipt["foreign_reasoning_dropped"] == 0
        assert road.body()["messages"][1]["content"] == [
            {"type": "thinking", "thinking": "Let me see 北.", "signature": "c2ln"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "door"}},
        ]
