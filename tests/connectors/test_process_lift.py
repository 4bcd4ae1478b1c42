"""What a child writes becomes an answer; whatever it does wrong becomes exactly what is promised. Bytes only."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build, wire

from goldens import published_values as golden
from sidecar.connectors.process_lift import BLOCKS_MAX, Lift
from sidecar.connectors.process_lower import encoded, lower, wrapped
from sidecar.connectors.promise import Answer, Ended, Rejected, ResponseTooLarge
from sidecar.contract import values as v
from sidecar.contract.values import Usage
from sidecar.rules.framing import FRAME_BYTES_LIMIT, framed

EXCHANGE = 7
SECRET = "sk-canary-0123456789"
USED = Usage(input_tokens=1009, cache_read_tokens=499, cache_write_tokens=251, output_tokens=127)


def event(payload: dict[str, Any], exchange: int = EXCHANGE) -> bytes:
    return framed(wire.write(golden.connector_event(payload, exchange)))


def text(said: str, exchange: int = EXCHANGE) -> bytes:
    return event({"TextDelta": {"text": said}}, exchange)


def outcome(said: dict[str, Any] | None = None, exchange: int = EXCHANGE, **members: Any) -> bytes:
    return framed(wire.write(golden.connector_outcome(said, exchange=exchange, **members)))


GOOD = text("Hello") + text(" there") + outcome()


def lifted(
    *pieces: bytes, response_bytes_max: int = 1000, body_bytes_max: int = 1_000_000, ends: bool = False
) -> tuple[Answer, Lift]:
    """What became of these pieces, and then of the end of the stream where `ends`."""
    answer = Answer(frozenset({"old"}), response_bytes_max, fresh_id=lambda: "fresh")
    answer.sent = True
    lift = Lift(
        answer,
        exchange=EXCHANGE,
        upstream="tiny",
        secret=SECRET,
        response_bytes_max=response_bytes_max,
        body_bytes_max=body_bytes_max,
    )
    for piece in (*pieces, b"") if ends else pieces:
        if not lift.is_over:
            lift.feed(piece)
            while lift.step():
                pass
    return answer, lift


def said_by(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def failure(answer: Answer) -> tuple[str | None, Usage | None]:
    assert answer.ended is not None
    assert answer.ended.stop_reason is None
    return answer.ended.kind, answer.ended.usage


@given(st.lists(st.integers(0, len(GOOD)), max_size=8))
def test_any_split_of_the_bytes_gives_the_same_answer(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(GOOD)]
    pieces = [GOOD[begin:end] for begin, end in pairwise(places) if begin < end]
    answer, lift = lifted(*pieces)
    assert (said_by(answer), answer.ended) == ("Hello there", Ended(stop_reason="end_turn", usage=USED))
    assert (lift.has_answered, lift.broke) == (True, None)


def test_each_kind_of_event_keeps_its_place_and_a_state_is_wrapped() -> None:
    state = event({"ReasoningState": {"state": b"\x00\xff"}})
    answer, _ = lifted(state, text("a"), event(golden.call("c1")), event(golden.call("old", "look", "")), outcome())
    first, second, third, fourth = answer.events()
    assert first.reasoning_state
    assert first.reasoning_state.state == wrapped(b"\x00\xff", "tiny") == b'{"k":"process","m":"tiny","s":"AP8=","v":1}'
    assert second.text_delta
    assert third.tool_call
    assert third.tool_call.call_id == "c1"
    assert fourth.tool_call
    assert (fourth.tool_call.call_id, fourth.tool_call.arguments) == ("fresh", "{}")
    assert answer.notes == ["call_id_replaced"]


@pytest.mark.parametrize(
    "written",
    [
        b"Traceback (most recent call last):\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        bytes(4),
        framed(b"\xc1"),
        framed(b"\x80"),
        framed(wire.write({"schema_id": "gamecult.model.connector_request.v1"})),
        outcome(golden.completed("so it seems")),
        outcome(golden.completed(usage={**golden.USAGE, "output_tokens": -1})),
        outcome(golden.completed(usage={"input_tokens": 3})),
        outcome(exchange=EXCHANGE + 1),
        event(golden.call("c1", "two words")),
        event(golden.call("c1", "look", "[]")),
        event(golden.call("c1", "look", '{"a":1,"a":2}')),
    ],
)
def test_garbage_fails_as_provider_with_what_came_before_it_and_no_usage(written: bytes) -> None:
    answer, lift = lifted(text("Hello"), written, outcome())
    assert failure(answer) == ("provider", None)
    assert said_by(answer) == "Hello"
    assert lift.broke
    assert not lift.has_answered


def test_a_death_before_the_outcome_is_unavailable_and_nothing_is_known_of_its_usage() -> None:
    for cut in (0, 3, len(GOOD) - 1):
        answer, lift = lifted(*([GOOD[:cut]] if cut else []), ends=True)
        assert failure(answer) == ("unavailable", None)
        assert lift.broke == "the connector's process ended before its outcome"


def test_a_flood_is_a_result_size_whichever_bound_it_meets_first() -> None:
    declared, lift = lifted(text("Hello"), (1000 + 65_537).to_bytes(4, "big"))
    assert failure(declared) == ("result_size", None)
    assert lift.broke
    answer, lift = lifted(*[text("")] * 20, body_bytes_max=1000)
    assert failure(answer) == ("result_size", None)
    assert lift.broke == "the connector's process wrote more than 1000 bytes"
    with pytest.raises(ResponseTooLarge):
        lifted(text("y" * 1001))
    many, _ = lifted(*[event({"ReasoningState": {"state": b""}})] * (BLOCKS_MAX + 1), response_bytes_max=100_000)
    assert failure(many) == ("provider", None)


@pytest.mark.parametrize(
    "more", [outcome(), outcome(golden.failed()), text("and"), b"x"], ids=["same", "other", "t", "x"]
)
def test_the_first_outcome_stands_and_a_child_that_goes_on_is_done_with(more: bytes) -> None:
    answer, lift = lifted(GOOD + more)
    assert answer.ended == Ended(stop_reason="end_turn", usage=USED)
    assert said_by(answer) == "Hello there"
    assert (lift.has_answered, lift.broke) == (True, "the connector's process went on after its outcome")


def test_what_is_said_of_an_exchange_that_is_over_touches_no_other() -> None:
    late = text("late", EXCHANGE - 1) + outcome(golden.failed(), EXCHANGE - 1)
    answer, lift = lifted(text("Hello"), late, text(" there") + outcome())
    assert (said_by(answer), answer.ended) == ("Hello there", Ended(stop_reason="end_turn", usage=USED))
    assert lift.broke == "the connector's process spoke again of exchange 6, which is over"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (golden.failed("rate_limited", usage=golden.ZEROS), ("rate_limited", v.NOTHING_USED)),
        (golden.failed("unavailable", usage=golden.USAGE), ("unavailable", USED)),
        (golden.failed("timeout"), ("timeout", None)),
    ],
)
def test_a_failure_has_the_usage_that_the_child_says(said: dict[str, Any], expected: Any) -> None:
    answer, lift = lifted(outcome(said))
    assert failure(answer) == expected
    assert (lift.has_answered, lift.broke) == (True, None)


def test_a_message_never_shows_the_credential_and_is_one_short_line() -> None:
    answer, _ = lifted(outcome(golden.failed(message=f"bad key {SECRET}\n\x1b[31m" + "y" * 2000)))
    assert answer.ended is not None
    assert answer.ended.message.startswith("bad key <credential>")
    assert answer.ended.message.isprintable()
    assert len(answer.ended.message) <= 1024


def test_a_claim_is_carried_a_part_above_its_total_is_clamped_and_an_id_is_cut() -> None:
    answer, _ = lifted(
        outcome(
            golden.completed(usage={**golden.USAGE, "reasoning_tokens": 128}, provider_response_id="m" * 300),
            cost_micro_usd=2**64 - 1,
        )
    )
    assert answer.ended is not None
    assert answer.ended.claimed_cost_micro_usd == 2**64 - 1
    assert answer.ended.usage is not None
    assert answer.ended.usage.reasoning_tokens == 127
    assert answer.ended.provider_response_id == "m" * 256
    assert answer.notes == ["usage_clamped"]


# --- what is asked ----------------------------------------------------------------------------------------------


@given(st.binary(max_size=40), st.text(max_size=5))
def test_a_state_comes_back_as_the_child_gave_it_and_to_no_other_model(opaque: bytes, upstream: str) -> None:
    out = build.state(opaque=wrapped(opaque, upstream))
    lowered = lower(build.request(out, build.text()), upstream)
    [first, _] = lowered.body.input
    assert first.reasoning_state.state == opaque
    assert lowered.states_dropped == 0
    assert lower(build.request(out, build.text()), upstream + "x").states_dropped == 1


@pytest.mark.parametrize(
    "opaque",
    [
        b'{"k":"process","m":"tiny","s":"AP8=","v":1} ',
        b'{"v":1,"k":"process","m":"tiny","s":"AP8="}',
        b'{"k":"process","m":"tiny","s":"AP8","v":1}',
        b'{"k":"process","m":"tiny","s":[0],"v":1}',
        b'{"k":"process","m":"tiny","s":"AP8=","v":2}',
        b'{"k":"process","m":"tiny","s":"AP8=","v":1,"x":1}',
        b'{"k":"openai.reasoning","m":"tiny","v":1}',
        b"\xff",
        b"",
    ],
)
def test_a_state_that_is_not_byte_for_byte_ours_is_dropped(opaque: bytes) -> None:
    assert lower(build.request(build.state(opaque=opaque), build.text()), "tiny").states_dropped == 1


def test_a_request_that_no_frame_can_carry_is_rejected() -> None:
    frame_bytes = len(encoded(build.request(), "tiny", exchange=2**64 - 1, deadline_ms=2**64 - 1))
    room = FRAME_BYTES_LIMIT - frame_bytes - 4  # the longer header of a long text
    assert lower(build.request(instructions="y" * room), "tiny").body
    with pytest.raises(Rejected, match="16777215"):
        lower(build.request(instructions="y" * (room + 1)), "tiny")


CALLED = {"ToolCall": {"call_id": "c1", "name": "look", "arguments": "{}"}}


def stopped(reason: str) -> bytes:
    used = {"input_tokens": 1, "cache_read_tokens": 0, "cache_write_tokens": 0, "output_tokens": 1}
    return outcome({"Completed": {"stop_reason": reason, "usage": used}})


def test_f8_a_turn_with_a_call_that_ends_plainly_stopped_for_the_call() -> None:
    answer, _ = lifted(event(CALLED), stopped("end_turn"))
    assert answer.ended is not None
    assert answer.ended.stop_reason == "tool_use"


def test_a_turn_that_stopped_for_a_call_and_made_none_is_a_failure() -> None:
    answer, lift = lifted(text("Hi"), stopped("tool_use"))
    assert answer.ended is not None
    assert (answer.ended.kind, answer.ended.usage) == ("provider", None)
    assert lift.broke
