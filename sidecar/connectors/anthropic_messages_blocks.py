"""The content blocks of a Messages request: turns that alternate, states in their places, cache markers at last. Pure.

A turn becomes the same bytes in every later request, for a model's thinking is
tied to what stood before it: blocks depend on nothing but their own turn and
the model, and only the cache markers, which are not compared, move on.
Source: WIRE sections 4.3, 4.5, 4.6 and 4.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from sidecar.connectors import states
from sidecar.connectors.lowering import call_id, checked_arguments, tool_name, turns
from sidecar.contract.values import AssistantText, InputItem, ReasoningState, ToolCall, ToolResult, UserText

STATE_KIND: Final = "anthropic.thinking"
MARKED_MESSAGES_MAX: Final = (
    2  # of at most four markers; a look-up goes 20 blocks back, which a round of tools may fill
)
_FIELDS: Final[Mapping[str, frozenset[str]]] = {  # of a block besides its type: all are texts
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
}
_STRING_OR_BLANKS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|[ \t\n\r]++')

Block = dict[str, Any]


class Message(msgspec.Struct, frozen=True):
    """One turn, as it is sent."""

    role: str
    content: list[Block]

    @property
    def thinks(self) -> bool:
        return any(block["type"] in _FIELDS for block in self.content)

    @property
    def has_results(self) -> bool:
        return any(block["type"] == "tool_result" for block in self.content)


def messages_of(items: tuple[InputItem, ...], upstream: str) -> tuple[list[Message], int]:
    """The turns, without any that would be empty; and how many reasoning states were left out. Raises Rejected.

    Left out are those that this model can't use, and those at the very end of
    a turn (one that was cut off while it thought), which the API refuses.
    """
    messages: list[Message] = []
    dropped = 0
    for is_assistant, side in turns(items):
        content = _assistant_blocks(side, upstream) if is_assistant else _user_blocks(side)
        if is_assistant:
            kept = sum(block["type"] in _FIELDS for block in content)
            dropped += sum(isinstance(said, ReasoningState) for said in side) - kept
        role = "assistant" if is_assistant else "user"
        if content and messages and messages[-1].role == role:
            messages[-1].content.extend(content)  # what stood between them was left out
        elif content:
            messages.append(Message(role, content))
    return messages, dropped


def _is_blank(said: object) -> bool:
    """A text of blanks alone says nothing, and the API refuses it; models do say such texts between their calls."""
    return isinstance(said, UserText | AssistantText) and not said.text.strip()


def _assistant_blocks(side: list[Any], upstream: str) -> list[Block]:
    """Everything in its place."""
    blocks = [_assistant_block(said, upstream) for said in side if not _is_blank(said)]
    content = [block for block in blocks if block is not None]
    while content and content[-1]["type"] in _FIELDS:
        content.pop()
    return content


def _assistant_block(said: AssistantText | ToolCall | ReasoningState, upstream: str) -> Block | None:
    if isinstance(said, AssistantText):
        return {"type": "text", "text": said.text}
    if isinstance(said, ReasoningState):
        return _block_in(said, upstream)
    name, arguments = tool_name(said.name), _in_one_style(checked_arguments(said))
    return {"type": "tool_use", "id": call_id(said.call_id), "name": name, "input": arguments}


def _user_blocks(side: list[Any]) -> list[Block]:
    """The results directly behind the calls that they answer, then the texts."""
    results = [_result(said) for said in side if isinstance(said, ToolResult)]
    texts = [said for said in side if isinstance(said, UserText) and not _is_blank(said)]
    return results + [{"type": "text", "text": said.text} for said in texts]


def _result(said: ToolResult) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id(said.call_id), "content": said.output}


def _in_one_style(text: str) -> msgspec.Raw:
    """A JSON object without the blanks between its parts; order, numbers and strings are the very characters that came.

    So a caller that lays out its arguments differently from request to request changes nothing.
    """
    return msgspec.Raw(_STRING_OR_BLANKS.sub(lambda found: found[0] if found[0][0] == '"' else "", text).encode())


# --- reasoning states -------------------------------------------------------------------------------------------


def state_of(block: Mapping[str, str], upstream: str) -> bytes:
    """The state that replays a block of thinking, which has exactly the fields of its type."""
    return states.encode(STATE_KIND, upstream, {"block": block})


def _block_in(state: ReasoningState, upstream: str) -> Block | None:
    """The block of a state of this very model; None for anything else."""
    members = states.decode(state.state, STATE_KIND, upstream)
    block = members.get("block") if members is not None and len(members) == 1 else None
    if not isinstance(block, dict) or not all(isinstance(said, str) for said in block.values()):
        return None
    fields = _FIELDS.get(block.get("type", ""))
    if fields is None or block.keys() - {"type"} != fields:
        return None
    return {"type": block["type"], **{name: block[name] for name in sorted(fields, reverse=True)}}


# --- cache markers ----------------------------------------------------------------------------------------------


def mark(blocks: list[Block], marker: Mapping[str, str]) -> None:
    """Asks to keep everything up to the last of these blocks that may carry a marker: empty ones may not."""
    for at in range(len(blocks) - 1, -1, -1):
        if blocks[at].get("content") != "":
            blocks[at] = {**blocks[at], "cache_control": marker}
            return


def mark_messages(messages: list[Message], marker: Mapping[str, str]) -> None:
    """The last user messages: what the next request reads, and what this one does."""
    for message in [message for message in messages if message.role == "user"][-MARKED_MESSAGES_MAX:]:
        mark(message.content, marker)
