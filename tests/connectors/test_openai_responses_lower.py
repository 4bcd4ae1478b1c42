"""What a request becomes on its way to a Responses server: every member, what is noted, what is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build
from kit.responses_events import added, call, completed, done, lifted, message, said

from sidecar.connectors.lowering import call_id
from sidecar.connectors.openai_responses_lower import OUTPUT_CHARACTERS_MAX, Dialect, lower
from sidecar.connectors.openai_responses_states import phase_in, reasoning_in, state_of_phase, state_of_reasoning
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract import values as v

OPENAI = Dialect()
COMPATIBLE = Dialect(dialect="compatible")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
REASONS = {"efforts": EFFORTS}
CLOSED = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
OPEN = '{"type":"object", "properties":{"a":{}},"b":1.0,"c":12345678901234567890123}'


def tool(schema: str = CLOSED, name: str = "look") -> v.ToolDefinition:
    return v.ToolDefinition(name=name, description="Look around.", parameters_json=schema)


def lowered(
    *items: v.InputItem, dialect: Dialect = OPENAI, settings: dict[str, Any] | None = None, **changes: Any
) -> Lowered:
    return lower(build.request(*items, **changes), "tiny", settings or {}, dialect)


def body(*items: v.InputItem, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lowered(*items, **changes).body)
    return made


def reasoning(encrypted: str = "gAAA==", upstream: str = "tiny", **members: Any) -> v.InputItem:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted, **members}
    state = state_of_reasoning(item, upstream)
    assert state is not None
    return build.state(opaque=state)


def phase(word: str = "commentary", upstream: str = "tiny") -> v.InputItem:
    state = state_of_phase(word, upstream)
    assert state is not None
    return build.state(opaque=state)


# --- the members ------------------------------------------------------------------------------------------------


def test_the_plainest_request_is_stateless_and_asks_for_no_cache_write() -> None:
    assert body() == {
        "model": "tiny",
        "input": [{"type": "message", "role": "user", "content": "hello there"}],
        "max_output_tokens": 100,
        "stream": True,
        "store": False,
        "stream_options": {"include_obfuscation": False},
        "service_tier": "default",
        "prompt_cache_options": {"mode": "explicit"},
    }


def test_a_compatible_server_is_sent_nothing_that_only_openai_knows() -> None:
    assert body(dialect=COMPATIBLE) == {
        "model": "tiny",
        "input": [{"type": "message", "role": "user", "content": "hello there"}],
        "max_output_tokens": 100,
        "stream": True,
        "store": False,
    }


def test_instructions_are_sent_where_there_are_any() -> None:
    assert body(instructions="Be brief.")["instructions"] == "Be brief."
    assert "instructions" not in body()


@pytest.mark.parametrize("tokens", [16, 100, 32_000])
def test_i6_the_bound_that_is_sent_is_the_requests_own(tokens: int) -> None:
    assert body(max_output_tokens=tokens)["max_output_tokens"] == tokens


def test_fewer_output_tokens_than_openai_takes_are_rejected_and_elsewhere_sent() -> None:
    with pytest.raises(Rejected, match="below 16"):
        body(max_output_tokens=15)
    assert body(max_output_tokens=15, dialect=COMPATIBLE)["max_output_tokens"] == 15


def test_what_would_keep_state_or_cost_more_is_never_sent() -> None:
    everything = body(
        reasoning(), build.said("x"), build.text(), tools=(tool(),), reasoning_effort="max", cache_retention="long",
        output_schema_json=CLOSED, settings=REASONS,
    )  # fmt: skip
    never = {
        "previous_response_id",
        "conversation",
        "background",
        "temperature",
        "top_p",
        "truncation",
        "user",
        "metadata",
    }
    assert not never & set(everything)
    assert (everything["store"], everything["service_tier"]) == (False, "default")
    assert everything["reasoning"] == {"effort": "max"}


# --- effort -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("efforts", "sent"),
    [
        (("low", "medium", "high"), {"low": "low", "medium": "medium", "high": "high", "max": "high"}),
        (("minimal", "low", "medium", "high"), {"low": "low", "max": "high"}),
        (("none", "low", "medium", "high", "xhigh"), {"high": "high", "max": "xhigh"}),
        (EFFORTS, {"low": "low", "medium": "medium", "high": "high", "max": "max"}),
        (("high",), {"high": "high", "max": "high", "low": None, "medium": None}),
        (("none", "low"), {"low": "low", "medium": None, "high": None, "max": None}),
    ],
)
def test_an_effort_is_sent_as_the_model_knows_it_and_one_that_it_does_not_know_is_rejected(
    efforts: tuple[str, ...], sent: dict[Any, str | None]
) -> None:
    for asked, word in sent.items():
        if word is None:
            with pytest.raises(Rejected, match="efforts"):
                body(reasoning_effort=asked, settings={"efforts": efforts})
        else:
            assert body(reasoning_effort=asked, settings={"efforts": efforts})["reasoning"] == {"effort": word}


def test_a_reasoning_model_gives_its_ciphertext_also_where_no_effort_is_asked() -> None:
    made = body(settings=REASONS)
    assert (made["include"], "reasoning" in made) == (["reasoning.encrypted_content"], False)
    assert "include" not in body(settings=REASONS, dialect=Dialect(dialect="compatible", send_include=False))


@pytest.mark.parametrize("settings", [{}, {"efforts": ()}])
def test_a_model_that_does_not_reason_is_sent_neither_and_a_dropped_effort_is_noted(settings: dict[str, Any]) -> None:
    made = lowered(reasoning_effort="high", settings=settings)
    assert not {"include", "reasoning"} & set(json.loads(made.body))
    assert made.notes == ("effort_dropped",)
    assert lowered(settings=settings).notes == ()


# --- cache ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cache", "retention", "sent", "has_key", "notes"),
    [
        ("charged", None, {"prompt_cache_options": {"mode": "explicit"}}, False, ()),
        ("charged", "short", {"prompt_cache_options": {"ttl": "30m"}}, True, ()),
        ("charged", "long", {"prompt_cache_options": {"ttl": "12h"}}, True, ()),
        ("free", None, {}, False, ()),
        ("free", "short", {}, True, ()),
        ("free", "long", {"prompt_cache_retention": "24h"}, True, ()),
        ("none", None, {}, False, ()),
        ("none", "short", {}, False, ("retention_dropped",)),
        ("none", "long", {}, False, ("retention_dropped",)),
    ],
)
def test_the_cache_is_asked_for_as_the_retention_says_and_never_written_unasked(
    cache: str, retention: Any, sent: dict[str, Any], has_key: bool, notes: tuple[str, ...]
) -> None:
    made = lowered(cache_retention=retention, settings={"cache": cache})
    members = {name: said for name, said in json.loads(made.body).items() if name.startswith("prompt_cache")}
    assert ("prompt_cache_key" in members) == has_key
    assert {name: said for name, said in members.items() if name != "prompt_cache_key"} == sent
    assert made.notes == notes


@pytest.mark.parametrize("settings", [{}, {"cache": None}])
def test_a_cache_of_which_nothing_is_said_is_charged_at_openai_and_none_elsewhere(settings: dict[str, Any]) -> None:
    assert body(settings=settings)["prompt_cache_options"] == {"mode": "explicit"}
    assert lowered(cache_retention="short", settings=settings, dialect=COMPATIBLE).notes == ("retention_dropped",)


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256), st.text(max_size=20))
def test_the_cache_key_is_of_the_conversation_alone_and_fits(conversation: str, words: str) -> None:
    def key(**changes: Any) -> str:
        made: str = body(conversation_id=conversation, cache_retention="short", **changes)["prompt_cache_key"]
        return made

    assert key() == key(instructions=words, request_id="another")
    assert 1 <= len(key()) <= 64


# --- tools and schemas ------------------------------------------------------------------------------------------


def test_every_tool_says_whether_it_is_strict_and_its_schema_stands_byte_for_byte() -> None:
    made = lowered(tools=(tool(), tool(OPEN, "go")), tool_choice="required", parallel_tool_calls=True)
    sent = json.loads(made.body)
    assert [(one["type"], one["name"], one["strict"]) for one in sent["tools"]] == [
        ("function", "look", True), ("function", "go", False)
    ]  # fmt: skip
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", True)
    assert CLOSED.encode() in made.body
    assert OPEN.encode() in made.body
    assert made.notes == (), "a tool's arguments are checked by who takes the call"


def test_f10_without_tools_there_is_no_choice_and_no_word_of_parallel_calls() -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body())
    assert body(tools=(tool(),))["parallel_tool_calls"] is False


def test_what_a_server_has_no_place_for_is_left_out_noted_or_rejected() -> None:
    poor = Dialect(dialect="compatible", send_tool_choice=False, send_parallel_tool_calls=False, send_strict=False)
    made = lowered(tools=(tool(),), dialect=poor)
    assert set(json.loads(made.body)["tools"][0]) == {"type", "name", "description", "parameters"}
    assert not {"tool_choice", "parallel_tool_calls"} & set(json.loads(made.body))
    assert made.notes == ("parallel_calls_allowed",)
    assert lowered(tools=(tool(),), dialect=poor, parallel_tool_calls=True).notes == ()
    with pytest.raises(Rejected, match="tool_choice"):
        body(tools=(tool(),), tool_choice="required", dialect=poor)


@pytest.mark.parametrize(
    ("schema", "dialect", "strict", "notes"),
    [
        (CLOSED, OPENAI, True, ()),
        (OPEN, OPENAI, False, ("schema_loosened",)),
        (CLOSED, COMPATIBLE, True, ()),
        (CLOSED, Dialect(dialect="compatible", send_strict=False), None, ("schema_loosened",)),
    ],
)
def test_i9_an_output_schema_goes_out_byte_for_byte_and_strictly_where_it_may(
    schema: str, dialect: Dialect, strict: bool | None, notes: tuple[str, ...]
) -> None:
    made = lowered(output_schema_json=schema, dialect=dialect)
    assert schema.encode() in made.body
    sent = json.loads(made.body)["text"]["format"]
    assert (sent["type"], sent["name"], sent.get("strict")) == ("json_schema", "answer", strict)
    assert made.notes == notes


def test_a_server_that_ignores_schemas_is_not_asked_to_keep_one() -> None:
    with pytest.raises(Rejected, match="schema"):
        body(output_schema_json=CLOSED, dialect=Dialect(dialect="compatible", output_schema="refused"))


# --- items ------------------------------------------------------------------------------------------------------


def test_items_go_out_one_to_one_and_in_order() -> None:
    made = body(
        build.text("go"), reasoning(), phase(), build.said("I look."), build.call("c1", arguments='{"b": 1, "a":2}'),
        build.call("c2", arguments=""), build.result("c2", ""), build.result("c1", "a door"), build.text("and?"),
        phase("final_answer"), build.said("Done."), build.text("again"), settings=REASONS,
    )["input"]  # fmt: skip
    assert made == [
        {"type": "message", "role": "user", "content": "go"},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA=="},
        {"type": "message", "role": "assistant", "content": "I look.", "phase": "commentary"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"b": 1, "a":2}'},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "a door"},
        {"type": "message", "role": "user", "content": "and?"},
        {"type": "message", "role": "assistant", "content": "Done.", "phase": "final_answer"},
        {"type": "message", "role": "user", "content": "again"},
    ]
    assert not any("id" in item for item in made)


def test_a_call_id_from_elsewhere_is_mapped_alike_in_call_and_result() -> None:
    odd = "call:1/" + "x" * 80
    _, call_item, result_item = body(build.text(), build.call(odd), build.result(odd))["input"]
    assert call_item["call_id"] == result_item["call_id"]
    assert len(call_item["call_id"]) == 42
    assert lowered(build.text(), build.call(odd), build.result(odd)).call_ids == {odd, call_id(odd)}


@pytest.mark.parametrize(
    ("items", "changes", "why"),
    [
        ((build.state(),), {}, "nothing is left"),
        ((build.call("c1", arguments="[1]"), build.result("c1")), {}, "no JSON object"),
        ((build.call("c1", arguments='{"a":'), build.result("c1")), {}, "no JSON object"),
        ((build.call("c1", name="inventory.look"), build.result("c1")), {}, "tool name"),
        ((), {"tools": (tool(name="l:ook"),)}, "name"),
        ((), {"tools": (tool("{}"),)}, "type object"),
        ((build.call("c1"), build.result("c1", "x" * (OUTPUT_CHARACTERS_MAX + 1))), {}, "characters"),
    ],
)
def test_what_the_api_cannot_take_is_rejected_before_sending(
    items: tuple[v.InputItem, ...], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        body(*items, **changes)


# --- states -----------------------------------------------------------------------------------------------------


def test_h1_a_block_that_was_lifted_is_replayed_as_it_was_received() -> None:
    """H1: the ciphertext between two tool rounds is not lost, and the next request holds exactly it."""
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "hm ü"}],
        "encrypted_content": "gAAAAAB=" * 500,
        "content": [{"type": "reasoning_text", "text": "raw"}],
    }
    answer = lifted(done(item), added(message("", phase="commentary"), 1), said("Hi", 1), done(call(), 2), completed())
    turn = []
    for event in answer.events():
        if event.reasoning_state:
            turn.append(build.state(opaque=event.reasoning_state.state))
        elif event.text_delta:
            turn.append(build.said(event.text_delta.text))
        elif event.tool_call:
            turn.append(build.call(event.tool_call.call_id))
    made = lowered(build.text(), *turn, build.result("c1"), settings=REASONS)
    sent = json.loads(made.body)["input"]
    assert sent[1] == {name: item[name] for name in ("type", "summary", "encrypted_content", "content")}
    assert sent[2] == {"type": "message", "role": "assistant", "content": "Hi", "phase": "commentary"}
    assert made.states_dropped == 0


def test_h5_states_of_other_models_kinds_and_shapes_are_left_out_and_counted() -> None:
    foreign = [
        reasoning(upstream="other"),
        phase(upstream="other"),
        build.state(opaque=b'{"item":{"signature":"x","thinking":"y"},"k":"anthropic.thinking","m":"tiny","v":1}'),
        build.state(opaque=b'{"item":{"encrypted_content":"x","summary":[],"id":"rs"},"k":"openai.reasoning","m":"tiny","v":1}'),
        build.state(opaque=b'{"item":{"encrypted_content":"x"},"k":"openai.reasoning","m":"tiny","v":1}'),
        build.state(opaque=b'{"item":{"encrypted_content":7,"summary":[]},"k":"openai.reasoning","m":"tiny","v":1}'),
        build.state(opaque=b'{"item":{"encrypted_content":"x","summary":[]},"k":"openai.reasoning","m":"tiny","v":1,"x":1}'),
        build.state(opaque=b'{"item":[],"k":"openai.reasoning","m":"tiny","v":1}'),
        build.state(opaque=b'{"k":"openai.phase","m":"tiny","phase":"Final Answer","v":1}'),
        build.state(opaque=b'{"k":"openai.phase","m":"tiny","phase":"commentary","role":"system","v":1}'),
    ]  # fmt: skip
    made = lowered(build.text(), *foreign, build.said("x"), build.text())
    assert made.states_dropped == len(foreign)
    assert [item["type"] for item in json.loads(made.body)["input"]] == ["message"] * 3


def test_reasoning_that_led_to_nothing_and_a_phase_without_its_text_are_left_out_and_counted() -> None:
    made = lowered(
        build.text("a"), build.said("x"), reasoning(), build.text("b"),
        phase(), build.call("c1"), phase(), build.result("c1"), reasoning(), phase(),
    )  # fmt: skip
    assert made.states_dropped == 5
    assert not {"reasoning"} & {item["type"] for item in json.loads(made.body)["input"]}
    assert not any("phase" in item for item in json.loads(made.body)["input"])


def test_a_phase_is_of_the_one_text_behind_it() -> None:
    sent = body(build.text(), phase(), build.said("a"), build.said("b"), build.text())["input"]
    assert [item.get("phase") for item in sent] == [None, "commentary", None, None]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.lists(TEXT, max_size=3)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), PARTS, PARTS)
def test_a_reasoning_state_comes_back_exactly_and_for_its_model_only(
    encrypted: str, summary: list[str], content: list[str]
) -> None:
    item = {
        "id": "rs",
        "summary": [{"type": "summary_text", "text": text} for text in summary],
        "encrypted_content": encrypted,
        "content": [{"type": "reasoning_text", "text": text} for text in content],
    }
    state = state_of_reasoning(item, "tiny")
    assert state is not None
    wanted = {"type": "reasoning", "summary": item["summary"], "encrypted_content": encrypted}
    assert reasoning_in(state, "tiny") == {**wanted, **({"content": item["content"]} if content else {})}
    assert reasoning_in(state, "tiny-2") is None
    assert phase_in(state, "tiny") is None


@given(st.binary(max_size=200) | TEXT.map(str.encode))
def test_no_bytes_that_are_none_of_ours_are_a_state(opaque: bytes) -> None:
    assert reasoning_in(opaque, "tiny") is None
    assert phase_in(opaque, "tiny") is None


# --- byte stability ---------------------------------------------------------------------------------------------


@st.composite
def a_turn(draw: st.DrawFn) -> tuple[list[v.InputItem], list[v.InputItem]]:
    """What the user's side says, and the assistant's turn behind it; call ids are filled in by the caller."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
    states = st.builds(reasoning, st.sampled_from(["a", "b"]), st.sampled_from(["tiny", "other"])) | st.builds(
        phase, st.sampled_from(["commentary", "final_answer"]), st.sampled_from(["tiny", "other"])
    )
    foreign = st.binary(max_size=8).map(lambda opaque: build.state(opaque=opaque))
    said = st.lists(st.one_of(states, foreign, texts.map(build.said), st.just(build.call("id"))), max_size=6)
    return [build.text(draw(texts))], draw(said)


@given(
    st.lists(a_turn(), min_size=10, max_size=10),
    st.sampled_from([OPENAI, COMPATIBLE]),
)
def test_over_ten_turns_what_was_sent_before_is_sent_again_byte_for_byte(
    turns: list[tuple[list[v.InputItem], list[v.InputItem]]], dialect: Dialect
) -> None:
    """Each body, up to the end of its input, is the beginning of every later one."""
    history: list[v.InputItem] = []
    before, dropped_before = b"", 0
    results: list[v.InputItem] = []
    for number, (user, assistant) in enumerate(turns):
        history += [*results, *user]
        made = lower(build.request(*history, tools=(tool(),)), "tiny", REASONS, dialect)
        sent = made.body[: made.body.index(b'],"max_output_tokens":')]
        assert sent.startswith(before), number
        assert made.states_dropped >= dropped_before
        before, dropped_before = sent, made.states_dropped
        results = []
        for at, item in enumerate(assistant):
            if item.tool_call:
                item = build.call(f"c{number}_{at}", arguments='{"a": 1}')
                results.append(build.result(f"c{number}_{at}"))
            history.append(item)
