"""What the lower halves of several APIs do alike: turns, call ids, tool names, and JSON that stays as it was written.

Pure. What no provider could take is Rejected here. Source: WIRE section 1.2.
"""

from __future__ import annotations

import hashlib
import re
from itertools import groupby
from typing import Any, Final

import msgspec

from sidecar.connectors.promise import Rejected
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import AssistantText, InputItem, ReasoningState, ToolCall

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def turns(items: tuple[InputItem, ...]) -> list[tuple[bool, list[Any]]]:
    """The values of neighbouring items of one side together, each side with whether it is the assistant's."""
    return [(is_assistant, [item.chosen for item in side]) for is_assistant, side in groupby(items, _is_assistant)]


def _is_assistant(item: InputItem) -> bool:
    return isinstance(item.chosen, AssistantText | ToolCall | ReasoningState)


def call_id(said: str) -> str:
    """The id itself where every server takes it, else one made of its digest: call and result agree, always."""
    if _CALL_ID.fullmatch(said):
        return said
    return "c_" + hashlib.sha256(said.encode()).hexdigest()[:40]


def tool_name(said: str) -> str:
    """The name, where every server takes it. Raises Rejected."""
    if not _TOOL_NAME.fullmatch(said):
        raise Rejected(f"the tool name {said:.80} is not 1 to 64 letters, digits, underscores and hyphens")
    return said


def checked_arguments(call: ToolCall) -> str:
    """The text of a call's arguments, which is a JSON object; empty ones mean `{}`. Raises Rejected."""
    arguments = call.arguments or "{}"
    try:
        check_object(arguments)
    except NotJsonObject as wrong:
        raise Rejected(f"the arguments of tool call {call.call_id:.80} are no JSON object: {wrong}") from None
    return arguments


def as_it_stands(text: str) -> msgspec.Raw:
    """A JSON document that the caller wrote, byte for byte: no schema is ever rewritten."""
    return msgspec.Raw(text.encode())
