"""From a request to the body of a Chat Completions POST. Pure: the same request gives the same bytes.

What the API can't express, or would answer with a 400, is Rejected before
anything is sent; what the server merely has no place for is left out and
noted. Source: WIRE sections 1.2, 2.7, 3.1 and 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from sidecar.connectors import states
from sidecar.connectors.lowering import (
    as_it_stands,
    cache_key,
    call_id,
    call_ids,
    checked_arguments,
    fitting_effort,
    parameters_of,
    parsed,
    tool_name,
    turns,
    user_messages,
)
from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.promise import NO_SETTINGS, Lowered, Rejected
from sidecar.connectors.strict_schema import is_strict
from sidecar.contract.values import (
    AssistantText,
    InputItem,
    Note,
    ProviderRequest,
    ReasoningState,
    ToolCall,
    ToolDefinition,
)

STATE_KINDS: Final = {"reasoning_content": "chat.reasoning_content", "reasoning_details": "chat.reasoning_details"}
_STATE_MEMBERS: Final = {"reasoning_content": ("text", str), "reasoning_details": ("details", list)}

Cache = Literal["none", "free", "charged"]


class ModelSettings(Struct, frozen=True, kw_only=True):
    """What a model takes: its reasoning efforts (None: those of the dialect), and how its prompt cache is asked for.

    `free`: written without being asked, without a fee. `charged`: a write costs, so none is made unasked; that is what
    is presumed where a cache can be asked for, for it costs nothing to be wrong.
    """

    efforts: tuple[str, ...] | None = None
    cache: Cache | None = None


def lower(
    request: ProviderRequest, upstream: str, dialect: Dialect, settings: Mapping[str, Any] = NO_SETTINGS
) -> Lowered:
    """The POST's body. Reasoning states that this server does not want back are left out and counted."""
    model = ModelSettings(**settings)
    items = tuple([item for item in request.input if not item.reasoning_state or _replayed(item, upstream, dialect)])
    if not items:
        raise Rejected("nothing is left of the input without reasoning states")
    notes: list[Note] = []
    body: dict[str, Any] = {
        "model": upstream,
        "messages": _messages(request.instructions, items, upstream, dialect),
        "stream": True,
        dialect.max_tokens_field: request.max_output_tokens,
    }
    if dialect.send_stream_options:
        body["stream_options"] = {"include_usage": True}
        if dialect.send_obfuscation:
            body["stream_options"]["include_obfuscation"] = False
    if dialect.service_tier is not None:
        body["service_tier"] = dialect.service_tier
    body |= _effort_members(request, dialect, model, notes)
    body |= _cache_members(request, dialect, model, notes)
    body |= _tool_members(request, dialect, notes)
    if request.output_schema_json is not None:
        schema = _schema(request.output_schema_json, dialect, notes)
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=len(request.input) - len(items),
        call_ids=call_ids(items),
        notes=tuple(notes),
    )


def _effort_members(
    request: ProviderRequest, dialect: Dialect, model: ModelSettings, notes: list[Note]
) -> dict[str, Any]:
    asked = request.reasoning_effort
    efforts = dialect.efforts if model.efforts is None else model.efforts
    if asked is None:
        return {}
    if dialect.effort_field == "omit" or not efforts:
        notes.append("effort_dropped")
        return {}
    word = fitting_effort(asked, efforts)
    return {"reasoning": {"effort": word}} if dialect.effort_field == "reasoning" else {"reasoning_effort": word}


def _cache_members(
    request: ProviderRequest, dialect: Dialect, model: ModelSettings, notes: list[Note]
) -> dict[str, Any]:
    """A cache whose writes cost is kept from writing unasked; here it keeps 30 minutes at most."""
    asked, cache = request.cache_retention, model.cache or "charged"
    if not dialect.cache_key or cache == "none":
        if asked is not None:
            notes.append("retention_dropped")
        return {}
    if asked is None:
        return {"prompt_cache_options": {"mode": "explicit"}} if cache == "charged" else {}
    key = {"prompt_cache_key": cache_key(request.conversation_id)}
    if cache == "charged" and asked == "long":
        raise Rejected("this API keeps a prompt in its cache for 30 minutes at most: ask for the retention short")
    if cache == "charged":
        return {**key, "prompt_cache_options": {"ttl": "30m"}}
    return {**key, "prompt_cache_retention": "24h"} if asked == "long" else key


