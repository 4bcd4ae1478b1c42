"""Every stream, of every API, in every way in which it may arrive, and cut behind every byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from kit.stream_cases import ARRIVALS, RECORDED, Stream, cuts, end_of_answer, streams

from sidecar.connectors import (
    anthropic_messages_lift,
    gemini_lift,
    llama_stack_lift,
    openai_chat_lift,
    openai_responses_lift,
)
from sidecar.connectors.body_lift import BodyLift
from sidecar.connectors.openai_chat_dialects import DIALECTS
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract.values import Usage

DOCUMENT_BYTES_MAX = 1_000_000


def _chat(answer: Answer, stream: Stream) -> BodyLift:
    name = "openrouter" if stream.name.startswith("openrouter") else "compatible"
    return openai_chat_lift.Lift(
        answer, str, upstream="tiny", document_bytes_max=DOCUMENT_BYTES_MAX, dialect=DIALECTS[name]
    )


def _stack(answer: Answer, stream: Stream) -> BodyLift:
    return llama_stack_lift.Lift(
        answer,
        str,
        upstream="tiny",
        document_bytes_max=DOCUMENT_BYTES_MAX,
        tool_names=frozenset({"list_users"}),
        takes_estimates=True,
    )


def _plain(lift: Callable[..., BodyLift]) -> Callable[[Answer, Stream], BodyLift]:
    return lambda answer, stream: lift(answer, str, upstream="tiny", document_bytes_max=DOCUMENT_BYTES_MAX)


def _responses(answer: Answer, stream: Stream) -> BodyLift:
    return openai_responses_lift.Lift(
        answer,
        str,
        upstream="tiny",
        document_bytes_max=DOCUMENT_BYTES_MAX,
        silent_cut_tokens=stream.wanted.get("silent_cut_tokens"),
    )


LIFTS: dict[str, Callable[[Answer, Stream], BodyLift]] = {
    "anthropic": _plain(anthropic_messages_lift.Lift),
    "gemini": _plain(gemini_lift.Lift),
    "llama_stack_native": _stack,
    "openai_chat": _chat,
    "openai_responses": _responses,
}
STREAMS = streams()


def lifted(stream: Stream, pieces: list[bytes]) -> Answer:
    answer = Answer(frozenset(), DOCUMENT_BYTES_MAX, fresh_id=lambda: "call_fresh")
    answer.sent = True
    lift = LIFTS[stream.provider](answer, stream)
    for piece in pieces:
        lift.feed(piece)
    if answer.ended is None:
        lift.close()
    return answer


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def said(answer: Answer) -> dict[str, Any]:
    """What EXPECTED.json names, of an answer."""
    events = answer.events()
    text = "".join(event.text_delta.text for event in events if event.text_delta)
    return {
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "tool_calls": [[event.tool_call.name, event.tool_call.arguments] for event in events if event.tool_call],
        "reasoning_states": sum(1 for event in events if event.reasoning_state),
    }


@pytest.mark.parametrize("arrival", ARRIVALS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_lifted_as_expected_however_it_arrives(name: str, arrival: str) -> None:
    stream = STREAMS[name]
    wanted = stream.wanted
    answer = lifted(stream, ARRIVALS[arrival](stream.body))
    ended, made = end(answer), said(answer)
    if "failed" in wanted:
        assert ended.kind == wanted["kind"]
        assert ended.usage is None, "no final usage came"
        assert made["text_sha256"] == wanted.get("text_sha256", made["text_sha256"])
        return
    assert ended.stop_reason == wanted["stop_reason"]
    assert ended.usage == (Usage(**wanted["usage"]) if wanted["usage"] else None)
    assert made["text_sha256"] == wanted["text_sha256"]
    assert made["tool_calls"] == [call[-2:] for call in wanted["tool_calls"]]
    states = wanted.get("reasoning_states", wanted.get("thought_signatures"))
    if states is not None:
        assert made["reasoning_states"] == states


@pytest.mark.parametrize("name", STREAMS)
def test_e10_a_stream_that_breaks_off_before_its_end_is_a_failure_and_costs_what_is_not_known(name: str) -> None:
    stream = STREAMS[name]
    may_end_at = end_of_answer(stream)
    for cut in cuts(stream):
        ended = end(lifted(stream, [cut]))
        if len(cut) < may_end_at:
            assert (ended.stop_reason, ended.kind, ended.usage) == (None, "unavailable", None), len(cut)
        elif "stop_reason" in stream.wanted:
            assert ended.stop_reason in (stream.wanted["stop_reason"], None), len(cut)
            assert ended.stop_reason or ended.kind == "unavailable", len(cut)
            assert ended.usage in (None, Usage(**stream.wanted["usage"])), len(cut)


def test_every_recorded_stream_is_read_here() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    recorded = {path.name for suffix in ("sse", "jsonl") for path in RECORDED.glob(f"*.{suffix}")}
    assert len(recorded) >= 25
    assert recorded <= streams().keys()
