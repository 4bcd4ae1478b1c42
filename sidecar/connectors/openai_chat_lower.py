"""From a request to the body of a Chat Completions POST. Pure: the same request gives the same bytes.

What the API can't express, or would answer with a 400, is Rejected before
anything is sent. Source: WIRE sections 1.2, 3.1 and 3.3.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from sidecar.connectors.lowering import as_it_stands, call_id, checked_arguments, tool_name, turns
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.connectors.strict_schema import is_strict
from sidecar.contract.values import (
    AssistantText,
    InputItem,
    ProviderRequest,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UserText,
)

_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "max": "high"}  # no compatible server knows max


class Dialect(Struct, frozen=True, kw_only=True):
    """How this server differs from the others; it can't be found out by asking it (WIRE 3.7)."""

    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    send_stream_options: bool = True
    send_tool_choice: bool = True
    send_parallel_tool_calls: bool = True
    send_strict: bool = True
    effort: Literal["omit", "send"] = "omit"
    null_content: bool = True  # what a turn of calls alone has for its text; else it is empty


def lower(request: ProviderRequest, upstream: str, dialect: Dialect) -> Lowered:
    """The POST's body. Reasoning states are none of this API: left out and counted. Raises Rejected."""
    items = tuple(item for item in request.input if not item.reasoning_state)
    if not items:
        raise Rejected("nothing is left of the input without reasoning states")
    body: dict[str, Any] = {
        "model": upstream,
        "messages": _messages(request.instructions, items, dialect),
        "stream": True,
        dialect.max_tokens_field: request.max_output_tokens,
    }
    if dialect.send_stream_options:
        body["stream_options"] = {"include_usage": True}
    if dialect.effort == "send" and request.reasoning_effort is not None:
        body["reasoning_effort"] = _EFFORTS[request.reasoning_effort]
    body |= _tool_members(request, dialect)
    if request.output_schema_json is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": _schema(request.output_schema_json, dialect)}
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=len(request.input) - len(items),
        call_ids=frozenset(item.tool_call.call_id for item in items if item.tool_call),
    )


def _schema(text: str, dialect: Dialect) -> dict[str, Any]:
    """Strict where its rules hold for the schema as it stands; else the provider does its best, as by default."""
    schema = {"name": "answer", "schema": as_it_stands(text)}
    if dialect.send_strict and is_strict(json.loads(text, parse_int=str)):
        return {**schema, "strict": True}
    return schema


def _tool_members(request: ProviderRequest, dialect: Dialect) -> dict[str, Any]:
    if not request.tools:
        return {}
    members: dict[str, Any] = {"tools": [_tool(tool) for tool in request.tools]}
    if dialect.send_tool_choice:
        members["tool_choice"] = request.tool_choice
    elif request.tool_choice == "required":
        raise Rejected("this server has no tool_choice, so it can't be made to call a tool")
    if dialect.send_parallel_tool_calls:
        members["parallel_tool_calls"] = request.parallel_tool_calls
    return members


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    if json.loads(tool.parameters_json, parse_int=str).get("type") != "object":
        raise Rejected(f"the parameters of tool {tool.name:.80} are no schema of type object")
    return {
        "type": "function",
        "function": {
            "name": tool_name(tool.name),
            "description": tool.description,
            "parameters": as_it_stands(tool.parameters_json),
        },
    }


def _messages(instructions: str, items: tuple[InputItem, ...], dialect: Dialect) -> list[dict[str, Any]]:
    """Turns that alternate, as many chat templates want: neighbours of one side make one message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for is_assistant, side in turns(items):
        messages += [_assistant_message(side, dialect)] if is_assistant else _user_messages(side)
    return messages


def _assistant_message(side: list[Any], dialect: Dialect) -> dict[str, Any]:
    """One message: the API has no place for text behind a call of the same turn, so all text stands first."""
    text = "".join(said.text for said in side if isinstance(said, AssistantText))
    calls = [_call(said) for said in side if isinstance(said, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if dialect.null_content else "")}
    if calls:
        message["tool_calls"] = calls
    return message


def _user_messages(side: list[Any]) -> list[dict[str, Any]]:
    """The results directly behind the calls that they answer, then all text as one message."""
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": call_id(said.call_id), "content": said.output}
        for said in side
        if isinstance(said, ToolResult)
    ]
    texts = [said.text for said in side if isinstance(said, UserText)]
    if texts:
        messages.append({"role": "user", "content": "\n\n".join(texts)})
    return messages


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": tool_name(call.name), "arguments": checked_arguments(call)}
    return {"id": call_id(call.call_id), "type": "function", "function": function}
