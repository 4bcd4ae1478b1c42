"""From a request to the body of a Responses POST. Pure: the same request gives the same bytes.

Items go out one to one and in order, each made of itself and its own turn
alone, so that earlier turns keep their bytes. What the API can't express, or
would answer with a 400, is Rejected before anything is sent; what it has no
place for is noted. Source: WIRE sections 1.2 and 2.1 to 2.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

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
)
from sidecar.connectors.openai_responses_states import phase_in, reasoning_in
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.connectors.strict_schema import is_strict
from sidecar.contract.values import (
    AssistantText,
    Note,
    ProviderRequest,
    ReasoningState,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

CACHES: Final = ("charged", "free", "none")  # what a model asks for its cache writes; none: it can't be asked to cache
OUTPUT_TOKENS_MIN: Final = 16
OUTPUT_CHARACTERS_MAX: Final = 10 * 1024 * 1024  # of one tool's result

# By what cache writes cost, then by what the request asks; `prompt_cache_key` stands with each that asks for anything.
_CACHE_MEMBERS: Final[Mapping[str, Mapping[str | None, dict[str, Any]]]] = {
    "charged": {
        None: {"prompt_cache_options": {"mode": "explicit"}},  # and no breakpoint: else it writes unasked
        "short": {"prompt_cache_options": {"ttl": "30m"}},
        "long": {"prompt_cache_options": {"ttl": "12h"}},
    },
    "free": {None: {}, "short": {}, "long": {"prompt_cache_retention": "24h"}},
}


class Dialect(Struct, frozen=True, kw_only=True):
    """How this server differs from OpenAI's own; it can't be found out by asking it.

    `output_schema`: whether the server holds its answer to a schema at all; llama.cpp ignores one.
    """

    dialect: Literal["openai", "compatible"] = "openai"
    output_schema: Literal["sent", "refused"] = "sent"
    send_include: bool = True
    send_tool_choice: bool = True
    send_parallel_tool_calls: bool = True
    send_strict: bool = True

    @property
    def is_openai(self) -> bool:
        return self.dialect == "openai"


def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any], dialect: Dialect) -> Lowered:
    """The POST's body. States that this model can't use are left out and counted. Raises Rejected."""
    if dialect.is_openai and request.max_output_tokens < OUTPUT_TOKENS_MIN:
        raise Rejected(f"the provider takes no max_output_tokens below {OUTPUT_TOKENS_MIN}")
    items, states_dropped = _items(request, upstream)
    if not items:
        raise Rejected("nothing is left of the input without the reasoning states that this model can't use")
    notes: list[Note] = []
    body: dict[str, Any] = {"model": upstream}
    if request.instructions:
        body["instructions"] = request.instructions
    body |= {"input": items, "max_output_tokens": request.max_output_tokens, "stream": True, "store": False}
    if dialect.is_openai:
        body |= {"stream_options": {"include_obfuscation": False}, "service_tier": "default"}
    body |= _reasoning_members(request, settings.get("efforts") or (), dialect, notes)
    body |= _tool_members(request, dialect, notes)
    if request.output_schema_json is not None:
        body["text"] = {"format": _format(request.output_schema_json, dialect, notes)}
    body |= _cache_members(request, settings.get("cache") or ("charged" if dialect.is_openai else "none"), notes)
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=states_dropped,
        call_ids=call_ids(request.input),
        notes=tuple(notes),
    )


# --- what is asked beside the input -----------------------------------------------------------------------------


def _reasoning_members(
    request: ProviderRequest, efforts: tuple[str, ...], dialect: Dialect, notes: list[Note]
) -> dict[str, Any]:
    """A model without efforts does not reason, and would answer either member with a 400."""
    asked = request.reasoning_effort
    if not efforts:
        if asked is not None:
            notes.append("effort_dropped")
        return {}
    members: dict[str, Any] = {"include": ["reasoning.encrypted_content"]} if dialect.send_include else {}
    if asked is not None:
        members["reasoning"] = {"effort": fitting_effort(asked, efforts)}
    return members


def _tool_members(request: ProviderRequest, dialect: Dialect, notes: list[Note]) -> dict[str, Any]:
    if not request.tools:
        return {}
    members: dict[str, Any] = {"tools": [_tool(tool, dialect) for tool in request.tools]}
    if dialect.send_tool_choice:
        members["tool_choice"] = request.tool_choice
    elif request.tool_choice == "required":
        raise Rejected("this server has no tool_choice, so it can't be made to call a tool")
    if dialect.send_parallel_tool_calls:
        members["parallel_tool_calls"] = request.parallel_tool_calls
    elif not request.parallel_tool_calls:
        notes.append("parallel_calls_allowed")
    return members


def _tool(tool: ToolDefinition, dialect: Dialect) -> dict[str, Any]:
    """`strict` is always said: left out, this API makes a schema strict by itself where it can."""
    schema = parameters_of(tool)
    made = {
        "type": "function",
        "name": tool_name(tool.name),
        "description": tool.description,
        "parameters": as_it_stands(tool.parameters_json),
    }
    return {**made, "strict": is_strict(schema)} if dialect.send_strict else made


def _format(text: str, dialect: Dialect, notes: list[Note]) -> dict[str, Any]:
    """Strict where its rules hold for the schema as it stands; else the provider does its best, which is noted."""
    if dialect.output_schema == "refused":
        raise Rejected("this server does not hold its answer to a schema")
    strict = dialect.send_strict and is_strict(parsed(text))
    if not strict:
        notes.append("schema_loosened")
    made = {"type": "json_schema", "name": "answer", "schema": as_it_stands(text)}
    return {**made, "strict": strict} if dialect.send_strict else made


def _cache_members(request: ProviderRequest, cache: str, notes: list[Note]) -> dict[str, Any]:
    retention = request.cache_retention
    if cache not in _CACHE_MEMBERS:
        if retention is not None:
            notes.append("retention_dropped")
        return {}
    key = {} if retention is None else {"prompt_cache_key": cache_key(request.conversation_id)}
    return {**key, **_CACHE_MEMBERS[cache][retention]}


# --- the input --------------------------------------------------------------------------------------------------


def _items(request: ProviderRequest, upstream: str) -> tuple[list[dict[str, Any]], int]:
    """The input items, and how many reasoning states are none of this model's."""
    items: list[dict[str, Any]] = []
    dropped = 0
    for is_assistant, side in turns(request.input):
        if is_assistant:
            made, of_turn = _assistant_items(side, upstream)
            items += made
            dropped += of_turn
        else:
            items += [_user_item(said) for said in side]
    return items, dropped


