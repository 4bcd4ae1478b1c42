"""Chat Completions against llama.cpp's own server: code that nobody here wrote, with counts of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from kit import build
from kit.connector_cases import chat_at
from upstream.counters import counted
from upstream.llama import Llama
from upstream.plugin import API_KEY

from sidecar.connectors.http_connector import HttpConnector
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract import canonical
from sidecar.contract import values as v

pytestmark = pytest.mark.upstream

LOOK = v.ToolDefinition(
    name="look",
    description="Look at something.",
    parameters_json='{"type":"object","properties":{"at":{"type":"string"}},"required":["at"]}',
)


@asynccontextmanager
async def connected(llama: Llama, secret: str | None = None) -> AsyncIterator[HttpConnector]:
    connector = chat_at(llama.base_url, secret=secret or llama.api_key)
    yield connector
    await connector.aclose()


async def asked(connector: HttpConnector, request: v.ProviderRequest) -> Answer:
    lowered = connector.lower(request, "tiny")
    answer = Answer(lowered.call_ids, 1_000_000)
    with trio.fail_after(60):
        await connector.exchange(lowered, answer)
    return answer


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


async def test_the_lifted_usage_is_what_the_server_itself_counted(llama_server: Llama) -> None:
    async with connected(llama_server) as connector:
        for words in ("hello there", "hello there", "tell me a long tale of two doors"):
            before = counted(llama_server)
            request = build.request(build.text(words), instructions="Be brief.", max_output_tokens=40)
            answer = await asked(connector, request)
            after = counted(llama_server)
            usage = end(answer).usage
            assert usage is not None, end(answer)
            assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == after.since(before)
            assert 0 < usage.output_tokens <= 40
            assert 0 < usage.input_tokens + usage.cache_read_tokens <= len(canonical.encode(request))
            assert end(answer).provider_response_id


async def test_the_token_bound_cuts_and_is_said(llama_server: Llama) -> None:
    async with connected(llama_server) as connector:
        stops = set()
        for _ in range(10):
            answer = await asked(connector, build.request(max_output_tokens=3))
            usage = end(answer).usage
            assert usage is not None, end(answer)
            assert usage.output_tokens <= 3
            stops.add(end(answer).stop_reason)
            if end(answer).stop_reason == "max_output_tokens":
                assert usage.output_tokens == 3
        assert "max_output_tokens" in stops
        assert stops <= {"max_output_tokens", "end_turn"}


async def test_a_turn_ends_by_itself_and_the_conversation_goes_on(llama_server: Llama) -> None:
    turns = [build.text("hello")]
    stops = set()
    async with connected(llama_server) as connector:
        for _ in range(6):
            answer = await asked(connector, build.request(*turns, max_output_tokens=400))
            stops.add(end(answer).stop_reason)
            turns += [build.said(text_of(answer) or "nothing"), build.text("go on")]
    assert "end_turn" in stops


async def test_an_output_schema_is_kept(llama_server: Llama) -> None:
    schema = (
        '{"type":"object","properties":{"open":{"type":"boolean"}},"required":["open"],"additionalProperties":false}'
    )
    async with connected(llama_server) as connector:
        answer = await asked(connector, build.request(output_schema_json=schema))
    assert end(answer).stop_reason == "end_turn"
    assert set(json.loads(text_of(answer))) == {"open"}


async def test_a_request_above_the_context_is_invalid_and_costs_nothing(llama_server: Llama) -> None:
    async with connected(llama_server) as connector:
        answer = await asked(connector, build.request(build.text("xyz " * 5000)))
    assert (end(answer).kind, end(answer).usage) == ("invalid_request", v.NOTHING_USED)
    assert "context" in end(answer).message


async def test_many_at_once_each_get_their_own_end(llama_server: Llama) -> None:
    ends: list[Ended] = []

    async def ask(connector: HttpConnector) -> None:
        ends.append(end(await asked(connector, build.request(max_output_tokens=20))))

    async with connected(llama_server) as connector, trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(ask, connector)
    assert {ended.kind for ended in ends} == {None}
    assert len({ended.provider_response_id for ended in ends}) == 12


async def test_i1_cancelled_it_frees_the_servers_slot(llama_server: Llama) -> None:
    async with connected(llama_server) as connector:
        lowered = connector.lower(build.request(max_output_tokens=500), "tiny")
        with trio.CancelScope() as scope:
            answer = Answer(lowered.call_ids, 1_000_000, on_event=lambda _: scope.cancel())
            await connector.exchange(lowered, answer)
        with trio.fail_after(10):
            while (await trio.to_thread.run_sync(counted, llama_server)).running:
                await trio.sleep(0.01)
    assert answer.sent


async def test_a_tool_is_called_and_its_result_goes_back(llama_server_with_tools: Llama) -> None:
    turns = [build.text("what is there?")]
    async with connected(llama_server_with_tools) as connector:
        for choice in ("auto", "required"):
            answer = await asked(
                connector, build.request(*turns, tools=(LOOK,), tool_choice=choice, max_output_tokens=400)
            )
            assert end(answer).stop_reason == "tool_use", text_of(answer)
            (call,) = [event.tool_call for event in answer.events() if event.tool_call]
            assert call.name == "look"
            assert set(json.loads(call.arguments)) == {"at"}
            turns += [build.call(call.call_id, call.name, call.arguments), build.result(call.call_id)]


async def test_a_wrong_key_is_an_authentication_failure_that_shows_no_key(llama_server_with_tools: Llama) -> None:
    assert llama_server_with_tools.api_key == API_KEY
    async with connected(llama_server_with_tools, secret="sk-wrong-canary-key") as connector:
        answer = await asked(connector, build.request())
    assert (end(answer).kind, end(answer).usage) == ("authentication", v.NOTHING_USED)
    assert "canary" not in end(answer).message
