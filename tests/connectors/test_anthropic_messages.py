"""The Messages connector over loopback sockets, and what a configuration may say of it and of its models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit import build
from kit.connector_cases import messages_at
from kit.messages_streams import begun, body_of, event, expected, finished, said, stopped
from kit.one_connector import config_of
from kit.stub_http import Reply, chunked, stub_provider, whole

from sidecar.config.keys import ConfigFaults
from sidecar.config.values import Config
from sidecar.connectors.anthropic_messages import KIND, endpoint
from sidecar.connectors.anthropic_messages_lower import Dialect
from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract import values as v
from sidecar.ops.credentials import Secret

SECRET = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"
USED = v.Usage(input_tokens=11, cache_read_tokens=0, cache_write_tokens=0, output_tokens=3)
GOOD = chunked(begun(), said("Hi"), finished())


async def asked(reply: Reply, connector: Any = messages_at, **changes: Any) -> tuple[Ended, list[Any]]:
    """The end of an answer, and the requests that the provider heard."""
    async with stub_provider(reply) as stub:
        made = connector(stub.url, **changes)
        lowered = made.lower(build.request(), "tiny")
        answer = Answer(lowered.call_ids, 1_000_000)
        await made.exchange(lowered, answer)
        await made.aclose()
    assert answer.ended is not None
    assert [heard.body for heard in stub.requests] == [lowered.body]
    return answer.ended, stub.requests


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        ({}, {"anthropic-version": "2023-06-01"}),
        ({"secret": SECRET}, {"anthropic-version": "2023-06-01", "x-api-key": SECRET}),
        (
            {"secret": SECRET, "auth": "bearer"},
            {"anthropic-version": "2023-06-01", "authorization": f"Bearer {SECRET}"},
        ),
        ({"version": "2026-10-21"}, {"anthropic-version": "2026-10-21"}),
        (
            {"dialect": Dialect(block_binding="drop")},
            {"anthropic-version": "2023-06-01", "anthropic-beta": "thinking-binding-controls-2026-08-01"},
        ),
    ],
)
async def test_the_version_goes_out_and_the_credential_in_one_header_alone(
    changes: dict[str, Any], sent: dict[str, str]
) -> None:
    ended, (heard,) = await asked(GOOD, **changes)
    assert ended == Ended(stop_reason="end_turn", usage=USED, provider_response_id="msg_1")
    named = ("anthropic-version", "anthropic-beta", "authorization", "x-api-key")
    assert {name: heard.headers[name] for name in named if name in heard.headers} == sent
    assert heard.line == "POST /v1/messages HTTP/1.1"
    assert heard.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1/messages/", "https://api.anthropic.com/v1/messages"),
        ("https://h/api/anthropic", "https://h/api/anthropic/v1/messages"),
        ("https://h/api/v1", "https://h/api/v1/messages"),
        ("http://127.0.0.1:8080/a%2Fb/", "http://127.0.0.1:8080/a%2Fb/v1/messages"),
    ],
)
def test_every_base_has_one_right_url(base: str, url: str) -> None:
    assert endpoint(base) == url


@pytest.mark.parametrize("path", expected(), ids=lambda path: Path(path).stem)
async def test_a_recorded_stream_that_a_server_sends_is_lifted_as_expected(path: str) -> None:
    body, wanted = body_of(path), expected()[path]
    ended, _ = await asked(chunked(*(body[at : at + 1000] for at in range(0, len(body), 1000))))
    assert (ended.stop_reason, ended.kind) == (wanted.get("stop_reason"), wanted.get("kind"))
    assert ended.usage == (v.Usage(**wanted["usage"]) if wanted["usage"] else None)


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_e10_a12_a_break_before_the_stop_reason_is_unavailable_of_unknown_usage_and_one_behind_it_is_none(
    then: str,
) -> None:
    ended, requests = await asked(chunked(begun(), said("Hi"), ends=False, then=then))
    assert (ended.kind, ended.usage, len(requests)) == ("unavailable", None, 1)
    ended, _ = await asked(chunked(begun(), said("Hi"), stopped(), ends=False, then=then))
    assert (ended.stop_reason, ended.usage) == ("end_turn", USED)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (529, {"type": "overloaded_error"}, "unavailable"),
        (429, {"type": "rate_limit_error"}, "rate_limited"),
        (
            429,
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
            "authentication",
        ),
        (400, {"type": "invalid_request_error", "details": {"error_code": "organization_on_hold"}}, "authentication"),
        (401, {"type": "authentication_error"}, "authentication"),
        (402, {"type": "billing_error"}, "authentication"),
        (403, {"type": "permission_error"}, "authentication"),
        (404, {"type": "not_found_error"}, "invalid_request"),
        (409, {"type": "conflict_error"}, "invalid_request"),
        (413, {"type": "request_too_large"}, "invalid_request"),
        (500, {"type": "api_error"}, "unavailable"),
    ],
)
async def test_g5_an_error_before_the_stream_has_its_kind_and_costs_nothing(
    status: int, error: dict[str, Any], kind: str
) -> None:
    body = {"type": "error", "error": {"message": "so it is", **error}, "request_id": "req_1"}
    ended, _ = await asked(whole(json.dumps(body), status))
    assert ended == Ended(kind=kind, message="so it is", usage=v.NOTHING_USED)


async def test_h6_a_refusal_of_changed_thinking_is_an_invalid_request_that_is_posted_once() -> None:
    why = "Invalid `signature` in `thinking` block. The block is bound to a different conversation"
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": why}}
    ended, requests = await asked(whole(json.dumps(body), 400))
    assert ended == Ended(kind="invalid_request", message=why, usage=v.NOTHING_USED)
    assert len(requests) == 1


async def test_a_credential_quoted_inside_a_stream_is_scrubbed() -> None:
    error = {"type": "authentication_error", "message": f"key {SECRET} is bad"}
    ended, _ = await asked(chunked(event("error", error=error)), secret=SECRET)
    assert (ended.kind, ended.message) == ("authentication", "key <credential> is bad")


# --- configuration ----------------------------------------------------------------------------------------------


def configured(connector: str = "", model: str = "") -> Config:
    return config_of(
        f'kind = "anthropic_messages"\nbase_url = "https://api.anthropic.com"\n{connector}',
        model,
        upstream="claude-haiku-4-5",
    )


async def built(config: Config, secret: str | None = None) -> HttpConnector:
    made = KIND.build(config.connectors["it"], Secret("key", secret) if secret else None)
    assert isinstance(made, HttpConnector)
    await made.aclose()
    return made


async def test_without_keys_of_its_own_it_speaks_to_the_vendor_and_hides_its_credential() -> None:
    config = configured()
    made = await built(config, SECRET)
    assert repr(made) == "<HttpConnector to https://api.anthropic.com/v1/messages>"
    assert SECRET not in repr(made)
    sent = made.lower(build.request(reasoning_effort="low"), "tiny", config.models["npc"].settings)
    assert sent.notes == ("effort_dropped",)


async def test_a_models_keys_reach_its_requests() -> None:
    config = configured(
        'version = "2026-10-21"\nauth = "bearer"\nblock_binding = "drop"\noutput_schema = "sent"\n'
        "send_cache_control = false\nreplay_thinking = false",
        'thinking = "adaptive"\nefforts = ["low", "xhigh"]\nforced_tools = false\nthink_unasked = false',
    )
    made = await built(config)
    request = build.request(reasoning_effort="max", cache_retention="short")
    sent = made.lower(request, "tiny", config.models["npc"].settings)
    assert json.loads(sent.body)["output_config"] == {"effort": "xhigh"}
    assert sent.notes == ("retention_dropped",)


@pytest.mark.parametrize(
    ("connector", "model", "why"),
    [
        ('auth = "x-api-kye"', "", "did you mean x-api-key"),
        ('version = "2023 06"', "", "such as 2023-06-01"),
        ('block_bindng = "drop"', "", "did you mean block_binding"),
        ("", 'thinking = "adaptiv"', "did you mean adaptive"),
        ("", 'thinking = "on"\nefforts = ["lo"]', r"efforts\[0\]: must be one of"),
        ("", 'thinking = "adaptive"\nefforts = []', "is asked for by an effort"),
        ("", 'thinking = "budget"\nefforts = ["low", "max"]', "takes the effort max"),
        ("", 'thinking = "always"\nthink_unasked = false', "nothing keeps"),
    ],
)
def test_a_mistake_and_what_cannot_work_together_is_named(connector: str, model: str, why: str) -> None:
    with pytest.raises(ConfigFaults, match=why):
        configured(connector, model)


@pytest.mark.parametrize("thinking", ["off", "budget", "adaptive", "on", "between_tools", "always"])
def test_every_family_can_be_configured_by_its_word_alone(thinking: str) -> None:
    assert configured("", f'thinking = "{thinking}"').models["npc"].settings["thinking"] == thinking