def _assistant_items(side: list[Any], upstream: str) -> tuple[list[dict[str, Any]], int]:
    """One turn's items, and how many states were left out.

    A phase goes with the text directly behind it. Reasoning that led to nothing would be answered with a 400
    ("without its required following item"), so it is left out like what is none of ours.
    """
    items: list[dict[str, Any]] = []
    dropped = 0
    last = max((at for at, said in enumerate(side) if not isinstance(said, ReasoningState)), default=-1)
    phase: str | None = None
    for at, said in enumerate(side):
        if isinstance(said, ReasoningState):
            reasoning = reasoning_in(said.state, upstream) if at < last else None
            phase = phase_in(said.state, upstream) if _is_text(side, at + 1) else None
            items += [reasoning] if reasoning else []
            dropped += reasoning is None and phase is None
        elif isinstance(said, AssistantText):
            items.append(_assistant_message(said.text, phase))
            phase = None
        else:
            items.append(_call(said))
    return items, dropped


def _is_text(side: list[Any], at: int) -> bool:
    return at < len(side) and isinstance(side[at], AssistantText)


def _assistant_message(text: str, phase: str | None) -> dict[str, Any]:
    """With its type, by which llama.cpp tells it, and as a text: parts are taken only with an id by some."""
    message: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
    return message if phase is None else {**message, "phase": phase}


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call_id(call.call_id),
        "name": tool_name(call.name),
        "arguments": checked_arguments(call),
    }


def _user_item(said: Any) -> dict[str, Any]:
    if not isinstance(said, ToolResult):
        return {"type": "message", "role": "user", "content": said.text}
    if len(said.output) > OUTPUT_CHARACTERS_MAX:
        raise Rejected(f"the result of tool call {said.call_id:.80} has more than {OUTPUT_CHARACTERS_MAX} characters")
    return {"type": "function_call_output", "call_id": call_id(said.call_id), "output": said.output}
