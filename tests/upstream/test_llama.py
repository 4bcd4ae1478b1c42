"""The connectors against llama.cpp's own server: code that nobody here wrote, with counts of its own.

Each test runs once for every connector kind that the server can be asked through.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kit import build
from upstream.counters import counted
from upstream.kinds import FEWEST_TOKENS, KINDS, connector_to, each_kind
from upstream.llama import Llama
from upstream.plugin import API_KEY, needed_llama
from upstream.tiny_model import SLOW

from sidecar.connectors.promise import Answer, Connector, Ended, Lowered
from sidecar.contract import canonical
from sidecar.contract import values as v

pytestmark = pytest.mark.upstream

LOOK = v.ToolDefinition(
    name="look",
    description="Look at something.",
    parameters_json='{"type":"object","properties":{"at":{"type":"string"}},"required":["at"]}',
)


class Connected:
    """A connector to a server, and the settings of the model that it is asked for."""

    def __init__(self, connector: Connector, settings: Mapping[str, Any]) -> None:
        self.connector = connector
        self._settings = settings

    def lower(self, request: v.ProviderRequest) -> Lowered:
        return self.connector.lower(request, "tiny", self._settings)

    async def ask(self, request: v.ProviderRequest) -> Answer:
        lowered = self.lower(request)
        answer = Answer(lowered.call_ids, 1_000_000)
        with trio.fail_after(60):
            await self.connector.exchange(lowered, answer)
        return answer


@asynccontextmanager
async def connected(llama: Llama, kind: str, folder: Path, *, key: str | None = None) -> AsyncIterator[Connected]:
    server = Connected(*connector_to(llama, kind, folder, key=key))
    yield server
    await server.connector.aclose()


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


@each_kind
async def test_the_lifted_usage_is_what_the_server_itself_counted(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    async with connected(llama_server, kind, tmp_path) as server:
        for words in ("hello there", "hello there", "tell me a long tale of two doors"):
            before = counted(llama_server)
            request = build.request(build.text(words), instructions="Be brief.", max_output_tokens=40)
            answer = await server.ask(request)
            after = counted(llama_server)
            usage = end(answer).usage
            assert usage is not None, end(answer)
            assert (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens) == after.since(before)
            assert 0 < usage.output_tokens <= 40
            assert 0 < usage.input_tokens + usage.cache_read_tokens <= len(canonical.encode(request))
            assert end(answer).provider_response_id


@each_kind
async def test_the_token_bound_cuts_and_is_said(tmp_path: Path, kind: str) -> None:
    with needed_llama(model=SLOW) as llama:
        async with connected(llama, kind, tmp_path) as server:
            answer = await server.ask(build.request(max_output_tokens=FEWEST_TOKENS))
    usage = end(answer).usage
    assert usage is not None, end(answer)
    assert (end(answer).stop_reason, usage.output_tokens) == (KINDS[kind].cut, FEWEST_TOKENS)


@each_kind
async def test_a_turn_ends_by_itself_and_the_conversation_goes_on(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    turns = [build.text("hello")]
    stops = set()
    async with connected(llama_server, kind, tmp_path) as server:
        for _ in range(6):
            answer = await server.ask(build.request(*turns, max_output_tokens=400))
            stops.add(end(answer).stop_reason)
            turns += [build.said(text_of(answer) or "nothing"), build.text("go on")]
    assert "end_turn" in stops


@each_kind
async def test_an_output_schema_is_kept_where_the_server_keeps_schemas(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    schema = (
        '{"type":"object","properties":{"open":{"type":"boolean"}},"required":["open"],"additionalProperties":false}'
    )
    async with connected(llama_server, kind, tmp_path) as server:
        answer = await server.ask(build.request(output_schema_json=schema, max_output_tokens=400))
    assert end(answer).stop_reason == "end_turn"
    assert not KINDS[kind].keeps_schemas or set(json.loads(text_of(answer))) == {"open"}


@each_kind
async def test_a_request_above_the_context_is_invalid_and_costs_nothing(
    tmp_path: Path, kind: str, llama_server: Llama
) -> None:
    async with connected(llama_server, kind, tmp_path) as server:
        answer = await server.ask(build.request(build.text("xyz " * 5000)))
    assert (end(answer).kind, end(answer).usage) == ("invalid_request", v.NOTHING_USED)
    assert "context" in end(answer).message


@each_kind
async def test_many_at_once_each_get_their_own_end(tmp_path: Path, kind: str, llama_server: Llama) -> None:
    ends: list[Ended] = []

    async def ask(server: Connected) -> None:
        ends.append(end(await server.ask(build.request(max_output_tokens=20))))

    async with connected(llama_server, kind, tmp_path) as server, trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(ask, server)
    assert {ended.kind for ended in ends} == {None}
    assert len({ended.provider_response_id for ended in ends}) == 12


@each_kind
async def test_i1_cancelled_it_frees_the_servers_slot(tmp_path: Path, kind: str, llama_server: Llama) -> None:
    async with connected(llama_server, kind, tmp_path) as server:
        lowered = server.lower(build.request(max_output_tokens=500))
        with trio.CancelScope() as scope:
            answer = Answer(lowered.call_ids, 1_000_000, on_event=lambda *_: scope.cancel())
            await server.connector.exchange(lowered, answer)
        with trio.fail_after(10):
            while (await trio.to_thread.run_sync(counted, llama_server)).running:
                await trio.sleep(0.01)
    assert answer.sent


@each_kind
async def test_a_tool_is_called_and_its_result_goes_back(
    tmp_path: Path, kind: str, llama_server_with_tools: Llama
) -> None:
    turns = [build.text("what is there?")]
    async with connected(llama_server_with_tools, kind, tmp_path) as server:
        for choice in ("auto", "required"):
            answer = await server.ask(build.request(*turns, tools=(LOOK,), tool_choice=choice, max_output_tokens=400))
            assert end(answer).stop_reason == "tool_use", text_of(answer)
            (call,) = [event.tool_call for event in answer.events() if event.tool_call]
            assert call.name == "look"
            assert set(json.loads(call.arguments)) == {"at"}
            turns += [build.call(call.call_id, call.name, call.arguments), build.result(call.call_id)]


@each_kind
async def test_a_wrong_key_is_an_authentication_failure_that_shows_no_key(
    tmp_path: Path, kind: str, llama_server_with_tools: Llama
) -> None:
    assert llama_server_with_tools.api_key == API_KEY
    async with connected(llama_server_with_tools, kind, tmp_path, key="sk-wrong-canary-key") as server:
        answer = await server.ask(build.request())
    assert (end(answer).kind, end(answer).usage) == ("authentication", v.NOTHING_USED)
    assert "canary" not in end(answer).message
