"""From a request to a Messages body: turns, states, tools, thinking, cache markers, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build

from sidecar.connectors.anthropic_messages_blocks import state_of
from sidecar.connectors.anthropic_messages_lower import Dialect, lower
from sidecar.connectors.anthropic_messages_models import BUDGET_TOKENS, FAMILIES, Model
from sidecar.connectors.lowering import call_id
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract import values as v

PLAIN = Dialect()
LOOK = v.ToolDefinition(name="look", description="Look around.", parameters_json='{"type": "object",  "properties":{}}')
GO = v.ToolDefinition(name="go", description="", parameters_json='{"type":"object"}')
CLOSED = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
THOUGHT = {"type": "thinking", "thinking": "Let me see 北.", "signature": "EvMC=="}
REDACTED = {"type": "redacted_thinking", "data": "Eqk="}


def lowered(*items: v.InputItem, dialect: Dialect = PLAIN, model: Model | None = None, **changes: Any) -> Lowered:
    return lower(build.request(*items, **changes), "tiny", dialect, model or Model())


def body(*items: v.InputItem, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lowered(*items, **changes).body)
    return made


def messages(*items: v.InputItem, **changes: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = body(*items, **changes)["messages"]
    return made


def thought(block: dict[str, str] = THOUGHT, upstream: str = "tiny") -> v.InputItem:
    return build.state("claude", "npc", state_of(block, upstream))


def family(thinking: str, **keys: Any) -> Model:
    return Model(thinking=thinking, **keys)


# --- turns ------------------------------------------------------------------------------------------------------


def test_a_plain_request_says_no_more_than_it_must() -> None:
    assert body(instructions="Be short.", max_output_tokens=7) == {
        "model": "tiny",
        "system": [{"type": "text", "text": "Be short."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello there"}]}],
        "max_tokens": 7,
        "stream": True,
    }
    assert "system" not in body(instructions="")


def test_i5_i6_a_large_bound_goes_upstream_as_it_is_and_streamed() -> None:
    made = body(max_output_tokens=32_000)
    assert (made["max_tokens"], made["stream"]) == (32_000, True)


def test_neighbours_of_one_side_are_one_message_and_each_text_is_a_block_of_its_own() -> None:
    made = messages(build.text("a"), build.text(" b "), build.said("c"), build.said("d "), build.text("e"))
    assert made == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": " b "}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d "}]},
        {"role": "user", "content": [{"type": "text", "text": "e"}]},
    ]


def test_f9_results_stand_first_in_the_one_user_message_behind_their_calls() -> None:
    made = messages(
        build.text("go"),
        build.said("Looking."),
        build.call("c1", "look", '{"at": "door"}'),
        build.call("c2", "look", ""),
        build.text("well?"),
        build.result("c2", "a wall"),
        build.result("c1", ""),
        build.text("and?"),
    )
    assert made[1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "door"}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "a wall"},
                {"type": "tool_result", "tool_use_id": "c1", "content": ""},
                {"type": "text", "text": "well?"},
                {"type": "text", "text": "and?"},
            ],
        },
    ]


def test_texts_of_blanks_alone_which_the_api_refuses_are_passed_over() -> None:
    items = (
        build.text(" "),
        build.text("a"),
        build.said("\n\n"),
        build.call("c1"),
        build.result("c1"),
        build.text("\n"),
    )
    assert messages(*items, instructions=" \n") == [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a door"}]},
    ]
    assert [message["role"] for message in messages(build.text("a"), build.said(" "), build.text("b"))] == ["user"]


def test_arguments_keep_their_order_and_every_character_of_their_values_and_lose_only_blanks_between() -> None:
    said = '{\n "z" : 1.0, "a":[12345678901234567890123, 1e400],"t": " x \\" : \\u00e9\\n", "o":{ }}'
    raw = lowered(build.text(), build.call("c1", "look", said), build.result("c1")).body
    assert b'"input":{"z":1.0,"a":[12345678901234567890123,1e400],"t":" x \\" : \\u00e9\\n","o":{}}' in raw


def test_a_call_id_that_the_api_does_not_take_is_mapped_alike_in_call_and_result() -> None:
    odd = "toolu/01:" + "x" * 100
    made = messages(build.text(), build.call(odd), build.result(odd))
    mapped = made[1]["content"][0]["id"]
    assert re.fullmatch(r"c_[0-9a-f]{40}", mapped)
    assert made[2]["content"][0]["tool_use_id"] == mapped
    assert lowered(build.text(), build.call(odd), build.result(odd)).call_ids == {odd, call_id(odd)}


# --- reasoning states -------------------------------------------------------------------------------------------


def test_h1_h3_blocks_of_thinking_go_back_exactly_and_in_their_places() -> None:
    empty = {"type": "thinking", "thinking": "", "signature": "Ev"}
    items = (thought(), thought(REDACTED), build.said("a"), thought(empty), build.call("c1"), build.result("c1"))
    sent = lowered(build.text(), *items)
    assert json.loads(sent.body)["messages"][1]["content"] == [
        THOUGHT,
        REDACTED,
        {"type": "text", "text": "a"},
        empty,
        {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
    ]
    assert sent.states_dropped == 0
    assert '{"type":"thinking","thinking":"Let me see 北.","signature":"EvMC=="}'.encode() in sent.body


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"v":1,"k":"anthropic.thinking","m":"tiny","block":{"type":"redacted_thinking","data":"Eqk="}}',
        b' {"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"tiny","v":1}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"tiny","v":true}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"tiny","v":1.0}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"tiny","v":2}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"openai.reasoning","m":"tiny","v":1}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"other","v":1}',
        b'{"block":{"data":"Eqk=","type":"redacted_thinking"},"k":"anthropic.thinking","m":"tiny","v":1,"x":1}',
        b'{"block":{"data":"a","type":"redacted_thinking"},"block":{},"k":"anthropic.thinking","m":"tiny","v":1}',
        state_of({"type": "redacted_thinking", "data": 7}, "tiny"),
        state_of({"type": "redacted_thinking"}, "tiny"),
        state_of({"type": "redacted_thinking", "data": "a", "cache_control": "b"}, "tiny"),
        state_of({"type": "thinking", "thinking": "a"}, "tiny"),
        state_of({"type": "text", "text": "a"}, "tiny"),
        state_of({"type": "tool_use", "id": "a"}, "tiny"),
        state_of(REDACTED, "other"),
    ],
)
def test_h5_what_is_no_state_of_this_model_is_left_out_and_counted(state: bytes) -> None:
    items = (build.text(), build.state("claude", "npc", state), build.said("a"), build.text("b"))
    sent = lowered(*items)
    assert sent.states_dropped == 1
    assert json.loads(sent.body) == body(build.text(), build.said("a"), build.text("b"))


def test_thinking_at_the_very_end_of_a_turn_which_the_api_refuses_is_left_out_and_counted() -> None:
    sent = lowered(build.text("a"), thought(), build.said("b"), thought(), thought(REDACTED), build.text("c"))
    assert [block["type"] for block in json.loads(sent.body)["messages"][1]["content"]] == ["thinking", "text"]
    assert sent.states_dropped == 2
    sent = lowered(build.text("a"), thought(), build.said(" "), build.text("c"))
    assert [message["role"] for message in json.loads(sent.body)["messages"]] == ["user"]
    assert sent.states_dropped == 1


def test_a_server_that_takes_no_thinking_back_is_sent_none() -> None:
    sent = lowered(build.text(), thought(), build.said("a"), build.text(), dialect=Dialect(replay_thinking=False))
    assert sent.states_dropped == 1
    assert b"thinking" not in sent.body


# --- the same bytes for ever ------------------------------------------------------------------------------------


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
blocks = st.sampled_from([THOUGHT, REDACTED]).flatmap(
    lambda block: st.sampled_from(["tiny", "other"]).map(lambda upstream: thought(block, upstream))
)
junk = st.binary(max_size=4).map(lambda state: build.state("claude", "npc", state))
arguments = st.dictionaries(words, st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), words))


@st.composite
def grown(draw: st.DrawFn) -> list[list[v.InputItem]]:
    """The inputs of a conversation's requests, each the one before with an assistant's turn and a user's side more."""
    items: list[v.InputItem] = [build.text("hello")]
    requests = [list(items)]
    for turn in range(draw(st.integers(1, 4))):
        calls = 0
        for kind in draw(st.lists(st.sampled_from("tcs"), min_size=1, max_size=4)):
            if kind == "t":
                items.append(build.said(draw(words)))
            elif kind == "s":
                items.append(draw(st.one_of(blocks, junk)))
            else:
                style = draw(st.sampled_from([None, 2]))
                items.append(build.call(f"c/{turn}-{calls}", "look", json.dumps(draw(arguments), indent=style)))
                calls += 1
        texts = [build.text(text) for text in draw(st.lists(words, max_size=1))]
        texts += [] if calls else [build.text("and?")]
        results = [build.result(f"c/{turn}-{at}", draw(words)) for at in range(calls)]
        items += draw(st.permutations([*results, *texts]))
        requests.append(list(items))
    return requests


