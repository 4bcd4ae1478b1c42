"""The field's cases that a Chat Completions answer turns into money, one POST or a kept secret: C, D, H and I."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
import trio
from kit import build
from kit.chat_road import DONE, USED, USED_COST, Told, chat_road, chunk, finished, said, told
from kit.stub_http import Reply, chunked, whole

from sidecar.contract.values import PriceRow, Usage
from sidecar.rules.pricing import charge_micro_usd

CHARGED = -(-USED_COST // 1_000_000)


def priced(answer: Told, input: str, cache_read: str, output: str) -> int:
    """The receipt's usage at prices in USD per million tokens."""
    row = {
        "input": input,
        "cache_read": cache_read,
        "output": output,
        "cache_write_short": "0",
        "cache_write_long": "0",
    }
    assert answer.usage is not None
    rows = (PriceRow(**{name: int(Fraction(price) * 1_000_000) for name, price in row.items()}),)
    return charge_micro_usd(rows, Usage(**answer.usage), None)


# --- C: recording -----------------------------------------------------------------------------------------------


async def test_c7_a_replay_posts_nothing_adds_no_record_and_costs_nothing() -> None:
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        first = await chat.road.answer(build.frame())
        for _ in range(3):
            assert await chat.road.answer(build.frame()) == first
        assert (len(chat.stub.requests), len(chat.road.ledger.begins), len(chat.road.ledger.completes)) == (1, 1, 1)
        account = chat.road.accounts["dungeon"]
        window = account.window_start(chat.road.now)
        assert (account.spent(window), account.reserved(window)) == (CHARGED, 0)


async def test_c8_the_same_request_twice_at_once_is_one_post_and_afterwards_a_replay_byte_for_byte() -> None:
    answers: list[bytes] = []
    async with chat_road(Reply((), "hang")) as chat:

        async def ask() -> None:
            answers.append(await chat.road.answer(build.frame()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await chat.stub.heard.wait()
            assert chat.road.refusal(build.frame()) == "InFlight"
            nursery.cancel_scope.cancel()
        assert len(chat.stub.requests) == 1
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        assert await chat.road.answer(build.frame()) == await chat.road.answer(build.frame())
        assert len(chat.stub.requests) == 1


async def test_c9_one_byte_changed_is_a_conflict_that_posts_nothing_and_leaves_the_reply() -> None:
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        first = await chat.road.answer(build.frame())
        assert chat.road.refusal(build.frame(build.request(build.text("hello therf")))) == "ReplayConflict"
        assert await chat.road.answer(build.frame()) == first
        assert len(chat.stub.requests) == 1


@pytest.mark.parametrize(
    ("reply", "word", "is_free"),
    [
        (whole("{}", 500, "x-should-retry: true"), "unavailable", True),
        (whole("{}", 408, "retry-after: 0"), "timeout", False),
        (whole("{}", 409), "invalid_request", True),
        (whole("{}", 429, "retry-after: 0"), "rate_limited", True),
        (Reply((), "close"), "unavailable", False),
        (Reply((), "reset"), "unavailable", False),
    ],
    ids=["500", "408", "409", "429", "closed", "reset"],
)
async def test_c12_exactly_one_post_is_made_for_what_sdks_try_again(reply: Reply, word: str, is_free: bool) -> None:
    async with chat_road(reply) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.charge) == (word, 0 if is_free else answer.reservation)
        assert await chat.road.answer(build.frame()), "a retry of the caller replays"
        assert (len(chat.stub.requests), chat.stub.connections) == (1, 1)


# --- D: usage to money ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "cached", "output", "prices", "micro_usd"),
    [
        (1_239_328, 1_188_096, 12_909, ("1.25", "0.125", "10"), 341_642),
        (2006, 1920, 300, ("2.5", "1.25", "10"), 5_615),
    ],
)
async def test_d3_cached_tokens_are_priced_as_reads_and_not_as_input(
    prompt: int, cached: int, output: int, prices: tuple[str, str, str], micro_usd: int
) -> None:
    used = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}}
    answer = await told(said("Hi") + finished("stop", used))
    assert priced(answer, *prices) == micro_usd


async def test_d4_streamed_and_whole_the_same_usage_costs_the_same() -> None:
    used = {"prompt_tokens": 2459, "completion_tokens": 23, "prompt_tokens_details": {"cached_tokens": 2455}}
    streamed = await told(said("Hi") + finished("stop", used))
    document = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}], "usage": used}
    at_once = await told(whole(json.dumps(document)))
    assert priced(streamed, "0.80", "0.08", "4") == priced(at_once, "0.80", "0.08", "4") == 292
    assert streamed.charge == at_once.charge


async def test_d6_cached_above_the_prompt_is_clamped_and_noted_and_never_a_refund() -> None:
    used = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 120}}
    answer = await told(said("Hi") + finished("stop", used))
    assert answer.usage is not None
    assert (answer.usage["input_tokens"], answer.usage["cache_read_tokens"]) == (0, 100)
    assert answer.notes == ("usage_clamped",)


async def test_d9_reasoning_is_inside_output_and_not_on_top_of_it() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 1_360}}
    used = {"prompt_tokens": 14_746, "completion_tokens": 1_944, "total_tokens": 16_690, **details}
    answer = await told(said("Hi") + finished("stop", used))
    assert priced(answer, "30", "30", "180") == 792_300


