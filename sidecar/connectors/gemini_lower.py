"""From a request to the body of a Gemini generateContent POST. Pure: the same request gives the same bytes.

A thought signature goes back onto the part that it came on. A turn that calls
tools and has none was made elsewhere: models that check signatures would refuse
it, so that its first call gets the one that switches the check off. What has no
field is noted. Source: WIRE sections 1.2, 6.1 and 6.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from sidecar.connectors import gemini_signatures
from sidecar.connectors.gemini_schema import is_held
from sidecar.connectors.gemini_signatures import FILLER, Signature
from sidecar.connectors.lowering import (
    as_it_stands,
    call_id,
    call_ids,
    checked_arguments,
    fitting_effort,
    parameters_of,
    parsed,
)
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract.values import (
    AssistantText,
    InputItem,
    Note,
    ProviderRequest,
    ToolCall,
    ToolDefinition,
    ToolResult,
)

EFFORTS: Final = ("low", "medium", "high")  # of a model whose settings don't say
LEVELS: Final[Mapping[str, str]] = {"low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "XHIGH"}
BUDGETS: Final[Mapping[str, int]] = {"low": 1024, "medium": 8192, "high": 24_576}  # as Google's OpenAI surface has them
_TOOL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}", re.ASCII)
_TOOL_MODES: Final = {"auto": "AUTO", "required": "ANY"}

Thinking = Literal["level", "budget", "off"]
_Part = tuple[str, dict[str, Any]]  # with the role of its turn


class ModelSettings(Struct, frozen=True, kw_only=True):
    """How this model is told to think: by a level (3 and later), by a budget (2.5), or not at all."""

    thinking: Thinking = "level"
    efforts: tuple[str, ...] | None = None


def lower(request: ProviderRequest, upstream: str, model: ModelSettings) -> Lowered:
    """The POST's body. Raises Rejected."""
    parts, states_dropped = _parts(request.input, upstream)
    if all(item.reasoning_state for item in request.input):
        raise Rejected("nothing is left of the input without reasoning states")
    notes: list[Note] = []
    body: dict[str, Any] = {}
    if request.instructions:
        body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
    body["contents"] = _contents(parts, is_checked=model.thinking == "level")
    if request.tools:
        body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in request.tools]}]
        body["toolConfig"] = {"functionCallingConfig": {"mode": _TOOL_MODES[request.tool_choice]}}
        if not request.parallel_tool_calls:
            notes.append("parallel_calls_allowed")
    if request.cache_retention is not None:
        notes.append("retention_dropped")
    body["generationConfig"] = _generation(request, model, notes)
    return Lowered(
        request=request,
        upstream=upstream,
        body=msgspec.json.encode(body),
        states_dropped=states_dropped,
        call_ids=call_ids(request.input),
        notes=tuple(notes),
    )


def _generation(request: ProviderRequest, model: ModelSettings, notes: list[Note]) -> dict[str, Any]:
    made: dict[str, Any] = {"maxOutputTokens": request.max_output_tokens}
    if request.reasoning_effort is not None:
        thinking = _thinking(request.reasoning_effort, model)
        if thinking is None:
            notes.append("effort_dropped")
        else:
            made["thinkingConfig"] = thinking
    if request.output_schema_json is not None:
        made["responseMimeType"] = "application/json"
        made["responseJsonSchema"] = as_it_stands(request.output_schema_json)
        if not is_held(parsed(request.output_schema_json)):
            notes.append("schema_loosened")
    return made


def _thinking(effort: str, model: ModelSettings) -> dict[str, Any] | None:
    """How much the model is told to think; None where it can't be told. Raises Rejected."""
    efforts = EFFORTS if model.efforts is None else model.efforts
    if model.thinking == "off" or not efforts:
        return None
    word = fitting_effort(effort, efforts)
    if model.thinking == "budget":
        return {"thinkingBudget": BUDGETS[word]}
    return {"thinkingLevel": LEVELS[word]}