def without_markers(sent: bytes) -> bytes:
    return re.sub(rb',"cache_control":\{"type":"ephemeral","ttl":"(?:5m|1h)"\}', b"", sent)


def up_to_the_messages_end(sent: bytes) -> bytes:
    """Everything up to the last block of the last message."""
    end = sent.index(b']}],"max_tokens":')
    assert json.loads(sent[:end] + b"]}]}")["messages"] == json.loads(sent)["messages"]
    return sent[:end]


@given(
    grown(),
    st.sampled_from([None, "short", "long"]),
    st.sampled_from([None, "low", "max"]),
    st.sampled_from(list(FAMILIES)),
)
def test_an_earlier_turn_lowers_to_the_same_bytes_in_every_later_request(
    requests: list[list[v.InputItem]], retention: Any, effort: Any, thinking: str
) -> None:
    earlier = b""
    for items in requests:
        sent = lowered(
            *items,
            instructions="Be brief.",
            tools=(LOOK,),
            cache_retention=retention,
            reasoning_effort=effort,
            model=family(thinking),
        ).body
        begin = up_to_the_messages_end(sent if retention is None else without_markers(sent))
        assert begin.startswith(earlier), "also the model, the tools and the instructions stand before the turns"
        earlier = begin


# --- tools ------------------------------------------------------------------------------------------------------


