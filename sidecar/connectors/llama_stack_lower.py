"""From a request to the body of a POST to Llama Stack's native chat completion. Pure: the same request, the same bytes.

What is sent holds to the published schema to the letter. Its alternatives must
match exactly once, so that an integer, which is a number too, can't stand in an
object of arguments (their text can), and a tool choice that is also a tool's
name can't stand in `tool_config` (beside it, it can: the server reads both).
Source: WIRE sections 1.2 and 5.2 to 5.4.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from sidecar.connectors.llama_stack_tools import flat_tool, own_name
from sidecar.connectors.lowering import (
    as_it_stands,
    call_id,
    call_ids,
    checked_arguments,
    turns,
    user_messages,
)
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract.values import (
    AssistantText,
    InputItem,
    Note,
    ProviderRequest,
    ToolCall,
)


def lower(request: ProviderRequest, upstream: str) -> Lowered:
    """The POST's body. Reasoning states are none of this API: left out and counted. Raises Rejected."""
    items = tuple(item for item in request.input if not item.reasoning_state)
    if not items:
        raise Rejected("nothing is left of the input without reasoning states")
    body: dict[str, Any] = {
        "model_id": upstream,
        "messages": _messages(request.instructions, items),
        "sampling_params": {"strategy": {"type": "greedy"}, "max_tokens": request.max_output_tokens},
        "stream": True,
    }
    notes = _lost(request)
    if request.tools:
        tools = [flat_tool(tool) for tool in request.tools]
        body |= {"tools": [tool for tool, _ in tools], "tool_choice": request.tool_choice}
        if any(is_less for _, is_less in tools):
            notes.append("tools_flattened")
    if request.output_schema_json is not None:
        schema = as_it_stands(request.output_schema_json)
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        notes.append("schema_loosened")  # many of the servers behind it never hear of the schema
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=len(request.input) - len(items),
        call_ids=call_ids(items),
        notes=tuple(notes),
    )


def _lost(request: ProviderRequest) -> list[Note]:
    """What the route has no field for, or takes for a wish."""
    lost: list[Note] = []
    if request.reasoning_effort is not None:
        lost.append("effort_dropped")
    if request.cache_retention is not None:
        lost.append("retention_dropped")
    if request.tools and not request.parallel_tool_calls:
        lost.append("parallel_calls_allowed")
    if request.tool_choice == "required":
        lost.append("tool_choice_hinted")
    return lost


def _messages(instructions: str, items: tuple[InputItem, ...]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for is_assistant, side in turns(items):
        messages += [_assistant_message(side)] if is_assistant else user_messages(side, id_member="call_id")
    return messages


def _assistant_message(side: list[Any]) -> dict[str, Any]:
    """One message, all text first; it must say how its turn ended, and only calls end it before its end."""
    calls = [_call(said) for said in side if isinstance(said, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(said.text for said in side if isinstance(said, AssistantText)),
        "stop_reason": "end_of_message" if calls else "end_of_turn",
    }
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    text = checked_arguments(call)
    return {
        "call_id": call_id(call.call_id),
        "tool_name": own_name(call.name),
        "arguments": as_it_stands(text) if _is_object_of_the_schema(text) else text,
        "arguments_json": text,
    }


def _is_object_of_the_schema(text: str) -> bool:
    """Whether these arguments may stand as an object: two levels at most, and no whole number anywhere."""
    arguments = json.loads(text, parse_int=lambda _: ...)
    return all(_is_scalar(value) or _holds_scalars(value) for value in arguments.values())


def _holds_scalars(value: object) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [...]
    return all(map(_is_scalar, inner))


def _is_scalar(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value) and not value.is_integer()
    return value is None or isinstance(value, str | bool)
