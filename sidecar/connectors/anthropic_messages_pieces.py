"""The content blocks of one Messages answer, put together from their pieces and given on in their order. Pure.

Blocks usually come one after another, but compatible servers let them overlap
and end all of them at once. So they stand in a row: the first that is not over
speaks as it comes, and what stands behind it waits. A tool call without any
arguments may be one that a cut left so: it waits until another block shows
that the model went on, or the answer's end says how it ended.
Source: WIRE sections 1.4, 4.9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from sidecar.connectors.anthropic_messages_blocks import state_of
from sidecar.connectors.promise import Answer
from sidecar.connectors.tool_calls import BrokenCall, as_json
from sidecar.connectors.unicode_pieces import NotUnicode, UnicodePieces, joined
from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object

OPEN_BLOCKS_MAX: Final = 1024
_NO_OBJECT: Final = "-"  # arguments that are broken whatever they were


class BrokenBlock(ValueError):
    """A block that no caller can use, in an answer that ended by itself."""


class BlocksTooLarge(ValueError):
    """The blocks of one answer have grown above their bound, whole or not."""


class _Block:
    """A block that is none of ours, such as those of tools that a server runs itself: it says nothing."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self.is_over = False
        self.is_dropped = False
        self.begun_bytes = 0  # that came with its begin

    @property
    def may_be_cut(self) -> bool:
        """Whether a cut may have left it as it is, although it was ended."""
        return False

    def take(self, delta: Mapping[str, Any]) -> int:
        """A piece of it; how many bytes of it are kept."""
        return 0

    def speak(self, answer: Answer) -> None:
        """Everything before it is over: what can be said at once is. Raises NotUnicode."""

    def finish(self, answer: Answer, upstream: str) -> None:
        """It is over. Raises BrokenBlock and NotUnicode."""


class _Text(_Block):
    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        self._waiting: list[str] = []
        self._characters = UnicodePieces()
        self.begun_bytes = _keep(self._waiting, said.get("text"))

    def take(self, delta: Mapping[str, Any]) -> int:
        return _keep(self._waiting, delta.get("text")) if delta.get("type") == "text_delta" else 0

    def speak(self, answer: Answer) -> None:
        if self._waiting:
            pieces, self._waiting = self._waiting, []
            answer.texts([self._characters.feed(piece) for piece in pieces])

    def finish(self, answer: Answer, upstream: str) -> None:
        self._characters.close()


class _Call(_Block):
    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        call_id, name = said.get("id"), said.get("name")
        self._call_id = call_id if isinstance(call_id, str) else ""
        self._name = name if isinstance(name, str) else ""
        self._whole = _as_text(said.get("input"))  # some servers put all of it here, and send no pieces
        self.begun_bytes = len(self._whole)
        self._pieces: list[str] = []

    @property
    def may_be_cut(self) -> bool:
        return not self._whole and not any(self._pieces)

    def take(self, delta: Mapping[str, Any]) -> int:
        return _keep(self._pieces, delta.get("partial_json")) if delta.get("type") == "input_json_delta" else 0

    def finish(self, answer: Answer, upstream: str) -> None:
        if not is_id(self._name):
            raise BrokenBlock(f"the provider called a tool by a name that can be none: {self._name!r:.80}")
        try:
            arguments = joined("".join(self._pieces)).strip() or self._whole or "{}"
            check_object(arguments)
        except (NotJsonObject, NotUnicode) as wrong:
            raise BrokenBlock(f"the provider called {self._name:.80} with broken arguments: {wrong}") from None
        answer.tool_call(self._call_id, self._name, arguments)


class _Thinking(_Block):
    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        self._pieces: dict[str, list[str]] = {"thinking": [], "signature": []}
        self.begun_bytes = sum(_keep(pieces, said.get(name)) for name, pieces in self._pieces.items())

    def take(self, delta: Mapping[str, Any]) -> int:
        return sum(
            _keep(pieces, delta.get(name))
            for name, pieces in self._pieces.items()
            if delta.get("type") == f"{name}_delta"
        )

    def finish(self, answer: Answer, upstream: str) -> None:
        fields = {name: joined("".join(pieces)) for name, pieces in self._pieces.items()}
        answer.reasoning_state(state_of({"type": "thinking", **fields}, upstream))