def test_tools_go_out_with_their_schema_byte_for_byte() -> None:
    bare = v.ToolDefinition(name="go", description="", parameters_json='{"type":"object","maximum":' + "9" * 5000 + "}")
    raw = lowered(tools=(LOOK, bare)).body
    assert b'"input_schema":' + LOOK.parameters_json.encode() + b"}" in raw
    assert b'{"name":"go","input_schema":' + bare.parameters_json.encode() + b"}" in raw


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        ("auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", True, {"type": "auto", "disable_parallel_tool_use": False}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("required", True, {"type": "any", "disable_parallel_tool_use": False}),
    ],
)
def test_f10_choice_and_parallel_calls_are_two_things(choice: Any, parallel: bool, sent: dict[str, Any]) -> None:
    assert body(tools=(LOOK,), tool_choice=choice, parallel_tool_calls=parallel)["tool_choice"] == sent
    assert not {"tools", "tool_choice"} & set(body(parallel_tool_calls=parallel))


@pytest.mark.parametrize("thinking", FAMILIES)
@pytest.mark.parametrize("effort", [None, "low"])
def test_a_forced_call_is_refused_before_sending_where_the_model_answers_400(thinking: str, effort: Any) -> None:
    asked = {"tools": (LOOK,), "tool_choice": "required", "reasoning_effort": effort, "max_output_tokens": 4000}
    if thinking in ("between_tools", "always") or (thinking, effort) == ("budget", "low"):
        with pytest.raises(Rejected, match="can't be made to call"):
            body(model=family(thinking), **asked)
    else:
        assert body(model=family(thinking), **asked)["tool_choice"]["type"] == "any"
    with pytest.raises(Rejected, match="can't be made to call"):
        body(model=family(thinking, forced_tools=False), **asked)
    assert body(model=family(thinking), **{**asked, "tool_choice": "auto"})["tool_choice"]["type"] == "auto"


# --- thinking and effort ----------------------------------------------------------------------------------------


def reasoning(model: Model, effort: Any, *items: v.InputItem, **changes: Any) -> tuple[Any, Any, tuple[v.Note, ...]]:
    """The `thinking` member, the effort that is sent, and what is noted."""
    changes = {"max_output_tokens": 40_000, **changes}
    sent = lowered(*items, model=model, reasoning_effort=effort, **changes)
    made = json.loads(sent.body)
    return made.get("thinking"), made.get("output_config", {}).get("effort"), sent.notes


@pytest.mark.parametrize("thinking", FAMILIES)
def test_without_an_effort_nothing_is_said_of_thinking(thinking: str) -> None:
    assert reasoning(family(thinking), None) == (None, None, ())


