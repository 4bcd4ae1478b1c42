"""Gemini from a configuration to the charge: which URL, where the key goes, how long to wait, what a refusal costs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit import build
from kit.chat_road import ChatRoad, Told
from kit.connector_cases import gemini_at, gemini_event
from kit.one_connector import config_of
from kit.road import Road
from kit.stream_cases import RECORDED
from kit.stub_http import Reply, StubProvider, chunked, stub_provider, whole

from sidecar.config.keys import ConfigFaults
from sidecar.connectors import gemini_signatures
from sidecar.connectors.gemini import url_of
from sidecar.connectors.gemini_signatures import Signature
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.promise import Answer
from sidecar.contract import values as v
from sidecar.contract.waits import wait_in
from sidecar.ops.credentials import Secret

KEY = "AIza-canary-0123456789"
END = gemini_event({"text": ""}, finish="STOP")
CHARGED = -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)


async def told(reply: Reply, *items: v.InputItem, **asked: Any) -> tuple[Told, StubProvider]:
    async with stub_provider(reply) as stub:
        connector = gemini_at(stub.url, secret=KEY)
        answer = await ChatRoad(Road(connector=connector), stub).ask(*items, **asked)
        await connector.aclose()
    return answer, stub


def failed(status: int, error: dict[str, Any], *headers: str) -> Reply:
    return whole(json.dumps({"error": error}), status, *headers, content_type="application/json; charset=UTF-8")


# --- where to, and with what --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slashes", ["", "/", "//"])
@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1beta"), ("/v1beta", "/v1beta"), ("/v1", "/v1"), ("/v1alpha", "/v1alpha"), ("/v1beta2", "/v1beta2"),
        ("/v1beta/models", "/v1beta"), ("/models", "/v1beta"), ("/gateway", "/gateway/v1beta"),
        ("/gateway//v1beta", "/gateway/v1beta"), ("/v1beta/models/old:streamGenerateContent", "/v1beta"),
        ("/v1/publishers/google", "/v1/publishers/google"),
    ],
)  # fmt: skip
def test_a_base_is_joined_to_one_right_url(base: str, path: str, slashes: str) -> None:
    made = url_of(f"https://h{base}{slashes}", "gemini-4-argon")
    assert made == f"https://h{path}/models/gemini-4-argon:streamGenerateContent?alt=sse"


@pytest.mark.parametrize(
    ("upstream", "path"),
    [
        ("models/gemini-x", "models/gemini-x"), ("tunedModels/mine", "tunedModels/mine"),
        ("a/b", "models/a%2Fb"), ("../../x", "models/..%2F..%2Fx"), ("models/../x", "models/..%2Fx"),
        ("x?key=1&y#z", "models/x%3Fkey%3D1%26y%23z"), ("a:b", "models/a%3Ab"), ("50%", "models/50%25"),
    ],
)  # fmt: skip
async def test_a_model_name_stays_in_its_place_also_on_the_wire(upstream: str, path: str) -> None:
    wanted = f"/v1beta/{path}:streamGenerateContent?alt=sse"
    assert url_of("https://h", upstream) == f"https://h{wanted}"
    async with stub_provider(chunked(gemini_event({"text": "x"}), END)) as stub:
        connector = gemini_at(stub.url)
        await connector.exchange(connector.lower(build.request(), upstream), Answer(frozenset(), 1000))
        await connector.aclose()
    assert stub.requests[0].line == f"POST {wanted} HTTP/1.1"


async def test_the_key_goes_in_a_header_and_never_into_the_url() -> None:
    answer, stub = await told(chunked(gemini_event({"text": "x"}), END))
    (heard,) = stub.requests
    assert heard.headers["x-goog-api-key"] == KEY
    assert "canary" not in heard.line
    assert "authorization" not in heard.headers
    assert (answer.word, answer.text, answer.charge) == ("end_turn", "x", CHARGED)


async def test_a_key_that_is_quoted_back_is_scrubbed() -> None:
    error = {"code": 400, "message": f"API key not valid: {KEY}.", "status": "INVALID_ARGUMENT",
             "details": [{"reason": "API_KEY_INVALID"}]}  # fmt: skip
    answer, _ = await told(failed(400, error))
    assert (answer.word, answer.charge) == ("authentication", 0)
    assert "canary" not in answer.message


# --- failures -----------------------------------------------------------------------------------------------------


async def test_the_wait_of_a_429_stands_in_its_body() -> None:
    path = RECORDED / "gemini_error_429_retryinfo.json"
    if not path.is_file():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    answer, _ = await told(whole(path.read_bytes(), 429, content_type="application/json"))
    assert (answer.word, answer.charge) == ("rate_limited", 0)
    assert wait_in(answer.message) == 34.4
    assert answer.message.startswith("You exceeded your current quota, please check your plan.")


async def test_a_header_that_says_how_long_to_wait_comes_before_the_body() -> None:
    error = {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [{"retryDelay": "34.4s"}]}
    answer, _ = await told(failed(429, error, "retry-after: 7"))
    assert wait_in(answer.message) == 7
    bare, _ = await told(failed(429, {**error, "details": []}))
    assert wait_in(bare.message) is None


async def test_an_error_in_a_bare_array_of_a_status_is_read() -> None:
    body = json.dumps([{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}], indent=2)
    answer, _ = await told(whole(body, 503, content_type="application/json"))
    assert (answer.word, answer.message, answer.charge) == ("unavailable", "overloaded", 0)


@pytest.mark.parametrize("before", [(), (gemini_event({"text": "Part"}),)], ids=["first", "behind text"])
async def test_e6_an_error_inside_a_200_costs_what_is_not_known(before: tuple[bytes, ...]) -> None:
    error = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}
    answer, _ = await told(chunked(*before, f"data: {json.dumps(error)}\n\n".encode()))
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


async def test_e10_an_end_before_the_finish_reason_costs_what_is_not_known_although_counts_had_come() -> None:
    answer, _ = await told(chunked(gemini_event({"text": "Part"})))
    assert (answer.word, answer.usage, answer.charge) == ("unavailable", None, answer.reservation)


async def test_a_blocked_prompt_is_a_refusal_and_costs_its_usage() -> None:
    feedback = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 11}}
    answer, _ = await told(chunked(f"data: {json.dumps(feedback)}\n\n".encode()))
    assert (answer.word, answer.charge) == ("refusal", -(-11 * 2_000_003 // 1_000_000))


async def test_d9_thoughts_are_output_and_counted_once_and_a_tools_prompt_is_input() -> None:
    usage = {"promptTokenCount": 20, "cachedContentTokenCount": 12, "toolUsePromptTokenCount": 3,
             "candidatesTokenCount": 2, "thoughtsTokenCount": 5}  # fmt: skip
    answer, _ = await told(chunked(gemini_event({"text": "x"}, finish="STOP", usage=usage)))
    assert answer.charge == -(-(11 * 2_000_003 + 12 * 3_000_017 + 7 * 11_000_027) // 1_000_000)


async def test_what_has_no_field_stands_in_the_record() -> None:
    tool = v.ToolDefinition(name="look", description="", parameters_json='{"type":"object"}')
    asked = {"tools": (tool,), "cache_retention": "long", "output_schema_json": '{"type":"string","pattern":"a"}'}
    answer, _ = await told(chunked(gemini_event({"text": "x"}), END), **asked)
    assert set(answer.notes) == {"parallel_calls_allowed", "retention_dropped", "schema_loosened"}


async def test_h5_only_a_signature_of_this_model_is_sent() -> None:
    made_here = gemini_signatures.encode(Signature("text", "aGVyZQ=="), "echo-1")
    made_there = gemini_signatures.encode(Signature("text", "dGhlcmU="), "echo-2")
    states = [build.state("echo", "npc", state) for state in (made_here, made_there)]
    foreign = build.state("claude", "npc", made_here)
    items = [build.text(), states[0], build.said("a"), build.text(), states[1], build.said("b"), build.text(), foreign,
             build.said("c"), build.text()]  # fmt: skip
    answer, stub = await told(chunked(gemini_event({"text": "x"}), END), *items)
    body = stub.requests[0].body
    assert (b"aGVyZQ==" in body, b"dGhlcmU=" in body, body.count(b"thoughtSignature")) == (True, False, 1)
    assert answer.receipt["foreign_reasoning_dropped"] == 2


# --- configuration ------------------------------------------------------------------------------------------------


def configured(model: str = "") -> Any:
    return config_of('kind = "gemini"\nbase_url = "https://h"', model, upstream="gemini-x")


async def test_a_configuration_makes_a_connector_and_its_models_settings_lower() -> None:
    config = configured('thinking = "budget"\nefforts = ["low", "high"]')
    connector = KINDS["gemini"].build(config.connectors["it"], Secret("key", KEY))
    assert "canary" not in repr(connector)
    made = connector.lower(build.request(reasoning_effort="max"), "gemini-x", config.models["npc"].settings)
    assert json.loads(made.body)["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 24_576}
    await connector.aclose()
    assert configured().models["npc"].settings == {"thinking": "level", "efforts": None}


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ('thinking = "levl"', "did you mean level"), ('efforts = ["max"]', "must be one of"),
        ('thinking = "off"\nefforts = ["low"]', "sends no effort"),
        ('thinking = "budget"\nefforts = ["low", "xhigh"]', "xhigh has no budget"),
    ],
)  # fmt: skip
def test_what_can_not_work_is_said_by_the_check(model: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        configured(model)