async def test_d11_usage_of_zeros_costs_nothing_and_absent_usage_the_reservation() -> None:
    zeros = await told(said("Hi") + finished("stop", {"prompt_tokens": 0, "completion_tokens": 0}))
    assert (zeros.word, zeros.charge) == ("end_turn", 0)
    for absent in (finished("stop", None), chunk(None, "stop") + DONE):
        answer = await told(said("Hi") + absent)
        assert (answer.word, answer.usage, answer.charge) == ("provider", None, answer.reservation)


async def test_d12_the_usage_chunk_is_always_asked_for_and_without_it_the_reservation_stands() -> None:
    async with chat_road(chunked(said("Hi"), chunk(None, "stop"), DONE)) as chat:
        answer = await chat.ask()
        assert chat.body()["stream_options"] == {"include_usage": True}
        assert chat.body()["stream"] is True
        assert answer.charge == answer.reservation > 0
        assert 'of the connector, usage = "bound" takes such answers' in answer.receipt["outcome"]["Failed"]["message"]
    bound = await told(chunked(said("Hi"), chunk(None, "stop"), DONE), usage="bound")
    assert (bound.word, bound.charge, bound.notes) == ("end_turn", bound.reservation, ("usage_bound",))


@pytest.mark.parametrize(
    ("model", "notes"),
    [
        ("tiny-20251001", ()),
        ("tiny", ()),
        ("", ()),
        ("huge", ("other_model",)),
    ],
)
async def test_d15_a_dated_snapshot_settles_at_the_requested_models_row_and_another_family_is_flagged(
    model: str, notes: tuple[str, ...]
) -> None:
    stream = chunk({"content": "Hi"}, model=model) + chunk(None, "stop", model=model, usage=USED) + DONE
    answer = await told(stream.replace(b'"tiny', b'"echo-1'))
    assert (answer.word, answer.charge, answer.notes) == ("end_turn", CHARGED, notes)
    assert answer.receipt["model"] == "npc"


async def test_d20_a_second_model_inside_one_answer_is_flagged_and_no_fallback_is_asked_for() -> None:
    stream = chunk({"content": "a"}, model="echo-1") + chunk({"content": "b"}, model="fallback-2") + finished()
    async with chat_road(chunked(stream)) as chat:
        answer = await chat.ask()
        assert answer.notes == ("other_model",)
        assert not {"models", "route", "provider", "fallbacks", "n"} & set(chat.body())


# --- H and I ----------------------------------------------------------------------------------------------------


async def test_h5_a_state_of_another_connector_is_removed_and_counted_or_refused_also_when_its_names_match() -> None:
    foreign = build.state(
        provider="claude", opaque=b'{"v":1,"k":"openai.reasoning","m":"echo-1","reasoning_content":"x"}'
    )
    history = (build.text("go"), foreign, build.said("Well."), build.text("and?"))
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        answer = await chat.ask(*history)
        assert answer.receipt["foreign_reasoning_dropped"] == 1
        assert b"reasoning" not in chat.stub.requests[0].body
    async with chat_road(chunked(), foreign="refuse") as chat:
        assert chat.road.refusal(build.frame(build.request(*history))) == "ForeignReasoningState"
        assert (chat.road.ledger.begins, chat.stub.requests) == ([], [])


async def test_h7_a_state_that_this_api_cannot_carry_is_removed_and_counted_under_either_policy() -> None:
    own = build.state(provider="echo", opaque=b'{"v":1,"k":"openai.reasoning","m":"echo-1"}')
    for policy in ("drop", "refuse"):
        async with chat_road(chunked(said("Hi"), finished()), foreign=policy) as chat:
            answer = await chat.ask(build.text("go"), own)
            assert answer.receipt["foreign_reasoning_dropped"] == 1
            assert chat.body()["messages"] == [{"role": "user", "content": "go"}]


async def test_h6_a_400_on_a_history_is_an_invalid_request_and_is_not_posted_again() -> None:
    modified = {"error": {"type": "invalid_request_error", "message": "thinking blocks cannot be modified"}}
    async with chat_road(whole(json.dumps(modified), 400)) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.charge, len(chat.stub.requests)) == ("invalid_request", 0, 1)


@pytest.mark.parametrize("bound", [1, 100, 499, 500])
async def test_i6_the_bound_that_is_posted_is_the_requests_own(bound: int) -> None:
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        await chat.ask(max_output_tokens=bound)
        assert {name: said for name, said in chat.body().items() if "max" in name} == {"max_tokens": bound}


async def test_i9_an_output_schema_is_posted_byte_for_byte() -> None:
    schema = '{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"string"}}}}'
    async with chat_road(chunked(said("{}"), finished())) as chat:
        await chat.ask(output_schema_json=schema)
        assert b'"schema":' + schema.encode() in chat.stub.requests[0].body


async def test_i4_a_deadline_in_mid_answer_is_a_timeout_and_never_a_short_answer() -> None:
    async with chat_road(chunked(said("Hi"), ends=False, then="hang"), time_limit=0.25) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.text, answer.charge) == ("timeout", "Hi", answer.reservation)
