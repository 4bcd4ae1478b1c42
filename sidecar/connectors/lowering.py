"""What several APIs need to make a body of a request: sides that alternate, ids and names that pass, JSON as it stands.

Pure. Source: WIRE section 1.2.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import msgspec

from sidecar.connectors.promise import Rejected
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import AssistantText, InputItem, ReasoningState, ToolCall

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def turns(items: tuple[InputItem, ...]) -> list[tuple[bool, list[Any]]]:
    """Neighbours of one side together: whether it is the assistant's, and what its items say."""
    sides: list[tuple[bool, list[Any]]] = []
    for item in items:
        chosen = item.chosen
        is_assistant = isinstance(chosen, AssistantText | ToolCall | ReasoningState)
        if not sides or sides[-1][0] != is_assistant:
            sides.append((is_assistant, []))
        sides[-1][1].append(chosen)
    return sides


def call_id(said: str) -> str:
    """The id itself where every server takes it, else one made of its digest: call and result agree, always."""
    if _CALL_ID.fullmatch(said):
        return said
    return "c_" + hashlib.sha256(said.encode()).hexdigest()[:40]


def tool_name(said: str) -> str:
    """The name itself. Raises Rejected where not every server takes it."""
    if not _TOOL_NAME.fullmatch(said):
        raise Rejected(f"the tool name {said:.80} is not 1 to 64 letters, digits, underscores and hyphens")
    return said


def checked_arguments(call: ToolCall) -> str:
    """The arguments' text, which is one JSON object; empty ones mean `{}`. Raises Rejected."""
    arguments = call.arguments or "{}"
    try:
        check_object(arguments)
    except NotJsonObject as wrong:
        raise Rejected(f"the arguments of tool call {call.call_id:.80} are no JSON object: {wrong}") from None
    return arguments


def as_it_stands(text: str) -> msgspec.Raw:
    """A JSON document that the caller wrote, byte for byte: no schema is ever rewritten."""
    return msgspec.Raw(text.encode())
