"""The goldens as conversations with a running daemon: what to send, and what must come back.

Every vector is a conversation on a connection of its own. Transcripts are said
anew (`fresh`); frames and streams are sent as they are: the sound invocations
among them expired long ago, which a daemon says only once it has read them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from sidecar.conformance.fresh import Freshened, decoded, frames_in
from sidecar.conformance.goldens import Goldens, read_bytes
from sidecar.conformance.layouts import LAYOUTS, written
from sidecar.contract.client_frames import TRANSPORT_STATUS_REPORT, TRANSPORT_WELCOME
from sidecar.contract.frames import BadFrame, Invocation, parse
from sidecar.contract.values import TRANSPORT_ERROR, TRANSPORT_RESULT, TransportErrorCode
from sidecar.rules.framing import FRAME_BYTES_LIMIT, framed

CALLER: Final = "dungeon"  # whom the peer of every transcript calls as
_SUFFIX_BYTES: Final = 5
_NIL: Final = "nil members written"
_NOT_ON_A_SOCKET: Final[Mapping[str, str]] = {
    "resolve": "it begins after a crash that left a request open, and its peer is an operator",
}
# What an answer says of the daemon that gives it, and not of the protocol: a path of members, `*` for every item.
NOT_COMPARED: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    TRANSPORT_ERROR: (("message",),),
    TRANSPORT_WELCOME: (("server",), ("frame_bytes_max",)),
    TRANSPORT_STATUS_REPORT: (
        *(
            ("daemon", name)
            for name in ("connections", "connections_max", "live_requests", "now_unix_ms", "requests_in_flight_max",
                         "server", "started_at_unix_ms")
        ),
        *(
            ("callers", "*", name)
            for name in ("indeterminate", "live_requests", "over_runs", "reserved_micro_usd", "spent_micro_usd",
                         "window_start_unix_ms")
        ),
        ("connectors", "*", "live_requests"),
    ),
}  # fmt: skip

Plain = dict[str, Any]


class Terms(Struct, frozen=True):
    """What a conversation depends on: the daemon's bound, and the wall clock."""

    frame_bytes_max: int
    now_unix_ms: int


class Write(Struct, frozen=True):
    """One write of the client, and the answers to it as plain values."""

    sent: bytes
    answers: tuple[Plain, ...]
    comment: str


class Conversation(Struct, frozen=True):
    """`begun` gives its writes on these terms, or why these terms don't allow it."""

    name: str
    begun: Callable[[Terms], Sequence[Write] | str]


def conversations(goldens: Goldens) -> Iterator[Conversation]:
    """Every vector for a daemon. Raises NoGoldens."""
    for name, document in goldens.every("transcripts"):
        yield _transcript(name, document)
    text = goldens.document("transcripts/text.json")
    for layout in LAYOUTS:
        yield Conversation(f"layouts/{layout}", _relaid(layout, text))
    for vector in goldens.vectors("frames/variants.json"):
        yield Conversation(f"frames/variants/{vector['name']}", _variant(vector))
    for name, document in goldens.every("frames"):
        if name != "variants":
            for vector in document["vectors"]:
                yield Conversation(f"frames/{name}/{vector['name']}", _rejected(vector))
    streams = goldens.document("streams.json")
    for vector in streams["vectors"]:
        yield Conversation(f"streams/{vector['name']}", _stream(vector, streams["frame_bytes_max"]))


def _error(code: TransportErrorCode) -> Plain:
    return {"schema_id": TRANSPORT_ERROR, "code": code}


def _refusal(caller: str, request_id: str, refusal: str) -> Plain:
    return {
        "schema_id": TRANSPORT_RESULT,
        "caller_runtime_id": caller,
        "request_id": request_id,
        "disposition": {"Refused": refusal},
    }


# --- transcripts ------------------------------------------------------------------------------------------------


def _transcript(name: str, document: Mapping[str, Any]) -> Conversation:
    if name in _NOT_ON_A_SOCKET:
        return Conversation(f"transcripts/{name}", lambda _: _NOT_ON_A_SOCKET[name])
    return Conversation(f"transcripts/{name}", lambda terms: _said_anew(document, terms))