@pytest.mark.parametrize("effort", ["low", "medium", "high", "max"])
def test_an_effort_is_lowered_as_the_models_family_takes_it(effort: Any) -> None:
    budget = {"type": "enabled", "budget_tokens": BUDGET_TOKENS[effort]}
    adaptive = {"type": "adaptive"}
    opus_4_5 = family("budget", efforts=("low", "medium", "high"))
    assert reasoning(family("off"), effort) == (None, None, ("effort_dropped",))
    assert reasoning(family("budget"), effort) == (budget, None, ())
    assert reasoning(opus_4_5, effort) == (budget, "high" if effort == "max" else effort, ())
    assert reasoning(family("adaptive"), effort) == (adaptive, effort, ())
    for thinks_anyway in ("on", "between_tools", "always"):
        assert reasoning(family(thinks_anyway), effort) == (None, effort, ())


def test_a_word_that_the_model_does_not_take_is_refused_and_max_is_the_most_that_it_does() -> None:
    some = family("on", efforts=("medium", "xhigh"))
    assert reasoning(some, "max")[1] == "xhigh"
    with pytest.raises(Rejected, match="and not low"):
        reasoning(some, "low")
    assert reasoning(family("on", efforts=()), "low") == (None, None, ("effort_dropped",))
    assert reasoning(family("off", efforts=("low",)), "low") == (None, "low", ())


@pytest.mark.parametrize(
    ("bound", "budget"), [(1, None), (1_024, None), (1_025, 1_024), (2_048, 2_047), (2_049, 2_048), (9_999, 2_048)]
)
def test_a_budget_stays_below_the_bound_and_a_bound_too_small_for_one_leaves_thinking_off(
    bound: int, budget: int | None
) -> None:
    thinking, _, notes = reasoning(family("budget"), "low", max_output_tokens=bound)
    assert thinking == (budget and {"type": "enabled", "budget_tokens": budget})
    assert notes == (() if budget else ("effort_dropped",))


def test_an_open_tool_loop_without_thinking_is_gone_on_with_without_it_on_budget_models_alone() -> None:
    off = ({"type": "disabled"}, None, ("effort_dropped",))
    on = ({"type": "enabled", "budget_tokens": 2_048}, None, ())
    asked, loop = (build.text(),), (build.call("c1"), build.result("c1"))
    again = (build.call("c2"), build.result("c2"), build.text("and?"))
    for items, wanted in (
        ((*asked, *loop), off),
        ((*asked, thought(upstream="other"), *loop), off),
        ((*asked, *loop, *again), off),
        ((*asked, thought(), *loop), on),
        ((*asked, thought(), *loop, *again), on),
        ((*asked, thought(), build.said("x"), *asked, *loop), off),
        ((*asked, *loop, build.said("x"), *asked), on),
    ):
        assert reasoning(family("budget"), "low", *items) == wanted
    assert reasoning(family("adaptive"), "low", *asked, *loop)[0] == {"type": "adaptive"}


def test_a_model_that_thinks_unasked_can_be_kept_from_it_where_anything_keeps_it() -> None:
    for thinking, said in (
        ("on", "disabled"),
        ("between_tools", "between_tools"),
        ("always", None),
        ("adaptive", None),
    ):
        model = family(thinking, think_unasked=False)
        assert reasoning(model, None)[0] == (said and {"type": said})
        assert reasoning(model, "low") == reasoning(family(thinking), "low")


def test_the_way_out_of_a_changed_conversation_is_asked_for_where_thinking_may_be_bound() -> None:
    drop = Dialect(block_binding="drop")
    way_out = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    for thinking in FAMILIES:
        for effort in (None, "low"):
            said = reasoning(family(thinking), effort, dialect=drop)
            if thinking in ("on", "between_tools", "always"):
                assert said == (way_out, effort, ())
            else:
                assert said == reasoning(family(thinking), effort)


# --- cache ------------------------------------------------------------------------------------------------------


HISTORY = (
    build.text("a"),
    thought(),
    build.call("c1"),
    build.result("c1"),
    build.said("b"),
    build.text("c"),
    build.text("d"),
)


def marked(made: dict[str, Any]) -> list[str]:
    """The places of the markers."""
    places = [f"tools[{at}]" for at, tool in enumerate(made.get("tools", ())) if "cache_control" in tool]
    places += [f"system[{at}]" for at, block in enumerate(made.get("system", ())) if "cache_control" in block]
    for at, message in enumerate(made["messages"]):
        places += [f"{at}.{place}" for place, block in enumerate(message["content"]) if "cache_control" in block]
    return places