def _schema(text: str, dialect: Dialect, notes: list[Note]) -> dict[str, Any]:
    """Strict where its rules hold for the schema as it stands; else the provider does its best, as by default."""
    schema = {"name": "answer", "schema": as_it_stands(text)}
    if dialect.send_strict and is_strict(parsed(text)):
        return {**schema, "strict": True}
    notes.append("schema_loosened")
    return schema


def _tool_members(request: ProviderRequest, dialect: Dialect, notes: list[Note]) -> dict[str, Any]:
    if not request.tools:
        return {}
    members: dict[str, Any] = {"tools": [_tool(tool) for tool in request.tools]}
    if dialect.send_tool_choice:
        members["tool_choice"] = request.tool_choice
    elif request.tool_choice == "required":
        raise Rejected("this server has no tool_choice, so it can't be made to call a tool")
    if dialect.send_parallel_tool_calls:
        members["parallel_tool_calls"] = request.parallel_tool_calls
    elif not request.parallel_tool_calls:
        notes.append("parallel_calls_allowed")
    return members


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    parameters_of(tool)
    return {
        "type": "function",
        "function": {
            "name": tool_name(tool.name),
            "description": tool.description,
            "parameters": as_it_stands(tool.parameters_json),
        },
    }


def _messages(instructions: str, items: tuple[InputItem, ...], upstream: str, dialect: Dialect) -> list[dict[str, Any]]:
    """Turns that alternate, as many chat templates want: neighbours of one side make one message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": dialect.system_role, "content": instructions})
    for is_assistant, side in turns(items):
        messages += (
            [_assistant_message(side, upstream, dialect)]
            if is_assistant
            else user_messages(side, id_member="tool_call_id")
        )
    return messages


def _assistant_message(side: list[Any], upstream: str, dialect: Dialect) -> dict[str, Any]:
    """One message: the API has no place for text behind a call of the same turn, so all text stands first."""
    text = "".join(said.text for said in side if isinstance(said, AssistantText))
    calls = [_call(said) for said in side if isinstance(said, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if dialect.empty_content == "null" else ""),
    }
    if dialect.reasoning_replay != "none":
        replayed = [_state(said, upstream, dialect) for said in side if isinstance(said, ReasoningState)]
        pieces: list[Any] = [piece for state in replayed if state is not None for piece in state]
        if pieces:  # a turn has one state; where two turns were put together, they follow each other
            message[dialect.reasoning_replay] = "".join(pieces) if isinstance(pieces[0], str) else pieces
    if calls:
        message["tool_calls"] = calls
    return message


def _replayed(item: InputItem, upstream: str, dialect: Dialect) -> bool:
    return bool(item.reasoning_state) and _state(item.chosen, upstream, dialect) is not None


def _state(said: ReasoningState, upstream: str, dialect: Dialect) -> str | list[dict[str, Any]] | None:
    """The text or the blocks that a state of this server and model brings back; None for any other."""
    if dialect.reasoning_replay == "none":
        return None
    members = states.decode(said.state, STATE_KINDS[dialect.reasoning_replay], upstream)
    name, kind = _STATE_MEMBERS[dialect.reasoning_replay]
    if members is None or members.keys() != {name} or not isinstance(members[name], kind) or not members[name]:
        return None
    if kind is list and not all(isinstance(block, dict) for block in members[name]):
        return None
    brought: str | list[dict[str, Any]] = members[name]
    return brought


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": tool_name(call.name), "arguments": checked_arguments(call)}
    return {"id": call_id(call.call_id), "type": "function", "function": function}
