"""From the body of any provider's answer, in pieces, to its JSON objects, and the ends that all of them share. Pure.

A body that begins with a bracket is one JSON document (an error, or an answer
that was not streamed), whatever its content type says; else it is an event
stream. Keep-alives are passed over, `[DONE]` is told apart and never needed.
Whatever can't be read ends the answer: bytes that are no stream, a page of a
proxy, an event that is no object, anything above its bound. What an object
means is for the lift of each API, which is a subclass. Source: WIRE section 1.1.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from sidecar.connectors.event_stream import EventStream, StreamFault
from sidecar.connectors.failures import kind_of, words_of
from sidecar.connectors.model_names import is_same_family
from sidecar.connectors.promise import Answer
from sidecar.connectors.unicode_pieces import UnicodePieces
from sidecar.contract.values import FailureKind, Usage

Clean = Callable[[str], str]

ITEMS_MAX: Final = 131_072  # values in one piece of JSON: built in about a tenth of a second
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPENING_BYTES: Final = 64  # of the body, that tell whether it can be an event stream
_FIELDS: Final = (b"data", b"event", b"id", b"retry")
_RESPONSE_ID_CHARACTERS_MAX: Final = 256
WORD_CHARACTERS_MAX: Final = 1024  # of what names something; what is longer names nothing


class TooManyValues(Exception):
    """One JSON text holds more values than may be built at once."""


class BodyLift(ABC):
    """Feed it the body; `is_over` says that nothing more of it matters.

    `clean` makes a message of a provider's words; `document_bytes_max` bounds
    one event, and a body that is one document.
    """

    _terminal: str = "terminal event"  # what a whole stream has before its end, in words
    _kind_of_answer: str = "answer"  # what a body should have been, in words

    def __init__(self, answer: Answer, clean: Clean, *, upstream: str, document_bytes_max: int) -> None:
        self._answer = answer
        self._upstream = upstream
        self._clean = clean
        self._document_bytes_max = document_bytes_max
        self._stream = EventStream(line_bytes_max=document_bytes_max, event_bytes_max=document_bytes_max)
        self._document: bytearray | None = None
        self._begun = False
        self._opening = b""  # without the blanks before it
        self._has_event = False
        self._text = UnicodePieces()
        self._said_id: str | None = None  # by the provider, of its answer
        self._model_said: object = None
        self.is_over = False

    # --- what each API's lift says ----------------------------------------------------------------------------

    @property
    def has_all_but_the_end(self) -> bool:
        """Whether all that matters has been read and only the stream's last word can be still to come."""
        return False

    @abstractmethod
    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        """One JSON object: an event of the stream, or a body that is one document."""

    @abstractmethod
    def settle(self) -> None:
        """Ends the answer if what ended it has been read, also where the body breaks off behind that."""

    def _done(self) -> None:  # noqa: B027 - a lift that has no use for it says nothing
        """`[DONE]` was read. Most APIs have none, and compatible servers send it all the same."""

    # --- reading ----------------------------------------------------------------------------------------------

    def feed(self, piece: bytes) -> None:
        if self.is_over:
            return
        self._open(piece)
        if self._document is None:
            for event in self._stream.feed(piece):
                self._take(event if isinstance(event, StreamFault) else event.data)
            return
        self._document += piece
        if len(self._document) > self._document_bytes_max:
            self._break("result_size", f"the provider's JSON body is larger than {self._document_bytes_max} bytes")

    def close(self) -> None:
        """The body has ended."""
        if self.is_over:
            return
        if self._document is not None:
            self._whole(bytes(self._document))
        else:
            for event in self._stream.close():
                self._take(event if isinstance(event, StreamFault) else event.data)
        self.settle()
        if self._document is None and not self._has_event and not _may_begin_stream(self._opening):
            what = "a page" if _without_mark(self._opening).startswith(b"<") else "neither an event stream nor JSON"
            self._break("provider", f"the provider sent {what} and no {self._kind_of_answer}: is base_url right?")
        self._break("unavailable", f"the stream ended before its {self._terminal}")

    def _open(self, piece: bytes) -> None:
        """Looks at the body's first bytes, which say what it is."""
        if len(self._opening) < _OPENING_BYTES:
            shown = piece if self._opening else piece.lstrip()
            self._opening = (self._opening + shown[:_OPENING_BYTES])[:_OPENING_BYTES]
        if not self._begun and piece.strip():
            self._begun = True
            if piece.lstrip()[:1] in (b"{", b"["):
                self._document = bytearray()

    def _take(self, event: str | StreamFault) -> None:
        if self.is_over:
            return
        if isinstance(event, StreamFault):
            kind: FailureKind = "result_size" if event.is_too_large else "provider"
            self._break(kind, f"the provider's stream can't be read: {event.why}")
            return
        self._has_event = True
        event = event.strip()
        if not event or event.startswith(":"):
            return  # keep-alives: `data:` alone, and `data: : keepalive`
        if event == "[DONE]":
            self._done()
            return
        try:
            said = loaded(event)
        except (ValueError, RecursionError):
            said = None
        except TooManyValues as fault:
            self._break("result_size", str(fault))
            return
        if isinstance(said, dict):
            self._object(said, is_document=False)
        else:
            self._break("provider", "an event of the stream is no JSON object")

    def _whole(self, body: bytes) -> None:
        """A body that is one JSON document."""
        try:
            document = loaded(body.decode())
        except (ValueError, RecursionError):
            self._break("unavailable", "the provider's JSON body ended early or is broken")
            return
        except TooManyValues as fault:
            self._break("result_size", str(fault))
            return
        if isinstance(document, list) and len(document) == 1:
            document = document[0]
        if not isinstance(document, dict):
            self._break("provider", "the provider's body is no JSON object")
            return
        self._object(document, is_document=True)
        self.settle()
        self._break("provider", "the provider's body has neither an error nor a finished answer")

    # --- what lifts share -------------------------------------------------------------------------------------

    def _say(self, piece: object) -> None:
        """A piece of visible text, whose last character may be half. Raises NotUnicode."""
        if isinstance(piece, str):
            self._answer.text(self._text.feed(piece))

    @property
    def _response_id(self) -> str | None:
        """For the end of the answer, so that the first event doesn't wait for its cleaning."""
        return self._said_id and self._clean(self._said_id)[:_RESPONSE_ID_CHARACTERS_MAX]

    def _names(self, response_id: object, model: object) -> None:
        """What the answer and the model are called by the provider; the first id stands."""
        said = word(response_id)
        if self._said_id is None and said and said.isprintable():
            self._said_id = said
        if model != self._model_said:  # every event of a stream says it again
            self._model_said = model
            if not is_same_family(self._upstream, word(model)):
                self._answer.note("other_model")

    def _counted(self, usage: Usage, clamped: bool) -> Usage:
        """The usage, with a note where a part was above its total."""
        if clamped:
            self._answer.note("usage_clamped")
        return usage

    def _tier(self, said: object) -> None:
        """The service tier of an answer for which `default` was asked: another one has prices of its own."""
        if word(said) not in ("", "auto", "default"):
            self._answer.note("provider_fallback")

    def _error(self, error: dict[str, Any], usage: Usage | None = None) -> None:
        """An error object inside the answer."""
        self._break(kind_of(error, None), words_of(error) or "the provider failed inside its answer", usage)

    def _break(self, kind: FailureKind, why: str, usage: Usage | None = None) -> None:
        """Nothing more is read; ignored where the answer has ended already."""
        self.is_over = True
        self._answer.fail(kind, self._clean(why), usage)


