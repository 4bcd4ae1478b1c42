"""One recorded exchange as a file: what was asked, what came, and how it ended. Pure.

JSON that a person reads and a diff shows well: the whole request, the events
as the caller got them, the end. A text stands joined; `pieces` are the lengths
in characters of what it came in, so that it can come in the same again. Bytes
are base64. What stands in a file by hand is taken if it is sound, but for the
request: its digest is the file's name. A text whose `pieces` are no longer its
own comes whole.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from sidecar.connectors.promise import HIDDEN_CHARACTERS_MIN, Answer, Ended
from sidecar.contract import canonical
from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import (
    U64,
    EmittedReasoningState,
    FailureKind,
    Note,
    OneOf,
    ProviderRequest,
    StopReason,
    ToolCall,
    TransportEventPayload,
    Usage,
    Value,
)

RECORDING_BYTES_MAX: Final = 64 << 20
_NO_ID: Final = "-"
_LENGTHS: Final = re.compile(r"[1-9][0-9]{0,9}(?: [1-9][0-9]{0,9})*", re.ASCII)
_ESCAPED: Final = re.compile(rb"\\+u00([0-7][0-9a-fA-F])")


class Digests(Struct, frozen=True):
    """Of a request, in hex: as it is, and as it would be with fixed ids of its own and of its conversation.

    The first is the contract's `provider_request_sha256`, unless admission left states of other providers out of it.
    """

    exact: str
    without_ids: str


def digests(request: ProviderRequest) -> Digests:
    bare = structs.replace(request, request_id=_NO_ID, conversation_id=_NO_ID)
    return Digests(*[sha256(canonical.encode(one)).hexdigest() for one in (request, bare)])


class RecordedText(Value, frozen=True):
    """`pieces` is left out of a text that came whole."""

    text: str
    pieces: str = ""


class RecordedEvent(OneOf, frozen=True):
    text: RecordedText | UnsetType = field(default=UNSET, name="TextDelta")
    tool_call: ToolCall | UnsetType = field(default=UNSET, name="ToolCall")
    reasoning_state: EmittedReasoningState | UnsetType = field(default=UNSET, name="ReasoningState")


class RecordedEnd(Value, frozen=True, kw_only=True):
    """A stop reason, or a failure's kind and message; `usage` null: the provider told none."""

    stop_reason: StopReason | None = None
    kind: FailureKind | None = None
    message: str = ""
    usage: Usage | None
    provider_response_id: str | None = None
    claimed_cost_micro_usd: U64 | None = None


class Recording(Value, frozen=True, kw_only=True):
    """`kind` and `upstream` are those of the connector that was asked; `sent`: the request had left for it."""

    format: Literal["sidecar.recording.v1"]
    provider_request_sha256: str
    without_ids_sha256: str
    kind: str
    upstream: str
    recorded_at: Annotated[datetime, Meta(tz=True)]
    request: ProviderRequest
    events: tuple[RecordedEvent, ...]
    end: RecordedEnd
    sent: bool
    notes: tuple[Note, ...]


class NotARecording(Exception):
    """A file is none that can be replayed; the message says why."""


class Heard:
    """Where the texts of an answer break, heard while they come."""

    def __init__(self) -> None:
        self._lengths: dict[int, list[int]] = {}  # by the sequence of the text's event

    def hear(self, sequence: int, payload: TransportEventPayload) -> None:
        if payload.text_delta:
            self._lengths.setdefault(sequence, []).append(len(payload.text_delta.text))

    def events(self, events: Iterable[TransportEventPayload]) -> Iterator[RecordedEvent]:
        """The events of the answer that was heard, with their breaks."""
        for sequence, event in enumerate(events):
            if event.text_delta:
                yield RecordedEvent(text=_with_breaks(event.text_delta.text, self._lengths.get(sequence, [])))
            elif event.tool_call:
                yield RecordedEvent(tool_call=event.tool_call)
            else:
                yield RecordedEvent(reasoning_state=event.reasoning_state)


def _with_breaks(text: str, lengths: list[int]) -> RecordedText:
    """Without them where they are not those of the whole text."""
    is_broken = len(lengths) > 1 and sum(lengths) == len(text)
    return RecordedText(text=text, pieces=" ".join(map(str, lengths)) if is_broken else "")