class _Redacted(_Block):
    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(said)
        self._content = said.get("data")
        self.begun_bytes = len(self._content) if isinstance(self._content, str) else 0

    def finish(self, answer: Answer, upstream: str) -> None:
        if not isinstance(self._content, str):
            raise BrokenBlock("the provider sent redacted thinking without its content")
        answer.reasoning_state(state_of({"type": "redacted_thinking", "data": joined(self._content)}, upstream))


_KINDS: Final[Mapping[str, type[_Block]]] = {
    "text": _Text,
    "tool_use": _Call,
    "thinking": _Thinking,
    "redacted_thinking": _Redacted,
}


class Blocks:
    """All blocks of one answer; `bytes_max` bounds what is kept of them together."""

    def __init__(self, answer: Answer, upstream: str, bytes_max: int) -> None:
        self._answer = answer
        self._upstream = upstream
        self._bytes_max = bytes_max
        self._bytes = 0
        self._row: deque[_Block] = deque()
        self._open: dict[int | None, _Block] = {}
        self._fault: str | None = None

    def start(self, index: int | None, said: Mapping[str, Any]) -> None:
        """A block begins. Raises BlocksTooLarge, NotUnicode, and BrokenBlock for too many that wait."""
        self.stop(index)  # of a message that was begun again
        if len(self._row) == OPEN_BLOCKS_MAX:
            raise BrokenBlock(f"the provider left more than {OPEN_BLOCKS_MAX} blocks open")
        kind = said.get("type")
        block = _KINDS.get(kind, _Block)(said) if isinstance(kind, str) else _Block(said)
        self._open[index] = block
        self._row.append(block)
        self._count(block.begun_bytes)
        self._advance()

    def piece(self, index: int | None, delta: Mapping[str, Any]) -> None:
        """A piece of a block. Raises what `start` does, and BrokenBlock for arguments of a call that never began."""
        if index not in self._open:
            if delta.get("type") == "input_json_delta":
                raise BrokenBlock("the provider sent arguments of a tool call that never began")
            self.start(index, {"type": "text"})  # some servers begin none
        self._count(self._open[index].take(delta))
        self._advance()

    def stop(self, index: int | None) -> None:
        """A block is over. Raises NotUnicode."""
        block = self._open.pop(index, None)
        if block is not None:
            block.is_over = True
            self._advance()

    def end(self, *, is_whole: bool) -> None:
        """The answer has ended. One that was cut off loses the calls and the thinking that are not whole.

        Raises BrokenBlock where anything is broken in an answer that ended by itself, and NotUnicode.
        """
        for block in self._row:
            was_cut = not block.is_over or (block.may_be_cut and block is self._row[-1])
            block.is_dropped = not is_whole and was_cut and not isinstance(block, _Text)
            block.is_over = True
        self._open.clear()
        self._advance(is_end=True)
        if is_whole and self._fault is not None:
            raise BrokenBlock(self._fault)

    def _count(self, added_bytes: int) -> None:
        self._bytes += added_bytes
        if self._bytes > self._bytes_max:
            raise BlocksTooLarge(f"the blocks of the answer are larger than {self._bytes_max} bytes")

    def _advance(self, *, is_end: bool = False) -> None:
        while self._row:
            first = self._row[0]
            first.speak(self._answer)
            if not first.is_over or (first.may_be_cut and len(self._row) == 1 and not is_end):
                return
            self._row.popleft()
            try:
                if not first.is_dropped:
                    first.finish(self._answer, self._upstream)
            except (BrokenBlock, NotUnicode) as fault:
                self._fault = self._fault or str(fault)


def _keep(pieces: list[str], said: object) -> int:
    """Adds a piece of text, if it is one; how many bytes it has."""
    if not isinstance(said, str) or not said:
        return 0
    pieces.append(said)
    return len(said) if said.isascii() else len(said.encode("utf-8", "surrogatepass"))


def _as_text(said: object) -> str:
    """The arguments that stand whole in a block; empty where they are to come in pieces."""
    if said is None or said == {}:
        return ""
    try:
        return joined(said if isinstance(said, str) else as_json(said))
    except (BrokenCall, NotUnicode):
        return _NO_OBJECT
