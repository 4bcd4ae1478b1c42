"""The Responses connector over loopback sockets, and what a configuration may say to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from kit import build
from kit.connector_cases import responses_at
from kit.one_connector import config_of
from kit.responses_events import USED, call, completed, done, message, said, used
from kit.stub_http import Reply, chunked, stub_provider, whole

from sidecar.config.keys import ConfigFaults
from sidecar.config.values import Config
from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.openai_responses_lower import Dialect
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract import values as v
from sidecar.ops.credentials import Secret

SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"
GOOD = chunked(said("Hi").encode(), completed().encode())


async def asked(reply: Reply, *, dialect: Dialect | None = None, tokens: int = 100) -> Ended:
    async with stub_provider(reply) as stub:
        connector = responses_at(stub.url, secret=SECRET, dialect=dialect)
        lowered = connector.lower(build.request(max_output_tokens=tokens), "tiny")
        answer = Answer(lowered.call_ids, 1_000_000)
        with trio.fail_after(10):
            await connector.exchange(lowered, answer)
        await connector.aclose()
    assert len(stub.requests) == 1
    assert answer.ended is not None
    return answer.ended


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("", "/v1/responses"),
        ("/", "/v1/responses"),
        ("/v1", "/v1/responses"),
        ("/v1/", "/v1/responses"),
        ("/v1/responses", "/v1/responses"),
        ("/v1/responses/", "/v1/responses"),
        ("/openai/v1", "/openai/v1/responses"),
    ],
)
async def test_whatever_the_base_is_the_post_goes_to_the_one_right_path(base: str, path: str) -> None:
    async with stub_provider(GOOD) as stub:
        connector = responses_at(stub.url + base, secret=SECRET)
        lowered = connector.lower(build.request(), "tiny")
        await connector.exchange(lowered, Answer(frozenset(), 1000))
        await connector.aclose()
    (heard,) = stub.requests
    assert (heard.line, heard.body) == (f"POST {path} HTTP/1.1", lowered.body)
    assert (heard.headers["authorization"], heard.headers["accept"]) == (f"Bearer {SECRET}", "text/event-stream")
    assert SECRET not in repr(connector) + repr(lowered)


async def test_the_end_of_the_stream_is_not_waited_for_behind_the_terminal_event() -> None:
    for then in ("hang", "close", "reset"):
        pieces = (said("Hi").encode(), completed().encode())
        ended = await asked(chunked(*pieces, ends=False, then=then))
        assert (ended.stop_reason, ended.usage) == ("end_turn", used(11, 3))


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", "text/plain"])
async def test_a_document_is_known_by_itself_and_not_by_its_content_type(content_type: str) -> None:
    document = {"object": "response", "status": "completed", "usage": USED, "output": [message("Hi")]}
    ended = await asked(whole(json.dumps(document), content_type=content_type))
    assert (ended.stop_reason, ended.usage) == ("end_turn", used(11, 3))


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {"code": "context_length_exceeded", "message": "too long"}, "invalid_request"),
        (400, {"code": "unsupported_value", "param": "reasoning.effort", "message": "no"}, "invalid_request"),
        (400, {"code": "invalid_json_schema", "param": "text.format.schema", "message": "no"}, "invalid_request"),
        (400, {"code": 400, "type": "invalid_request_error", "message": "Cannot determine type"}, "invalid_request"),
        (401, {"code": "invalid_api_key", "message": "no"}, "authentication"),
        (403, {"code": "unsupported_country_region_territory", "message": "no"}, "authentication"),
        (404, {"code": "model_not_found", "message": "no"}, "invalid_request"),
        (429, {"type": "insufficient_quota", "code": "insufficient_quota", "message": "pay"}, "authentication"),
        (429, {"type": "insufficient_quota", "code": "credit_balance_exhausted", "message": "pay"}, "authentication"),
        (429, {"code": "rate_limit_exceeded", "message": "slow down"}, "rate_limited"),
        (429, {"code": "slow_down", "message": "slow down"}, "rate_limited"),
        (500, {"code": "server_error", "message": "oh"}, "unavailable"),
        (503, {"code": "server_is_overloaded", "message": "oh"}, "unavailable"),
    ],
)
async def test_a_status_before_any_stream_is_a_failure_that_costs_nothing(
    status: int, error: dict[str, Any], kind: str
) -> None:
    ended = await asked(whole(json.dumps({"error": error}), status))
    assert (ended.kind, ended.usage) == (kind, v.NOTHING_USED)
    assert ended.message.startswith(error["message"])


async def test_a_silent_cut_is_seen_in_the_compatible_dialect_alone() -> None:
    reply = chunked(said("many work at").encode(), completed({"input_tokens": 37, "output_tokens": 16}).encode())
    assert (await asked(reply, dialect=Dialect(dialect="compatible"), tokens=16)).stop_reason == "max_output_tokens"
    assert (await asked(reply, dialect=Dialect(dialect="compatible"), tokens=17)).stop_reason == "end_turn"
    assert (await asked(reply, tokens=16)).stop_reason == "end_turn"


async def test_a_credential_quoted_inside_the_stream_is_scrubbed() -> None:
    quoted = f'data: {{"type":"error","code":"invalid_api_key","message":"key {SECRET} is bad"}}\n\n'
    ended = await asked(chunked(quoted.encode()))
    assert (ended.kind, ended.message) == ("authentication", "key <credential> is bad")


async def test_what_it_lifts_is_valid_input_of_the_next_request() -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA=="}
    events = [done(item, 0), done(message("Hi", phase="commentary"), 1), done(call(), 2), completed()]
    async with stub_provider(chunked("".join(events).encode())) as stub:
        connector = responses_at(stub.url)
        answer = Answer(frozenset(), 10_000)
        await connector.exchange(connector.lower(build.request(), "tiny"), answer)
        turn: list[v.InputItem] = []
        for event in answer.events():
            if event.reasoning_state:
                turn.append(build.state(opaque=event.reasoning_state.state))
            if event.text_delta:
                turn.append(build.said(event.text_delta.text))
            if event.tool_call:
                turn += [v.InputItem(tool_call=event.tool_call), build.result(event.tool_call.call_id)]
        again = connector.lower(build.request(build.text(), *turn), "tiny")
        assert (again.states_dropped, len(json.loads(again.body)["input"])) == (0, 5)
        assert connector.lower(build.request(build.text(), *turn), "another").states_dropped == 2
        await connector.aclose()


# --- configuration ----------------------------------------------------------------------------------------------

AT_OPENAI = 'base_url = "https://api.openai.com"'
AT_HOME = 'base_url = "http://127.0.0.1:1/v1"\ndialect = "compatible"'


def config(connector: str = AT_OPENAI, model: str = "") -> Config:
    return config_of(f'kind = "openai_responses"\n{connector}', model)


def test_what_is_not_said_is_openai_with_a_model_that_does_not_reason() -> None:
    made = config()
    assert Dialect(**made.connectors["it"].settings) == Dialect()
    assert dict(made.models["npc"].settings) == {"efforts": (), "cache": None}


async def test_every_switch_and_every_word_of_a_model_reaches_the_body() -> None:
    made = config(
        AT_HOME + '\noutput_schema = "refused"\nsend_include = false\n'
        "send_tool_choice = false\nsend_parallel_tool_calls = false\nsend_strict = false\n",
        'efforts = ["low", "high"]\ncache = "free"',
    )
    connector = KINDS["openai_responses"].build(made.connectors["it"], Secret("key", SECRET))
    assert isinstance(connector, HttpConnector)
    tool = v.ToolDefinition(name="look", description="", parameters_json='{"type":"object"}')
    request = build.request(tools=(tool,), reasoning_effort="max", cache_retention="long")
    lowered = connector.lower(request, "tiny", made.models["npc"].settings)
    await connector.aclose()
    body = json.loads(lowered.body)
    assert set(body) == {
        "model", "input", "max_output_tokens", "stream", "store", "reasoning", "tools", "prompt_cache_key",
        "prompt_cache_retention",
    }  # fmt: skip
    assert (body["reasoning"], body["prompt_cache_retention"]) == ({"effort": "high"}, "24h")
    assert SECRET not in repr(connector)


@pytest.mark.parametrize(
    ("connector", "model", "why"),
    [
        ("", "", "base_url"),
        (AT_OPENAI + '\ndialect = "compatable"', "", "did you mean compatible"),
        (AT_OPENAI + "\nsend_ids = true", "", "unknown key"),
        (AT_OPENAI, 'efforts = ["hihg"]', "did you mean high"),
        (AT_OPENAI, 'cache = "paid"', "charged"),
        (AT_HOME, 'cache = "charged"', "no way to ask"),
    ],
)
def test_a_mistake_and_what_cannot_work_together_are_named(connector: str, model: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        config(connector, model)
