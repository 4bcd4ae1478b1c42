"""From Responses bytes to an answer: text, calls, states, ends, errors; and servers that say less than OpenAI."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.responses_events import (
    USED,
    added,
    arguments,
    call,
    calls_of,
    completed,
    done,
    end,
    event,
    incomplete,
    lifted,
    message,
    said,
    states_of,
    text_of,
    used,
)

from sidecar.connectors.openai_responses_items import ITEMS_MAX
from sidecar.connectors.openai_responses_lift import Lift
from sidecar.connectors.promise import Answer, Ended, ResponseTooLarge

REASONING = {"type": "reasoning", "id": "rs_1", "status": "completed", "summary": [], "encrypted_content": "gAAA=="}


# --- text -------------------------------------------------------------------------------------------------------


def test_text_usage_and_the_first_id_are_lifted_and_nothing_is_read_behind_the_end() -> None:
    created = event("response.created", response={"id": "resp_0", "status": "in_progress", "usage": None})
    answer = lifted(created, said("Hel"), said(""), said("lo"), completed(), said("more"), "data: [DONE]\n\n")
    assert text_of(answer) == "Hello"
    assert end(answer) == Ended(stop_reason="end_turn", usage=used(11, 3), provider_response_id="resp_0")


def test_events_and_items_of_kinds_that_are_not_known_are_nothing() -> None:
    odd = {"type": "web_search_call", "id": "ws", "status": "completed"}
    answer = lifted(
        event("response.web_search_call.searching", output_index=0, error="odd"),
        event("response.reasoning_summary_text.delta", delta="hm", output_index=0),
        event("response.reasoning_text.delta", delta="hm", output_index=0),
        event("response.future.delta", delta="hm", output_index=0),
        event("keepalive", sequence_number=4),
        added(odd), done(odd), said("x", 1), completed(output=[odd, message("x")]),
    )  # fmt: skip
    assert (text_of(answer), end(answer).stop_reason) == ("x", "end_turn")


@pytest.mark.parametrize("delta", [None, 7, [], {}])
def test_a_delta_that_is_no_text_is_nothing(delta: Any) -> None:
    odd = event("response.output_text.delta", delta=delta)
    assert text_of(lifted(odd, said("x"), completed())) == "x"


def test_a_message_without_deltas_is_said_when_it_is_done() -> None:
    assert text_of(lifted(done(message("Hi")), completed())) == "Hi"
    assert text_of(lifted(done({"type": "message", "content": "Hi"}), completed())) == "Hi"


def test_a_message_of_which_only_the_begin_came_in_deltas_is_said_to_its_end() -> None:
    assert text_of(lifted(said("He"), done(message("Hello")), completed())) == "Hello"
    assert text_of(lifted(said("He"), completed(output=[message("Hello")]))) == "Hello"


def test_a_message_that_is_done_twice_or_stands_in_the_response_too_is_said_once() -> None:
    one = message("Hi", id="m1")
    answer = lifted(added(one), said("Hi"), done(one), done(one), completed(output=[one]))
    assert text_of(answer) == "Hi"


def test_a_message_that_is_done_with_another_text_is_a_failure_that_is_charged_by_its_usage() -> None:
    answer = lifted(said("Yes"), done(message("No")), completed())
    assert (text_of(answer), end(answer).kind, end(answer).usage) == ("Yes", "provider", used(11, 3))
    assert "another text" in end(answer).message


@pytest.mark.parametrize(
    "item", [message(" Yes\n"), message(""), {"type": "message"}, {"type": "message", "content": [3]}]
)
def test_a_done_message_that_is_trimmed_or_says_no_text_changes_nothing(item: dict[str, Any]) -> None:
    answer = lifted(said("Yes "), done(item), completed())
    assert (text_of(answer).strip(), end(answer).stop_reason) == ("Yes", "end_turn")


def test_half_a_character_waits_for_its_other_half() -> None:
    answer = lifted(said("a\ud83d"), said("\ude00b"), done(message("a\U0001f600b")), completed())
    assert text_of(answer) == "a\U0001f600b"
    assert text_of(lifted(said("a\ud83d"), done(message("a\U0001f600b")), completed())) == "a\U0001f600b"


def test_half_a_character_alone_is_a_failure_unless_the_answer_was_cut_there() -> None:
    assert end(lifted(said("x\ud83d"), completed())).kind == "provider"
    assert end(lifted(said("\ude00"), completed())).kind == "provider"
    answer = lifted(said("x\ud83d"), done(message("x\ud83d", status="incomplete")), incomplete("max_output_tokens"))
    assert (text_of(answer), end(answer).stop_reason) == ("x", "max_output_tokens")


# --- phases and reasoning ---------------------------------------------------------------------------------------


def test_a_phase_is_a_state_in_front_of_the_text_of_its_message_and_of_no_other() -> None:
    answer = lifted(
        added(message("", phase="commentary"), 0), said("Wait. ", 0), said("Still. ", 0),
        done(message("Wait. Still. ", phase="commentary"), 0),
        added(message("", phase=None), 1), said("So.", 1),
        done(message("End.", phase="final_answer"), 2),
        completed(),
    )  # fmt: skip
    kinds = [
        e.text_delta.text if e.text_delta else json.loads(e.reasoning_state.state)["phase"] for e in answer.events()
    ]
    assert kinds == ["commentary", "Wait. Still. So.", "final_answer", "End."]


@pytest.mark.parametrize("phase", [None, "", 7, "Final Answer", "x" * 40, ["commentary"]])
def test_a_phase_that_is_no_word_is_none(phase: Any) -> None:
    assert states_of(lifted(added(message("", phase=phase)), said("x"), completed())) == []


def test_a_message_without_text_leaves_no_phase_behind() -> None:
    assert states_of(lifted(done(message("", phase="commentary")), completed())) == []


def test_reasoning_is_taken_from_the_done_item_without_its_id_and_status() -> None:
    early = {**REASONING, "encrypted_content": "early"}
    late = {**REASONING, "encrypted_content": "late"}
    answer = lifted(added(early), done(REASONING), done(call(), 1), completed(output=[late, call()]))
    kept = {"summary": [], "encrypted_content": "gAAA=="}
    assert states_of(answer) == [{"v": 1, "k": "openai.reasoning", "m": "tiny", "item": kept}]


def test_summary_and_raw_text_are_kept_part_by_part() -> None:
    summary = [{"type": "summary_text", "text": "hm", "extra": 1}]
    content = [{"type": "reasoning_text", "text": "raw", "extra": 1}]
    (state,) = states_of(lifted(done({**REASONING, "summary": summary, "content": content}), said("x", 1), completed()))
    assert state["item"]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert state["item"]["content"] == [{"type": "reasoning_text", "text": "raw"}]


@pytest.mark.parametrize(
    "change",
    [
        {"encrypted_content": None}, {"encrypted_content": ""}, {"encrypted_content": 7},
        {"encrypted_content": "\ud83d"}, {"summary": "hm"}, {"summary": [{"type": "odd", "text": "hm"}]},
        {"summary": [7]}, {"content": [{"type": "reasoning_text", "text": None}]}, {"status": "incomplete"},
    ],
)  # fmt: skip
def test_reasoning_that_cannot_be_replayed_is_no_state_and_no_fault(change: dict[str, Any]) -> None:
    answer = lifted(done({**REASONING, **change}), said("x", 1), completed())
    assert (states_of(answer), end(answer).stop_reason) == ([], "end_turn")


def test_states_that_the_provider_removed_are_noted_and_are_no_error() -> None:
    removed = [{"action": "removed", "reason": "model_mismatch"}, {"action": "kept"}, 7]
    answer = lifted(said("x"), completed(input_transformations=removed))
    assert (answer.notes, end(answer).stop_reason) == (["state_dropped_upstream"], "end_turn")
    for nothing in ([], None, [{"action": "kept"}], "odd"):
        assert lifted(said("x"), completed(input_transformations=nothing)).notes == []


# --- calls ------------------------------------------------------------------------------------------------------


def test_slots_go_by_the_index_though_every_event_brings_another_id() -> None:
    answer = lifted(
        added(call("", "A", id="1"), 0), added(call("", "B", id="2"), 1),
        arguments('{"t":"A"}', 0, item_id="3"), arguments('{"t":', 1, item_id="4"), arguments('"B"}', 1, item_id="5"),
        done({"type": "function_call", "call_id": "B", "name": "look", "id": "6"}, 1),
        done({"type": "function_call", "call_id": "A", "name": "look", "id": "7"}, 0),
        completed(),
    )  # fmt: skip
    assert calls_of(answer) == [("B", "look", '{"t":"B"}'), ("A", "look", '{"t":"A"}')]


def test_without_an_index_slots_go_by_the_items_id_and_may_overlap() -> None:
    answer = lifted(
        added(message("", id="m"), None), said("Hi", None, item_id="m"),
        added(call("", "A", id="fA"), None), added(call("", "B", id="fB"), None),
        arguments('{"t":"A"}', None, item_id="fA"), arguments('{"t":"B"}', None, item_id="fB"),
        done(message("Hi", id="m"), None),
        done(call("", "A", id="fA"), None), done(call("", "B", id="fB"), None),
        completed(output=[message("Hi", id="m"), call('{"t":"A"}', "A", id="fA"), call('{"t":"B"}', "B", id="fB")]),
    )  # fmt: skip
    assert text_of(answer) == "Hi"
    assert calls_of(answer) == [("A", "look", '{"t":"A"}'), ("B", "look", '{"t":"B"}')]


def test_without_an_index_and_an_id_pieces_belong_to_what_is_open() -> None:
    answer = lifted(
        added(message(""), None), said("Hi", None), done(message("Hi"), None),
        added(call("", "A"), None), arguments('{"t":"A"}', None), done(call("", "A"), None),
        added(call("", "B"), None), arguments('{"t":"B"}', None), done(call("", "B"), None),
        completed(),
    )  # fmt: skip
    assert text_of(answer) == "Hi"
    assert calls_of(answer) == [("A", "look", '{"t":"A"}'), ("B", "look", '{"t":"B"}')]


def test_one_index_for_every_item_mixes_nothing() -> None:
    answer = lifted(
        added(message("", id="m"), 0), said("Hi", 0, item_id="m"), done(message("Hi", id="m"), 0),
        added(call("", "A", id="a"), 0), arguments('{"t":"A"}', 0, item_id="a"), done(call("", "A", id="a"), 0),
        added(call("", "B", id="b"), 0), arguments('{"t":"B"}', 0, item_id="b"), done(call("", "B", id="b"), 0),
        completed(),
    )  # fmt: skip
    assert (text_of(answer), [made[2] for made in calls_of(answer)]) == ("Hi", ['{"t":"A"}', '{"t":"B"}'])


def test_items_that_are_only_done_at_one_index_and_without_ids_are_each_an_item() -> None:
    answer = lifted(done(call("{}", "A"), 0), done(call("{}", "B"), 0), completed())
    assert [made[0] for made in calls_of(answer)] == ["A", "B"]


def test_the_done_items_arguments_are_the_whole_string() -> None:
    answer = lifted(added(call("")), arguments('{"a"'), done(call('{"a":1}')), completed())
    assert calls_of(answer) == [("c1", "look", '{"a":1}')]
    whole = event("response.function_call_arguments.done", arguments='{"b":2}', output_index=0)
    assert calls_of(lifted(added(call("")), arguments('{"a"'), whole, done(call("")), completed()))[0][2] == '{"b":2}'


def test_arguments_that_came_as_an_object_are_written_as_its_text() -> None:
    assert calls_of(lifted(done(call({"a": "ü"})), completed())) == [("c1", "look", '{"a":"ü"}')]


def test_a_call_that_is_done_twice_is_made_once() -> None:
    one = call("{}", id="fc_1")
    assert len(calls_of(lifted(added(one), done(one), done(one), completed(output=[one])))) == 1


def test_a_call_that_no_event_finished_is_taken_from_its_pieces_or_from_the_response() -> None:
    for end_event in (completed(), completed(output=[call('{"a":1}')])):
        answer = lifted(added(call("")), arguments('{"a":1}'), end_event)
        assert (calls_of(answer), end(answer).stop_reason) == ([("c1", "look", '{"a":1}')], "tool_use")
    assert calls_of(lifted(completed(output=[call('{"a":1}')]))) == [("c1", "look", '{"a":1}')]


def test_an_unusable_or_used_call_id_is_replaced() -> None:
    answer = lifted(done(call(call_id=""), 0), done(call(call_id="c2"), 1), done(call(call_id="c2"), 2), completed())
    assert [made[0] for made in calls_of(answer)] == ["call_fresh", "c2", "call_fresh"]
    assert answer.notes == ["call_id_replaced"]


def test_a_call_that_was_cut_off_is_dropped_and_one_that_is_whole_is_kept() -> None:
    answer = lifted(
        done(call('{"a":1}', "A"), 0),
        added(call("", "B"), 1), arguments('{"a":', 1), done(call('{"a":', "B", status="incomplete"), 1),
        incomplete("max_output_tokens", output=[call('{"a":1}', "A"), call('{"a":', "B", status="incomplete")]),
    )  # fmt: skip
    assert ([made[0] for made in calls_of(answer)], end(answer).stop_reason) == (["A"], "max_output_tokens")


def test_a_call_that_had_only_begun_at_the_cut_is_no_call_without_arguments() -> None:
    for output in ([], [call("")], [call("", status="incomplete")]):
        answer = lifted(added(call("")), incomplete("max_output_tokens", output=output))
        assert (calls_of(answer), end(answer).stop_reason) == ([], "max_output_tokens")


@pytest.mark.parametrize(
    "item",
    [
        call('{"a":'), call("[1]"), call("null"), call(name=""), call(name="a b"), call(status="incomplete"),
        call('{"a":"\ud83d"}'),
    ],
)  # fmt: skip
def test_a_broken_call_of_a_whole_turn_is_a_failure_that_is_charged_by_its_usage(item: dict[str, Any]) -> None:
    answer = lifted(done(item), completed())
    assert (calls_of(answer), end(answer).kind, end(answer).usage) == ([], "provider", used(11, 3))


# --- servers that don't say that they cut ------------------------------------------------------------------------


def test_an_answer_of_as_many_tokens_as_were_allowed_is_a_cut_one_where_the_server_never_says_so() -> None:
    for tokens, stop in ((2, "end_turn"), (3, "max_output_tokens"), (4, "max_output_tokens")):
        answer = lifted(said("x"), completed({"input_tokens": 1, "output_tokens": tokens}), silent_cut_tokens=3)
        assert end(answer).stop_reason == stop
    assert end(lifted(said("x"), completed())).stop_reason == "end_turn", "where its word is trusted"
    assert end(lifted(said("x"), completed(None), silent_cut_tokens=3)).stop_reason == "end_turn", "nothing was counted"


def test_a_silent_cut_inside_a_calls_arguments_drops_the_call_and_is_no_failure() -> None:
    for half in ('{"a":', ""):
        answer = lifted(done(call(half, status="completed")), completed(), silent_cut_tokens=3)
        assert (calls_of(answer), end(answer).stop_reason) == ([], "max_output_tokens")


def test_a_call_without_arguments_is_made_where_nothing_was_cut() -> None:
    answer = lifted(done(call("")), completed(), silent_cut_tokens=100)
    assert (calls_of(answer), end(answer).stop_reason) == ([("c1", "look", "{}")], "tool_use")


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [None, "odd", []])
def test_an_end_without_usage_is_told_as_one_without(usage: Any) -> None:
    assert end(lifted(said("x"), completed(usage))) == Ended(
        stop_reason="end_turn", usage=None, provider_response_id="resp_1"
    )


@pytest.mark.parametrize(
    "usage",
    [
        {}, {"input_tokens": 1}, {**USED, "output_tokens": -1}, {**USED, "input_tokens": 1.5},
        {**USED, "input_tokens": True},
    ],
)  # fmt: skip
def test_usage_that_is_no_count_fails_and_keeps_what_was_said(usage: Any) -> None:
    answer = lifted(said("x"), completed(usage))
    assert (text_of(answer), end(answer).kind, end(answer).usage) == ("x", "provider", None)


def test_reads_and_writes_are_taken_out_of_the_input_and_reasoning_stays_inside_the_output() -> None:
    usage = {
        "input_tokens": 4020,
        "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 4000},
        "output_tokens": 100,
        "output_tokens_details": {"reasoning_tokens": 60},
    }
    assert end(lifted(completed(usage))).usage == used(12, 100, read=8, write=4000, reasoning=60)


def test_the_status_of_the_response_decides_over_the_events_name() -> None:
    answer = lifted(event("response.completed", response={"status": "incomplete", "usage": USED}))
    assert end(answer).kind == "provider"
    answer = lifted(event("response.completed", response={"status": "failed", "error": {"code": "server_error"}}))
    assert end(answer).kind == "unavailable"
    assert end(lifted(event("response.completed", response={"status": "odd", "usage": USED}))).stop_reason == "end_turn"
    for status in ("cancelled", "in_progress", "queued"):
        ended = end(lifted(event("response.completed", response={"status": status, "usage": USED})))
        assert (ended.kind, ended.usage) == ("provider", None)


def test_where_the_status_and_the_event_differ_the_worse_is_believed() -> None:
    cut = {"status": "completed", "usage": USED, "incomplete_details": {"reason": "max_output_tokens"}}
    for name in ("response.incomplete", "response.completed"):
        assert end(lifted(event(name, response=cut))).stop_reason == "max_output_tokens"
    failed = {"status": "completed", "error": {"code": "server_error"}}
    assert end(lifted(event("response.failed", response=failed))).kind == "unavailable"


def test_an_error_in_a_response_that_calls_itself_completed_is_a_failure() -> None:
    answer = lifted(said("x"), completed(USED, error={"code": "server_error", "message": "oh"}))
    assert (end(answer).kind, end(answer).usage) == ("unavailable", used(11, 3))


@pytest.mark.parametrize("response", [None, "odd", []])
def test_an_end_that_holds_no_response_is_a_failure(response: Any) -> None:
    assert end(lifted(said("x"), event("response.completed", response=response))).kind == "provider"


def test_done_before_the_terminal_event_is_a_stream_that_broke_off() -> None:
    assert (end(lifted(said("x"), "data: [DONE]\n\n")).kind) == "unavailable"


# --- failures inside a 200 --------------------------------------------------------------------------------------

NESTED = {"type": "insufficient_quota", "code": "insufficient_quota", "message": "no credit", "param": None}


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([event("error", error=NESTED)], "authentication"),
        ([event("error", code="insufficient_quota", message="no credit", param=None)], "authentication"),
        ([completed(None, "failed", error=NESTED)], "authentication"),
        ([f"data: {json.dumps({'error': NESTED})}\n\n"], "authentication"),
        ([event("error", code="rate_limit_exceeded", message="slow down")], "rate_limited"),
        ([event("error", code="slow_down", message="slow down")], "rate_limited"),
        ([event("error", code="server_is_overloaded", message="busy")], "unavailable"),
        ([event("error", code="server_error", message="oh")], "unavailable"),
        ([event("error", code="vector_store_timeout", message="oh")], "unavailable"),
        ([event("error", code="context_length_exceeded", message="too long")], "invalid_request"),
        ([event("error", code="invalid_prompt", message="no")], "invalid_request"),
        ([event("error", code="bio_policy", message="no")], "invalid_request"),
        ([event("error", code="cyber_policy", message="no")], "invalid_request"),
        ([event("error", code="invalid_api_key", message="no")], "authentication"),
        ([event("error", code=None, message="what?")], "provider"),
        ([event("error", code="mystery", message="what?")], "provider"),
        (['data: {"error":{"message":"gone","code":"503"}}\n\n'], "unavailable"),
        (['data: {"error":"gone"}\n\n'], "provider"),
        (['data: {"object":"error","message":"gone","code":400}\n\n'], "invalid_request"),
        ([completed(None, "failed")], "provider"),
    ],
)
def test_an_error_inside_the_stream_is_one_failure_of_its_codes_kind_and_costs_what_is_not_known(
    pieces: list[str], kind: str
) -> None:
    for before in ([], [said("Part")]):
        answer = lifted(*before, *pieces, completed(None, "failed", error={"code": "server_error"}), completed())
        assert (end(answer).kind, end(answer).usage) == (kind, None)


def test_a_failed_response_that_counts_is_charged_by_its_counts() -> None:
    assert end(lifted(completed(USED, "failed", error={"code": "server_error"}))).usage == used(11, 3)
    bad = completed({"input_tokens": -1}, "failed", error={"code": "server_error"})
    assert (end(lifted(bad)).kind, end(lifted(bad)).usage) == ("unavailable", None)


# --- answers that were not streamed -----------------------------------------------------------------------------


def document(status: Any = "completed", **members: Any) -> str:
    return json.dumps({"id": "resp_1", "object": "response", "status": status, "usage": USED, "error": None, **members})


def test_a_document_is_lifted_whole() -> None:
    output = [REASONING, message("Hi", phase="commentary"), call('{"a":1}')]
    answer = lifted("  " + document(output=output))
    assert (text_of(answer), calls_of(answer)) == ("Hi", [("c1", "look", '{"a":1}')])
    assert [state["k"] for state in states_of(answer)] == ["openai.reasoning", "openai.phase"]
    assert end(answer) == Ended(stop_reason="tool_use", usage=used(11, 3), provider_response_id="resp_1")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (document("failed", error={"code": "server_error", "message": "oh"}), "unavailable"),
        (document("incomplete"), "provider"),
        (document("in_progress"), "provider"),
        (document("cancelled"), "provider"),
        (document(None), "provider"),
        ('{"error":{"code":429}}', "rate_limited"),
        ("{}", "provider"),
        ("[]", "provider"),
        ('{"object":"response","status":"comp', "unavailable"),
        ("<html>", "provider"),
    ],
)
def test_a_document_that_is_no_finished_answer_fails(body: str, kind: str) -> None:
    assert end(lifted(body)).kind == kind
    assert end(lifted(*body)).kind == kind


# --- bounds -----------------------------------------------------------------------------------------------------


def test_more_items_than_any_answer_has_are_a_failure() -> None:
    many = [added(message("", id=f"m{at}"), at) for at in range(ITEMS_MAX)]
    assert end(lifted(*many, completed())).stop_reason == "end_turn"
    assert end(lifted(*many, added(message(""), ITEMS_MAX), completed())).kind == "provider"
    assert (
        end(lifted(completed(output=[message("")] * (ITEMS_MAX + 1)), document_bytes_max=1_000_000)).kind == "provider"
    )


def test_arguments_above_their_bound_are_too_large_in_one_call_and_in_many() -> None:
    assert end(lifted(*[arguments("x" * 400)] * 3, document_bytes_max=1000)).kind == "result_size"
    assert end(lifted(*[arguments("x" * 400, at) for at in range(3)], document_bytes_max=1000)).kind == "result_size"


def test_an_answer_above_its_bound_is_too_large_and_its_final_usage_stands() -> None:
    answer = Answer(frozenset(), 10)
    lift = Lift(answer, str, upstream="tiny", document_bytes_max=10_000)
    with pytest.raises(ResponseTooLarge):
        lift.feed(completed(output=[message("x" * 11)]).encode())
    assert (end(answer).kind, end(answer).usage) == ("result_size", used(11, 3))


def test_an_event_above_its_bound_is_too_large() -> None:
    assert end(lifted(said("x" * 600), document_bytes_max=500)).kind == "result_size"
    assert end(lifted(document(output=[message("x" * 600)]), document_bytes_max=500)).kind == "result_size"


# --- anything ---------------------------------------------------------------------------------------------------

WORDS = ["", "x", "look", "{}", "message", "function_call", "reasoning", "completed"]
NAMES = [
    "id", "type", "item", "delta", "output_index", "item_id", "arguments", "name", "call_id", "content", "text",
    "summary", "encrypted_content", "response", "status", "usage", "error", "output", "phase",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
TYPES = st.sampled_from(
    ["response.created", "response.output_item.added", "response.output_text.delta", "response.refusal.delta",
     "response.function_call_arguments.delta", "response.function_call_arguments.done", "response.output_item.done"]
)  # fmt: skip
MEMBERS = st.dictionaries(
    st.sampled_from(["item", "delta", "output_index", "item_id", "arguments", "response"]), JSON, max_size=4
)


@given(st.lists(st.tuples(TYPES, MEMBERS), max_size=8), st.sampled_from([None, 3]))
def test_whatever_the_members_of_events_are_there_is_one_end_and_nothing_raises(
    events: list[tuple[str, dict[str, Any]]], cut: int | None
) -> None:
    for last in (completed(), completed(output=[message("x"), call()]), incomplete("max_output_tokens")):
        ended = end(lifted(*[event(kind, **members) for kind, members in events], last, silent_cut_tokens=cut))
        assert ended.stop_reason is not None or ended.kind == "provider"


@given(JSON)
def test_whatever_a_response_holds_there_is_one_end_and_nothing_raises(response: Any) -> None:
    assert end(lifted(event("response.completed", response=response)))
    assert end(lifted(json.dumps({"object": "response", "status": "completed", "output": response})))


@given(st.lists(st.text(max_size=6), max_size=6), st.data())
def test_text_is_what_the_deltas_say_wherever_they_are_split(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    body = "".join([*map(said, pieces), done(message(text)), completed()]).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    bounds = [0, *cuts, len(body)]
    answer = lifted(*(body[a:b] for a, b in pairwise(bounds)))
    assert (text_of(answer), end(answer).stop_reason) == (text, "end_turn")