@pytest.mark.parametrize(("retention", "ttl"), [("short", "5m"), ("long", "1h")])
def test_markers_stand_behind_the_instructions_and_in_the_last_two_user_messages(retention: Any, ttl: str) -> None:
    made = body(*HISTORY, instructions="Be brief.", tools=(LOOK, GO), cache_retention=retention)
    assert marked(made) == ["system[0]", "2.0", "4.1"]
    assert made["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": ttl}
    made = body(*HISTORY, tools=(LOOK, GO), cache_retention=retention)
    assert marked(made) == ["tools[1]", "2.0", "4.1"]
    assert marked(body(cache_retention=retention)) == ["0.0"]


def test_without_a_retention_there_is_no_marker_and_with_one_nothing_but_markers_is_added() -> None:
    asked = {"instructions": "Be brief.", "tools": (LOOK,)}
    plain = lowered(*HISTORY, **asked).body
    assert b"cache_control" not in plain
    assert without_markers(lowered(*HISTORY, cache_retention="long", **asked).body) == plain


def test_an_empty_result_carries_no_marker_but_what_stands_before_it_may() -> None:
    calls = (build.call("c1"), build.call("c2"))
    made = body(build.text(), *calls, build.result("c1"), build.result("c2", ""), cache_retention="short")
    assert marked(made) == ["0.0", "2.0"]
    made = body(build.text(), build.call("c1"), build.result("c1", ""), cache_retention="short")
    assert marked(made) == ["0.0"]


def test_a_server_without_markers_is_sent_none_and_that_is_noted() -> None:
    sent = lowered(cache_retention="long", dialect=Dialect(send_cache_control=False))
    assert (b"cache_control" in sent.body, sent.notes) == (False, ("retention_dropped",))
    assert lowered(dialect=Dialect(send_cache_control=False)).notes == ()


# --- what is refused --------------------------------------------------------------------------------------------


def test_i9_an_output_schema_goes_out_byte_for_byte_or_not_at_all() -> None:
    schema = CLOSED.replace('"string"', '"string", "default":12345678901234567890123')
    for dialect in (PLAIN, Dialect(output_schema="sent")):
        raw = lowered(output_schema_json=schema, reasoning_effort="low", model=family("on"), dialect=dialect).body
        assert b'"output_config":{"effort":"low","format":{"type":"json_schema","schema":' + schema.encode() in raw
    free = '{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"string"}}}}'
    with pytest.raises(Rejected, match="additionalProperties"):
        body(output_schema_json=free)
    assert free.encode() in lowered(output_schema_json=free, dialect=Dialect(output_schema="sent")).body
    with pytest.raises(Rejected, match="no answer to a schema"):
        body(output_schema_json=CLOSED, dialect=Dialect(output_schema="refused"))


def test_d20_no_fallback_is_ever_asked_for_and_nothing_that_changes_the_price() -> None:
    made = body(
        *HISTORY,
        tools=(LOOK,),
        instructions="x",
        cache_retention="long",
        reasoning_effort="max",
        output_schema_json=CLOSED,
        model=family("on"),
        dialect=Dialect(block_binding="drop"),
    )
    assert set(made) == {
        "model", "tools", "system", "messages", "max_tokens", "stream", "tool_choice", "thinking", "output_config"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("items", "changes", "why"),
    [
        ((build.state(),), {}, "nothing is left"),
        ((build.text(" "),), {"instructions": "Be short."}, "nothing is left"),
        ((build.said("Hi"), build.text()), {}, "begins with an assistant"),
        ((build.text(), build.said("Hi")), {}, "ends with an assistant"),
        ((build.text(), build.said("Hi"), build.state()), {}, "ends with an assistant"),
        ((build.text(), build.said("Hi"), build.text(" ")), {}, "with blanks behind"),
        ((build.text(), build.call("c1", arguments="[1]"), build.result("c1")), {}, "no JSON object"),
        ((build.text(), build.call("c1", arguments='{"a":'), build.result("c1")), {}, "no JSON object"),
        ((build.text(), build.call("c1", name="inventory.look"), build.result("c1")), {}, "tool name"),
        ((), {"tools": (v.ToolDefinition(name="l:ook", description="", parameters_json='{"type":"object"}'),)}, "name"),
        ((), {"tools": (v.ToolDefinition(name="look", description="", parameters_json="{}"),)}, "type object"),
    ],
)
def test_what_the_api_cannot_take_is_rejected_before_sending(
    items: tuple[v.InputItem, ...], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        body(*items, **changes)
