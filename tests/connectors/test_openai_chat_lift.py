"""From Chat Completions bytes to an answer: text, calls, ends, usage, errors; split anywhere, cut anywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.stream_cases import RECORDED, expected

from sidecar.connectors.openai_chat_lift import STOP_REASONS, Lift
from sidecar.connectors.promise import Answer, Ended, ResponseTooLarge
from sidecar.contract.values import Usage

DONE = "data: [DONE]\n\n"
USED: dict[str, Any] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


def chunk(delta: Any = None, finish: Any = None, **members: Any) -> str:
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'id': 'chatcmpl-1', 'choices': choices, **members})}\n\n"


def said(text: str) -> str:
    return chunk({"content": text})


def lifted(*pieces: str | bytes, close: bool = True, document_bytes_max: int = 100_000) -> Answer:
    answer = Answer(frozenset(), 1_000_000, fresh_id=lambda: "call_fresh")
    answer.sent = True
    lift = Lift(answer, lambda text: text, upstream="tiny", document_bytes_max=document_bytes_max)
    for piece in pieces:
        lift.feed(piece.encode() if isinstance(piece, str) else piece)
    if close:
        lift.close()
    return answer


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def calls_of(answer: Answer) -> list[tuple[str, str, str]]:
    calls = [event.tool_call for event in answer.events() if event.tool_call]
    return [(call.call_id, call.name, call.arguments) for call in calls]


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def used(input: int, output: int, read: int = 0, write: int = 0, reasoning: int | None = None) -> Usage:
    return Usage(
        input_tokens=input,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output,
        reasoning_tokens=reasoning,
    )


# --- recorded and made streams ------------------------------------------------------------------------------


def check(answer: Answer, wanted: dict[str, Any]) -> None:
    assert hashlib.sha256(text_of(answer).encode()).hexdigest() == wanted["text_sha256"]
    assert calls_of(answer) == [tuple(call) for call in wanted["tool_calls"]]
    assert not any(event.reasoning_state for event in answer.events())
    ended = end(answer)
    if "failed" in wanted:
        assert ended.kind == wanted["kind"]
    else:
        assert ended.stop_reason == wanted["stop_reason"]
    assert ended.usage == (Usage(**wanted["usage"]) if wanted["usage"] else None)


@pytest.mark.parametrize("path", expected("openai_chat"), ids=lambda path: Path(path).stem)
def test_a_stream_is_lifted_as_expected_whole_and_byte_by_byte(path: str) -> None:
    whole = Path(path).read_bytes()
    check(lifted(whole), expected("openai_chat")[path])
    check(lifted(*(whole[at : at + 1] for at in range(len(whole)))), expected("openai_chat")[path])


@pytest.mark.parametrize("path", expected("openai_chat"), ids=lambda path: Path(path).stem)
def test_a_stream_cut_anywhere_never_ends_well_unless_its_finish_had_come(path: str) -> None:
    whole, wanted = Path(path).read_bytes(), expected("openai_chat")[path]
    lines = whole.splitlines(keepends=True)
    finish = next(
        (at for at, line in enumerate(lines) if b'"finish_reason": "' in line or b'"finish_reason":"' in line), 0
    )
    first_good = sum(len(line) for line in lines[:finish])
    for cut in range(0, len(whole), max(1, len(whole) // 400)):
        ended = end(lifted(whole[:cut]))
        if cut <= first_good:
            assert ended.kind == "unavailable", cut
        elif "stop_reason" in wanted:
            assert ended.stop_reason in (wanted["stop_reason"], None)


def test_every_recorded_chat_stream_was_read() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    recorded = {path.name for pattern in ("*openai_chat*", "*openrouter*") for path in RECORDED.glob(pattern)}
    assert len(recorded) >= 6
    assert recorded == {Path(path).name for path in expected("openai_chat") if Path(path).parent == RECORDED}


# --- text ---------------------------------------------------------------------------------------------------


def test_text_usage_and_id_are_lifted_and_nothing_is_read_behind_done() -> None:
    answer = lifted(chunk({"role": "assistant", "content": ""}), said("Hel"), said("lo"), chunk({}, "stop"),
                    chunk(usage=USED), DONE, said("more"), chunk(error={"message": "late"}))  # fmt: skip
    assert text_of(answer) == "Hello"
    assert end(answer) == Ended(stop_reason="end_turn", usage=used(11, 3), provider_response_id="chatcmpl-1")


@pytest.mark.parametrize("delta", [None, {}, {"content": None}, {"content": ""}, {"content": 7}, "odd", [], 0])
def test_a_delta_without_text_is_nothing(delta: Any) -> None:
    odd = f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
    answer = lifted(odd, said("x"), chunk({}, "stop"), DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("x", "end_turn")


def test_reasoning_is_no_text() -> None:
    answer = lifted(chunk({"reasoning_content": "hm", "reasoning": "hm"}), said("x"), chunk({}, "stop"), DONE)
    assert text_of(answer) == "x"


def test_content_in_parts_gives_its_visible_text() -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "x"}, {"type": "text", "text": 1}, 3]
    assert text_of(lifted(chunk({"content": parts}), chunk({}, "stop"), DONE)) == "x"


def test_other_choices_are_ignored_and_an_index_of_null_is_the_first() -> None:
    other = 'data: {"choices":[{"index":1,"delta":{"content":"no"},"finish_reason":"length"}]}\n\n'
    first = 'data: {"choices":[{"index":null,"delta":{"content":"yes"}}]}\n\n'
    answer = lifted(other, first, chunk({}, "stop"), other, DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("yes", "end_turn")


def test_half_a_character_waits_for_its_other_half() -> None:
    halves = [
        'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
        said(""),
        'data: {"choices":[{"delta":{"content":"\\ude00b"}}]}\n\n',
    ]
    assert text_of(lifted(*halves, chunk({}, "stop"), DONE)) == "a\U0001f600b"


@pytest.mark.parametrize("half", ["\\ude00", "\\ud83dx", "x\\ud83d"])
def test_half_a_character_alone_is_a_failure_and_never_another_text(half: str) -> None:
    answer = lifted(f'data: {{"choices":[{{"delta":{{"content":"{half}"}}}}]}}\n\n', chunk({}, "stop"), DONE)
    assert end(answer).kind == "provider"
    assert "half a character" in end(answer).message


def test_half_a_character_at_a_cut_by_the_token_bound_is_dropped() -> None:
    answer = lifted('data: {"choices":[{"delta":{"content":"x\\ud83d"}}]}\n\n', chunk({}, "length"), DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("x", "max_output_tokens")


# --- keep-alives, nonsense, the end -------------------------------------------------------------------------


@pytest.mark.parametrize("alive", ["data:\n\n", "data: \n\n", "data: : keepalive\n\n", ": ping\n\n", "event: ping\n\n"])
def test_e5_keep_alives_are_ignored(alive: str) -> None:
    answer = lifted(alive, said("x"), alive, chunk({}, "stop"), alive, DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("x", "end_turn")


@pytest.mark.parametrize("nonsense", ["ping", "7", "[]", "null", "{", '"x"', "[" * 90_000])
def test_e5_other_events_that_are_no_json_object_fail(nonsense: str) -> None:
    ended = end(lifted(said("x"), f"data: {nonsense}\n\n", chunk({}, "stop"), chunk(usage=USED), DONE))
    assert (ended.kind, ended.usage) == ("provider", None)


def test_bad_utf8_fails_and_the_text_before_it_stands() -> None:
    answer = lifted(said("x"), b"data: \xff\n\n", chunk({}, "stop"), DONE)
    assert (text_of(answer), end(answer).kind) == ("x", "provider")
    assert "UTF-8" in end(answer).message


@pytest.mark.parametrize("choices", ["odd", {}, [1], [None]])
def test_choices_that_are_no_objects_fail(choices: Any) -> None:
    assert end(lifted(f"data: {json.dumps({'choices': choices})}\n\n", DONE)).kind == "provider"


def test_e10_an_end_before_the_finish_reason_is_never_end_turn() -> None:
    for close in ("", DONE):
        ended = end(lifted(said("The answer"), close))
        assert (ended.kind, ended.usage) == ("unavailable", None)


def test_an_end_without_done_is_good_once_the_finish_reason_came() -> None:
    assert end(lifted(said("x"), chunk({}, "stop"), chunk(usage=USED)[:-2])).usage == used(11, 3)


def test_a_finish_before_a_break_stands_when_settled() -> None:
    answer = Answer(frozenset(), 1000)
    lift = Lift(answer, str, upstream="tiny", document_bytes_max=1000)
    lift.settle()
    assert answer.ended is None
    lift.feed(chunk({}, "stop", usage=USED).encode())
    assert answer.ended is None, "the usage may still come"
    lift.settle()
    assert end(answer).usage == used(11, 3)


@pytest.mark.parametrize(("finish", "stop"), [pair for pair in STOP_REASONS.items() if pair[1] != "tool_use"])
def test_g1_every_known_finish_reason_has_its_stop_reason(finish: str, stop: str) -> None:
    assert end(lifted(said("x"), chunk({}, finish, usage=USED), DONE)) == Ended(
        stop_reason=stop, usage=used(11, 3), provider_response_id="chatcmpl-1"
    )


@pytest.mark.parametrize("finish", ["mystery", 7, True, [], {"a": 1}])
def test_g1_an_unknown_finish_reason_fails_with_its_usage(finish: Any) -> None:
    ended = end(lifted(said("x"), chunk({}, finish, usage=USED), DONE))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource"])
def test_a_finish_that_is_a_failure_is_unavailable(finish: str) -> None:
    ended = end(lifted(said("x"), chunk({}, finish, usage=USED), DONE))
    assert (ended.kind, ended.usage) == ("unavailable", used(11, 3))


def test_the_last_of_two_finish_reasons_wins_and_null_is_none() -> None:
    assert end(lifted(chunk({}, "length"), chunk({}, "stop"), chunk({}, None), DONE)).stop_reason == "end_turn"


def test_g10_a_budget_spent_on_reasoning_ends_well_without_text() -> None:
    details = {**USED, "completion_tokens_details": {"reasoning_tokens": 3}}
    answer = lifted(chunk({"content": ""}), chunk({}, "length", usage=details), DONE)
    assert end(answer).stop_reason == "max_output_tokens"
    assert end(answer).usage == used(11, 3, reasoning=3)
    assert answer.events() == ()


def test_a_refusal_is_visible_text_and_the_stop_reason() -> None:
    answer = lifted(chunk({"refusal": "I won't."}), chunk({}, "stop"), DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("I won't.", "refusal")


# --- errors inside a 200 ------------------------------------------------------------------------------------


def test_e6_an_error_behind_text_is_a_failure_and_its_text_is_kept_as_events() -> None:
    answer = lifted(said("Part"), chunk(error={"type": "overloaded_error", "message": "Overloaded"}), DONE)
    assert (end(answer).kind, end(answer).message, end(answer).usage) == ("unavailable", "Overloaded", None)
    assert text_of(answer) == "Part"


def test_an_error_event_with_usage_settles_by_it_even_behind_a_finish_reason() -> None:
    answer = lifted(chunk({}, "stop"), chunk(error={"code": 502, "message": "gone"}, usage=USED), DONE)
    assert (end(answer).kind, end(answer).usage) == ("unavailable", used(11, 3))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ('{"error":{"code":429}}', "rate_limited"),
        ('{"error":{"code":429,"message":"slow"},"choices":null}', "rate_limited"),
        ('[{"error":{"code":503}}]', "unavailable"),
        ('{"error":"odd"}', "provider"),
        ('{"object":"error","message":"too long","code":400}', "invalid_request"),
        ('{"choices":null}', "provider"),
        ('{"choices":[]}', "provider"),
        ("{}", "provider"),
        ("[]", "provider"),
        ('{"choices":[{"message":{"content":"cut', "unavailable"),
    ],
)
def test_e8_a_whole_document_with_an_error_or_without_an_answer_fails(body: str, kind: str) -> None:
    assert end(lifted(body)).kind == kind
    assert end(lifted(*body)).kind == kind


def test_e8_an_error_as_the_first_event_of_a_stream_fails() -> None:
    assert end(lifted('data: {"error":{"code":429}}\n\n', DONE)).kind == "rate_limited"


def test_e9_an_error_of_null_is_none() -> None:
    assert end(lifted(chunk({"content": "x"}, "stop", error=None), DONE)).stop_reason == "end_turn"


def test_an_answer_that_was_not_streamed_is_lifted_whole() -> None:
    message = {"content": "Hi", "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}]}
    body = {"id": "x", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": USED}
    answer = lifted("  " + json.dumps(body))
    assert (text_of(answer), calls_of(answer)) == ("Hi", [("c1", "look", "{}")])
    assert end(answer) == Ended(stop_reason="tool_use", usage=used(11, 3), provider_response_id="x")


def test_a_document_or_an_event_above_its_bound_is_too_large() -> None:
    assert end(lifted('{"a":"' + "x" * 600, document_bytes_max=500)).kind == "result_size"
    assert end(lifted("data: " + "x" * 600, document_bytes_max=500)).kind == "result_size"


def test_an_answer_above_its_bound_is_too_large() -> None:
    answer = Answer(frozenset(), 10)
    lift = Lift(answer, str, upstream="tiny", document_bytes_max=1000)
    with pytest.raises(ResponseTooLarge):
        lift.feed(said("x" * 11).encode())
    assert end(answer).kind == "result_size"


def test_a_call_above_the_answers_bound_is_too_large_and_raises_nothing_at_the_end() -> None:
    answer = Answer(frozenset(), 10)
    lift = Lift(answer, str, upstream="tiny", document_bytes_max=1000)
    lift.feed(called({"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"a":"long"}'}}).encode())
    lift.feed((chunk({}, "stop") + DONE).encode())
    assert end(answer).kind == "result_size"


# --- tool calls ---------------------------------------------------------------------------------------------


def called(*pieces: dict[str, Any]) -> str:
    return chunk({"tool_calls": list(pieces)})


def piece(index: Any = None, id: Any = None, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    made = {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}
    return {name: value for name, value in made.items() if value is not None}


def test_f1_pieces_without_an_id_go_to_the_call_of_their_index() -> None:
    answer = lifted(
        called(piece(0, "A", "look")), called(piece(1, "B", "look")),
        called(piece(0, None, "", '{"t":"A"}')), called(piece(1, None, "", '{"t":')),
        called(piece(1, None, None, '"B"}')),
        chunk({}, "tool_calls", usage=USED), DONE,
    )  # fmt: skip
    assert calls_of(answer) == [("A", "look", '{"t":"A"}'), ("B", "look", '{"t":"B"}')]
    assert end(answer).stop_reason == "tool_use"


def test_f3_without_an_index_the_id_tells_calls_apart_in_their_order() -> None:
    answer = lifted(
        called(piece(None, "a", "look", '{"n":')), called(piece(None, None, None, "1}")),
        called(piece(None, "b", "look", '{"n":2}')), chunk({}, "tool_calls"), DONE,
    )  # fmt: skip
    assert calls_of(answer) == [("a", "look", '{"n":1}'), ("b", "look", '{"n":2}')]


def test_calls_with_neither_index_nor_id_are_told_apart_by_being_whole() -> None:
    answer = lifted(called(piece(None, None, "look", "{}"), piece(None, None, "go", "{}")), chunk({}, "stop"), DONE)
    assert [call[1] for call in calls_of(answer)] == ["look", "go"]


def test_indexes_may_begin_at_one_and_have_gaps_and_a_new_id_under_an_old_index_is_a_new_call() -> None:
    answer = lifted(
        called(piece(1, "a", "look", "{}")), called(piece(5, "b", "look", "{}")), called(piece(5, "c", "go", "{}")),
        called(piece(5, "c", "go", " ")), chunk({}, "tool_calls"), DONE,
    )  # fmt: skip
    assert calls_of(answer) == [("a", "look", "{}"), ("b", "look", "{}"), ("c", "go", "{}")]


@pytest.mark.parametrize("arguments", [None, "", "{}"])
def test_f5_a_call_without_arguments_has_an_empty_object(arguments: Any) -> None:
    answer = lifted(called(piece(0, "a", "look", arguments)), chunk({}, "tool_calls"), DONE)
    assert calls_of(answer) == [("a", "look", "{}")]


def test_arguments_sent_as_an_object_become_its_text() -> None:
    answer = lifted(called(piece(0, "a", "look", {"at": "北"})), chunk({}, "tool_calls"), DONE)
    assert calls_of(answer) == [("a", "look", '{"at":"北"}')]


@pytest.mark.parametrize(
    "arguments",
    ['{"a":', "[]", "7", "null", '{"a":1,"a":2}', '{"a":NaN}', '{"a":1}{"b":2}', [], [1], 7, True, "\ud83d"],
)
def test_f6_broken_arguments_with_a_normal_stop_fail_with_the_usage(arguments: Any) -> None:
    for finish in ("stop", "tool_calls"):
        answer = lifted(called(piece(0, "a", "look", arguments)), chunk({}, finish, usage=USED), DONE)
        assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))
        assert calls_of(answer) == []


@pytest.mark.parametrize("name", [None, "", "two words", "x" * 257, 7])
def test_a_call_without_a_usable_name_fails(name: Any) -> None:
    answer = lifted(called(piece(0, "a", name, "{}")), chunk({}, "tool_calls", usage=USED), DONE)
    assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_a_cut_left_open_is_dropped_and_a_whole_one_kept(finish: str) -> None:
    answer = lifted(
        called(piece(0, "a", "look", '{"n":1}'), piece(1, "b", "look", '{"n":'), piece(2, "c", "look")),
        chunk({}, finish), DONE,
    )  # fmt: skip
    assert calls_of(answer) == [("a", "look", '{"n":1}')]
    assert end(answer).stop_reason == STOP_REASONS[finish]


def test_f8_whole_calls_with_a_stop_are_tool_use() -> None:
    assert end(lifted(called(piece(0, "a", "look")), chunk({}, "stop"), DONE)).stop_reason == "tool_use"


def test_a_stop_for_a_call_without_one_is_nonsense() -> None:
    assert end(lifted(said("x"), chunk({}, "tool_calls", usage=USED), DONE)).kind == "provider"


def test_ids_that_are_empty_or_used_twice_are_replaced_and_noted() -> None:
    answer = lifted(called(piece(0, "a", "look"), piece(1, "", "look")), chunk({}, "stop"), DONE)
    assert [call[0] for call in calls_of(answer)] == ["a", "call_fresh"]
    assert answer.notes == ["call_id_replaced"]


def test_too_many_calls_fail() -> None:
    answer = lifted(called(*(piece(at, f"c{at}", "look") for at in range(1025))), chunk({}, "stop"), DONE)
    assert end(answer).kind == "provider"


@given(st.lists(st.text(), min_size=1, max_size=3), st.data())
def test_arguments_may_be_cut_anywhere_also_inside_an_escape(values: list[str], data: st.DataObject) -> None:
    arguments = json.dumps({str(at): value for at, value in enumerate(values)})
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arguments)), max_size=6)))
    pieces = [arguments[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
    answer = lifted(called(piece(0, "a", "look")), *(called(piece(0, None, None, cut)) for cut in pieces),
                    chunk({}, "tool_calls"), DONE)  # fmt: skip
    assert calls_of(answer) == [("a", "look", arguments)]


# --- usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said_usage", "wanted"),
    [
        (USED, used(11, 3)),
        ({**USED, "prompt_tokens_details": None, "completion_tokens_details": None}, used(11, 3)),
        ({**USED, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5}}, used(2, 3, 4, 5)),
        ({**USED, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 7}, used(7, 3, 4)),
        ({**USED, "completion_tokens_details": {"reasoning_tokens": 2}}, used(11, 3, reasoning=2)),
        ({**USED, "total_tokens": 16, "completion_tokens_details": {"reasoning_tokens": 2}}, used(11, 5, reasoning=2)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, used(0, 0)),
    ],
)
def test_usage_is_read_in_every_usual_shape(said_usage: dict[str, Any], wanted: Usage) -> None:
    assert end(lifted(chunk({}, "stop"), chunk(usage=said_usage), DONE)).usage == wanted


def test_the_last_usage_that_is_not_null_wins() -> None:
    running = {"prompt_tokens": 11, "completion_tokens": 1}
    answer = lifted(chunk({"content": "x"}, usage=running), chunk({}, "stop", usage=USED), chunk(usage=None), DONE)
    assert end(answer).usage == used(11, 3)


@pytest.mark.parametrize("cached", [None, "absent"])
def test_cached_tokens_that_are_null_or_absent_are_looked_for_where_other_servers_put_them(cached: Any) -> None:
    details = {} if cached == "absent" else {"prompt_tokens_details": {"cached_tokens": cached}}
    deepseek = {**USED, **details, "prompt_cache_hit_tokens": 4}
    assert end(lifted(chunk({}, "stop", usage=deepseek), DONE)).usage == used(7, 3, 4)
    timings = {"cache_n": 5, "prompt_n": 6}  # as older builds of llama.cpp's server say it
    assert end(lifted(chunk({}, "stop"), chunk(usage={**USED, **details}, timings=timings), DONE)).usage == used(
        6, 3, 5
    )
    newer = {**USED, "prompt_tokens_details": {"cached_tokens": 0}}
    assert end(lifted(chunk({}, "stop"), chunk(usage=newer, timings=timings), DONE)).usage == used(11, 3)


@pytest.mark.parametrize("timings", [None, [], {"cache_n": None}, {}, "odd"])
def test_timings_that_say_nothing_are_nothing(timings: Any) -> None:
    assert end(lifted(chunk({}, "stop", usage=USED, timings=timings), DONE)).usage == used(11, 3)


def test_parts_above_their_total_are_clamped_and_noted() -> None:
    odd = {**USED, "completion_tokens_details": {"reasoning_tokens": 9}, "total_tokens": 14}
    answer = lifted(chunk({}, "stop", usage=odd), DONE)
    assert (end(answer).usage, answer.notes) == (used(11, 3, reasoning=3), ["usage_clamped"])


@pytest.mark.parametrize("count", [None, -1, 1.5, "11", True, 2**64])
def test_a_count_that_is_no_count_fails_with_usage_unknown(count: Any) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        ended = end(lifted(said("x"), chunk({}, "stop", usage={**USED, name: count}), DONE))
        assert (ended.kind, ended.usage) == ("provider", None)


def test_an_answer_without_usage_completes_without_it() -> None:
    assert end(lifted(said("x"), chunk({}, "stop"), DONE)) == Ended(
        stop_reason="end_turn", usage=None, provider_response_id="chatcmpl-1"
    )


# --- nothing at all raises ----------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["choices", "delta", "message", "content", "finish_reason", "usage", "error", "tool_calls", "function", "name",
     "arguments", "index", "id", "prompt_tokens", "completion_tokens", "prompt_tokens_details", "code", "refusal"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(NAMES, JSON, max_size=5) | JSON, max_size=4))
def test_no_json_at_all_raises_and_the_answer_always_ends(chunks: list[Any]) -> None:
    stream = "".join(f"data: {json.dumps(one)}\n\n" for one in chunks)
    assert lifted(stream).ended is not None
    for one in chunks:
        assert lifted(json.dumps(one)).ended is not None


@given(st.lists(st.dictionaries(NAMES, JSON, max_size=5), max_size=3))
def test_no_choice_at_all_raises(parts: list[Any]) -> None:
    stream = "".join(f"data: {json.dumps({'choices': [{'delta': one, **one}]})}\n\n" for one in parts)
    assert lifted(stream).ended is not None


def running(output: int) -> dict[str, int]:
    return {"prompt_tokens": 10, "completion_tokens": output}


def test_a_running_total_is_no_final_usage() -> None:
    """Counts on every chunk, then an error without any: what was billed is not known."""
    broken = lifted(chunk({"content": "half"}, usage=running(1)), chunk(error={"message": "overloaded"}))
    assert end(broken).usage is None
    cut = lifted(chunk({"content": "half"}, usage=running(1)), chunk({}, "stop"))
    assert (end(cut).stop_reason, end(cut).usage) == ("end_turn", None)
    whole = lifted(chunk({"content": "all"}, usage=running(1)), chunk({}, "stop", usage=running(2)))
    assert end(whole).usage == used(10, 2)


def test_a_running_total_that_nothing_was_said_after_is_final_once_the_stream_is_done() -> None:
    counted = (said("a"), chunk({"content": "b"}, usage=running(2)))
    assert end(lifted(*counted, chunk({}, "stop"), DONE)).usage == used(10, 2)
    assert end(lifted(*counted, chunk({}, "stop", usage=None), DONE)).usage == used(10, 2)
    assert end(lifted(said("a"), chunk(usage=running(1)), chunk({"role": "assistant"}, "stop"), DONE)).usage == used(
        10, 1
    )


@pytest.mark.parametrize("more", [{"content": "c"}, {"reasoning_content": "c"}, {"tool_calls": [{"index": 0}]}])
def test_a_running_total_that_more_was_said_after_counts_nothing(more: dict[str, Any]) -> None:
    answer = lifted(chunk({"content": "b"}, usage=running(2)), chunk(more), chunk({}, "length"), DONE)
    assert (end(answer).stop_reason, end(answer).usage) == ("max_output_tokens", None)
    assert end(lifted(chunk({"content": "b"}, usage=running(2)), chunk(more, "length"), DONE)).usage is None


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_finish_reason_that_is_empty_on_every_chunk_is_none(nothing: Any) -> None:
    answer = lifted(chunk({"content": "x"}, nothing), chunk({}, "stop", usage=USED), chunk({}, nothing), DONE)
    assert (end(answer).stop_reason, end(answer).usage) == ("end_turn", used(11, 3))
    assert end(lifted(chunk({"content": "x"}, nothing, usage=running(1)), DONE)).kind == "unavailable"


def test_calls_are_bounded_while_they_come_and_not_only_when_they_are_whole() -> None:
    begun = called(piece(0, "a", "look", '{"a":"'))
    more = called(piece(0, None, None, "x" * 400))
    answer = lifted(begun, *[more] * 3, chunk({}, "length", usage=USED), DONE, document_bytes_max=1000)
    assert (end(answer).kind, end(answer).usage) == ("result_size", None)
    assert end(lifted(begun, more, more, chunk({}, "length"), DONE, document_bytes_max=1000)).kind is None


@pytest.mark.parametrize(
    ("models", "notes"),
    [(["tiny"], []), (["", None, 7], []), (["tiny-2025-10-01"], []), (["tiny", "large"], ["other_model"])],
)
def test_a_model_of_another_family_is_noted_once_and_changes_nothing(models: list[Any], notes: list[str]) -> None:
    answer = lifted(
        *(chunk({"content": "x"}, model=model) for model in models * 2), chunk({}, "stop", usage=USED), DONE
    )
    assert (answer.notes, end(answer).stop_reason, end(answer).usage) == (notes, "end_turn", used(11, 3))


def test_calls_that_are_too_large_keep_the_usage_that_came_with_the_end() -> None:
    answer = Answer(frozenset(), 100)
    answer.sent = True
    lift = Lift(answer, lambda text: text, upstream="tiny", document_bytes_max=100_000)
    call = {"index": 0, "id": "c1", "function": {"name": "look", "arguments": json.dumps({"at": "x" * 500})}}
    for event in (chunk({"tool_calls": [call]}), chunk({}, "tool_calls", usage=running(7))):
        lift.feed(event.encode())
    lift.close()
    assert (end(answer).kind, end(answer).usage) == ("result_size", used(10, 7))


def test_many_named_pieces_without_an_index_are_looked_at_a_few_times_only() -> None:
    """Looking at all that came again for every piece takes minutes for these."""
    first = {"id": "c1", "function": {"name": "look", "arguments": '{"a": "' + "x" * 1_000_000 + "}"}}
    more = {"function": {"name": "look", "arguments": "}"}}
    pieces = [chunk({"tool_calls": [first]}), *[chunk({"tool_calls": [more]})] * 3000]
    answer = lifted(*pieces, chunk({}, "tool_calls", usage=running(7)), document_bytes_max=4_000_000)
    assert end(answer).kind == "provider"


# --- what is too long to be a name --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["id", "model"])
def test_an_id_or_a_model_too_long_to_be_one_is_as_if_absent(name: str) -> None:
    answer = lifted(chunk({"content": "x"}, **{name: "n" * 1025}), chunk({}, "stop", usage=USED), DONE)
    assert (answer.notes, end(answer).stop_reason) == ([], "end_turn")
    assert end(answer).provider_response_id == "chatcmpl-1"
    answer = lifted(chunk({"content": "x"}, **{name: "n" * 1024}), chunk({}, "stop", usage=USED), DONE)
    assert (answer.notes == ["other_model"]) == (name == "model")
    assert end(answer).provider_response_id == ("n" * 256 if name == "id" else "chatcmpl-1")


@pytest.mark.parametrize(
    ("finish", "told"),
    [("m" * 5000, "a text of 5000 characters"), ([{}] * 5000, "a list"), ({"a": [1] * 5000}, "a dict")],
)
def test_a_finish_reason_too_long_to_be_one_is_told_by_what_it_is(finish: Any, told: str) -> None:
    ended = end(lifted(said("x"), chunk({}, finish, usage=USED), DONE))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))
    assert ended.message.endswith(f": {told}")


def test_only_the_first_choices_of_an_event_are_looked_at() -> None:
    choices = [{"index": 0, "delta": {"content": "x"}}] * 1000 + [None]
    answer = lifted(f"data: {json.dumps({'choices': choices})}\n\n", chunk({}, "stop", usage=USED), DONE)
    assert (text_of(answer), end(answer).stop_reason) == ("x" * 16, "end_turn")


# --- what is no chat completion at all ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("<!doctype html>\n<html>\n\n<p>Hi</p></html>", "a page"),
        ("\n  <html>", "a page"),
        ("\ufeff<html>", "a page"),
        ("<", "a page"),
        ("Ollama is running", "neither an event stream nor JSON"),
        ("OK\n\n", "neither an event stream nor JSON"),
        ('"text"', "neither an event stream nor JSON"),
        ("database: down", "neither an event stream nor JSON"),
    ],
)
def test_a_body_that_is_no_chat_completion_asks_whether_base_url_is_right(body: str, what: str) -> None:
    whole = body.encode()
    for pieces in ([whole], [whole[at : at + 1] for at in range(len(whole))]):
        ended = end(lifted(*pieces))
        why = f"the provider sent {what} and no chat completion: is base_url right?"
        assert (ended.kind, ended.message, ended.usage) == ("provider", why, None)


@pytest.mark.parametrize(
    "body",
    ["", "\n\n", "\ufeff", ": comment\n\n", ":", "d", "dat", "data", "event: x\n", "id: 7", "retry: 1\n\n", "data: {",
     'own: 1\ndata: {"choices":[]}\n\n', "\ufeff: comment", "\n\n: comment", "\n" * 100 + "data: {", "\n" * 100 + ":"],
)  # fmt: skip
def test_a_body_without_an_event_that_may_have_been_a_stream_is_unavailable(body: str) -> None:
    assert end(lifted(body)).kind == "unavailable"
    assert end(lifted(*(body.encode()[at : at + 1] for at in range(len(body.encode()))))).kind == "unavailable"


def test_what_was_counted_before_more_was_said_is_not_the_last_count() -> None:
    answer = lifted(said("x"), chunk({}, "stop", usage=USED), said("and more"), DONE)
    assert (end(answer).stop_reason, end(answer).usage) == ("end_turn", None)
    answer = lifted(said("x"), chunk({}, "stop", usage=USED), said("and more"), chunk(usage=USED), DONE)
    assert end(answer).usage == used(11, 3)


@pytest.mark.parametrize("is_document", [False, True])
def test_one_piece_of_json_with_very_many_values_is_refused_before_it_is_built(is_document: bool) -> None:
    body = '{"x":[' + ",".join(["[]"] * 200_000) + "]}"
    answer = lifted(body if is_document else f"data: {body}\n\n", document_bytes_max=10_000_000)
    assert (end(answer).kind, "131072 values" in end(answer).message) == ("result_size", True)


def test_a_long_text_of_commas_and_brackets_is_only_a_text() -> None:
    text = "[1, {2}, " * 50_000
    answer = lifted(said(text), chunk({}, "stop"), DONE, document_bytes_max=10_000_000)
    assert text_of(answer) == text


def test_arguments_that_are_an_object_nested_as_deeply_as_can_be_read_break_the_call_and_nothing_else() -> None:
    for levels in range(960, 1000, 1):
        deep = "[" * levels + "]" * levels
        calls = f'[{{"index":0,"id":"a","function":{{"name":"look","arguments":{{"a":{deep}}}}}}}]'
        answer = lifted(f'data: {{"choices":[{{"delta":{{"tool_calls":{calls}}}}}]}}\n\n', chunk({}, "stop"), DONE)
        assert end(answer).kind == "provider"
