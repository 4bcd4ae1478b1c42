"""Llama Stack from a configuration to the charge: which URL, which members, whose counts are money."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit import build
from kit.chat_road import ChatRoad, Told, chunk, finished
from kit.connector_cases import stack_at, stack_call, stack_complete, stack_event, stack_metrics, stack_text
from kit.one_connector import config_of
from kit.road import Road
from kit.stub_http import Reply, chunked, stub_provider, whole

from sidecar.config.keys import ConfigFaults
from sidecar.connectors import llama_stack
from sidecar.connectors.kinds import KINDS
from sidecar.connectors.llama_stack import url_and_route
from sidecar.connectors.promise import NO_SETTINGS, Rejected
from sidecar.contract import values as v
from sidecar.ops.credentials import Secret

NATIVE, SEED, CURRENT = "/v1/inference/chat-completion", "/v1/openai/v1/chat/completions", "/v1/chat/completions"
LOOK = v.ToolDefinition(name="look", description="", parameters_json='{"type":"object"}')


async def told(reply: Reply, *, route: str = "native", usage: str = "required", base: str = "", **asked: Any) -> Told:
    """One invocation that is answered so, by a connector that stands in the configuration so."""
    async with stub_provider(reply) as stub:
        connector = stack_at(stub.url + base, route=route, takes_estimates=usage == "estimate")
        answer = await ChatRoad(Road(connector=connector, usage=usage), stub).ask(**asked)
        await connector.aclose()
    return answer


# --- where to -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["", "/stack", "/a/b"])
@pytest.mark.parametrize("slashes", ["", "/", "//"])
@pytest.mark.parametrize(
    ("route", "bases", "path"),
    [
        ("native", ["", "/v1", "/v1/inference", NATIVE, "/v1/openai/v1", CURRENT], NATIVE),
        ("openai", ["/v1/openai/v1", "/v1/openai", "/openai/v1", "/openai", SEED, "//v1//openai//v1"], SEED),
        ("openai", ["", "/v1", CURRENT, "/chat/completions", "/v1/inference"], CURRENT),
    ],
)
def test_a_base_url_is_joined_to_one_right_url(
    root: str, slashes: str, route: str, bases: list[str], path: str
) -> None:
    for base in bases:
        assert url_and_route(f"http://h:8321{root}{base}{slashes}", route)[0] == f"http://h:8321{root}{path}", base


def test_only_the_servers_of_july_2025_are_kept_to_the_members_that_they_list() -> None:
    bases = [("", "native"), ("/v1/openai/v1", "openai"), ("/v1", "openai")]
    assert [url_and_route(f"http://h{base}", route)[1].is_listed for base, route in bases] == [True, True, False]


@pytest.mark.parametrize(
    ("route", "base", "wanted"),
    [("native", "", "openai"), ("openai", "/v1/openai/v1", "without"), ("openai", "/v1", "behind /v1/openai/v1")],
)
@pytest.mark.parametrize("body", ['{"detail":"Not Found"}', "nothing here"])
async def test_a_404_says_that_the_route_is_of_another_release(route: str, base: str, wanted: str, body: str) -> None:
    answer = await told(whole(body, 404, content_type="application/json"), route=route, base=base)
    assert (answer.word, answer.charge) == ("invalid_request", 0)
    assert "another release" in answer.message
    assert wanted in answer.message


async def test_a_body_that_the_server_refuses_is_told_in_its_own_words() -> None:
    body = '{"error":{"detail":{"errors":[{"loc":["body","messages"],"msg":"Field required","type":"missing"}]}}}'
    answer = await told(whole(body, 400, content_type="application/json"))
    assert (answer.word, answer.charge) == ("invalid_request", 0)
    assert "Field required" in answer.message
    assert "release" not in answer.message


async def test_what_is_posted_and_the_credential_that_goes_with_it() -> None:
    async with stub_provider(chunked(stack_text("x"), stack_complete())) as stub:
        connector = stack_at(stub.url, secret="sk-canary")
        await ChatRoad(Road(connector=connector), stub).ask(tools=(LOOK,))
        await connector.aclose()
    (heard,) = stub.requests
    assert heard.line == f"POST {NATIVE} HTTP/1.1"
    assert heard.headers["authorization"] == "Bearer sk-canary"
    assert json.loads(heard.body)["model_id"] == "echo-1"
    assert "canary" not in repr(connector)


# --- whose counts are money ---------------------------------------------------------------------------------------


async def test_under_required_a_guess_is_no_money_and_the_answer_fails_with_its_events() -> None:
    for ending in (stack_complete(), stack_complete(prompt=0), stack_event("complete", None, "end_of_turn")):
        answer = await told(chunked(stack_text("x"), ending))
        assert (answer.word, answer.usage, answer.text) == ("provider", None, "x")
        assert answer.charge == answer.reservation


async def test_under_estimate_the_servers_numbers_are_taken_and_noted_and_an_over_run_is_seen() -> None:
    answer = await told(chunked(stack_text("x"), stack_complete()), usage="estimate")
    assert (answer.word, answer.notes) == ("end_turn", ("usage_estimated",))
    assert answer.charge == -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)
    above = await told(chunked(stack_text("x"), stack_complete(completion=1_000_000)), usage="estimate")
    assert above.charge > above.reservation
    assert set(above.notes) == {"usage_estimated", "over_run"}


async def test_under_estimate_a_prompt_of_no_tokens_is_still_no_money() -> None:
    """So a server says it whose telemetry is off: all three metrics are there, and all are 0."""
    off = stack_event("complete", {"type": "text", "text": ""}, "end_of_turn", stack_metrics(0, 0))
    answer = await told(chunked(stack_text("x"), off), usage="estimate")
    assert (answer.word, answer.usage, answer.charge) == ("provider", None, answer.reservation)


async def test_under_bound_the_bound_is_reported() -> None:
    answer = await told(chunked(stack_text("x"), stack_complete()), usage="bound")
    assert (answer.word, answer.charge, answer.notes) == ("end_turn", answer.reservation, ("usage_bound",))


async def test_on_the_openai_route_the_providers_own_counts_are_money() -> None:
    body = chunk({"content": "x", "tool_calls": None}) + finished().removesuffix(b"data: [DONE]\n\n")
    answer = await told(chunked(body), route="openai", base="/v1/openai/v1")
    assert (answer.word, answer.text, answer.notes) == ("end_turn", "x", ())
    assert answer.charge == -(-(11 * 2_000_003 + 3 * 11_000_027) // 1_000_000)


@pytest.mark.parametrize(
    ("message", "word"), [("400: Invalid value: Model 'm' not found", "invalid_request"), ("500: oh", "unavailable")]
)
async def test_an_error_inside_a_200_costs_what_is_not_known(message: str, word: str) -> None:
    said = b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"
    for route, before in (("native", ()), ("native", (stack_text("x"),)), ("openai", (chunk({"content": "x"}),))):
        answer = await told(chunked(*before, said), route=route, usage="estimate")
        assert (answer.word, answer.usage, answer.charge) == (word, None, answer.reservation)


async def test_what_is_lost_stands_in_the_record() -> None:
    answer = await told(
        chunked(stack_call("c1", "look", "{}"), stack_complete("end_of_message")), usage="estimate", tools=(LOOK,),
        tool_choice="required", reasoning_effort="max", cache_retention="long", output_schema_json="{}",
    )  # fmt: skip
    assert answer.word == "tool_use"
    assert set(answer.notes) == {
        "effort_dropped", "retention_dropped", "parallel_calls_allowed", "tool_choice_hinted", "schema_loosened",
        "usage_estimated",
    }  # fmt: skip


# --- the OpenAI route's members -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("efforts", "asked", "sent", "notes"),
    [
        (("low", "high"), "low", "low", ()), (("low", "high"), "max", "high", ()),
        (("low", "high", "xhigh"), "max", "xhigh", ()), ((), "low", None, ("effort_dropped",)),
        (("low", "high"), None, None, ()),
    ],
)  # fmt: skip
def test_todays_servers_are_told_the_effort_that_the_model_takes(
    efforts: tuple[str, ...], asked: Any, sent: str | None, notes: tuple[str, ...]
) -> None:
    today = llama_stack.api(base_url="http://h/v1", secret=None, route="openai")
    made = today.lower(build.request(reasoning_effort=asked), "llama", {"efforts": efforts})
    assert (json.loads(made.body).get("reasoning_effort"), made.notes) == (sent, notes)


def test_an_effort_that_the_model_does_not_take_is_rejected() -> None:
    today = llama_stack.api(base_url="http://h/v1", secret=None, route="openai")
    for asked, efforts in (("medium", ("low", "high")), ("max", ("low",))):
        with pytest.raises(Rejected, match="and not "):
            today.lower(build.request(reasoning_effort=asked), "llama", {"efforts": efforts})


def test_i6_the_openai_route_is_told_max_tokens_and_nothing_newer() -> None:
    for base in ("/v1", "/v1/openai/v1"):
        api = llama_stack.api(base_url=f"http://h{base}", secret=None, route="openai")
        made = json.loads(api.lower(build.request(max_output_tokens=31_999), "llama", NO_SETTINGS).body)
        assert {name: value for name, value in made.items() if name.startswith("max")} == {"max_tokens": 31_999}
        assert made["stream_options"] == {"include_usage": True}


# --- configuration ------------------------------------------------------------------------------------------------


def configured(connector: str, model: str = "") -> Any:
    return config_of(f'kind = "llama_stack"\nbase_url = "http://127.0.0.1:8321"\n{connector}', model, upstream="llama")


async def test_a_configuration_makes_a_connector() -> None:
    config = configured('route = "openai"\nusage = "estimate"', 'efforts = ["low", "xhigh"]')
    assert config.models["npc"].settings == {"efforts": ("low", "xhigh")}
    connector = KINDS["llama_stack"].build(config.connectors["it"], Secret("key", "sk-canary"))
    assert repr(connector) == f"<HttpConnector to http://127.0.0.1:8321{CURRENT}>"
    await connector.aclose()
    assert configured("").connectors["it"].settings == {"route": "native"}


@pytest.mark.parametrize(
    ("connector", "model", "why"),
    [
        ('route = "natve"', "", "did you mean native"), ("", 'efforts = ["low"]', "native route has no reasoning"),
        ('route = "openai"', 'efforts = ["max"]', "must be one of"), ('rout = "native"', "", "did you mean route"),
    ],
)  # fmt: skip
def test_what_can_not_work_is_said_by_the_check(connector: str, model: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        configured(connector, model)
