"""No credential gets into a recording, however a provider quotes it; and what is written can be read again."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from kit import build
from kit.connector_cases import USED, chat_at, messages_at
from kit.messages_streams import begun, event, finished, piece
from kit.recorded_cases import recorded_in
from kit.stub_http import Reply, chunked, stub_provider, whole
from msgspec import structs

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.recorded_format import (
    Heard,
    RecordedEnd,
    RecordedEvent,
    RecordedText,
    Recording,
    decode,
    digests,
    encode,
    holds_secret,
    pieces_of,
)
from sidecar.connectors.scripted import Scripted
from sidecar.contract import values as v
from sidecar.ops.log import Log

SECRET = 'sk-canary/Zq8x"W3v\\NpL5tRy2KmB7d'
FORMS = [
    SECRET,
    json.dumps(SECRET)[1:-1],
    json.dumps(json.dumps(SECRET))[1:-1],
    SECRET.replace("/", "\\/"),
    "\\u0073k" + SECRET[2:],
    *[base64.b64encode(b"x" * at + SECRET.encode() + b"yz").decode() for at in range(3)],
    base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
]


def recording(*events: RecordedEvent, **changes: Any) -> Recording:
    request = build.request()
    of_request = digests(request)
    members: dict[str, Any] = {
        "format": "sidecar.recording.v1",
        "provider_request_sha256": of_request.exact,
        "without_ids_sha256": of_request.without_ids,
        "kind": "scripted",
        "upstream": "tiny",
        "recorded_at": datetime.fromtimestamp(build.NOW / 1000, UTC),
        "request": request,
        "events": events,
        "end": RecordedEnd(stop_reason="end_turn", usage=USED),
        "sent": True,
        "notes": (),
    }
    return Recording(**{**members, **changes})


def text(words: str, pieces: str = "") -> RecordedEvent:
    return RecordedEvent(text=RecordedText(text=words, pieces=pieces))


def state(block: bytes) -> RecordedEvent:
    return RecordedEvent(reasoning_state=v.EmittedReasoningState(state=block))


def is_found(told: Recording, secret: str = SECRET) -> bool:
    return holds_secret(told, encode(told), secret)


# --- the guard ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_credential_is_found_in_every_spelling_and_place(form: str) -> None:
    assert is_found(recording(text(f"your key {form} is wrong")))
    assert is_found(recording(state(f'{{"thought":"{form}"}}'.encode())))
    assert is_found(
        recording(RecordedEvent(tool_call=v.ToolCall(call_id="c1", name="look", arguments=f'{{"a":"{form}"}}')))
    )
    assert is_found(recording(end=RecordedEnd(kind="authentication", message=form, usage=None)))
    assert is_found(recording(end=RecordedEnd(stop_reason="end_turn", provider_response_id=form, usage=None)))
    assert is_found(recording(request=build.request(build.text(form))))


@given(st.binary(), st.binary(), st.booleans())
def test_a_credential_inside_a_state_is_found_whatever_stands_around_it(
    before: bytes, after: bytes, is_base64: bool
) -> None:
    block = before + SECRET.encode() + after
    assert is_found(recording(state(base64.b64encode(block) if is_base64 else block)))


@given(st.text(st.characters(codec="utf-8")), st.binary())
def test_what_holds_no_credential_is_let_through(words: str, block: bytes) -> None:
    assert not is_found(recording(text(words or "x"), state(block)))
    assert not is_found(recording(text("a word"), state(b"word")), "word"), "one so short could be a word"


# --- providers that say it ---------------------------------------------------------------------------------------


async def recorded(directory: Path, connector: Any, kind: str) -> tuple[Answer, str]:
    """The answer, and the log, of one exchange that is recorded."""
    log = io.StringIO()
    keeping = recorded_in(directory, connector, "record", kind=kind, secret=SECRET)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeping.serve, Log(log, "text"))
        lowered = keeping.lower(build.request(), "tiny")
        answer = Answer(lowered.call_ids, 50_000)
        await keeping.exchange(lowered, answer)
        await keeping.aclose()
        nursery.cancel_scope.cancel()
    return answer, log.getvalue()


def written(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.iterdir())


CHAT_STOP = (
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


def chat_said(words: str) -> bytes:
    return f"data: {json.dumps({'choices': [{'delta': {'content': words}}]})}\n\n".encode()


@pytest.mark.parametrize(
    "reply",
    [
        chunked(chat_said(f"You sent {SECRET}."), CHAT_STOP),
        chunked(chat_said(f"You sent {SECRET[:9]}"), chat_said(SECRET[9:] + "."), CHAT_STOP),
        whole(json.dumps({"error": {"message": f"Incorrect API key: {SECRET}"}}), 401, content_type="application/json"),
    ],
    ids=["whole", "in two pieces", "in an error"],
)
async def test_a_provider_that_quotes_the_key_is_recorded_without_it(tmp_path: Path, reply: Reply) -> None:
    async with stub_provider(reply) as stub:
        answer, log = await recorded(tmp_path, chat_at(stub.url, secret=SECRET), "openai_chat")
    assert answer.ended is not None
    assert stub.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    content = written(tmp_path)
    assert "<credential>" in content
    assert not holds_secret(decode(content.encode()), content.encode(), SECRET)
    assert "info recorded " in log


@pytest.mark.parametrize(
    "form", [SECRET, base64.b64encode(b"x" + SECRET.encode()).decode()], ids=["as it is", "base64"]
)
async def test_a_key_inside_a_reasoning_block_is_not_written(tmp_path: Path, form: str) -> None:
    block = event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""})
    thought = piece(0, "thinking_delta", thinking="They sent me a key.") + piece(0, "signature_delta", signature=form)
    stop = event("content_block_stop", index=0)
    reply = chunked(begun(), block, thought, stop, finished())
    async with stub_provider(reply) as stub:
        answer, log = await recorded(tmp_path, messages_at(stub.url, secret=SECRET), "anthropic_messages")
    assert answer.ended is not None
    assert answer.ended.stop_reason == "end_turn", "the answer is paid for, and stands"
    assert [True for one in answer.events() if one.reasoning_state]
    assert written(tmp_path) == ""
    assert "error not_recorded" in log
    assert "the provider's credential stands in it" in log
    assert SECRET not in log


class Calls(Scripted):
    """Calls a tool with these arguments."""

    def __init__(self, arguments: str) -> None:
        super().__init__()
        self._arguments = arguments

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        await trio.lowlevel.checkpoint()
        answer.sent = True
        answer.hide(SECRET)
        answer.tool_call("c1", "look", self._arguments)
        answer.complete("tool_use", USED)


async def test_a_tool_call_s_arguments_are_written_without_the_escaped_key(tmp_path: Path) -> None:
    _, log = await recorded(tmp_path, Calls(json.dumps({"key": SECRET})), "scripted")
    assert "<credential>" in written(tmp_path)
    assert SECRET not in written(tmp_path)
    assert "not_recorded" not in log


async def test_a_tool_call_s_arguments_with_the_key_in_base64_are_not_written(tmp_path: Path) -> None:
    encoded = base64.b64encode(SECRET.encode()).decode()
    answer, log = await recorded(tmp_path, Calls(json.dumps({"key": encoded})), "scripted")
    assert answer.tool_calls == 1
    assert written(tmp_path) == ""
    assert "error not_recorded" in log


# --- there and back ----------------------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8"), min_size=1)
emitted = st.one_of(
    words.map(lambda said: v.TransportEventPayload(text_delta=v.TextDelta(text=said))),
    st.builds(
        lambda name, arguments: v.TransportEventPayload(
            tool_call=v.ToolCall(call_id="c1", name=name, arguments=arguments)
        ),
        words,
        words,
    ),
    st.binary().map(lambda block: v.TransportEventPayload(reasoning_state=v.EmittedReasoningState(state=block))),
)


def told(pieces: list[v.TransportEventPayload]) -> tuple[Answer, list[v.TransportEventPayload], Heard]:
    """An answer of these pieces, the pieces as they were heard, and where they broke."""
    heard, breaks = [], Heard()
    answer = Answer(frozenset(), 1 << 30, fresh_id=lambda: "c-fresh", on_event=lambda _, payload: heard.append(payload))
    answer.overhear(breaks.hear)
    for one in pieces:
        if one.text_delta:
            answer.text(one.text_delta.text)
        elif one.tool_call:
            answer.tool_call(one.tool_call.call_id, one.tool_call.name, one.tool_call.arguments)
        elif one.reasoning_state:
            answer.reasoning_state(one.reasoning_state.state)
    return answer, heard, breaks


@given(st.lists(emitted))
def test_any_events_come_back_in_the_pieces_that_they_came_in(pieces: list[v.TransportEventPayload]) -> None:
    answer, heard, breaks = told(pieces)
    kept = decode(encode(recording(*breaks.events(answer.events()))))
    again: list[v.TransportEventPayload] = []
    for one in kept.events:
        if one.text:
            again += [v.TransportEventPayload(text_delta=v.TextDelta(text=said)) for said in pieces_of(one.text)]
        elif one.tool_call:
            again.append(v.TransportEventPayload(tool_call=one.tool_call))
        else:
            again.append(v.TransportEventPayload(reasoning_state=one.reasoning_state))
    assert again == heard


def test_breaks_that_were_not_all_heard_are_left_out() -> None:
    breaks = Heard()
    for said_piece in ("Hello ", "there"):
        breaks.hear(0, v.TransportEventPayload(text_delta=v.TextDelta(text=said_piece)))
    whole_text = v.TransportEventPayload(text_delta=v.TextDelta(text="Well. Hello there"))
    assert list(breaks.events([whole_text])) == [text("Well. Hello there")]


@given(words, words)
def test_requests_that_differ_in_their_ids_alone_are_one_without_them(one: str, other: str) -> None:
    request = build.request()
    renamed = structs.replace(request, request_id=one, conversation_id=other)
    assert digests(renamed).without_ids == digests(request).without_ids
    reworded = structs.replace(renamed, instructions=one)
    assert digests(reworded).without_ids != digests(request).without_ids
    assert len({digests(request).exact, digests(renamed).exact, digests(reworded).exact}) == 3


def test_a_recording_is_the_same_bytes_again() -> None:
    kept = recording(text("Hé there", "3 5"), state(b"\x00\xff"))
    assert encode(decode(encode(kept))) == encode(kept)
    assert msgspec.json.decode(encode(kept))["events"][1] == {"ReasoningState": {"state": "AP8="}}