def _tool(tool: ToolDefinition) -> dict[str, Any]:
    parameters_of(tool)
    return {
        "name": _tool_name(tool.name),
        "description": tool.description,
        "parametersJsonSchema": as_it_stands(tool.parameters_json),
    }


def _tool_name(name: str) -> str:
    if not _TOOL_NAME.fullmatch(name):
        raise Rejected(
            f"the tool name {name:.80} is not a letter or underscore with up to 127 letters, digits and _.:- behind it"
        )
    return name


# --- turns and their parts ----------------------------------------------------------------------------------------


def _contents(parts: list[_Part], *, is_checked: bool) -> list[dict[str, Any]]:
    """Turns that alternate: the neighbouring parts of one side make one."""
    contents = []
    for role, side in groupby(parts, lambda part: part[0]):
        made = [part for _, part in side]
        if role == "user":
            made.sort(key=lambda part: "functionResponse" not in part)  # results directly behind their calls
        elif is_checked:
            _fill_signature([part for part in made if "functionCall" in part])
        contents.append({"role": role, "parts": made})
    return contents


def _fill_signature(calls: list[dict[str, Any]]) -> None:
    """Of the calls of one turn only the first is signed; where none is, they are not this model's."""
    if calls and not any("thoughtSignature" in call for call in calls):
        calls[0]["thoughtSignature"] = FILLER


def _parts(items: tuple[InputItem, ...], upstream: str) -> tuple[list[_Part], int]:
    """Every item as parts, and how many reasoning states have no place in them."""
    parts: list[_Part] = []
    names: dict[str, str] = {}
    dropped = 0
    signature: Signature | None = None  # for the very next item
    for item in items:
        said = item.chosen
        if item.reasoning_state:
            dropped += signature is not None
            signature = gemini_signatures.decode(item.reasoning_state.state, upstream)
            dropped += signature is None
            if signature is not None and signature.on == "empty":
                parts.append(("model", {"text": "", "thoughtSignature": signature.sig}))
                signature = None
            continue
        if signature is not None and signature.on != _place(said):
            signature, dropped = None, dropped + 1
        if isinstance(said, ToolCall):
            names[said.call_id] = said.name
            parts.append(("model", _call(said, signature)))
        elif isinstance(said, AssistantText):
            parts += [("model", part) for part in _texts(said.text, signature)]
        elif isinstance(said, ToolResult):
            parts.append(("user", _result(said, names)))
        else:
            parts.append(("user", {"text": said.text}))
        signature = None
    return parts, dropped + (signature is not None)


def _place(said: object) -> str:
    """Which signatures an item can have."""
    return "call" if isinstance(said, ToolCall) else "text" if isinstance(said, AssistantText) else ""


def _texts(text: str, signature: Signature | None) -> list[dict[str, Any]]:
    """One part, or two where only the beginning was signed: the two are never one part."""
    if signature is None:
        return [{"text": text}]
    end = len(text) if signature.characters is None else signature.characters
    signed = {"text": text[:end], "thoughtSignature": signature.sig}
    return [signed, {"text": text[end:]}] if text[end:] else [signed]


def _call(call: ToolCall, signature: Signature | None) -> dict[str, Any]:
    arguments = as_it_stands(checked_arguments(call))
    part: dict[str, Any] = {
        "functionCall": {"id": call_id(call.call_id), "name": _tool_name(call.name), "args": arguments}
    }
    if signature is not None:
        part["thoughtSignature"] = signature.sig
    return part


def _result(result: ToolResult, names: Mapping[str, str]) -> dict[str, Any]:
    """A result names its tool, which only the call that it answers says."""
    if result.call_id not in names:
        raise Rejected(f"the result of tool call {result.call_id:.80} answers no call before it")
    response = {"id": call_id(result.call_id), "name": names[result.call_id], "response": {"output": result.output}}
    return {"functionResponse": response}
