"""From Messages bytes to an answer: blocks in their order, ends, usage, errors; split anywhere, cut anywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from kit.messages_streams import (
    STOP,
    USED,
    begun,
    body_of,
    called,
    closed,
    document,
    event,
    expected,
    finished,
    opened,
    piece,
    said,
    stopped,
    thought,
)
from kit.stream_cases import RECORDED, arrivals, calls_of, states_of, text_of, used

from sidecar.connectors import states
from sidecar.connectors.anthropic_messages_blocks import STATE_KIND
from sidecar.connectors.anthropic_messages_lift import STOP_REASONS, Lift
from sidecar.connectors.anthropic_messages_pieces import OPEN_BLOCKS_MAX
from sidecar.connectors.promise import Answer, Ended, ResponseTooLarge
from sidecar.contract.values import Usage

PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def lift_of(answer: Answer, *, document_bytes_max: int = 1_000_000, retention: Any = None) -> Lift:
    return Lift(answer, str, upstream="tiny", document_bytes_max=document_bytes_max, retention=retention)


def lifted(*pieces: bytes, response_bytes_max: int = 1_000_000, **changes: Any) -> Answer:
    answer = Answer(frozenset(), response_bytes_max, fresh_id=lambda: "call_fresh")
    answer.sent = True
    lift = lift_of(answer, **changes)
    for each in pieces:
        lift.feed(each)
    lift.close()
    return answer


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def kinds_of(answer: Answer) -> str:
    """The events in their order, a letter each."""
    return "".join("t" if said.text_delta else "c" if said.tool_call else "s" for said in answer.events())


def blocks_of(answer: Answer) -> list[dict[str, Any]]:
    blocks = []
    for state in states_of(answer):
        members = states.decode(state, STATE_KIND, "tiny")
        assert members is not None
        blocks.append(members["block"])
    return blocks


# --- whole streams ----------------------------------------------------------------------------------------------


def check(answer: Answer, wanted: dict[str, Any]) -> None:
    assert hashlib.sha256(text_of(answer).encode()).hexdigest() == wanted["text_sha256"]
    assert calls_of(answer) == [tuple(call) for call in wanted.get("tool_calls", ())]
    assert len(states_of(answer)) == wanted.get("reasoning_states", 0)
    ended = end(answer)
    assert (ended.stop_reason, ended.kind) == (wanted.get("stop_reason"), wanted.get("kind"))
    assert ended.usage == (Usage(**wanted["usage"]) if wanted["usage"] else None)


@pytest.mark.parametrize("path", expected(), ids=lambda path: Path(path).stem)
def test_a_stream_is_lifted_as_expected_however_it_arrives(path: str) -> None:
    """Whole, one byte at a time and so inside characters, with each line end, with comments between the lines."""
    body = body_of(path)
    for pieces in arrivals(body) if not path.endswith(".json") else ([body], [body[:9], body[9:]]):
        check(lifted(*pieces), expected()[path])


@pytest.mark.parametrize("path", expected(), ids=lambda path: Path(path).stem)
def test_a_stream_cut_at_any_byte_is_a_failure_until_its_stop_reason_has_come(path: str) -> None:
    body, wanted = body_of(path), expected()[path]
    terminal = body.find(b'"type":"message_delta"')
    terminal = len(body) - 3 if terminal < 0 else body.find(b"\n", terminal)
    for cut in range(len(body)):
        ended = end(lifted(body[:cut]))
        if cut < terminal:
            assert (ended.kind, ended.usage) == ("unavailable", None), cut
        elif "failed" not in wanted:
            assert ended.stop_reason in (wanted["stop_reason"], None), cut
            assert ended.usage == (Usage(**wanted["usage"]) if ended.stop_reason else None)


def test_every_recorded_messages_stream_was_read() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    recorded = {path.name for path in RECORDED.glob("*anthropic*")}
    assert len(recorded) >= 8
    assert recorded == {Path(path).name for path in expected() if Path(path).parent == RECORDED}


# --- blocks -----------------------------------------------------------------------------------------------------


def test_a_plain_answer_has_its_text_usage_and_id_and_nothing_is_read_behind_its_stop() -> None:
    answer = lifted(begun(), PING, said("Hel", "", "lo"), finished(), said("more"), event("error", error={}))
    assert text_of(answer) == "Hello"
    assert end(answer) == Ended(stop_reason="end_turn", usage=used(11, 3), provider_response_id="msg_1")


def test_blocks_are_given_on_in_their_order() -> None:
    stream = [thought(0, "hm"), said("a", index=1), called(2, "c1", "look", "{}"), thought(3, "so"), said("b", index=4)]
    assert kinds_of(lifted(begun(), *stream, called(5, "c2", "look", "{}"), finished("tool_use"))) == "stcstc"


def test_f11_text_and_calls_that_overlap_keep_their_own_pieces_and_the_order_of_their_begins() -> None:
    def arguments(index: int, text: str) -> bytes:
        return piece(index, "input_json_delta", partial_json=text)

    def text(text: str) -> bytes:
        return piece(0, "text_delta", text=text)

    answer = lifted(
        begun(), opened(0, "text", text="We"), opened(1, "tool_use", id="A", name="look", input={}), text("ll, "),
        arguments(1, '{"t":'), opened(2, "tool_use", id="B", name="go", input={}), arguments(2, '{"t":"B'), text("so"),
        arguments(1, '"A"}'), arguments(2, '"}'), closed(2), closed(1), text("."), closed(0), finished("tool_use"),
    )  # fmt: skip
    assert text_of(answer) == "Well, so."
    assert calls_of(answer) == [("A", "look", '{"t":"A"}'), ("B", "go", '{"t":"B"}')]
    assert kinds_of(answer) == "tcc"


def test_the_first_open_block_speaks_at_once_and_what_stands_behind_it_waits() -> None:
    heard: list[str] = []
    answer = Answer(
        frozenset(), 1000, on_event=lambda _, event: heard.append(event.text_delta.text if event.text_delta else "-")
    )
    lift = lift_of(answer)
    for each in (begun(), opened(0, "thinking"), opened(1, "text"), piece(1, "text_delta", text="late")):
        lift.feed(each)
    assert heard == []
    lift.feed(closed(0))
    assert heard == ["-", "late"]
    lift.feed(piece(1, "text_delta", text="now"))
    assert heard[-1] == "now"


@pytest.mark.parametrize("arguments", [(), ("",), ("", ""), (" ",), ("{}",)])
def test_f5_a_call_without_arguments_has_an_empty_object(arguments: tuple[str, ...]) -> None:
    answer = lifted(begun(), called(0, "c1", "look", *arguments), finished("tool_use"))
    assert calls_of(answer) == [("c1", "look", "{}")]


@pytest.mark.parametrize(
    ("whole", "arguments"),
    [({"at": "北", "n": 1.0}, '{"at":"北","n":1.0}'), ('{"a": 1}', '{"a": 1}'), (None, "{}")],
)
def test_arguments_that_stand_whole_in_the_blocks_begin_are_taken(whole: Any, arguments: str) -> None:
    answer = lifted(begun(), opened(0, "tool_use", id="c1", name="look", input=whole), closed(0), finished("tool_use"))
    assert calls_of(answer) == [("c1", "look", arguments)]


def test_pieces_of_arguments_win_over_what_stood_in_the_blocks_begin() -> None:
    begin = opened(0, "tool_use", id="c1", name="look", input={"a": 1})
    stream = begin + piece(0, "input_json_delta", partial_json='{"a":2}') + closed(0)
    assert calls_of(lifted(begun(), stream, finished("tool_use"))) == [("c1", "look", '{"a":2}')]


@pytest.mark.parametrize(
    "arguments", ['{"a":', "[]", "7", "null", '{"a":1,"a":2}', '{"a":NaN}', '{"a":1}{"b":2}', "\ud83d"]
)
def test_f6_broken_arguments_in_a_turn_that_ended_by_itself_fail_with_the_usage(arguments: str) -> None:
    for reason in ("end_turn", "tool_use", "stop_sequence"):
        answer = lifted(begun(), said("x"), called(1, "c1", "look", arguments), finished(reason))
        assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))
        assert (kinds_of(answer), text_of(answer)) == ("t", "x")


@pytest.mark.parametrize("whole", [[], [1], 7, True, "x", {"a": "\ud83d"}])
def test_arguments_in_the_blocks_begin_that_are_no_object_fail(whole: Any) -> None:
    answer = lifted(begun(), opened(0, "tool_use", id="c1", name="look", input=whole), closed(0), finished("tool_use"))
    assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))


@pytest.mark.parametrize("name", ["", "two words", "x" * 257, 7, None])
def test_a_call_without_a_usable_name_fails(name: Any) -> None:
    answer = lifted(begun(), called(0, "c1", name, "{}"), finished("tool_use"))
    assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))


@pytest.mark.parametrize("reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_a_cut_drops_the_call_that_is_not_whole_and_keeps_those_that_are(reason: str) -> None:
    half = opened(1, "tool_use", id="b", name="look") + piece(1, "input_json_delta", partial_json='{"n":')
    for cut in (half, half + closed(1)):
        answer = lifted(begun(), called(0, "a", "look", '{"n":1}'), cut, finished(reason))
        assert calls_of(answer) == [("a", "look", '{"n":1}')]
        assert end(answer) == Ended(stop_reason=STOP_REASONS[reason], usage=used(11, 3), provider_response_id="msg_1")


def test_a_call_that_a_cut_left_without_arguments_is_dropped_although_its_block_was_ended() -> None:
    assert calls_of(lifted(begun(), called(0, "a", "look"), finished("max_tokens"))) == []
    assert calls_of(lifted(begun(), called(0, "a", "look"), said("x", index=1), finished("max_tokens"))) == [
        ("a", "look", "{}")
    ], "the model went on behind it, so it was whole"


def test_a_turn_that_ended_by_itself_is_whole_also_where_a_server_ends_no_block() -> None:
    stream = opened(0, "text") + piece(0, "text_delta", text="x") + opened(1, "tool_use", id="a", name="look")
    answer = lifted(begun(), stream, piece(1, "input_json_delta", partial_json="{}"), finished("tool_use"))
    assert (text_of(answer), calls_of(answer)) == ("x", [("a", "look", "{}")])


def test_text_without_a_blocks_begin_is_text_and_arguments_without_one_fail() -> None:
    assert text_of(lifted(begun(), piece(0, "text_delta", text="x"), finished())) == "x"
    answer = lifted(begun(), piece(0, "input_json_delta", partial_json="{}"), finished())
    assert (end(answer).kind, end(answer).usage) == ("provider", None)


def test_events_without_an_index_are_of_one_block_at_a_time() -> None:
    stream = b"".join(
        (opened(0, "text"), piece(0, "text_delta", text="a"), closed(0), called(0, "c1", "look", "{}"))
    ).replace(b'"index": 0, ', b"")
    answer = lifted(begun(), stream, finished("tool_use"))
    assert (text_of(answer), calls_of(answer)) == ("a", [("c1", "look", "{}")])


def test_blocks_and_pieces_and_events_that_are_not_known_are_passed_over() -> None:
    odd = [
        event("unheard_of", x=1), opened(0, "server_tool_use", id="s", name="search", input={}),
        piece(0, "input_json_delta", partial_json='{"q"'), closed(0), opened(1, "text"),
        piece(1, "citations_delta", citation={}), piece(1, "unheard_of"), piece(1, "text_delta", text="x"), closed(1),
        closed(9), opened(2, "compaction", content="..."), closed(2),
        event("content_block_start", index=3, content_block=7), event("content_block_delta", index=3, delta=[]),
        event("content_block_start", index=4, content_block={"type": ["text"]}),
        event("content_block_delta", index=5),
    ]  # fmt: skip
    answer = lifted(event("before"), begun(), *odd, finished())
    assert (kinds_of(answer), text_of(answer), end(answer).stop_reason) == ("t", "x", "end_turn")


@pytest.mark.parametrize("text", [None, 7, "", []])
def test_a_piece_that_is_no_text_is_nothing(text: Any) -> None:
    assert text_of(lifted(begun(), said("a"), said(text, "b", index=1), finished())) == "ab"


def test_half_a_character_waits_for_its_other_half_and_alone_is_a_failure() -> None:
    assert text_of(lifted(begun(), said("a\ud83d", "", "\ude00b"), finished())) == "a\U0001f600b"
    for halves in (("\ude00",), ("\ud83dx",), ("x\ud83d",)):
        assert end(lifted(begun(), said(*halves), finished())).kind == "provider"
    answer = lifted(begun(), said("x\ud83d"), finished("max_tokens"))
    assert (text_of(answer), end(answer).stop_reason) == ("x", "max_output_tokens")


# --- reasoning --------------------------------------------------------------------------------------------------


def test_h1_thinking_and_its_signature_in_pieces_become_one_state_of_exactly_the_block() -> None:
    stream = opened(0, "thinking", thinking="", signature="") + piece(0, "thinking_delta", thinking="Let me ")
    stream += piece(0, "thinking_delta", thinking="see 北.") + piece(0, "signature_delta", signature="Ev")
    stream += piece(0, "signature_delta", signature="MC==") + closed(0)
    answer = lifted(begun(), stream, called(1, "c1", "look", "{}"), finished("tool_use"))
    assert blocks_of(answer) == [{"type": "thinking", "thinking": "Let me see 北.", "signature": "EvMC=="}]
    assert states_of(answer) == [
        '{"block":{"signature":"EvMC==","thinking":"Let me see 北.","type":"thinking"},'
        '"k":"anthropic.thinking","m":"tiny","v":1}'.encode()
    ]


def test_a_block_of_thinking_that_was_left_out_keeps_its_signature() -> None:
    stream = opened(0, "thinking", thinking="", signature="") + piece(0, "signature_delta", signature="Ev") + closed(0)
    assert blocks_of(lifted(begun(), stream, said("x", index=1), finished())) == [
        {"type": "thinking", "thinking": "", "signature": "Ev"}
    ]


def test_h3_redacted_thinking_is_whole_in_its_begin_and_keeps_its_order() -> None:
    first, second = (opened(at, "redacted_thinking", data=each) + closed(at) for at, each in ((0, "Eqk="), (2, "Etg=")))
    stream = [first, thought(1, "hm"), second]
    blocks = blocks_of(lifted(begun(), *stream, said("x", index=3), finished()))
    assert [block.get("data") for block in blocks] == ["Eqk=", None, "Etg="]
    assert blocks[0] == {"type": "redacted_thinking", "data": "Eqk="}
    broken = lifted(begun(), opened(0, "redacted_thinking"), closed(0), finished())
    assert (end(broken).kind, end(broken).usage) == ("provider", used(11, 3))


def test_thinking_that_a_cut_left_open_is_dropped() -> None:
    stream = opened(0, "thinking") + piece(0, "thinking_delta", thinking="hm")
    answer = lifted(begun(), stream, finished("max_tokens"))
    assert (answer.events(), end(answer).stop_reason) == ((), "max_output_tokens")


# --- ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "stop"), [pair for pair in STOP_REASONS.items() if pair[0] != "tool_use"])
def test_g1_every_known_stop_reason_has_its_own(reason: str, stop: str) -> None:
    assert end(lifted(begun(), said("x"), finished(reason))).stop_reason == stop


@pytest.mark.parametrize("reason", ["pause_turn", "compaction", "a_future_one", 7, True, [], {}, "x" * 2000])
def test_g1_an_unknown_stop_reason_fails_and_is_settled_from_its_usage(reason: Any) -> None:
    ended = end(lifted(begun(), said("x"), finished(reason)))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))


def test_a_message_that_stops_without_a_reason_fails() -> None:
    assert end(lifted(begun(), said("x"), STOP)).usage is None
    ended = end(lifted(begun(), said("x"), finished(None)))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))


def test_f8_a_call_with_a_normal_stop_is_tool_use_and_a_stop_for_none_is_nonsense() -> None:
    assert end(lifted(begun(), called(0, "a", "look", "{}"), finished("end_turn"))).stop_reason == "tool_use"
    ended = end(lifted(begun(), said("x"), finished("tool_use")))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))


def test_a_refusal_before_any_output_has_the_usage_that_was_reported() -> None:
    ended = end(lifted(begun(), stopped("refusal", {**USED, "output_tokens": 5}), STOP))
    assert (ended.stop_reason, ended.usage) == ("refusal", used(11, 5))


def test_g10_a_budget_spent_on_thinking_ends_well_without_text() -> None:
    details = {**USED, "output_tokens_details": {"thinking_tokens": 3}}
    answer = lifted(begun(), opened(0, "thinking"), finished("max_tokens", details))
    assert (end(answer).stop_reason, end(answer).usage) == ("max_output_tokens", used(11, 3, reasoning=3))


def test_e10_an_end_before_the_stop_reason_is_never_end_turn_and_one_behind_it_is_good() -> None:
    for close in (b"", b"data: [DONE]\n\n"):
        ended = end(lifted(begun(), said("The answer"), close))
        assert (ended.kind, ended.usage) == ("unavailable", None)
        assert end(lifted(begun(), said("The answer"), stopped(), close)).usage == used(11, 3)


def test_all_but_the_end_is_known_once_stop_and_usage_came() -> None:
    answer = Answer(frozenset(), 1000)
    lift = lift_of(answer)
    lift.feed(begun() + said("x"))
    lift.settle()
    assert (answer.ended, lift.has_all_but_the_end) == (None, False)
    lift.feed(stopped())
    assert (answer.ended, lift.has_all_but_the_end) == (None, True)
    lift.settle()
    assert end(answer).usage == used(11, 3)


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error"])
def test_e6_g5_an_error_behind_text_is_unavailable_of_unknown_usage_and_its_text_is_kept(kind: str) -> None:
    error = event("error", error={"details": None, "type": kind, "message": "Overloaded"}, request_id="req_1")
    answer = lifted(begun(), opened(0, "text"), piece(0, "text_delta", text="Part"), error, finished())
    assert (end(answer).kind, end(answer).message, end(answer).usage) == ("unavailable", "Overloaded", None)
    assert text_of(answer) == "Part"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "rate_limit_error"}, "rate_limited"),
        ({"type": "rate_limit_error", "details": {"error_code": "contract_spend_limit_reached"}}, "authentication"),
        ({"type": "invalid_request_error"}, "invalid_request"),
        ({"type": "timeout_error"}, "timeout"),
        ({"code": 400, "type": "exceed_context_size_error"}, "invalid_request"),
        ("odd", "provider"),
        (None, "provider"),
    ],
)
def test_an_error_is_found_in_a_stream_and_in_a_document_by_its_own_word(error: Any, kind: str) -> None:
    body = {"type": "error", "error": error}
    assert end(lifted(event("error", error=error))).kind == kind
    assert end(lifted(json.dumps(body).encode())).kind == kind
    if error:
        assert end(lifted(json.dumps({"error": error}).encode())).kind == kind


# --- usage ------------------------------------------------------------------------------------------------------


def test_an_error_event_without_an_error_says_what_stands_beside_it() -> None:
    assert end(lifted(event("error", message="gone"))).message == "gone"


def test_counts_overwrite_each_other_and_are_never_added() -> None:
    start = begun(
        {"input_tokens": 43, "cache_creation_input_tokens": 7, "cache_read_input_tokens": 5, "output_tokens": 8}
    )
    delta = {"input_tokens": 61, "cache_creation_input_tokens": None, "output_tokens": 20}
    more = stopped(None, {"output_tokens": 9})
    assert end(lifted(start, said("x"), more, finished(usage=delta))).usage == used(61, 20, read=5, write=7)


def test_a_second_start_keeps_what_has_come_and_takes_the_newer_counts() -> None:
    again = begun({"input_tokens": 50, "output_tokens": 2}, id="msg_2")
    answer = lifted(begun(), said("a"), again, said("b"), finished(usage={"output_tokens": 4}))
    assert (text_of(answer), end(answer).usage) == ("ab", used(50, 4))
    assert end(answer).provider_response_id == "msg_1"


@pytest.mark.parametrize("usage", [None, {}, {"output_tokens": None}, {"input_tokens": 11}, [], 7])
def test_the_count_of_output_of_a_messages_start_is_not_final(usage: Any) -> None:
    ended = end(lifted(begun(), said("x"), finished(usage=usage)))
    assert (ended.stop_reason, ended.usage) == ("end_turn", None), "what it costs is for the connector's usage policy"


def test_a_count_that_output_follows_is_not_final() -> None:
    answer = lifted(begun(), stopped(None, {"output_tokens": 1}), said("x"), finished(usage=None))
    assert end(answer).usage is None
    answer = lifted(begun(), said("x"), stopped(None, {"output_tokens": 3}), finished(usage=None))
    assert end(answer).usage == used(11, 3)


def test_reasoning_is_inside_output_and_clamped_to_it() -> None:
    for thinking, counted, notes in ((31, 31, []), (200, 136, ["usage_clamped"]), (None, None, [])):
        usage = {"input_tokens": 51, "output_tokens": 136, "output_tokens_details": {"thinking_tokens": thinking}}
        answer = lifted(begun(), said("x"), finished(usage=usage))
        assert (end(answer).usage, answer.notes) == (used(51, 136, reasoning=counted), notes)


@pytest.mark.parametrize("count", [-1, 1.5, "3", True, 2**64, []])
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cache_read_input_tokens"])
def test_a_count_that_is_none_makes_the_usage_unusable_and_keeps_the_events(name: str, count: Any) -> None:
    answer = lifted(begun(), said("x"), called(1, "a", "look", "{}"), finished("tool_use", {**USED, name: count}))
    assert (end(answer).kind, end(answer).usage, kinds_of(answer)) == ("provider", None, "tc")


def test_without_a_count_of_input_the_usage_is_unusable() -> None:
    assert end(lifted(begun({}), said("x"), finished(usage={"output_tokens": 1}))).kind == "provider"


@pytest.mark.parametrize(
    ("retention", "notes"), [(None, ["cache_kept_longer"]), ("short", ["cache_kept_longer"]), ("long", [])]
)
def test_a_longer_write_than_was_asked_for_is_noted_for_its_price_is_another(retention: Any, notes: list[str]) -> None:
    split = {"ephemeral_5m_input_tokens": 6, "ephemeral_1h_input_tokens": 4}
    usage = {**USED, "cache_creation_input_tokens": 10, "cache_creation": split}
    answer = lifted(begun(usage), said("x"), finished(usage={"output_tokens": 3}), retention=retention)
    assert (end(answer).usage, answer.notes) == (used(11, 3, write=10), notes)


def test_d20_more_than_one_model_inside_an_answer_is_flagged() -> None:
    rounds = {**USED, "iterations": [{"type": "message", "input_tokens": 1}, {"type": "fallback_message"}]}
    assert lifted(begun(), said("x"), finished(usage=rounds)).notes == ["provider_fallback"]
    assert lifted(begun(), opened(0, "fallback"), said("x", index=1), finished()).notes == ["provider_fallback"]
    assert lifted(begun(model="tiny"), begun(model="other"), finished()).notes == ["provider_fallback", "other_model"]
    assert lifted(begun(), said("x"), finished(usage={**USED, "iterations": None})).notes == []


def test_d15_a_dated_snapshot_is_the_model_that_was_asked_for_and_another_family_is_noted() -> None:
    assert lifted(begun(model="tiny-20251001"), said("x"), finished()).notes == []
    assert lifted(begun(model="claude-haiku-4-5"), said("x"), finished()).notes == ["other_model"]


def test_thinking_that_the_provider_did_not_read_is_noted() -> None:
    dropped = [{"type": "thinking_dropped", "path": "messages.2.content.0", "reason": "prefix_binding_mismatch"}]
    for stream in (
        begun(input_transformations=dropped) + said("x") + finished(),
        begun() + said("x") + stopped(input_transformations=dropped) + STOP,
        document({"type": "text", "text": "x"}, input_transformations=dropped),
    ):
        assert lifted(stream).notes == ["state_dropped_upstream"]
    assert lifted(begun(input_transformations=[]), said("x"), finished()).notes == []


# --- documents and bounds ---------------------------------------------------------------------------------------


def test_d4_an_answer_that_was_not_streamed_is_lifted_as_the_stream_would_be() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "Eqk="},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "door"}},
    ]
    stream = [
        thought(0, "hm"), opened(1, "redacted_thinking", data="Eqk="), closed(1), said("Hi", index=2),
        called(3, "c1", "look", '{"at":"door"}'),
    ]  # fmt: skip
    whole, streamed = lifted(document(*content, reason="tool_use")), lifted(begun(), *stream, finished("tool_use"))
    assert (whole.events(), whole.ended) == (streamed.events(), streamed.ended)


@pytest.mark.parametrize("body", [b"{}", b'{"type":"message"}', b'{"type":"message","content":7}', b"[]"])
def test_a_document_that_is_no_answer_fails(body: bytes) -> None:
    assert (end(lifted(body)).kind, end(lifted(body)).usage) == ("provider", None)


def test_an_error_of_null_beside_an_answer_is_none() -> None:
    assert end(lifted(document({"type": "text", "text": "x"}, error=None))).stop_reason == "end_turn"


def test_open_blocks_are_bounded_in_number_and_in_bytes() -> None:
    waiting = b"".join(opened(at, "thinking") for at in range(OPEN_BLOCKS_MAX + 1))
    assert end(lifted(begun(), waiting)).kind == "provider"
    pieces = piece(0, "thinking_delta", thinking="x" * 600) * 3
    assert end(lifted(begun(), opened(0, "thinking"), pieces, document_bytes_max=1500)).kind == "result_size"
    begins = b"".join(opened(at, "thinking", thinking="x" * 600) for at in range(3))
    assert end(lifted(begun(), begins, document_bytes_max=1500)).kind == "result_size"


def test_an_answer_above_its_bound_is_too_large_also_where_it_waited_for_its_end() -> None:
    with pytest.raises(ResponseTooLarge):
        lifted(begun(), said("x" * 11), response_bytes_max=10)
    with pytest.raises(ResponseTooLarge):
        lifted(begun(), called(0, "a", "look", '{"a":"long"}'), response_bytes_max=10)
    answer = lifted(
        begun(), opened(0, "text"), called(1, "a", "look", '{"a":"long"}'), finished(), response_bytes_max=10
    )
    assert (end(answer).kind, end(answer).usage) == ("result_size", used(11, 3))


def test_ids_that_are_empty_or_used_twice_are_replaced_and_noted() -> None:
    answer = lifted(begun(), called(0, "a", "look"), called(1, "a", "look"), finished("tool_use"))
    assert [call[0] for call in calls_of(answer)] == ["a", "call_fresh"]
    assert answer.notes == ["call_id_replaced"]


def test_counts_without_a_stop_reason_are_no_final_ones_where_an_error_follows() -> None:
    running = event("message_delta", delta={}, usage={"output_tokens": 2})
    failed = event("error", error={"type": "overloaded_error", "message": "busy"})
    ended = lifted(begun(), said("Hi"), running, failed).ended
    assert ended is not None
    assert (ended.kind, ended.usage) == ("unavailable", None)


def test_a_document_of_very_many_blocks_is_refused_before_any_is_made() -> None:
    ended = lifted(document(*[{}] * 5000)).ended
    assert ended is not None
    assert (ended.kind, "4096 blocks" in ended.message) == ("provider", True)
