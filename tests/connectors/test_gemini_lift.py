"""From Gemini's bytes to an answer: text, calls, signatures, ends, usage, errors; split anywhere, cut anywhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build
from kit.connector_cases import GEMINI_USED, gemini_event
from kit.stream_cases import RECORDED, arrivals, calls_of, expected, states_of, text_of, used
from kit.stream_cases import lifted as lifted_by

from sidecar.connectors import gemini_signatures
from sidecar.connectors.gemini_lift import FAILED_FINISHES, STOP_REASONS, Lift
from sidecar.connectors.gemini_lower import ModelSettings, lower
from sidecar.connectors.gemini_signatures import Signature
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract import values as v
from sidecar.contract.values import Usage


def lifted(*pieces: str | bytes, upstream: str = "gemini-x", document_bytes_max: int = 100_000) -> Answer:
    def lift(answer: Answer) -> Lift:
        return Lift(answer, lambda text: text, upstream=upstream, document_bytes_max=document_bytes_max)

    return lifted_by(lift, pieces)


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def call(name: str = "look", args: Any = None, **members: Any) -> dict[str, Any]:
    function = {"name": name} if args is None else {"name": name, "args": args}
    return {"functionCall": function, **members}


def event(document: Any) -> bytes:
    return f"data: {json.dumps(document)}\n\n".encode()


STOP = gemini_event({"text": ""}, finish="STOP")

# --- recorded and made streams ----------------------------------------------------------------------------------

STREAMS = expected("gemini")


def check(answer: Answer, wanted: dict[str, Any]) -> None:
    assert hashlib.sha256(text_of(answer).encode()).hexdigest() == wanted["text_sha256"]
    calls = [tuple(one if one is not None else "call_fresh" for one in call) for call in wanted["tool_calls"]]
    assert calls_of(answer) == calls
    assert len(states_of(answer)) == wanted["thought_signatures"]
    assert end(answer).stop_reason == wanted["stop_reason"]
    assert end(answer).usage == Usage(**wanted["usage"])


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: Path(path).stem)
def test_a_stream_is_lifted_as_expected_however_it_arrives(path: str) -> None:
    for pieces in arrivals(Path(path).read_bytes()):
        check(lifted(*pieces), STREAMS[path])


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: Path(path).stem)
def test_a_stream_cut_before_its_finish_reason_is_a_failure_and_its_usage_is_not_known(path: str) -> None:
    whole = Path(path).read_bytes()
    event_begin = whole.rindex(b"data:", 0, whole.index(b'"finishReason"'))
    event_end = event_begin + len(whole[event_begin:].split(b"\n")[0].rstrip())
    for cut in range(len(whole)):
        ended = end(lifted(whole[:cut]))
        if cut < event_end:
            assert (ended.kind, ended.usage) == ("unavailable", None), cut
        else:
            assert ended.stop_reason == STREAMS[path]["stop_reason"]


def test_every_recorded_stream_of_gemini_was_read() -> None:
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded streams are not there: {RECORDED}")
    assert {path.name for path in RECORDED.glob("gemini*.sse")} == {
        Path(path).name for path in STREAMS if Path(path).parent == RECORDED
    }
    assert len(STREAMS) >= 2


# --- text, calls and signatures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [{}, {"text": ""}, {"text": None}, {"text": "a thought", "thought": True}, {"inlineData": {"data": "aGk="}},
     {"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}, "odd", None, 7],
)  # fmt: skip
def test_a_part_without_visible_text_is_nothing(part: Any) -> None:
    answer = lifted(gemini_event(part), gemini_event({"text": "x"}), STOP)
    assert (text_of(answer), states_of(answer), end(answer).stop_reason) == ("x", [], "end_turn")


def test_text_usage_and_id_are_lifted() -> None:
    answer = lifted(gemini_event({"text": "Hel"}), gemini_event({"text": "lo"}), STOP)
    assert text_of(answer) == "Hello"
    assert end(answer) == Ended(stop_reason="end_turn", usage=used(11, 3), provider_response_id="r-1")


@pytest.mark.parametrize(
    ("args", "arguments"), [(None, "{}"), ({}, "{}"), ({"a": "é", "b": [1, 2.5]}, '{"a":"é","b":[1,2.5]}')]
)
def test_a_call_comes_whole_and_no_arguments_are_an_empty_object(args: Any, arguments: str) -> None:
    answer = lifted(gemini_event(call("look", args)), STOP)
    assert calls_of(answer) == [("call_fresh", "look", arguments)]
    assert (end(answer).stop_reason, answer.notes) == ("tool_use", ["call_id_replaced"])


def test_ids_that_the_provider_made_are_kept() -> None:
    parts = [{"functionCall": {"id": f"id-{at}", "name": "look", "args": {"n": at}}} for at in (1, 2)]
    answer = lifted(gemini_event(*parts), STOP)
    assert calls_of(answer) == [("id-1", "look", '{"n":1}'), ("id-2", "look", '{"n":2}')]
    assert answer.notes == []


@pytest.mark.parametrize(
    "broken", [call("", {}), call("look", [1]), call("look", "{}"), {"functionCall": {}}, {"functionCall": {"name": 7}}]
)
def test_f6_a_call_that_is_none_fails_with_its_usage_unless_it_was_cut(broken: Any) -> None:
    answer = lifted(gemini_event(broken), STOP)
    assert (end(answer).kind, end(answer).usage, calls_of(answer)) == ("provider", used(11, 3), [])
    assert end(lifted(gemini_event(broken), gemini_event(finish="MAX_TOKENS"))).stop_reason == "max_output_tokens"


def test_too_many_calls_or_parts_fail() -> None:
    assert end(lifted(*[gemini_event(call())] * 1025, STOP)).kind == "provider"
    assert end(lifted(gemini_event(*[{"text": "x"}] * 5000), STOP)).kind == "provider"


def states(answer: Answer) -> list[Signature | None]:
    return [gemini_signatures.decode(state, "gemini-x") for state in states_of(answer)]


def kinds(answer: Answer) -> list[str]:
    return ["state" if one.reasoning_state else "call" if one.tool_call else "text" for one in answer.events()]


def test_h1_a_signature_stands_just_before_what_it_belongs_to() -> None:
    answer = lifted(
        gemini_event({"text": "a"}),
        gemini_event({"text": "bc", "thoughtSignature": "dGV4dA=="}),
        gemini_event({"text": "d"}),
        gemini_event(call(thoughtSignature="Y2FsbA=="), call()),
        gemini_event({"text": "", "thoughtSignature": "ZW1wdHk="}, finish="STOP"),
    )
    assert kinds(answer) == ["text", "state", "text", "state", "call", "call", "state"]
    assert states(answer) == [
        Signature("text", "dGV4dA==", 2), Signature("call", "Y2FsbA=="), Signature("empty", "ZW1wdHk="),
    ]  # fmt: skip


@pytest.mark.parametrize("sig", ["", None, 7, "not base64!", ["c2ln"]])
def test_a_signature_that_is_none_is_nothing(sig: Any) -> None:
    assert states_of(lifted(gemini_event(call(thoughtSignature=sig)), STOP)) == []


PARTS = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3) | st.none(), st.booleans()), max_size=6
)


@given(PARTS)
def test_what_was_lifted_goes_back_as_the_parts_that_came(said: Any) -> None:
    """But for texts without a signature side by side, which are one event and so one part."""
    came: list[dict[str, Any]] = []
    for at, (text, is_signed) in enumerate(said):
        part = {"functionCall": {"id": f"c{at}", "name": "look", "args": {}}} if text is None else {"text": text}
        came.append({**part, "thoughtSignature": f"AAA{at}"} if is_signed else part)
    answer = lifted(*map(gemini_event, came), STOP)
    events = [_replayed(one) for one in answer.events()]
    results = [build.result(call[0]) for call in calls_of(answer)]
    made = lower(build.request(*events, *results, build.text("go")), "gemini-x", ModelSettings(thinking="budget"))
    assert made.states_dropped == 0
    turns = [turn["parts"] for turn in json.loads(made.body)["contents"] if turn["role"] == "model"]
    wanted: list[dict[str, Any]] = []
    for part in came:
        if set(part) == {"text"} and wanted and set(wanted[-1]) == {"text"}:
            wanted[-1] = {"text": wanted[-1]["text"] + part["text"]}
        elif part != {"text": ""}:
            wanted.append(part)
    assert turns == ([wanted] if wanted else [])


def _replayed(one: v.TransportEventPayload) -> v.InputItem:
    if one.tool_call:
        return build.call(one.tool_call.call_id, one.tool_call.name, one.tool_call.arguments)
    if one.reasoning_state:
        return build.state("google", "npc", one.reasoning_state.state)
    assert one.text_delta
    return build.said(one.text_delta.text)


# --- ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("finish", "stop"), STOP_REASONS.items())
def test_every_finish_reason_has_its_stop_reason_and_its_usage(finish: str, stop: str) -> None:
    answer = lifted(gemini_event({"text": "x"}, finish=finish))
    assert (end(answer).stop_reason, end(answer).usage) == (stop, used(11, 3))


@pytest.mark.parametrize("finish", ["IMAGE_SAFETY", "IMAGE_RECITATION", "IMAGE_ANYTHING"])
def test_whatever_is_wrong_with_an_image_is_a_refusal(finish: str) -> None:
    assert end(lifted(gemini_event(finish=finish))).stop_reason == "refusal"


@pytest.mark.parametrize(
    ("finish", "kind"), [*FAILED_FINISHES.items(), ("A_NEW_ONE", "provider"), (["STOP"], "provider"), (7, "provider")]
)
def test_g1_a_finish_that_is_none_fails_and_is_settled_from_usage(finish: Any, kind: str) -> None:
    ended = end(lifted(gemini_event({"text": "x"}, finish=finish)))
    assert (ended.kind, ended.usage) == (kind, used(11, 3))


def test_the_words_beside_a_failed_finish_are_told() -> None:
    candidate = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed function call: x("}
    ended = end(lifted(event({"candidates": [candidate], "usageMetadata": GEMINI_USED})))
    assert (ended.kind, ended.message) == ("provider", "Malformed function call: x(")


def test_f8_a_cut_or_a_refusal_wins_over_a_call() -> None:
    for finish, stop in (("MAX_TOKENS", "max_output_tokens"), ("SAFETY", "refusal"), ("STOP", "tool_use")):
        assert end(lifted(gemini_event(call()), gemini_event(finish=finish))).stop_reason == stop


def test_g10_nothing_but_thoughts_is_an_answer_that_was_cut() -> None:
    usage = {"promptTokenCount": 5, "thoughtsTokenCount": 97, "totalTokenCount": 102}
    ended = end(lifted(gemini_event(finish="MAX_TOKENS", usage=usage)))
    assert (ended.stop_reason, ended.usage) == ("max_output_tokens", used(5, 97, reasoning=97))


def test_a_prompt_that_was_blocked_is_a_refusal_and_costs_what_it_says() -> None:
    feedback = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 7}}
    for body in (event(feedback), json.dumps(feedback)):
        assert (end(lifted(body)).stop_reason, end(lifted(body)).usage) == ("refusal", used(7, 0))
    rated = {"promptFeedback": {"safetyRatings": []}}
    assert end(lifted(event(rated))).kind == "unavailable"
    assert end(lifted(gemini_event({"text": "x"}, finish="STOP", promptFeedback={"blockReason": "OTHER"}))) == Ended(
        stop_reason="end_turn", usage=used(11, 3), provider_response_id="r-1"
    )


def test_half_a_character_is_no_text_unless_it_was_cut() -> None:
    half = b'data: {"candidates":[{"content":{"parts":[{"text":"\\ud83d"}]}}]}\n\n'
    assert end(lifted(half, STOP)).kind == "provider"
    assert end(lifted(half, gemini_event(finish="MAX_TOKENS"))).stop_reason == "max_output_tokens"
    assert end(lifted(half, gemini_event({"text": "x"}), STOP)).kind == "provider"


def test_other_candidates_are_passed_over() -> None:
    other = event({"candidates": [{"index": 1, "content": {"parts": [{"text": "y"}]}, "finishReason": "OTHER"}, None]})
    assert text_of(lifted(other, gemini_event({"text": "x"}), STOP)) == "x"


@pytest.mark.parametrize(
    ("said", "notes"), [("gemini-x", []), ("models/gemini-x-001", []), ("", []), (7, []), ("palm", ["other_model"])]
)
def test_d15_a_model_of_another_family_is_noted(said: Any, notes: list[str]) -> None:
    assert lifted(gemini_event({"text": "x"}, modelVersion=said), STOP).notes == notes


# --- usage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"promptTokenCount": 10, "candidatesTokenCount": 2}, used(10, 2)),
        ({"promptTokenCount": 10, "cachedContentTokenCount": 8, "candidatesTokenCount": 2}, used(2, 2, 8)),
        ({"promptTokenCount": 10, "toolUsePromptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 30},
         used(15, 32, reasoning=30)),
        ({"promptTokenCount": 10, "toolUsePromptTokenCount": None, "thoughtsTokenCount": None}, used(10, 0)),
        ({"promptTokenCount": 0}, used(0, 0)),
    ],
)  # fmt: skip
def test_usage_is_read_with_its_parts(said: dict[str, Any], wanted: Usage) -> None:
    assert end(lifted(gemini_event({"text": "x"}, finish="STOP", usage=said))).usage == wanted


def test_d6_cached_tokens_above_the_prompt_are_clamped_and_noted() -> None:
    usage = {"promptTokenCount": 100, "cachedContentTokenCount": 120, "candidatesTokenCount": 1}
    answer = lifted(gemini_event({"text": "x"}, finish="STOP", usage=usage))
    assert (end(answer).usage, answer.notes) == (used(0, 1, 100), ["usage_clamped"])


@pytest.mark.parametrize("count", [-1, 1.5, "11", True, 2**64])
def test_a_count_that_is_no_count_fails_with_usage_unknown(count: Any) -> None:
    names = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount",
             "cachedContentTokenCount")  # fmt: skip
    for name in names:
        ended = end(lifted(gemini_event({"text": "x"}, finish="STOP", usage={**GEMINI_USED, name: count})))
        assert (ended.kind, ended.usage) == ("provider", None), name
    assert end(lifted(gemini_event({"text": "x"}, finish="STOP", usage={"candidatesTokenCount": 1}))).kind == "provider"


def running(output: int) -> dict[str, int]:
    return {"promptTokenCount": 10, "candidatesTokenCount": output}


def test_the_last_count_wins_also_behind_the_finish_reason() -> None:
    first = gemini_event({"text": "x"}, usage=running(1))
    late = event({"usageMetadata": running(5)})
    assert end(lifted(first, gemini_event(finish="STOP", usage=running(2)))).usage == used(10, 2)
    assert end(lifted(first, gemini_event(finish="STOP", usage=running(2)), late)).usage == used(10, 5)
    assert end(lifted(first, gemini_event(finish="STOP", usage=None), late)).usage == used(10, 5)


def test_a_running_total_is_final_only_where_nothing_was_said_behind_it_and_the_body_has_ended() -> None:
    first = gemini_event({"text": "x"}, usage=running(1))
    assert end(lifted(first, gemini_event({"text": ""}, finish="STOP", usage=None))).usage == used(10, 1)
    assert end(lifted(first, gemini_event({"text": "y"}, finish="STOP", usage=None))).usage is None
    assert end(lifted(first, event({"error": {"code": 503, "message": "overloaded"}}))).usage is None
    answer = Answer(frozenset(), 1000)
    answer.sent = True
    lift = Lift(answer, lambda text: text, upstream="gemini-x", document_bytes_max=1000)
    lift.feed(first + gemini_event(finish="STOP", usage=None))
    lift.settle()  # the connection broke
    assert (end(answer).stop_reason, end(answer).usage) == ("end_turn", None)


def test_an_answer_without_usage_completes_without_it() -> None:
    assert end(lifted(gemini_event({"text": "x"}, finish="STOP", usage=None))).usage is None


# --- errors -------------------------------------------------------------------------------------------------------

ERROR = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}


def test_an_error_inside_a_200_is_a_failure_of_its_kind_and_its_usage_is_not_known() -> None:
    for before in ((), (gemini_event({"text": "Part"}),)):
        ended = end(lifted(*before, event(ERROR), STOP))
        assert (ended.kind, ended.message, ended.usage) == ("unavailable", "The model is overloaded.", None)
    counted = end(lifted(event({**ERROR, "usageMetadata": running(2)})))
    assert (counted.kind, counted.usage) == ("unavailable", used(10, 2))
    assert end(lifted(event({"error": "odd"}))).message == "odd"


def test_an_error_is_read_where_it_stands_in_a_bare_array_or_alone() -> None:
    for body in (json.dumps(ERROR), json.dumps([ERROR]), json.dumps([ERROR], indent=2)):
        ended = end(lifted(*body))
        assert (ended.kind, ended.message, ended.usage) == ("unavailable", "The model is overloaded.", None)


def test_an_answer_in_one_array_is_lifted_and_one_without_an_end_is_a_failure() -> None:
    responses = [json.loads(gemini_event({"text": text}).removeprefix(b"data: ")) for text in ("Hel", "lo")]
    last = json.loads(STOP.removeprefix(b"data: "))
    answer = lifted(json.dumps([*responses, last]))
    assert (text_of(answer), end(answer).stop_reason, end(answer).usage) == ("Hello", "end_turn", used(11, 3))
    assert (end(lifted(json.dumps(responses))).stop_reason, end(lifted(json.dumps(responses))).usage) == (None, None)
    assert end(lifted(json.dumps([*responses, ERROR]))).kind == "unavailable"
    assert end(lifted(json.dumps([*responses, last])[:-1])).kind == "unavailable"
    assert end(lifted(json.dumps([1, 2]))).kind == "provider"


def test_an_answer_that_was_not_streamed_is_lifted_too() -> None:
    answer = lifted(gemini_event({"text": "x"}, finish="STOP").removeprefix(b"data: "))
    assert (text_of(answer), end(answer).stop_reason, end(answer).usage) == ("x", "end_turn", used(11, 3))


NAMES = st.sampled_from(
    ["candidates", "content", "parts", "text", "thought", "functionCall", "name", "args", "id", "thoughtSignature",
     "finishReason", "finishMessage", "index", "promptFeedback", "blockReason", "usageMetadata", "promptTokenCount",
     "candidatesTokenCount", "error", "code", "status", "details", "message", "responseId"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["STOP", "x", "c2ln"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=15,
)


@given(st.lists(st.dictionaries(NAMES, JSON, max_size=5), max_size=4))
def test_no_json_at_all_raises_and_the_answer_always_ends(chunks: list[Any]) -> None:
    assert lifted(*map(event, chunks)).ended is not None
    assert lifted(*(event({"candidates": [one]}) for one in chunks)).ended is not None
    assert lifted(*(event({"candidates": [{"content": {"parts": [one]}}]}) for one in chunks)).ended is not None
    assert lifted(json.dumps(chunks)).ended is not None


def test_an_error_behind_the_finish_keeps_the_final_count() -> None:
    used = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    finish = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}], "usageMetadata": used}
    ended = end(lifted(event(finish), event({"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}})))
    assert ended.kind == "unavailable"
    assert ended.usage is not None
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (5, 2)


def test_what_was_counted_before_more_was_said_is_not_the_last_count() -> None:
    used = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    finish = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}], "usageMetadata": used}
    more = {"candidates": [{"content": {"parts": [{"text": "and more"}]}}]}
    assert end(lifted(event(finish), event(more))).usage is None


def test_very_many_signatures_fail() -> None:
    parts = [{"text": "", "thoughtSignature": "c2ln"}] * 1025
    assert end(lifted(event({"candidates": [{"content": {"parts": parts}}]}))).kind == "provider"
