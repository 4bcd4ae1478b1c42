"""The connector kinds, each brought to behave in the ways that the contract of every connector asks about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from kit.process_cases import process
from kit.stub_http import Reply, chunked, stub_provider

from sidecar.connectors.http_exchange import new_client
from sidecar.connectors.openai_chat import OpenAIChat
from sidecar.connectors.openai_chat_lower import Dialect
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
) -> OpenAIChat:
    """`keeps_connections`: as it would with a server that is reached over TLS."""
    return OpenAIChat(
        new_client("https:" if keeps_connections else url, idle_connections_max=4),
        base_url=url,
        secret=secret,
        response_bytes_max=1_000_000,
        body_bytes_max=body_bytes_max,
        dialect=Dialect(),
    )


async def _nowhere() -> str:
    """A port that nothing listens on."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    return f"http://127.0.0.1:{port}"


CONNECTORS: dict[str, Made] = {"scripted": scripted, "openai_chat": openai_chat, "process": process}
