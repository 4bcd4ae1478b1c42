"""The connector kinds, each brought to behave in the ways that the contract of every connector asks about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from kit import messages_streams
from kit.stub_http import Reply, chunked, stub_provider

from sidecar.connectors import anthropic_messages as messages
from sidecar.connectors import anthropic_messages_lower
from sidecar.connectors import openai_chat as chat
from sidecar.connectors import openai_responses as responses
from sidecar.connectors.http_connector import Bounds, HttpConnector
from sidecar.connectors.http_exchange import new_client
from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.openai_responses_lower import Dialect as ResponsesDialect
from sidecar.connectors.promise import Connector
from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.contract.values import Usage

# What a connector can be made to meet. Every one says "Hello there" first, but for the last.
BEHAVIOURS = ("text", "calls", "fails", "hangs", "huge", "unreachable")
TEXT = ("Hello", " there")
CALL = ("c1", "look", '{"at":"door"}')
USED = Usage(input_tokens=11, cache_read_tokens=0, cache_write_tokens=0, output_tokens=3)

Made = Callable[[str], AbstractAsyncContextManager[Connector]]


@asynccontextmanager
async def scripted(behaviour: str) -> AsyncIterator[Connector]:
    rule = {
        "text": Rule(deltas=TEXT, usage=USED),
        "calls": Rule(deltas=TEXT, calls=(ScriptedCall(CALL[1], CALL[2], CALL[0]),), usage=USED),
        "fails": Rule(deltas=TEXT, fail=ScriptedFailure("rate_limited", "slow down")),
        "hangs": Rule(deltas=TEXT, hang=True),
        "huge": Rule(deltas=TEXT, repeat=100_000),
        "unreachable": Rule(fail=ScriptedFailure("unavailable", "nobody is there"), nothing_sent=True),
    }[behaviour]
    yield Scripted((rule,))


def _chunk(delta: object, finish: str | None = None) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': delta, 'finish_reason': finish}]})}\n\n".encode()


_SPOKEN = tuple(_chunk({"content": text}) for text in TEXT)
_CALLED = _chunk({"tool_calls": [{"index": 0, "id": CALL[0], "function": {"name": CALL[1], "arguments": CALL[2]}}]})
_END = b'data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
_REPLIES = {
    "text": chunked(*_SPOKEN, _chunk({}, "stop"), _END),
    "calls": chunked(*_SPOKEN, _CALLED, _chunk({}, "tool_calls"), _END),
    "fails": chunked(*_SPOKEN, b'data: {"error":{"code":429,"message":"slow down"}}\n\n'),
    "hangs": chunked(*_SPOKEN, ends=False, then="hang"),
    "huge": chunked(*(_SPOKEN * 20_000), ends=False, then="hang"),
    "unreachable": Reply(),
}


@asynccontextmanager
async def openai_chat(behaviour: str) -> AsyncIterator[Connector]:
    async with stub_provider(_REPLIES[behaviour]) as stub:
        url = await _nowhere() if behaviour == "unreachable" else stub.url
        connector = chat_at(url)
        try:
            yield connector
        finally:
            await connector.aclose()


def chat_at(
    url: str, *, secret: str | None = None, body_bytes_max: int = 10_000_000, keeps_connections: bool = False
) -> HttpConnector:
    """`keeps_connections`: as it would with a server that is reached over TLS."""
    return HttpConnector(
        new_client("https:" if keeps_connections else url, idle_connections_max=4),
        chat.api(base_url=url, secret=secret, dialect=Dialect()),
        Bounds(response_bytes_max=1_000_000, body_bytes_max=body_bytes_max),
    )


# --- Messages ---------------------------------------------------------------------------------------------------

_MESSAGE_SPOKEN = (messages_streams.begun(), messages_streams.said(*TEXT))
_MESSAGE_PIECES = tuple(messages_streams.piece(0, "text_delta", text=text) for text in TEXT)
_MESSAGE_REPLIES = {
    "text": chunked(*_MESSAGE_SPOKEN, messages_streams.finished()),
    "calls": chunked(*_MESSAGE_SPOKEN, messages_streams.called(1, *CALL), messages_streams.finished("tool_use")),
    "fails": chunked(
        *_MESSAGE_SPOKEN, messages_streams.event("error", error={"type": "rate_limit_error", "message": "slow down"})
    ),
    "hangs": chunked(messages_streams.begun(), *_MESSAGE_PIECES, ends=False, then="hang"),
    "huge": chunked(messages_streams.begun(), *(_MESSAGE_PIECES * 20_000), ends=False, then="hang"),
    "unreachable": Reply(),
}


@asynccontextmanager
async def anthropic_messages(behaviour: str) -> AsyncIterator[Connector]:
    async with stub_provider(_MESSAGE_REPLIES[behaviour]) as stub:
        connector = messages_at(await _nowhere() if behaviour == "unreachable" else stub.url)
        try:
            yield connector
        finally:
            await connector.aclose()


def messages_at(
    url: str,
    *,
    secret: str | None = None,
    version: str = messages.VERSION,
    auth: str = "x-api-key",
    dialect: anthropic_messages_lower.Dialect | None = None,
) -> HttpConnector:
    dialect = dialect or anthropic_messages_lower.Dialect()
    return HttpConnector(
        new_client(url, idle_connections_max=4),
        messages.api(base_url=url, secret=secret, version=version, auth=auth, dialect=dialect),
        Bounds(response_bytes_max=1_000_000, body_bytes_max=10_000_000),
    )


# --- Responses --------------------------------------------------------------------------------------------------


def _event(type: str, **members: object) -> bytes:
    return f"event: {type}\ndata: {json.dumps({'type': type, **members})}\n\n".encode()


_RESPONSES_SPOKEN = tuple(_event("response.output_text.delta", output_index=0, delta=text) for text in TEXT)
_RESPONSES_CALLED = _event(
    "response.output_item.done",
    output_index=1,
    item={"type": "function_call", "call_id": CALL[0], "name": CALL[1], "arguments": CALL[2]},
)
_RESPONSES_END = _event(
    "response.completed", response={"status": "completed", "usage": {"input_tokens": 11, "output_tokens": 3}}
)
_RESPONSES_REPLIES = {
    "text": chunked(*_RESPONSES_SPOKEN, _RESPONSES_END),
    "calls": chunked(*_RESPONSES_SPOKEN, _RESPONSES_CALLED, _RESPONSES_END),
    "fails": chunked(*_RESPONSES_SPOKEN, _event("error", code="rate_limit_exceeded", message="slow down")),
    "hangs": chunked(*_RESPONSES_SPOKEN, ends=False, then="hang"),
    "huge": chunked(*(_RESPONSES_SPOKEN * 20_000), ends=False, then="hang"),
    "unreachable": Reply(),
}


@asynccontextmanager
async def openai_responses(behaviour: str) -> AsyncIterator[Connector]:
    async with stub_provider(_RESPONSES_REPLIES[behaviour]) as stub:
        url = await _nowhere() if behaviour == "unreachable" else stub.url
        connector = responses_at(url)
        try:
            yield connector
        finally:
            await connector.aclose()


def responses_at(url: str, *, secret: str | None = None, dialect: ResponsesDialect | None = None) -> HttpConnector:
    return HttpConnector(
        new_client(url, idle_connections_max=4),
        responses.api(base_url=url, secret=secret, dialect=dialect or ResponsesDialect()),
        Bounds(response_bytes_max=1_000_000, body_bytes_max=10_000_000),
    )


async def _nowhere() -> str:
    """A port that nothing listens on."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return f"http://127.0.0.1:{port}"


CONNECTORS: dict[str, Made] = {
    "anthropic_messages": anthropic_messages,
    "scripted": scripted,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
}
