"""What each known server does in its own way (WIRE section 3.7 and 7), from its bytes on a socket to the charge."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit.chat_road import DONE, USED, USED_COST, called, chat_road, chunk, finished, said, told
from kit.stub_http import Reply, chunked, head, whole

CHARGED = -(-USED_COST // 1_000_000)
EARLY = {**USED, "completion_tokens": 1}

# (server and case, status, body, kind, words of the message)
ERRORS: list[tuple[str, int, Any, str, str]] = [
    (
        "OpenAI, wrong key",
        401,
        {
            "error": {
                "message": "Incorrect API key provided: sk-abc***xyz.",
                "code": "invalid_api_key",
                "type": "invalid_request_error",
                "param": None,
            }
        },
        "authentication",
        "Incorrect API key",
    ),
    (
        "OpenAI, no such model",
        404,
        {
            "error": {
                "message": "The model `x` does not exist",
                "code": "model_not_found",
                "type": "invalid_request_error",
                "param": None,
            }
        },
        "invalid_request",
        "does not exist",
    ),
    (
        "OpenAI, no credit",
        429,
        {
            "error": {
                "message": "You exceeded your current quota",
                "code": "insufficient_quota",
                "type": "insufficient_quota",
                "param": None,
            }
        },
        "authentication",
        "quota",
    ),
    (
        "OpenAI, too fast",
        429,
        {"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded", "type": "requests"}},
        "rate_limited",
        "Rate limit",
    ),
    (
        "OpenAI, effort",
        400,
        {
            "error": {
                "message": "Unsupported value",
                "code": "unsupported_value",
                "type": "invalid_request_error",
                "param": "reasoning_effort",
            }
        },
        "invalid_request",
        "Unsupported value",
    ),
    (
        "OpenAI, its own fault",
        500,
        {"error": {"message": "The server had an error", "code": None, "type": "server_error"}},
        "unavailable",
        "had an error",
    ),
    (
        "vLLM, no such model",
        404,
        {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": None, "code": 404}},
        "invalid_request",
        "does not exist",
    ),
    (
        "vLLM, older",
        400,
        {"object": "error", "message": "maximum context length", "type": "BadRequestError", "param": None, "code": 400},
        "invalid_request",
        "maximum context length",
    ),
    (
        "vLLM, tools not enabled",
        400,
        {
            "error": {
                "message": '"auto" tool choice requires --enable-auto-tool-choice',
                "type": "BadRequestError",
                "code": 400,
            }
        },
        "invalid_request",
        "tool choice",
    ),
    (
        "llama.cpp, wrong key",
        401,
        {"error": {"message": "Invalid API Key", "type": "authentication_error", "code": 401}},
        "authentication",
        "Invalid API Key",
    ),
    (
        "llama.cpp, wrong path",
        404,
        {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}},
        "invalid_request",
        "File Not Found",
    ),
    (
        "llama.cpp, loading",
        503,
        {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}},
        "unavailable",
        "Loading model",
    ),
    (
        "llama.cpp, schema",
        400,
        {"error": {"code": 400, "message": "JSON schema error", "type": "invalid_request_error"}},
        "invalid_request",
        "JSON schema error",
    ),
    (
        "Ollama, not pulled",
        404,
        {"error": {"message": 'model "x" not found', "type": "not_found_error", "param": None, "code": None}},
        "invalid_request",
        "not found",
    ),
    (
        "Ollama, its own fault",
        500,
        {"error": {"message": "llama runner has terminated", "type": "api_error", "code": None}},
        "unavailable",
        "terminated",
    ),
    (
        "OpenRouter, no credit",
        402,
        {"error": {"code": 402, "message": "Insufficient credits"}},
        "authentication",
        "credits",
    ),
    (
        "OpenRouter, moderation",
        403,
        {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"], "flagged_input": "a ..."}}},
        "invalid_request",
        "flagged",
    ),
    (
        "OpenRouter, upstream",
        502,
        {"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": "x"}}},
        "unavailable",
        "Provider returned error",
    ),
    ("OpenRouter, too slow", 408, {"error": {"code": 408, "message": "Request timed out"}}, "timeout", "timed out"),
    (
        "Azure, prompt filtered",
        400,
        {
            "error": {
                "message": "The response was filtered",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
        "invalid_request",
        "filtered",
    ),
    (
        "DeepSeek, no balance",
        402,
        {"error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}},
        "authentication",
        "Insufficient Balance",
    ),
    (
        "Mistral, validation",
        422,
        {
            "object": "error",
            "message": {"detail": [{"msg": "Field required"}]},
            "type": "invalid_request_error",
            "code": None,
        },
        "invalid_request",
        "Field required",
    ),
    (
        "FastAPI, validation",
        422,
        {"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted"}]},
        "invalid_request",
        "Extra inputs",
    ),
    (
        "Llama Stack, validation",
        400,
        {"error": {"detail": {"errors": [{"msg": "Field required"}]}}},
        "invalid_request",
        "Field required",
    ),
    ("a gateway", 502, "<html><h1>502 Bad Gateway</h1></html>", "unavailable", "HTTP 502 with a non-JSON body"),
    ("a gateway that gave up", 504, "", "timeout", "HTTP 504 with an empty body"),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"), [row[1:] for row in ERRORS], ids=[row[0] for row in ERRORS]
)
async def test_a_servers_error_body_is_the_kind_that_it_means_in_its_own_words(
    status: int, body: Any, kind: str, words: str
) -> None:
    raw = body if isinstance(body, str) else json.dumps(body)
    async with chat_road(whole(raw, status, content_type="application/json")) as chat:
        answer = await chat.ask()
        assert len(chat.stub.requests) == 1
    assert answer.word == kind
    assert words in answer.message
    assert answer.charge == (answer.reservation if status in (408, 499, 502, 504) else 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            {"object": "error", "message": "boom", "type": "InternalServerError", "param": None, "code": 500},
            "unavailable",
        ),
        ({"message": "boom", "code": "400"}, "invalid_request"),
        ({"message": "boom", "code": 502, "metadata": {"provider_name": "x"}}, "unavailable"),
        ({"message": "boom", "type": "server_error"}, "unavailable"),
        ({"message": "boom", "code": 401}, "authentication"),
        ({"message": "boom"}, "provider"),
    ],
)
async def test_an_error_behind_text_and_in_front_of_done_is_the_failure(error: dict[str, Any], kind: str) -> None:
    answer = await told(said("Hi") + chunk(error=error) + DONE)
    assert (answer.word, answer.message, answer.usage) == (kind, "boom", None)
    assert answer.charge == answer.reservation


async def test_openrouter_an_error_beside_choices_and_usage_fails_and_costs_that_usage() -> None:
    error = {"code": "server_error", "message": "Provider disconnected"}
    answer = await told(said("Hi") + chunk({"content": ""}, "error", error=error, usage=USED))
    assert (answer.word, answer.message, answer.charge) == ("unavailable", "Provider disconnected", CHARGED)


async def test_openrouter_two_finish_reasons_reasoning_and_its_cost_change_nothing() -> None:
    used = {**USED, "cost": 0.5, "cost_details": {"upstream_inference_cost": None}, "is_byok": False}
    answer = await told(
        b": OPENROUTER PROCESSING\n\n"
        + chunk({"content": "", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]})
        + said("Hi")
        + chunk({"content": ""}, "stop", native_finish_reason="STOP")
        + chunk({"content": ""}, None, usage=used)
        + DONE
    )
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi", CHARGED)


async def test_azure_an_empty_first_chunk_and_filter_fields_are_nothing() -> None:
    first = b'data: {"choices":[],"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0}]}\n\n'
    answer = await told(first + said("Hi") + chunk(None, "stop", model="echo-1") + chunk(usage=USED) + DONE)
    assert (answer.word, answer.text, answer.charge, answer.notes) == ("end_turn", "Hi", CHARGED, ())
    assert answer.receipt["outcome"]["Completed"]["provider_response_id"] == "chatcmpl-1"


async def test_mistral_usage_on_the_finish_chunk_and_content_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Hi"}]
    answer = await told(chunk({"content": parts}) + chunk({"content": ""}, "stop", usage=USED) + DONE)
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi", CHARGED)


async def test_vllm_its_own_stop_reason_and_a_stop_for_a_forced_call() -> None:
    call = {"index": 0, "id": "chatcmpl-tool-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    finish = b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","stop_reason":151645}]}\n\n'
    answer = await told(called(call) + finish + chunk(usage=USED) + DONE)
    assert (answer.word, answer.calls, answer.charge) == ("tool_use", [("chatcmpl-tool-1", "look", "{}")], CHARGED)


async def test_ollama_an_error_that_it_loses_is_an_end_without_a_finish_reason() -> None:
    answer = await told(said("Hi") + chunk({"content": ""}))
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


async def test_deepseek_out_of_resources_is_unavailable_and_a_cache_hit_is_a_read() -> None:
    assert (await told(said("Hi") + finished("insufficient_system_resource"))).word == "unavailable"
    used = {**USED, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 7}
    answer = await told(chunk({"content": None, "reasoning_content": "hm"}) + said("Hi") + finished("stop", used))
    assert answer.usage is not None
    assert (answer.usage["input_tokens"], answer.usage["cache_read_tokens"], answer.text) == (7, 4, "Hi")


async def test_xai_reasoning_that_is_counted_beside_the_completion_is_output() -> None:
    used = {"prompt_tokens": 11, "completion_tokens": 1, "total_tokens": 14,
            "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip
    answer = await told(said("Hi") + finished("stop", used))
    assert answer.usage is not None
    assert (answer.usage["output_tokens"], answer.usage["reasoning_tokens"], answer.charge) == (3, 2, CHARGED)


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        ("the last chunk", said("Hi") + finished()),
        ("the finish chunk", said("Hi") + chunk(None, "stop", usage=USED) + DONE),
        ("the finish chunk and again", said("Hi") + chunk(None, "stop", usage=EARLY) + chunk(usage=USED) + DONE),
        ("every chunk", chunk({"content": "Hi"}, usage=EARLY) + chunk(None, "stop", usage=USED) + DONE),
        ("every chunk but the finish", chunk({"content": "Hi"}, usage=USED) + chunk(None, "stop", usage=None) + DONE),
        ("a chunk in front of the finish", said("Hi") + chunk(usage=USED) + chunk(None, "stop") + DONE),
        ("null behind it", said("Hi") + chunk(None, "stop", usage=USED) + chunk(usage=None) + DONE),
        ("the last chunk, without done", said("Hi") + chunk(None, "stop") + chunk(usage=USED)),
    ],
)
async def test_usage_is_found_wherever_a_server_puts_it(name: str, stream: bytes) -> None:
    answer = await told(stream)
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi", CHARGED), name


async def test_a_choice_that_nobody_asked_for_is_ignored_and_a_refusal_is_the_visible_answer() -> None:
    other = b'data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"}]}\n\n'
    answer = await told(other + chunk({"refusal": "I won't.", "content": None}) + other + finished())
    assert (answer.word, answer.text, answer.charge) == ("refusal", "I won't.", CHARGED)


async def test_headers_of_any_kind_and_a_head_in_pieces_change_nothing() -> None:
    first = head(200, "transfer-encoding: chunked", "x-request-id: abc", "set-cookie: a=b", content_type="text/plain")
    body = chunked(said("Hi"), finished()).pieces
    reply = Reply((first[:9], first[9:30], first[30:], *list(body)[1:]))
    answer = await told(reply)
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "Hi", CHARGED)
