"""What a Responses answer must get back unchanged in the next request: reasoning, and the phase of a message. Pure.

A reasoning item is kept without its id and status, so that nothing need be
stored at the provider; its summary and its raw text are rebuilt part by part.
A phase stands in front of the text that it belongs to. What comes back is
untrusted: it becomes an item from exactly these fields, or nothing.
Source: WIRE sections 1.3 and 2.4.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sidecar.connectors import states
from sidecar.connectors.unicode_pieces import NotUnicode, joined

_REASONING: Final = "openai.reasoning"
_PHASE: Final = "openai.phase"
_PHASE_WORD: Final = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)  # commentary, final_answer, and what may follow them
_PART_TYPES: Final = {"summary": "summary_text", "content": "reasoning_text"}
_PARTS_MAX: Final = 1024


def state_of_reasoning(item: dict[str, Any], upstream: str) -> bytes | None:
    """The state of a reasoning item that is done; None where nothing in it can be replayed."""
    kept = _reasoning(item)
    return states.encode(_REASONING, upstream, {"item": kept}) if kept else None


def state_of_phase(phase: object, upstream: str) -> bytes | None:
    """The state of a message's phase; None for what names none."""
    return states.encode(_PHASE, upstream, {"phase": phase}) if _is_phase(phase) else None


def reasoning_in(state: bytes, upstream: str) -> dict[str, Any] | None:
    """The input item of a reasoning state that this connector emitted for this model; None for anything else."""
    members = states.decode(state, _REASONING, upstream)
    if members is None or members.keys() != {"item"} or not isinstance(members["item"], dict):
        return None
    item = _reasoning(members["item"])
    return {"type": "reasoning", **item} if item and item == members["item"] else None


def phase_in(state: bytes, upstream: str) -> str | None:
    """The phase that a state of this connector and model names; None for anything else."""
    members = states.decode(state, _PHASE, upstream)
    if members is None or members.keys() != {"phase"} or not _is_phase(members["phase"]):
        return None
    phase: str = members["phase"]
    return phase


def _is_phase(said: object) -> bool:
    return isinstance(said, str) and _PHASE_WORD.fullmatch(said) is not None


def _reasoning(item: dict[str, Any]) -> dict[str, Any] | None:
    """Exactly the fields that are replayed. Without its ciphertext a block can't be read again by anyone."""
    encrypted = item.get("encrypted_content")
    summary, content = (_parts(item.get(name), kind) for name, kind in _PART_TYPES.items())
    if not _is_text(encrypted) or not encrypted or summary is None or content is None:
        return None
    kept: dict[str, Any] = {"summary": summary, "encrypted_content": encrypted}
    return {**kept, "content": content} if content else kept


def _parts(said: object, kind: str) -> list[dict[str, str]] | None:
    """Parts of this kind, rebuilt; None where they are none."""
    if said is None:
        return []
    if not isinstance(said, list) or len(said) > _PARTS_MAX:
        return None
    parts = [
        part for part in said if isinstance(part, dict) and part.get("type") == kind and _is_text(part.get("text"))
    ]
    return [{"type": kind, "text": part["text"]} for part in parts] if len(parts) == len(said) else None


def _is_text(said: object) -> bool:
    """A text that can be sent again as it is: half a character can't."""
    if not isinstance(said, str):
        return False
    try:
        return joined(said) == said
    except NotUnicode:
        return False
