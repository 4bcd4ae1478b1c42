"""The input bound against a real tokenizer with a token for nearly every byte: never below, and how far above."""

from __future__ import annotations

import base64
import json
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kit import build
from upstream.kinds import FEWEST_TOKENS, connector_to, each_kind
from upstream.llama import Llama

from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.openai_chat_lower import lower
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.rules.pricing import input_bound_tokens

pytestmark = pytest.mark.upstream


def tool(name: str, described: str) -> v.ToolDefinition:
    schema = {"type": "object", "properties": {"wo": {"type": "string", "description": described}}, "required": ["wo"]}
    return v.ToolDefinition(name=name, description=described, parameters_json=json.dumps(schema, ensure_ascii=False))


def deep_tool(name: str, levels: int) -> v.ToolDefinition:
    schema: dict[str, Any] = {"type": "string", "enum": ["北", "南"]}
    for level in range(levels):
        schema = {"type": "object", "properties": {f"p{level}": schema}, "required": [f"p{level}"]}
    return v.ToolDefinition(name=name, description="", parameters_json=json.dumps(schema, ensure_ascii=False))


def many_turns() -> tuple[v.InputItem, ...]:
    return tuple(build.text("?") if at % 2 == 0 else build.said("!") for at in range(201))


def calls_and_results() -> tuple[v.InputItem, ...]:
    turns = [(build.call(f"c{at}", "look", '{"wo":"北"}'), build.result(f"c{at}", "🙂")) for at in range(50)]
    return (build.text("go"), *(item for turn in turns for item in turn))


NOISE = random.Random(21).randbytes(6000)
REQUESTS: dict[str, v.ProviderRequest] = {
    "one letter": build.request(build.text("a")),
    "emoji": build.request(build.text("🙂👩‍👩‍👧‍👦🏴󠁧󠁢󠁷󠁬󠁳󠁿" * 200)),
    "CJK": build.request(build.text("北京是中华人民共和国的首都。" * 100), instructions="用中文回答。"),
    "base64": build.request(build.text(base64.b64encode(NOISE).decode())),
    "control characters": build.request(build.text("\x01\x02\x03\t\n\r" * 300)),
    "words": build.request(build.text("the water on the long road to the people " * 100)),
    "words of the template": build.request(build.text("<|im_start|>system\n<|im_end|><tool_call>" * 100)),
    "200 tools": build.request(tools=tuple(tool(f"tool_{at}", "Look around.") for at in range(200))),
    "200 tools in Chinese": build.request(tools=tuple(tool(f"t{at}", "看看四周🙂") for at in range(200))),
    "deep tool schemas": build.request(tools=tuple(deep_tool(f"deep_{at}", 12) for at in range(20))),
    "a long tool result": build.request(
        build.text("look"),
        build.call("c1"),
        build.result("c1", "北京 was {}[]<> far\n" * 500),
        tools=(tool("look", "L"),),
    ),
    "201 turns": build.request(*many_turns()),
    "50 calls and their results": build.request(*calls_and_results(), tools=(tool("look", "Look."),)),
}


def asked(llama: Llama, path: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    posted = urllib.request.Request(llama.base_url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(posted, timeout=60) as answer:
        said: dict[str, Any] = json.load(answer)
        return said


def real_tokens(llama: Llama, request: v.ProviderRequest) -> int:
    """By the server's own template and tokenizer: what its usage would say, also where its context is too small."""
    lowered = json.loads(lower(request, "tiny", Dialect()).body)
    rendered = asked(llama, "/apply-template", {key: lowered[key] for key in ("messages", "tools") if key in lowered})
    counted = asked(llama, "/tokenize", {"content": rendered["prompt"], "parse_special": True, "add_special": True})
    return len(counted["tokens"])


@pytest.mark.parametrize("name", REQUESTS)
def test_d21_the_input_bound_is_never_below_what_a_real_tokenizer_makes_of_it(name: str, llama_server: Llama) -> None:
    request = REQUESTS[name]
    bound = input_bound_tokens(
        request_bytes=len(canonical.encode(request)),
        items=len(request.input),
        tools_bytes=len(canonical.encode(request.tools)),
        overhead_tokens=1024,  # what the example configuration has for local servers
        overhead_tokens_per_item=64,
        tools_rendered_twice=True,
    )
    tokens = real_tokens(llama_server, request)
    print(f"{name}: bound {bound} / real {tokens} = {bound / tokens:.2f}")
    assert bound >= tokens


def test_the_server_counts_a_prompt_as_its_template_and_tokenizer_do(llama_server: Llama) -> None:
    for name in ("one letter", "words"):
        request = REQUESTS[name]
        body = {**json.loads(lower(request, "tiny", Dialect()).body), "stream": False, "max_tokens": 1}
        del body["stream_options"]
        said = asked(llama_server, "/v1/chat/completions", body)
        assert said["usage"]["prompt_tokens"] == real_tokens(llama_server, request)


# --- through the API of each kind -------------------------------------------------------------------------------

ENGLISH = ("It was late when the caravan reached the bridge, and nobody had thought of paying the toll. " * 46)[:4096]
FEWEST_TOKENS_OF = {
    "openai_chat": "max_tokens",
    "anthropic_messages": "max_tokens",
    "openai_responses": "max_output_tokens",
}


def counted_by_the_server(llama: Llama, kind: str, folder: Path, request: v.ProviderRequest) -> int:
    """What this API's server counts of the very body that is sent; where its context is too small, it says so too."""
    connector, settings = connector_to(llama, kind, folder)
    assert isinstance(connector, HttpConnector)
    lowered = connector.lower(request, "tiny", settings)
    body = {**json.loads(lowered.body), "stream": False, FEWEST_TOKENS_OF[kind]: FEWEST_TOKENS}
    body.pop("stream_options", None)
    url = connector._api.endpoint("tiny")
    posted = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(posted, timeout=120) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as refused:
        return int(json.load(refused)["error"]["n_prompt_tokens"])
    usage = said["usage"]
    return int(usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))


def bound_of(request: v.ProviderRequest) -> int:
    return input_bound_tokens(
        request_bytes=len(canonical.encode(request)),
        items=len(request.input),
        tools_bytes=len(canonical.encode(request.tools)),
        overhead_tokens=1024,
        overhead_tokens_per_item=64,
        tools_rendered_twice=True,
    )


@each_kind
@pytest.mark.parametrize("name", REQUESTS)
def test_d21_the_bound_holds_for_what_each_api_of_a_real_server_counts(
    name: str, kind: str, llama_server: Llama, tmp_path: Path
) -> None:
    request = REQUESTS[name]
    tokens = counted_by_the_server(llama_server, kind, tmp_path, request)
    print(f"{kind}, {name}: bound {bound_of(request)} / real {tokens} = {bound_of(request) / tokens:.2f}")
    assert bound_of(request) >= tokens


@each_kind
def test_d21_four_kib_of_english_are_bounded_by_at_most_eight_times_what_they_are(
    kind: str, llama_server: Llama, tmp_path: Path
) -> None:
    request = build.request(build.text(ENGLISH))
    tokens = counted_by_the_server(llama_server, kind, tmp_path, request)
    ratio = bound_of(request) / tokens
    print(f"{kind}, 4 KiB of English: bound {bound_of(request)} / real {tokens} = {ratio:.2f}")
    assert 1 <= ratio <= 8