def recording_of(
    request: ProviderRequest,
    digests: Digests,
    *,
    kind: str,
    upstream: str,
    answer: Answer,
    heard: Heard,
    at_unix_ms: int,
) -> Recording:
    """The recording of an answer that has ended."""
    ended = answer.ended
    assert ended is not None, "only what has ended is recorded"
    return Recording(
        format="sidecar.recording.v1",
        provider_request_sha256=digests.exact,
        without_ids_sha256=digests.without_ids,
        kind=kind,
        upstream=upstream,
        recorded_at=datetime.fromtimestamp(at_unix_ms / 1000, UTC),
        request=request,
        events=tuple(heard.events(answer.events())),
        end=_end_of(ended),
        sent=answer.sent,
        notes=tuple(answer.notes),
    )


def _end_of(ended: Ended) -> RecordedEnd:
    return RecordedEnd(
        stop_reason=ended.stop_reason,
        kind=ended.kind,
        message=ended.message,
        usage=ended.usage,
        provider_response_id=ended.provider_response_id,
        claimed_cost_micro_usd=ended.claimed_cost_micro_usd,
    )


def encode(recording: Recording) -> bytes:
    return msgspec.json.format(msgspec.json.encode(recording), indent=2) + b"\n"


def decode(raw: bytes) -> Recording:
    """The recording in a file. Raises NotARecording, also where its parts contradict each other."""
    try:
        recording = msgspec.json.decode(raw, type=Recording)
    except (ValueError, RecursionError) as wrong:
        raise NotARecording(f"is no recording: {wrong!s:.200}") from None
    of_request = digests(recording.request)
    if of_request != Digests(recording.provider_request_sha256, recording.without_ids_sha256):
        raise NotARecording("holds digests that are not those of its request")
    if (recording.end.stop_reason is None) == (recording.end.kind is None):
        raise NotARecording("must end with a stop_reason or with a failure's kind, and not with both")
    for event in recording.events:
        if event.text:
            _lengths_of(event.text)
        elif event.tool_call:
            _check_call(event.tool_call)
    return recording


def _check_call(call: ToolCall) -> None:
    """No connector gives any other call, and no later turn could carry one."""
    if not is_id(call.name):
        raise NotARecording(f"holds a call of a tool whose name is none: {call.name!r:.80}")
    try:
        check_object(call.arguments or "{}")
    except NotJsonObject as wrong:
        raise NotARecording(f"holds a call of {call.name:.80} whose arguments are no JSON object: {wrong}") from None


def pieces_of(said: RecordedText) -> Iterator[str]:
    """The text in what it came in; whole where that was another text. Raises NotARecording for what is no lengths."""
    lengths = _lengths_of(said)
    at = 0
    for length in lengths if sum(lengths) == len(said.text) else [len(said.text)]:
        yield said.text[at : at + length]
        at += length


def has_other_pieces(recording: Recording) -> bool:
    """Whether a text has another length than its pieces, because it was edited by hand."""
    texts = [event.text for event in recording.events if event.text]
    return any(sum(_lengths_of(said)) != len(said.text) for said in texts)


def _lengths_of(said: RecordedText) -> list[int]:
    if not said.pieces:
        return [len(said.text)]
    if not _LENGTHS.fullmatch(said.pieces):
        raise NotARecording(f"holds pieces that are no lengths with a space between them: {said.pieces:.40}")
    return list(map(int, said.pieces.split()))


# --- the last guard ---------------------------------------------------------------------------------------------


def holds_secret(recording: Recording, encoded: bytes, secret: str) -> bool:
    """Whether a credential stands in what would be written, as it is, escaped as JSON does it, or in base64.

    The Answer has hidden it as it is everywhere; this finds what a provider has quoted in another spelling. One so
    short that it could be a word is not looked for, as there.
    """
    if len(secret) < HIDDEN_CHARACTERS_MIN:
        return False
    sought = {_unescaped(secret.encode()), *_base64_forms(secret.encode())}
    states = [event.reasoning_state.state for event in recording.events if event.reasoning_state]
    return any(form in text for text in map(_unescaped, [encoded, *states]) for form in sought)


def _unescaped(text: bytes) -> bytes:
    """With JSON's escapes of ASCII undone, however many times one stands in the other; then no backslash is left."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), text).replace(b"\\", b"")


def _base64_forms(secret: bytes) -> Iterator[bytes]:
    """What every base64 holds of which the secret is a part, wherever in it the secret begins."""
    for before, skipped in enumerate((0, 2, 3)):
        known = (before + len(secret)) * 8 // 6
        for encoded in (base64.b64encode, base64.urlsafe_b64encode):
            yield encoded(bytes(before) + secret)[skipped:known]
