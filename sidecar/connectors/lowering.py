"""What lowers of several APIs share: turns, ids and names that every server takes, a caller's JSON left as it stands.

Pure functions of their arguments alone, so that an earlier turn is lowered to
the same bytes in every later request. Source: WIRE section 1.2.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

import msgspec

from sidecar.config.keys import Wrong, choice, list_of, shape_of, shaped
from sidecar.connectors.promise import Rejected
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import (
    AssistantText,
    InputItem,
    ReasoningState,
    ToolCall,
    ToolDefinition,
    ToolResult,
    UserText,
)

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")  # every word that a model may take
_WITHIN_REACH: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_FALLING: Final = {"max": ("max", "xhigh", "high")}  # what stands in for the greatest effort where it is not known


def turns(items: tuple[InputItem, ...]) -> list[tuple[bool, list[Any]]]:
    """Neighbours of one side together: whether it is the assistant's, and what was said."""
    return [
        (is_assistant, [item.chosen for item in side])
        for is_assistant, side in groupby(items, key=lambda item: _is_assistant(item.chosen))
    ]


def _is_assistant(said: object) -> bool:
    return isinstance(said, AssistantText | ToolCall | ReasoningState)


def user_messages(side: list[Any], *, id_member: str) -> list[dict[str, Any]]:
    """The user's side as messages: the results directly behind the calls that they answer, then all text as one."""
    messages: list[dict[str, Any]] = [
        {"role": "tool", id_member: call_id(said.call_id), "content": said.output}
        for said in side
        if isinstance(said, ToolResult)
    ]
    texts = [said.text for said in side if isinstance(said, UserText)]
    if texts:
        messages.append({"role": "user", "content": "\n\n".join(texts)})
    return messages


def cache_key(conversation_id: str) -> str:
    """A cache's key for a conversation: at most 64 characters, whatever the id is."""
    return hashlib.sha256(conversation_id.encode()).hexdigest()


def call_id(said: str) -> str:
    """The id itself where every server takes it, else one made of its digest: call and result agree, always."""
    if _CALL_ID.fullmatch(said):
        return said
    return "c_" + hashlib.sha256(said.encode()).hexdigest()[:40]


def call_ids(items: tuple[InputItem, ...]) -> frozenset[str]:
    """Every call id of these items, as the caller and as the provider has it: an answer's ids must be none of them."""
    said = [item.tool_call.call_id for item in items if item.tool_call]
    return frozenset([*said, *map(call_id, said)])


def tool_name(said: str) -> str:
    """The name, where every server takes it. Raises Rejected."""
    if not _TOOL_NAME.fullmatch(said):
        raise Rejected(f"the tool name {said:.80} is not 1 to 64 letters, digits, underscores and hyphens")
    return said


def checked_arguments(call: ToolCall) -> str:
    """The text of a call's arguments, which is a JSON object; `{}` where it is empty. Raises Rejected."""
    arguments = call.arguments or "{}"
    try:
        check_object(arguments)
    except NotJsonObject as wrong:
        raise Rejected(f"the arguments of tool call {call.call_id:.80} are no JSON object: {wrong}") from None
    return arguments


def parsed(text: str) -> dict[str, Any]:
    """A schema that a caller wrote, which admission has held to be a JSON object; its integers may be of any length."""
    schema: dict[str, Any] = json.loads(text, parse_int=str)
    return schema


def parameters_of(tool: ToolDefinition) -> dict[str, Any]:
    """The schema of a tool's parameters, which is one of type object. Raises Rejected."""
    schema = parsed(tool.parameters_json)
    if schema.get("type") != "object":
        raise Rejected(f"the parameters of tool {tool.name:.80} are no schema of type object")
    return schema


def as_it_stands(text: str) -> msgspec.Raw:
    """A JSON document that the caller wrote, byte for byte: no schema is ever rewritten."""
    return msgspec.Raw(text.encode())


def efforts(*known: str) -> Callable[[object], tuple[str, ...]]:
    """A reader of the words that a model takes; none at all, or some of which a request can ask for one."""
    read_words = list_of(choice(*known))

    @shaped(**shape_of(read_words))
    def read(value: object) -> tuple[str, ...]:
        words = read_words(value)
        if words and not _WITHIN_REACH.intersection(words):
            what = f"holds none that a request can ask for: {', '.join(sorted(_WITHIN_REACH))}"
            raise Wrong(what, "write one of these, or leave the line out")
        return words

    return read


def fitting_effort(asked: str, efforts: tuple[str, ...]) -> str:
    """The word for this effort that the model takes; the greatest falls back to the next. Raises Rejected."""
    for word in _FALLING.get(asked, (asked,)):
        if word in efforts:
            return word
    raise Rejected(f"this model takes the reasoning efforts {', '.join(efforts)}, and not {asked}")
