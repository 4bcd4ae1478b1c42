"""From a request to the body of a Messages POST. Pure: the same request gives the same bytes.

What stands before a turn comes first in the body and what may differ from
request to request last, so the body of a conversation that only grows begins
with the same bytes each time. What the API can't express, or would answer with
a 400, is Rejected before anything is sent. Source: WIRE sections 4.2 to 4.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from sidecar.connectors.anthropic_messages_blocks import Block, Message, mark, mark_messages, messages_of
from sidecar.connectors.anthropic_messages_models import BUDGET_TOKENS, BUDGET_TOKENS_MIN, Model
from sidecar.connectors.anthropic_messages_schema import why_refused
from sidecar.connectors.lowering import (
    as_it_stands,
    call_ids,
    parameters_of,
    parsed,
    tool_name,
)
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract.values import Note, ProviderRequest, ToolDefinition

TTLS: Final[Mapping[str, str]] = {"short": "5m", "long": "1h"}
TOOL_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "required": "any"}
_DROP_BLOCK: Final = {"prefix_mismatch_behavior": "drop_block"}


class Dialect(Struct, frozen=True, kw_only=True):
    """How this server differs from the others; it can't be found out by asking it.

    `block_binding`: what becomes of thinking whose conversation was changed before it. `output_schema`: whether
    schemas are held against the API's rules, sent as they stand, or refused for a server that ignores them.
    """

    block_binding: Literal["fail", "drop"] = "fail"
    output_schema: Literal["checked", "sent", "refused"] = "checked"
    send_cache_control: bool = True
    replay_thinking: bool = True


def lower(request: ProviderRequest, upstream: str, dialect: Dialect, model: Model) -> Lowered:
    """The POST's body. Reasoning states that this model can't use are left out and counted. Raises Rejected."""
    items = request.input
    if not dialect.replay_thinking:
        items = tuple(item for item in items if not item.reasoning_state)
    messages, dropped = messages_of(items, upstream)
    _check_turns(messages)
    effort = model.effort(request.reasoning_effort)
    thinking = _thinking(request, dialect, model, messages)
    body: dict[str, Any] = {"model": upstream, **_before_messages(request)}
    notes: list[Note] = []
    if request.cache_retention is not None:
        if dialect.send_cache_control:
            _mark(body, messages, {"type": "ephemeral", "ttl": TTLS[request.cache_retention]})
        else:
            notes.append("retention_dropped")
    if request.reasoning_effort is not None and effort is None and thinking.get("type") != "enabled":
        notes.append("effort_dropped")
    body |= {"messages": messages, "max_tokens": request.max_output_tokens, "stream": True}
    body |= _tool_choice(request, model, thinking)
    if thinking:
        body["thinking"] = thinking
    body |= _output_config(request, dialect, effort)
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=len(request.input) - len(items) + dropped,
        call_ids=call_ids(items),
        notes=tuple(notes),
    )


def _check_turns(messages: list[Message]) -> None:
    if not messages:
        raise Rejected(
            "nothing is left of the input without blank texts and reasoning states that this model can't use"
        )
    if messages[0].role != "user":
        raise Rejected("the input begins with an assistant turn or with blanks before one, and this API wants a user's")
    if messages[-1].role != "user":
        raise Rejected(
            "the input ends with an assistant turn or with blanks behind one, which this API does not go on with"
        )


def _before_messages(request: ProviderRequest) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if request.tools:
        members["tools"] = [_tool(tool) for tool in request.tools]
    if request.instructions.strip():
        members["system"] = [{"type": "text", "text": request.instructions}]
    return members


def _tool(tool: ToolDefinition) -> Block:
    parameters_of(tool)
    described = {"description": tool.description} if tool.description.strip() else {}
    return {
        "name": tool_name(tool.name),
        **described,
        "input_schema": as_it_stands(tool.parameters_json),
    }


def _mark(body: dict[str, Any], messages: list[Message], marker: Mapping[str, str]) -> None:
    """One marker covers the tools and the instructions, for tools are read before them."""
    mark(body.get("system") or body.get("tools") or [], marker)
    mark_messages(messages, marker)


def _tool_choice(request: ProviderRequest, model: Model, thinking: Mapping[str, Any]) -> dict[str, Any]:
    if not request.tools:
        return {}
    if request.tool_choice == "required":
        if not model.forced_tools or model.family.forced_tools == "no":
            raise Rejected("this model can't be made to call a tool")
        if model.family.forced_tools == "idle" and thinking.get("type") == "enabled":
            raise Rejected("this model can't be made to call a tool while it thinks: ask without a reasoning effort")
    choice = TOOL_CHOICES[request.tool_choice]
    return {"tool_choice": {"type": choice, "disable_parallel_tool_use": not request.parallel_tool_calls}}


def _thinking(request: ProviderRequest, dialect: Dialect, model: Model, messages: list[Message]) -> dict[str, Any]:
    """The `thinking` member; empty where nothing is to be said of it."""
    family, effort = model.family, request.reasoning_effort
    if effort is None and family.off_as is not None and not model.think_unasked:
        return {"type": family.off_as}
    if family.binds and dialect.block_binding == "drop":
        return {"type": "adaptive", "block_binding": _DROP_BLOCK}
    if effort is None or family.asked_by is None:
        return {}
    if family.asked_by == "adaptive":
        return {"type": "adaptive"}
    if _is_in_a_loop_that_was_not_thought(messages):
        return {"type": "disabled"}
    budget = min(BUDGET_TOKENS[effort], request.max_output_tokens - 1)
    return {"type": "enabled", "budget_tokens": budget} if budget >= BUDGET_TOKENS_MIN else {}


def _is_in_a_loop_that_was_not_thought(messages: list[Message]) -> bool:
    """Whether results are just coming back to calls that no thinking of this model stands before.

    The rounds of a loop are one turn to the model, and it thinks at their begin.
    """
    at = len(messages) - 1
    while at > 0 and messages[at].has_results:
        if messages[at - 1].thinks:
            return False
        at -= 2
    return at < len(messages) - 1


def _output_config(request: ProviderRequest, dialect: Dialect, effort: str | None) -> dict[str, Any]:
    members: dict[str, Any] = {} if effort is None else {"effort": effort}
    if request.output_schema_json is not None:
        if dialect.output_schema == "refused":
            raise Rejected("this server holds no answer to a schema")
        if dialect.output_schema == "checked" and (why := why_refused(parsed(request.output_schema_json))):
            raise Rejected(f"the output schema is none that this API takes: {why}")
        members["format"] = {"type": "json_schema", "schema": as_it_stands(request.output_schema_json)}
    return {"output_config": members} if members else {}
