"""The field's cases of sections F and G: tool calls, stop reasons and errors, from a provider's bytes to the charge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit import build
from kit.chat_road import DONE, USED, USED_COST, called, chat_road, chunk, finished, said, told
from kit.stub_http import chunked, whole

from sidecar.contract import values as v

CHARGED = -(-USED_COST // 1_000_000)
LOOK = v.ToolDefinition(name="look", description="", parameters_json='{"type":"object"}')


def piece(index: int | None = None, id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    function = {name: said for name, said in (("name", name), ("arguments", arguments)) if said is not None}
    made = {"index": index, "id": id, "function": function or None}
    return {name: said for name, said in made.items() if said is not None}


# --- F: tool calls ----------------------------------------------------------------------------------------------


async def test_f1_fragments_without_an_id_go_to_the_call_of_their_index() -> None:
    answer = await told(
        called(piece(0, "A", "look"))
        + called(piece(1, "B", "look"))
        + called(piece(0, arguments='{"t":"A"}'))
        + called(piece(1, arguments='{"t":"B"}'))
        + finished("tool_calls")
    )
    assert answer.calls == [("A", "look", '{"t":"A"}'), ("B", "look", '{"t":"B"}')]
    assert (answer.word, answer.charge) == ("tool_use", CHARGED)


async def test_f3_deltas_without_an_index_are_two_calls_in_order() -> None:
    for pieces in ([[piece(None, "a", "look", "{}")], [piece(None, "b", "look", "{}")]],
                   [[piece(None, "a", "look", "{}"), piece(None, "b", "look", "{}")]]):  # fmt: skip
        answer = await told(b"".join(called(*some) for some in pieces) + finished("tool_calls"))
        assert answer.calls == [("a", "look", "{}"), ("b", "look", "{}")]


async def test_f3_pieces_without_an_index_that_repeat_their_id_go_to_its_call() -> None:
    answer = await told(
        called(piece(None, "a", "look", '{"n":'))
        + called(piece(None, "b", "look", '{"n":'))
        + called(piece(None, "a", None, "1}"))
        + called(piece(None, "b", None, "2}"))
        + finished("tool_calls")
    )
    assert answer.calls == [("a", "look", '{"n":1}'), ("b", "look", '{"n":2}')]


@pytest.mark.parametrize("arguments", [None, ""], ids=["no fragment", "an empty one"])
async def test_f5_no_argument_fragments_are_an_empty_object(arguments: str | None) -> None:
    answer = await told(called(piece(0, "a", "look", arguments)) + finished("tool_calls"))
    assert (answer.word, answer.calls) == ("tool_use", [("a", "look", "{}")])


@pytest.mark.parametrize("arguments", ['{"a":', [1], [], 7, False, "null"])
async def test_f6_malformed_arguments_with_a_normal_stop_fail_and_never_become_an_empty_object(arguments: Any) -> None:
    for finish in ("stop", "tool_calls"):
        answer = await told(called(piece(0, "a", "look", arguments)) + finished(finish))
        assert (answer.word, answer.calls, answer.charge) == ("provider", [], CHARGED)


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call"])
async def test_f8_a_complete_call_with_a_normal_stop_is_tool_use(finish: str) -> None:
    answer = await told(said("Hm.") + called(piece(0, "a", "look", "{}")) + finished(finish))
    assert (answer.word, answer.text, answer.calls) == ("tool_use", "Hm.", [("a", "look", "{}")])
    document = {"message": {"content": None, "tool_calls": [piece(None, "a", "look", "{}")]}, "finish_reason": finish}
    assert (await told(whole(json.dumps({"choices": [document], "usage": USED})))).word == "tool_use"


@pytest.mark.parametrize(
    "items",
    [
        (build.text("go"), build.call("c1")),
        (build.text("go"), build.call("c1"), build.call("c2"), build.result("c1")),
        (build.text("go"), build.result("c9")),
        (build.text("go"), build.call("c1"), build.result("c9")),
        (build.text("go"), build.call("c1"), build.result("")),
        (build.text("go"), build.call("c1"), build.text("well?"), build.said("Well."), build.result("c1")),
    ],
)
async def test_f9_a_call_without_its_result_is_malformed_and_neither_reserved_nor_sent(
    items: tuple[v.InputItem, ...],
) -> None:
    async with chat_road(chunked()) as chat:
        assert chat.road.refusal(build.frame(build.request(*items))) == "Malformed"
        assert (chat.road.ledger.begins, chat.stub.requests) == ([], [])


async def test_f9_two_parallel_results_stand_directly_behind_their_calls_in_the_post() -> None:
    turn = (build.text("go"), build.call("c1"), build.call("c2"), build.result("c2", "2"), build.result("c1", "1"))
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        await chat.ask(*turn, build.text("and?"))
        roles = [message["role"] for message in chat.body()["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    assert [call["id"] for call in chat.body()["messages"][1]["tool_calls"]] == ["c1", "c2"]
    assert [message["tool_call_id"] for message in chat.body()["messages"][2:4]] == ["c2", "c1"]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"parallel_tool_calls": False}, {}),
        ({"parallel_tool_calls": True}, {}),
        ({"tools": (LOOK,), "parallel_tool_calls": False}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"tools": (LOOK,), "parallel_tool_calls": True}, {"tool_choice": "auto", "parallel_tool_calls": True}),
        (
            {"tools": (LOOK,), "tool_choice": "required", "parallel_tool_calls": False},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tools": (LOOK,), "tool_choice": "required", "parallel_tool_calls": True},
            {"tool_choice": "required", "parallel_tool_calls": True},
        ),
    ],
)
async def test_f10_choice_and_parallel_calls_are_posted_as_asked_and_neither_without_tools(
    asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with chat_road(chunked(said("Hi"), finished())) as chat:
        await chat.ask(**asked)
        posted = {name: said for name, said in chat.body().items() if name in ("tool_choice", "parallel_tool_calls")}
    assert posted == sent
    assert ("tools" in chat.body()) == ("tools" in asked)


async def test_f11_calls_of_indexes_1_and_2_interleaved_with_text_keep_their_own_arguments() -> None:
    answer = await told(
        said("Let ")
        + called(piece(1, "b", "look", '{"n":'))
        + said("me ")
        + called(piece(2, "c", "go"))
        + called(piece(1, arguments="1}"))
        + said("look.")
        + called(piece(2, arguments='{"n":2}'))
        + finished("tool_calls")
    )
    assert answer.text == "Let me look."
    assert answer.calls == [("b", "look", '{"n":1}'), ("c", "go", '{"n":2}')]


# --- G: stop reasons and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "word"),
    [
        ("refusal", "refusal"),
        ("content_filter", "refusal"),
        ("sensitive", "refusal"),
        ("model_context_window_exceeded", "context_window"),
        ("model_length", "context_window"),
        ("a_future_reason", "provider"),
    ],
)
async def test_g1_refusals_and_full_contexts_are_told_apart_and_an_unknown_reason_fails_with_its_usage_charged(
    finish: str, word: str
) -> None:
    answer = await told(said("Hi") + finished(finish))
    assert (answer.word, answer.charge, answer.text) == (word, CHARGED, "Hi")


@pytest.mark.parametrize(
    ("finish", "word"), [("content_filter", "refusal"), ("length", "max_output_tokens"), (None, "unavailable")]
)
async def test_g3_an_answer_that_is_not_whole_says_why_and_without_a_reason_is_a_failure(
    finish: str | None, word: str
) -> None:
    end = chunk(None, finish) if finish else b""
    assert (await told(said("The") + end + chunk(usage=USED) + DONE)).word == word


@pytest.mark.parametrize(
    ("code", "word"),
    [("rate_limit_exceeded", "rate_limited"), ("server_error", "unavailable"), ("invalid_prompt", "invalid_request"),
     ("insufficient_quota", "authentication"), ("a_future_code", "provider")],
)  # fmt: skip
async def test_g4_an_answer_with_an_error_is_a_failure_by_its_code_and_never_an_empty_turn(
    code: str, word: str
) -> None:
    ended = {"choices": [{"index": 0, "message": {"content": ""}, "finish_reason": "stop"}]}
    error = {"error": {"code": code, "message": "no"}}
    for answer in (
        await told(whole(json.dumps({**ended, **error}))),
        await told(chunk({"content": ""}, "stop", **error) + DONE),
        await told(chunk({"content": ""}, "stop") + chunk(**error) + DONE),
    ):
        assert (answer.word, answer.message, answer.usage) == (word, "no", None)
        assert answer.charge == answer.reservation


async def test_g5_http_529_is_unavailable_and_costs_nothing() -> None:
    overloaded = '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    for body in (overloaded, "", "<html>", "{}"):
        answer = await told(whole(body, 529))
        assert (answer.word, answer.charge) == ("unavailable", 0)


async def test_g5_overloaded_inside_a_stream_is_unavailable_and_costs_the_reservation() -> None:
    for error in ({"type": "overloaded_error", "message": "Overloaded"}, {"code": 529, "message": "Overloaded"}):
        answer = await told(said("Hi") + chunk(error=error))
        assert (answer.word, answer.message, answer.charge) == ("unavailable", "Overloaded", answer.reservation)


TOO_LONG = [
    {"error": {"code": "context_length_exceeded", "type": "invalid_request_error", "param": "messages",
               "message": "This model's maximum context length is 128000 tokens."}},
    {"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096,
               "message": "request (36019 tokens) exceeds the available context size (4096 tokens)"}},
    {"object": "error", "type": "BadRequestError", "code": 400,
     "message": "This model's maximum context length is 4096 tokens."},
]  # fmt: skip


@pytest.mark.parametrize("body", TOO_LONG, ids=["OpenAI", "llama.cpp", "vLLM"])
async def test_g7_a_context_length_400_is_an_invalid_request_that_says_so_is_free_and_is_posted_once(body: Any) -> None:
    async with chat_road(whole(json.dumps(body), 400)) as chat:
        answer = await chat.ask()
        assert (answer.word, answer.charge) == ("invalid_request", 0)
        assert "context" in answer.message
        again = await chat.road.answer(build.frame(build.request()))
        assert len(chat.stub.requests) == 1, "deterministic: neither tried again here nor by a retry of the caller"
        assert b"invalid_request" in again


async def test_g8_a_context_that_fills_up_while_answering_is_charged_by_its_usage() -> None:
    answer = await told(said("Hi") + finished("model_context_window_exceeded"))
    assert (answer.word, answer.charge) == ("context_window", CHARGED)
    assert answer.usage is not None
    assert (answer.usage["input_tokens"], answer.usage["output_tokens"]) == (11, 3)


@pytest.mark.parametrize("content", [None, ""])
async def test_g10_a_budget_that_reasoning_spent_ends_well_at_its_bound_and_is_billed(content: str | None) -> None:
    used = {**USED, "completion_tokens_details": {"reasoning_tokens": 3}}
    answer = await told(chunk({"content": content, "reasoning_content": "hm"}) + finished("length", used))
    assert (answer.word, answer.text, answer.charge) == ("max_output_tokens", "", CHARGED)
    assert answer.usage is not None
    assert answer.usage["reasoning_tokens"] == 3
