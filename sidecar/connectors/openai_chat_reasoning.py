"""The reasoning of a Chat Completions turn, put together from its pieces, where its server wants it back. Pure.

OpenRouter sends blocks: pieces of one index join, text to text and signature to
signature, and the whole list goes back as it is. DeepSeek and its like send one
text. Source: WIRE sections 1.3, 3.4 and 3.7.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.connectors import states
from sidecar.connectors.openai_chat_dialects import ReasoningReplay
from sidecar.connectors.openai_chat_lower import STATE_KINDS
from sidecar.connectors.tool_calls import as_json
from sidecar.connectors.unicode_pieces import joined

BLOCKS_MAX: Final = 1024
_JOINED: Final = frozenset({"text", "summary", "data", "signature"})
_TEXTS: Final = ("reasoning_content", "reasoning")


class ReasoningTooLarge(ValueError):
    """The reasoning of one turn has grown above its bound."""


class ReasoningPieces:
    """`bytes_max` bounds all of it together."""

    def __init__(self, replay: ReasoningReplay, bytes_max: int) -> None:
        self._replay = replay
        self._bytes_max = bytes_max
        self._bytes = 0
        self._texts: list[str] = []
        self._blocks: list[dict[str, Any]] = []
        self._joined: list[dict[str, list[str]]] = []  # of each block, the pieces of what joins
        self._by_index: dict[Any, int] = {}

    def take(self, part: dict[str, Any]) -> None:
        """One `delta`, or one whole `message`. Raises ReasoningTooLarge."""
        if self._replay == "reasoning_content":
            said = next((part[name] for name in _TEXTS if isinstance(part.get(name), str)), "")
            self._grow(len(said.encode("utf-8", "surrogatepass")))
            self._texts.append(said)
        elif self._replay == "reasoning_details" and isinstance(part.get("reasoning_details"), list):
            for piece in part["reasoning_details"]:
                if isinstance(piece, dict):
                    self._block(piece)

    def state(self, upstream: str) -> bytes | None:
        """The whole of it as a reasoning state; None where there was none, or where it is no text."""
        try:
            if self._replay == "reasoning_content":
                text = joined("".join(self._texts))
                return states.encode(STATE_KINDS[self._replay], upstream, {"text": text}) if text else None
            blocks = [self._whole(at) for at in range(len(self._blocks))]
            return states.encode(STATE_KINDS[self._replay], upstream, {"details": blocks}) if blocks else None
        except (ValueError, RecursionError):  # no text, no number of JSON, or too deep: what can't be said again
            return None

    def _block(self, piece: dict[str, Any]) -> None:
        self._grow(len(as_json(piece)))
        index = piece.get("index")
        at = self._by_index.get(index) if isinstance(index, int) else None
        if at is None:
            if len(self._blocks) == BLOCKS_MAX:
                raise ReasoningTooLarge(f"the provider sent more than {BLOCKS_MAX} blocks of reasoning")
            at = len(self._blocks)
            self._blocks.append({})
            self._joined.append({})
            if isinstance(index, int):
                self._by_index[index] = at
        for name, said in piece.items():
            if name in _JOINED and isinstance(said, str):
                self._joined[at].setdefault(name, []).append(said)
                self._blocks[at].setdefault(name, "")
            elif said is not None or name not in self._blocks[at]:
                self._blocks[at][name] = said

    def _whole(self, at: int) -> dict[str, Any]:
        return {**self._blocks[at], **{name: joined("".join(said)) for name, said in self._joined[at].items()}}

    def _grow(self, added_bytes: int) -> None:
        self._bytes += added_bytes
        if self._bytes > self._bytes_max:
            raise ReasoningTooLarge(f"the provider's reasoning is larger than {self._bytes_max} bytes")