def _said_anew(document: Mapping[str, Any], terms: Terms) -> Sequence[Write]:
    fresh = Freshened(
        then_unix_ms=document["now_unix_ms"],
        now_unix_ms=terms.now_unix_ms,
        suffix=secrets.token_hex(_SUFFIX_BYTES),
    )
    writes: list[Write] = []
    for step in document["steps"]:
        recorded = read_bytes(step["bytes_base64"])
        if step["from"] == "client":
            writes.append(Write(_too_long(fresh.sent(recorded), terms), (), step["comment"]))
        else:
            answer = fresh.answered(decoded(recorded[4:]))
            writes[-1] = Write(writes[-1].sent, (*writes[-1].answers, answer), writes[-1].comment)
    return writes


def _too_long(sent: bytes, terms: Terms) -> bytes:
    """A lone length is one that the transcript's daemon doesn't take: here, one that this daemon doesn't take."""
    lone = len(sent) == 4 and 0 < int.from_bytes(sent, "big") <= FRAME_BYTES_LIMIT
    return (terms.frame_bytes_max + 1).to_bytes(4, "big") if lone else sent


def _relaid(layout: str, document: Mapping[str, Any]) -> Callable[[Terms], Sequence[Write]]:
    """An invocation, then the same in another layout: the recorded answer, for it is the same request."""

    def begun(terms: Terms) -> Sequence[Write]:
        (write, *_) = _said_anew(document, terms)
        frame, *_ = frames_in(write.sent) or [b""]
        value = decoded(frame)
        if layout == _NIL:
            nil = dict.fromkeys(("cache_retention", "output_schema_json", "reasoning_effort"))
            value = {**value, "request": {**value["request"], **nil}}
        return [write, Write(framed(written(value, LAYOUTS[layout])), write.answers, f"the same, {layout}")]

    return begun


# --- frames and streams -----------------------------------------------------------------------------------------


def _answer_to(frame: bytes, terms: Terms) -> Plain | str:
    """What must answer a frame as it stands in the goldens; a str where the clock is too early for that."""
    parsed = parse(frame)
    if isinstance(parsed, BadFrame):
        return _error(parsed.code)
    assert isinstance(parsed, Invocation), "the streams hold invocations and broken frames"
    if parsed.value.expires_at_unix_ms > terms.now_unix_ms:
        return "its invocations have not expired by this clock, so they would run"
    return _refusal(parsed.value.caller_runtime_id, parsed.value.request.request_id, "Expired")


def _variant(vector: Mapping[str, Any]) -> Callable[[Terms], Sequence[Write] | str]:
    frame = read_bytes(vector["frame"])

    def begun(terms: Terms) -> Sequence[Write] | str:
        answer = _answer_to(frame, terms)
        return answer if isinstance(answer, str) else [Write(framed(frame), (answer,), "read, and found expired")]

    return begun


def _rejected(vector: Mapping[str, Any]) -> Callable[[Terms], Sequence[Write] | str]:
    frame, answer = read_bytes(vector["frame"]), vector["answer"]
    expected = (
        _error(answer["transport_error"])
        if "transport_error" in answer
        else _refusal(answer["caller_runtime_id"], answer["request_id"], answer["refused"])
    )

    def begun(terms: Terms) -> Sequence[Write] | str:
        if len(frame) > terms.frame_bytes_max:
            return f"it has {len(frame)} bytes, and this daemon takes {terms.frame_bytes_max}"
        after = Write(framed(b"\xc0"), (_error("malformed_frame"),), "nil: the connection is still open")
        return [Write(framed(frame), (expected,), vector["name"]), after]

    return begun


def _stream(vector: Mapping[str, Any], frame_bytes_max: int) -> Callable[[Terms], Sequence[Write] | str]:
    sent = read_bytes(vector["sent"])

    def begun(terms: Terms) -> Sequence[Write] | str:
        if terms.frame_bytes_max != frame_bytes_max:
            return f"it is for a frame_bytes_max of {frame_bytes_max}; this daemon has {terms.frame_bytes_max}"
        answers: list[Plain] = []
        at = 0
        for frame in vector["frames"]:
            answer = _answer_to(sent[at + 4 : at + 4 + frame["bytes"]], terms)
            if isinstance(answer, str):
                return answer
            answers.append(answer)
            at += 4 + frame["bytes"]
        ended = () if vector["transport_error"] is None else (_error(vector["transport_error"]),)
        return [Write(sent, (*answers, *ended), vector["name"])]

    return begun
