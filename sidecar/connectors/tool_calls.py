"""Tool calls of a Chat Completions stream, put together from their pieces. Pure.

Pieces belong together by `index`; where it is missing, by `id`; else to the
last call. Arguments are pieces of JSON text that may be cut anywhere, so they
are looked at only when the turn has ended. Source: WIRE sections 1.4 and 3.4.
"""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec import Struct

from sidecar.connectors.unicode_pieces import NotUnicode, joined
from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object

_LOOKS_MAX: Final = 16
CALLS_MAX: Final = 1024
PIECES_MAX: Final = 4 * CALLS_MAX  # of one event, which is taken in one go


class BrokenCall(ValueError):
    """A call that no caller can answer: without a usable name, or with arguments that are no JSON object."""


class CallsTooLarge(ValueError):
    """The calls of one turn have grown above their bound, whole or not."""


class WholeCall(Struct, frozen=True):
    """Its id is what the provider said, maybe empty or used twice: the Answer makes it usable."""

    call_id: str
    name: str
    arguments: str


def whole_call(call_id: str, name: str, arguments: str) -> WholeCall:
    """The call that these texts are; empty arguments mean `{}`. Raises BrokenCall."""
    if not is_id(name):
        raise BrokenCall(f"the provider called a tool by a name that can be none: {name!r:.80}")
    try:
        arguments = joined(arguments).strip()
        check_object(arguments or "{}")
    except (NotJsonObject, NotUnicode) as wrong:
        raise BrokenCall(f"the provider called {name:.80} with broken arguments: {wrong}") from None
    return WholeCall(call_id, name, arguments or "{}")


class _Open:
    """One call while its pieces come."""

    __slots__ = ("arguments", "call_id", "ends_in_brace", "looks", "name")

    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.ends_in_brace = False  # the last character of the arguments that is not blank
        self.looks = 0

    def say(self, arguments: str) -> None:
        """A piece of the arguments, read once."""
        self.arguments.append(arguments)
        shown = arguments.rstrip()
        if shown:
            self.ends_in_brace = shown.endswith("}")

    def may_be_over(self) -> bool:
        """Whether the next piece may begin another call. Looked at a few times only: each look reads all that came."""
        if not self.ends_in_brace:
            return False
        self.looks += 1
        return self.looks <= _LOOKS_MAX and self.is_whole()

    def whole(self) -> WholeCall:
        return whole_call(self.call_id, self.name, "".join(self.arguments))

    def is_whole(self) -> bool:
        """Whether arguments have come and nothing is missing; those that a cut left empty may have been to come."""
        try:
            self.whole()
        except BrokenCall:
            return False
        return bool(self.arguments)


class CallPieces:
    """Every call of one turn, in the order in which they began; `bytes_max` bounds all of their text together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}
        self._by_id: dict[str, _Open] = {}  # the first call of each id

    def take_all(self, pieces: list[Any]) -> None:
        """The `delta.tool_calls` of one event. Raises BrokenCall for too many of them, and what `take` raises."""
        if len(pieces) > PIECES_MAX:
            raise BrokenCall(f"the provider sent more than {PIECES_MAX} pieces of tool calls in one event")
        for piece in pieces:
            if isinstance(piece, dict):
                self.take(piece)

    def take(self, piece: dict[str, Any]) -> None:
        """One element of `delta.tool_calls`. Raises BrokenCall for too many calls, and CallsTooLarge."""
        said = piece.get("function")
        function: dict[str, Any] = said if isinstance(said, dict) else {}
        call_id, name = a_text(piece.get("id")), a_text(function.get("name"))
        call = self._meant(piece.get("index"), call_id, name)
        if call_id and not call.call_id:
            call.call_id = call_id
            self._by_id.setdefault(call_id, call)
        call.name = name or call.name
        arguments = _arguments(function.get("arguments"))
        self._bytes += len(arguments.encode("utf-8", "surrogatepass"))
        if self._bytes > self._bytes_max:
            raise CallsTooLarge(f"the tool calls are larger than {self._bytes_max} bytes")
        if arguments:
            call.say(arguments)

    def whole(self) -> list[WholeCall]:
        """Every call of a turn that ended by itself. Raises BrokenCall."""
        return [call.whole() for call in self._calls]

    def what_is_whole(self) -> list[WholeCall]:
        """The calls of a turn that was cut off: one that is not whole is dropped."""
        return [call.whole() for call in self._calls if call.is_whole()]

    def _meant(self, index: object, call_id: str, name: str) -> _Open:
        if isinstance(index, int):
            call = self._by_index.get(index)
            if call is None or (call_id and call.call_id and call_id != call.call_id):
                call = self._by_index[index] = self._begun()
            return call
        if call_id:
            return self._by_id.get(call_id) or self._begun()
        if not self._calls or (name and self._calls[-1].may_be_over()):
            return self._begun()
        return self._calls[-1]

    def _begun(self) -> _Open:
        if len(self._calls) == CALLS_MAX:
            raise BrokenCall(f"the provider made more than {CALLS_MAX} tool calls")
        self._calls.append(_Open())
        return self._calls[-1]


def _arguments(said: object) -> str:
    """A piece of JSON text; what is no text is written as JSON, so that an array is not taken for no arguments."""
    if said is None or isinstance(said, str):
        return said or ""
    return as_json(said)


def as_json(said: object) -> str:
    """A value that a provider sent where a text should be, as JSON. Raises BrokenCall where it is nested too deeply."""
    try:
        return json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise BrokenCall("the provider sent arguments that are nested too deeply") from None


def a_text(said: object) -> str:
    """A text; empty where something else stands."""
    return said if isinstance(said, str) else ""
