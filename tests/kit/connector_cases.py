"""The connector kinds, each brought to behave in the ways that the contract of every connector asks about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from kit import messages_streams
from kit.process_cases import process
from kit.recorded_cases import recording, replaying
from kit.stub_http import Reply, chunked, stub_provider

from sidecar.connectors import anthropic_messages as messages
from sidecar.connectors import anthropic_messages_lower
from sidecar.connectors import gemini as google
from sidecar.connectors import llama_stack as stack
from sidecar.connectors import openai_chat as chat
from sidecar.connectors import openai_responses as responses
from sidecar.connectors.http_connector import Api, Bounds, HttpConnector
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


@asynccontextmanager
async def recorded(behaviour: str) -> AsyncIterator[Connector]:
    async with scripted(behaviour) as wrapped, recording(wrapped) as connector:
        yield connector


@asynccontextmanager
async def replayed(behaviour: str) -> AsyncIterator[Connector]:
    """What has ended: nothing hangs, and a huge answer is no larger than one that comes at once can be."""
    async with scripted("text" if behaviour == "hangs" else behaviour) as wrapped:
        if behaviour == "huge":
            wrapped = Scripted((Rule(deltas=("Hello " * 1000, "there " * 10_000), usage=USED),))
        async with replaying(wrapped) as connector:
            yield connector


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
    async with _answered(_REPLIES[behaviour], chat_at) as connector:
        yield connector


@asynccontextmanager
async def _answered(reply: Reply, connector_at: Callable[[str], HttpConnector]) -> AsyncIterator[Connector]:
    """A connector whose provider answers so; one that answers nothing at all is not there."""
    async with stub_provider(reply) as stub:
        connector = connector_at(stub.url if reply.pieces else await _nowhere())
        try:
            yield connector
        finally:
            await connector.aclose()


def connector_to(api: Api, **bounds: int) -> HttpConnector:
    """A connector of any kind, over plain HTTP."""
    limits = {"response_bytes_max": 1_000_000, "body_bytes_max": 10_000_000, **bounds}
    return HttpConnector(new_client("http:", idle_connections_max=4), api, Bounds(**limits))


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
    async with _answered(_MESSAGE_REPLIES[behaviour], messages_at) as connector:
        yield connector


def messages_at(
    url: str,
    *,
    secret: str | None = None,
    version: str = messages.VERSION,
    auth: str = "x-api-key",
    dialect: anthropic_messages_lower.Dialect | None = None,
) -> HttpConnector:
    dialect = dialect or anthropic_messages_lower.Dialect()
    return connector_to(messages.api(base_url=url, secret=secret, version=version, auth=auth, dialect=dialect))


# --- Llama Stack, on its native route ---------------------------------------------------------------------------


def stack_event(event_type: str, delta: object, stop: str | None = None, metrics: object = None) -> bytes:
    event = {"event_type": event_type, "delta": delta, "logprobs": None, "stop_reason": stop}
    return f"data: {json.dumps({'metrics': metrics, 'event': event})}\n\n".encode()


def stack_text(text: str) -> bytes:
    return stack_event("progress", {"type": "text", "text": text})


def stack_metrics(prompt: object, completion: object) -> list[dict[str, object]]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
    return [{"metric": name, "value": value, "unit": None} for name, value in counts.items()]


def stack_complete(stop: str = "end_of_turn", prompt: object = 11, completion: object = 3) -> bytes:
    return stack_event("complete", {"type": "text", "text": ""}, stop, stack_metrics(prompt, completion))


def stack_call(call_id: str, name: str, arguments: str) -> bytes:
    call = {"call_id": call_id, "tool_name": name, "arguments": json.loads(arguments), "arguments_json": arguments}
    return stack_event("progress", {"type": "tool_call", "tool_call": call, "parse_status": "succeeded"})


_STACK_SPOKEN = tuple(map(stack_text, TEXT))
_STACK_REPLIES = {
    "text": chunked(*_STACK_SPOKEN, stack_complete()),
    "calls": chunked(*_STACK_SPOKEN, stack_call(*CALL), stack_complete("end_of_message")),
    "fails": chunked(*_STACK_SPOKEN, b'data: {"error": {"message": "429: slow down"}}\n\n'),
    "hangs": chunked(*_STACK_SPOKEN, ends=False, then="hang"),
    "huge": chunked(*(_STACK_SPOKEN * 20_000), ends=False, then="hang"),
    "unreachable": Reply(),
}


@asynccontextmanager
async def llama_stack(behaviour: str) -> AsyncIterator[Connector]:
    async with _answered(_STACK_REPLIES[behaviour], stack_at) as connector:
        yield connector


def stack_at(
    url: str, *, route: str = "native", secret: str | None = None, takes_estimates: bool = True
) -> HttpConnector:
    return connector_to(stack.api(base_url=url, secret=secret, route=route, takes_estimates=takes_estimates))


# --- Gemini -----------------------------------------------------------------------------------------------------

GEMINI_USED = {"promptTokenCount": 11, "candidatesTokenCount": 3, "totalTokenCount": 14}


def gemini_event(*parts: object, finish: object = None, usage: object = GEMINI_USED, **members: object) -> bytes:
    candidate = {"content": {"parts": list(parts), "role": "model"}, "finishReason": finish, "index": 0}
    candidate = {name: said for name, said in candidate.items() if said is not None}
    said = {"candidates": [candidate], "usageMetadata": usage, "responseId": "r-1", **members}
    return f"data: {json.dumps({name: one for name, one in said.items() if one is not None})}\r\n\r\n".encode()


_GEMINI_SPOKEN = tuple(gemini_event({"text": text}) for text in TEXT)
_GEMINI_CALL = {"functionCall": {"id": CALL[0], "name": CALL[1], "args": json.loads(CALL[2])}}
_GEMINI_END = gemini_event({"text": ""}, finish="STOP")
_GEMINI_ERROR = {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}
_GEMINI_REPLIES = {
    "text": chunked(*_GEMINI_SPOKEN, _GEMINI_END),
    "calls": chunked(*_GEMINI_SPOKEN, gemini_event(_GEMINI_CALL), _GEMINI_END),
    "fails": chunked(*_GEMINI_SPOKEN, f"data: {json.dumps(_GEMINI_ERROR)}\n\n".encode()),
    "hangs": chunked(*_GEMINI_SPOKEN, ends=False, then="hang"),
    "huge": chunked(*(_GEMINI_SPOKEN * 20_000), ends=False, then="hang"),
    "unreachable": Reply(),
}


@asynccontextmanager
async def gemini(behaviour: str) -> AsyncIterator[Connector]:
    async with _answered(_GEMINI_REPLIES[behaviour], gemini_at) as connector:
        yield connector


def gemini_at(url: str, *, secret: str | None = None) -> HttpConnector:
    return connector_to(google.api(base_url=url, secret=secret))


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
    "gemini": gemini,
    "llama_stack": llama_stack,
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "process": process,
    "recorded": recorded,
    "recorded (replay)": replayed,
    "scripted": scripted,
}
