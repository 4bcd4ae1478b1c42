"""From bytes of Llama Stack to an answer: text, calls, ends, estimates, errors; split anywhere, cut anywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.connector_cases import stack_call, stack_complete, stack_event, stack_metrics, stack_text
from kit.stream_cases import RECORDED, arrivals, calls_of, expected, text_of, used
from kit.stream_cases import lifted as lifted_by

from sidecar.connectors.llama_stack_lift import Lift, OpenAILift, with_status
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract.values import Usage

FAILED = "failed"


def lifted(*pieces: str | bytes, takes_estimates: bool = True, document_bytes_max: int = 100_000) -> Answer:
    def lift(answer: Answer) -> Lift:
        return Lift(
            answer,
            lambda text: text,
            upstream="llama",
            document_bytes_max=document_bytes_max,
            tool_names=frozenset({"look", "list_users"}),
            takes_estimates=takes_estimates,
        )

    return lifted_by(lift, pieces)


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def tool_delta(call: object, status: str) -> bytes:
    return stack_event("progress", {"type": "tool_call", "tool_call": call, "parse_status": status})


def error(message: object) -> bytes:
    return f"data: {json.dumps({'error': {'message': message}})}\n\n".encode()


# --- recorded and made streams ----------------------------------------------------------------------------------


def check(answer: Answer, wanted: dict[str, Any]) -> None:
    assert hashlib.sha256(text_of(answer).encode()).hexdigest() == wanted["text_sha256"]
    assert calls_of(answer) == [tuple(call) for call in wanted.get("tool_calls", ())]
    ended = end(answer)
    if "failed" in wanted:
        assert (ended.kind, ended.message) == (wanted["kind"], wanted["message"])
    else:
        assert ended.stop_reason == wanted["stop_reason"]
    assert ended.usage == (Usage(**wanted["usage"]) if wanted["usage"] else None)


STREAMS = expected("llama_stack_native")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: Path(path).stem)
def test_a_stream_is_lifted_as_expected_however_it_arrives(path: str) -> None:
    for pieces in arrivals(Path(path).read_bytes()):
        check(lifted(*pieces), STREAMS[path])


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: Path(path).stem)
def test_a_stream_cut_before_its_complete_event_is_a_failure_and_its_usage_is_not_known(path: str) -> None:
    whole, wanted = Path(path).read_bytes(), STREAMS[path]
    last = whole.rstrip().rindex(b"\n\n") + 2
    for cut in range(len(whole)):
        ended = end(lifted(whole[:cut]))
        if cut < last + len(whole[last:].rstrip()):
            assert (ended.kind, ended.usage) == ("unavailable", None), cut
        elif "stop_reason" in wanted:
            assert ended.stop_reason == wanted["stop_reason"]


def test_every_recorded_stream_of_llama_stack_was_read() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    assert {path.name for path in RECORDED.glob("llamastack*")} == {
        Path(path).name for path in STREAMS if Path(path).parent == RECORDED
    }
    assert len(STREAMS) >= 3


# --- text and ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delta",
    [None, {}, {"type": "text"}, {"type": "text", "text": ""}, {"type": "image", "image": "aGk="}, {"type": "audio"},
     "odd", [], {"type": "text", "text": 7}],
)  # fmt: skip
def test_a_delta_without_text_is_nothing(delta: Any) -> None:
    answer = lifted(stack_event("progress", delta), stack_text("x"), stack_complete())
    assert (text_of(answer), end(answer).stop_reason) == ("x", "end_turn")


def test_a_stop_reason_on_a_progress_event_is_not_the_end() -> None:
    early = stack_event("progress", {"type": "text", "text": "a"}, "end_of_turn")
    assert (end(lifted(early)).kind, end(lifted(early)).usage) == ("unavailable", None)
    assert text_of(lifted(early, stack_text("b"), stack_complete())) == "ab"


@pytest.mark.parametrize(
    ("said", "stop"),
    [("end_of_turn", "end_turn"), ("end_of_message", "end_turn"), (None, "end_turn"),
     ("out_of_tokens", "max_output_tokens")],
)  # fmt: skip
def test_h7_an_answer_is_read_by_its_finish_alone(said: Any, stop: str) -> None:
    assert end(lifted(stack_text("x"), stack_complete(said))) == Ended(stop_reason=stop, usage=used(11, 3))


@pytest.mark.parametrize("said", ["end_of_world", 7, ["end_of_turn"]])
def test_g1_an_unknown_stop_reason_fails_and_is_settled_from_usage(said: Any) -> None:
    ended = end(lifted(stack_text("x"), stack_complete(said)))
    assert (ended.kind, ended.usage) == ("provider", used(11, 3))


def test_nothing_is_read_behind_the_complete_event() -> None:
    answer = lifted(stack_text("x"), stack_complete(), stack_text("y"), error("500: late"))
    assert (text_of(answer), end(answer).stop_reason) == ("x", "end_turn")


def test_half_a_character_is_no_text_unless_it_was_cut() -> None:
    half = b'data: {"event":{"event_type":"progress","delta":{"type":"text","text":"\\ud83d"}}}\n\n'
    assert end(lifted(half, stack_complete())).kind == "provider"
    assert end(lifted(half, stack_complete("out_of_tokens"))).stop_reason == "max_output_tokens"
    other = b'data: {"event":{"event_type":"progress","delta":{"type":"text","text":"\\ude42"}}}\n\n'
    assert text_of(lifted(half, other, stack_complete())) == "🙂"


# --- calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["end_of_message", "end_of_turn", "out_of_tokens"])
def test_f8_a_whole_call_is_tool_use_whatever_the_server_says(stop: str) -> None:
    answer = lifted(stack_text("x"), stack_call("c1", "look", '{"at": 1}'), stack_complete(stop))
    assert (calls_of(answer), end(answer).stop_reason) == ([("c1", "look", '{"at": 1}')], "tool_use")


def test_pieces_of_calls_are_passed_over_also_where_they_interleave() -> None:
    pieces = [tool_delta(text, "in_progress") for text in ("look(", "look(", '{"a":', "{}", "1})", ")")]
    answer = lifted(tool_delta("", "started"), *pieces, stack_call("a", "look", '{"a":1}'),
                    stack_call("b", "look", "{}"), stack_complete("end_of_message"))  # fmt: skip
    assert calls_of(answer) == [("a", "look", '{"a":1}'), ("b", "look", "{}")]


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ({"arguments": {"a": 1}, "arguments_json": '{"a": 1.0}'}, '{"a": 1.0}'),
        ({"arguments": {"a": "é"}}, '{"a":"é"}'), ({"arguments": '{"a":2}', "arguments_json": None}, '{"a":2}'),
        ({"arguments": {}}, "{}"), ({"arguments": ""}, "{}"), ({"arguments": None}, "{}"), ({}, "{}"),
        ({"arguments": {"a": 1}, "arguments_json": ""}, "{}"),
    ],
)  # fmt: skip
def test_arguments_are_their_text_where_it_is_there_else_their_object(call: dict[str, Any], arguments: str) -> None:
    delta = tool_delta({"call_id": "c1", "tool_name": "look", **call}, "succeeded")
    assert calls_of(lifted(delta, stack_complete())) == [("c1", "look", arguments)]


def test_f5_a_declared_tool_called_without_arguments_is_lifted_although_the_server_could_not_parse_it() -> None:
    answer = lifted(tool_delta("list_users()", "failed"), stack_complete("end_of_message"))
    assert calls_of(answer) == [("call_fresh", "list_users", "{}")]
    assert end(answer) == Ended(stop_reason="tool_use", usage=used(11, 3))


@pytest.mark.parametrize("call", ["drop_users()", "list_users(", 'look({"a":)', "", "x list_users()", None, 7])
def test_any_other_call_that_the_server_could_not_parse_fails_with_its_usage(call: Any) -> None:
    answer = lifted(stack_text("x"), tool_delta(call, FAILED), stack_complete("end_of_message"))
    assert (end(answer).kind, end(answer).usage, calls_of(answer)) == ("provider", used(11, 3), [])


@pytest.mark.parametrize("call", ['look({"at":"",)', "look()"])
def test_a_call_that_ran_out_of_tokens_is_dropped_and_a_whole_one_before_it_kept(call: str) -> None:
    answer = lifted(stack_call("a", "look", "{}"), tool_delta(call, FAILED), stack_complete("out_of_tokens"))
    assert (calls_of(answer), end(answer).stop_reason) == ([("a", "look", "{}")], "max_output_tokens")
    answer = lifted(stack_text("x"), tool_delta(call, FAILED), stack_complete("out_of_tokens"))
    assert (calls_of(answer), end(answer).stop_reason) == ([], "max_output_tokens")


@pytest.mark.parametrize(
    "call",
    [{"call_id": "a", "tool_name": "look", "arguments": [1]}, {"call_id": "a", "tool_name": "", "arguments": {}},
     {"call_id": "a", "tool_name": "look", "arguments_json": '{"a":'}, {"call_id": "a", "tool_name": None}],
)  # fmt: skip
def test_f6_a_parsed_call_that_is_none_fails_with_its_usage(call: dict[str, Any]) -> None:
    answer = lifted(tool_delta(call, "succeeded"), stack_complete("end_of_message"))
    assert (end(answer).kind, end(answer).usage) == ("provider", used(11, 3))


def test_calls_are_bounded_in_number_and_in_bytes() -> None:
    many = [stack_call(f"c{at}", "look", "{}") for at in range(1025)]
    assert end(lifted(*many, stack_complete())).kind == "provider"
    large = stack_call("a", "look", json.dumps({"a": "x" * 200}))
    assert end(lifted(*[large] * 6, stack_complete(), document_bytes_max=1000)).kind == "result_size"


# --- estimates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metrics",
    [None, [], {}, stack_metrics(0, 3), stack_metrics(None, 3), [{"metric": "completion_tokens", "value": 3}],
     [{"metric": 7, "value": 3}, None, "odd"], stack_metrics(0, 0)],
)  # fmt: skip
def test_a_prompt_that_was_not_counted_is_no_usage(metrics: Any) -> None:
    ending = stack_event("complete", {"type": "text", "text": ""}, "end_of_turn", metrics)
    assert end(lifted(stack_text("x"), ending)) == Ended(stop_reason="end_turn", usage=None)


def test_a_guess_is_usage_only_where_estimates_are_taken() -> None:
    assert end(lifted(stack_text("x"), stack_complete(), takes_estimates=False)).usage is None
    assert end(lifted(stack_text("x"), stack_complete(), takes_estimates=True)).usage == used(11, 3)
    assert end(lifted(stack_text("x"), stack_complete(completion=0))).usage == used(11, 0)


@pytest.mark.parametrize("count", [-1, 1.5, "11", True, 2**64])
def test_a_count_that_is_no_count_fails_with_usage_unknown(count: Any) -> None:
    for metrics in ({"prompt": count}, {"completion": count}, {"completion": None}):
        ended = end(lifted(stack_text("x"), stack_complete(**metrics)))
        assert (ended.kind, ended.usage) == ("provider", None)


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "kind", "shown"),
    [
        ("400: Invalid value: Model 'm' not found", "invalid_request", "Invalid value: Model 'm' not found"),
        ("401: Who are you?", "authentication", "Who are you?"),
        ("403: Not you", "authentication", "Not you"),
        ("429: slow down", "rate_limited", "slow down"),
        ("500: Internal server error: An unexpected error occurred.", "unavailable",
         "Internal server error: An unexpected error occurred."),
        ("501: Not implemented", "invalid_request", "Not implemented"),
        ("504: Operation timed out", "timeout", "Operation timed out"),
        ("400: two\nlines", "invalid_request", "two\nlines"),
        ("It broke", "provider", "It broke"), ("200: It broke", "provider", "200: It broke"),
    ],
)  # fmt: skip
def test_an_error_inside_a_200_has_its_status_before_its_words(message: str, kind: str, shown: str) -> None:
    for before in ((), (stack_text("Partial"),)):
        ended = end(lifted(*before, error(message), stack_complete()))
        assert (ended.kind, ended.message, ended.usage) == (kind, shown, None)


def test_an_error_of_todays_servers_has_its_status_as_its_code() -> None:
    assert with_status({"message": "no", "code": "503"}) == {"message": "no", "code": "503"}
    assert with_status({"message": "429: no", "code": None}) == {"message": "no", "code": 429}
    assert with_status({"status": 429, "title": "Slow down", "detail": ""})["code"] == 429


def test_on_the_openai_route_errors_are_read_alike_and_behind_paid_text_usage_is_not_known() -> None:
    choice = {"index": 0, "delta": {"content": "Part", "tool_calls": None}, "finish_reason": None}
    chunk = f"data: {json.dumps({'choices': [choice], 'usage': None})}\n\n"
    message = "400: {'errors': [{'loc': ['finish_reason'], 'msg': 'Input should be a valid string'}]}"

    def lift(answer: Answer) -> OpenAILift:
        return OpenAILift(answer, lambda text: text, upstream="llama", document_bytes_max=10_000)

    answer = lifted_by(lift, [chunk, error(message)])
    assert (text_of(answer), end(answer).kind, end(answer).usage) == ("Part", "invalid_request", None)
    assert end(answer).message == message.removeprefix("400: ")


# --- what was not streamed ----------------------------------------------------------------------------------------


def test_an_answer_that_was_not_streamed_is_lifted_too() -> None:
    call = {"call_id": "c1", "tool_name": "look", "arguments": {"at": ""}, "arguments_json": '{"at":""}'}
    content = ["many ", {"type": "text", "text": "work"}]
    message = {"role": "assistant", "content": content, "stop_reason": "end_of_message", "tool_calls": [call]}
    answer = lifted(json.dumps({"metrics": stack_metrics(28, 36), "completion_message": message, "logprobs": None}))
    assert (text_of(answer), calls_of(answer)) == ("many work", [("c1", "look", '{"at":""}')])
    assert end(answer) == Ended(stop_reason="tool_use", usage=used(28, 36))


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"detail": "Invalid value"}, "provider"), ({"error": {"detail": {"errors": []}}}, "provider"),
        ({"status": 404, "title": "Not Found", "detail": "No such route"}, "invalid_request"), ({}, "provider"),
        ({"completion_message": None}, "provider"), ({"event": {"event_type": "complete"}}, "provider"),
        ({"error": "429: slow down"}, "rate_limited"), ({"error": True}, "provider"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_answer_is_a_failure(document: Any, kind: str) -> None:
    assert (end(lifted(json.dumps(document))).kind, end(lifted(json.dumps(document))).usage) == (kind, None)


NAMES = st.sampled_from(
    ["event", "event_type", "delta", "type", "text", "tool_call", "parse_status", "call_id", "tool_name", "arguments",
     "arguments_json", "stop_reason", "metrics", "metric", "value", "error", "message", "completion_message", "content",
     "tool_calls"]
)  # fmt: skip
WORDS = st.sampled_from(["complete", "progress", "text", "tool_call", "succeeded", "failed", "look()", "out_of_tokens",
                         "prompt_tokens", "completion_tokens"])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=15,
)


@given(st.lists(st.dictionaries(NAMES, JSON, max_size=5), max_size=4))
def test_no_json_at_all_raises_and_the_answer_always_ends(chunks: list[Any]) -> None:
    assert lifted(*(f"data: {json.dumps(one)}\n\n" for one in chunks)).ended is not None
    for one in chunks:
        assert lifted(json.dumps(one)).ended is not None
        assert lifted(f"data: {json.dumps({'event': one})}\n\n").ended is not None
        assert lifted(json.dumps({"completion_message": one})).ended is not None
