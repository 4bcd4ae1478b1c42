"""The output items of one Responses answer while they come, each in its slot. Pure.

A slot is found by `output_index`; a proxy was seen that gives an item another
id in every event. Servers that send no index are followed by the item's id,
and those that send neither by what is still open. Source: WIRE section 2.8.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.connectors.body_lift import word
from sidecar.connectors.tool_calls import CallPieces, WholeCall

ITEMS_MAX: Final = 1024


class TooManyItems(ValueError):
    """One answer has more items than any that is meant."""


class ArgumentsTooLarge(ValueError):
    """The arguments of one answer's calls have grown above their bound, whole or not."""


class Slot:
    """One item: what has come of it so far."""

    __slots__ = ("added", "arguments", "is_done", "kind", "phase", "said")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.added: dict[str, Any] = {}  # the item as it was when it began
        self.phase: object = None  # of a message, until its text begins
        self.said: list[str] = []  # the text that was handed on
        self.arguments: list[str] = []
        self.is_done = False


class Slots:
    """Every item of one answer, in the order in which they began; `bytes_max` bounds all arguments together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._slots: list[Slot] = []
        self._by_index: dict[int, Slot] = {}
        self._by_id: dict[str, Slot] = {}

    def begin(self, event: dict[str, Any], item: dict[str, Any]) -> Slot:
        """The slot of an item that is added: a new one, whatever stood at its index. Raises TooManyItems."""
        slot = self._new(word(item.get("type")), event.get("output_index"), item.get("id"))
        slot.added = item
        slot.phase = item.get("phase")
        return slot

    def of(self, kind: str, event: dict[str, Any], item_id: object) -> Slot:
        """The slot that an event of this kind of item means; a new one where there is none. Raises TooManyItems.

        One that is done already is meant only by its own id: then something is said twice.
        """
        index = event.get("output_index")
        slot = self._by_index.get(index) if isinstance(index, int) else None
        if slot is not None and slot.kind == kind and not slot.is_done:
            return slot
        slot = self._by_id.get(word(item_id))
        if slot is not None and slot.kind == kind:
            return slot
        if not isinstance(index, int):
            for slot in reversed(self._slots):
                if slot.kind == kind and not slot.is_done:
                    return slot
        return self._new(kind, index, item_id)

    def add_arguments(self, slot: Slot, piece: str) -> None:
        """A piece of a call's arguments. Raises ArgumentsTooLarge."""
        self._bytes += len(piece.encode("utf-8", "surrogatepass"))
        if self._bytes > self._bytes_max:
            raise ArgumentsTooLarge(f"the tool calls are larger than {self._bytes_max} bytes")
        slot.arguments.append(piece)

    def call_in(self, slot: Slot, item: dict[str, Any]) -> WholeCall:
        """The call of an item that is done; what it leaves out is what had come before. Raises BrokenCall."""
        named = {name: item.get(name) or slot.added.get(name) for name in ("call_id", "name")}
        pieces = CallPieces(2 * self._bytes_max)  # arguments that are no text are written as one, which may be longer
        pieces.take(
            {"id": named["call_id"], "function": {"name": named["name"], "arguments": arguments_in(slot, item)}}
        )
        (call,) = pieces.whole()
        return call

    def all_of(self, kind: str) -> list[Slot]:
        return [slot for slot in self._slots if slot.kind == kind]

    def _new(self, kind: str, index: object, item_id: object) -> Slot:
        if len(self._slots) == ITEMS_MAX:
            raise TooManyItems(f"the provider's answer has more than {ITEMS_MAX} items")
        slot = Slot(kind)
        self._slots.append(slot)
        if isinstance(index, int):
            self._by_index[index] = slot
        if name := word(item_id):
            self._by_id[name] = slot
        return slot


def arguments_in(slot: Slot, item: dict[str, Any]) -> Any:
    """What a call's item says of its arguments, or its pieces; empty where neither said any."""
    return item.get("arguments") or "".join(slot.arguments)


def text_in(item: dict[str, Any]) -> tuple[str, bool]:
    """The visible text of a message, its refusals with it, and whether it has any of those."""
    content = item.get("content")
    if isinstance(content, str):
        return content, False
    texts: list[str] = []
    refused = False
    for part in content if isinstance(content, list) else []:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        said = part.get("refusal" if kind == "refusal" else "text")
        if kind in ("output_text", "text", "refusal") and isinstance(said, str):
            texts.append(said)
            refused = refused or kind == "refusal"
    return "".join(texts), refused
