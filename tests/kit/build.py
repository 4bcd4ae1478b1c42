"""Requests, invocations and frames for tests, each with everything needed and one thing changed."""

from __future__ import annotations

from typing import Any

from sidecar.contract import canonical
from sidecar.contract import values as v

NOW = 1_790_000_000_000  # a fixed instant, in Unix milliseconds


def text(words: str = "hello there") -> v.InputItem:
    return v.InputItem(user_text=v.UserText(text=words))


def said(words: str) -> v.InputItem:
    return v.InputItem(assistant_text=v.AssistantText(text=words))


def call(call_id: str, name: str = "look", arguments: str = "{}") -> v.InputItem:
    return v.InputItem(tool_call=v.ToolCall(call_id=call_id, name=name, arguments=arguments))


def result(call_id: str, output: str = "a door") -> v.InputItem:
    return v.InputItem(tool_result=v.ToolResult(call_id=call_id, output=output))


def state(provider: str = "echo", model: str = "echo-1", opaque: bytes = b"{}") -> v.InputItem:
    return v.InputItem(reasoning_state=v.ReasoningState(provider=provider, model=model, state=opaque))


def request(*items: v.InputItem, **changes: Any) -> v.ProviderRequest:
    members: dict[str, Any] = {
        "schema_id": v.PROVIDER_REQUEST,
        "request_id": "request-1",
        "conversation_id": "conversation-1",
        "model": "npc",
        "instructions": "",
        "input": items or (text(),),
        "tools": (),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 100,
    }
    return v.ProviderRequest(**{**members, **changes})


def invocation(asked: v.ProviderRequest | None = None, **changes: Any) -> v.TransportInvocation:
    asked = asked or request()
    digest = canonical.digest(canonical.encode(asked))
    members: dict[str, Any] = {
        "schema_id": v.TRANSPORT_INVOCATION,
        "caller_runtime_id": "dungeon",
        "expires_at_unix_ms": NOW + 60_000,
        "max_cost_micro_usd": 1_000_000,
        "native_request_sha256": digest,
        "provider_request_sha256": digest,
        "request": asked,
    }
    return v.TransportInvocation(**{**members, **changes})


def frame(asked: v.ProviderRequest | None = None, **changes: Any) -> bytes:
    """The canonical bytes of an invocation, without the length prefix."""
    return canonical.encode(invocation(asked, **changes))