def loaded(text: str) -> Any:
    """The value of a JSON text. Raises TooManyValues before any of it is built; ValueError and RecursionError.

    One text is read in one go, and it is the number of its values that takes the time; its strings take little.
    """
    if _values_at_most(text) > ITEMS_MAX and _values_at_most(_STRING.sub("", text)) > ITEMS_MAX:
        raise TooManyValues(f"the provider sent more than {ITEMS_MAX} values in one piece of JSON")
    return json.loads(text)


def _values_at_most(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def word(said: object) -> str:
    """A name of something; empty for what is no text, or too long to be one."""
    return said if isinstance(said, str) and len(said) <= WORD_CHARACTERS_MAX else ""


def reason_in(said: object) -> str:
    """A stop reason; what can be none is told by what it is instead, and so is not known."""
    if isinstance(said, str) and not word(said):
        return f"a text of {len(said)} characters"
    return f"a {type(said).__name__}" if isinstance(said, list | dict) else str(said)


def an_object(said: object) -> dict[str, Any]:
    """An object that should stand here; empty where something else does."""
    return said if isinstance(said, dict) else {}


def _without_mark(opening: bytes) -> bytes:
    return opening.removeprefix(b"\xef\xbb\xbf").lstrip()


def _may_begin_stream(opening: bytes) -> bool:
    """Whether an event stream can begin so, or what a cut left of one: nothing, a comment, a field's begin."""
    name = re.split(rb"[:\r\n]", _without_mark(opening), maxsplit=1)[0]
    return any(field.startswith(name) for field in _FIELDS)
