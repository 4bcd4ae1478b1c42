"""From a request to a Gemini body: turns and parts, signatures on their own part, thinking, and what is lost."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build

from sidecar.connectors import gemini_signatures
from sidecar.connectors.gemini_lower import ModelSettings, lower
from sidecar.connectors.gemini_schema import is_held
from sidecar.connectors.gemini_signatures import FILLER, Signature
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.connectors.states import encode
from sidecar.contract import values as v

LOOK = v.ToolDefinition(name="look", description="Look around.", parameters_json='{"type": "object",  "properties":{}}')
OLD = ModelSettings(thinking="budget")


def signed(on: Any, sig: str = "c2ln", characters: int | None = None, upstream: str = "gemini-x") -> v.InputItem:
    return build.state("google", "npc", gemini_signatures.encode(Signature(on, sig, characters), upstream))


def lowered(*items: v.InputItem, model: ModelSettings = OLD, **changes: Any) -> Lowered:
    return lower(build.request(*items, **changes), "gemini-x", model)


def body(*items: v.InputItem, model: ModelSettings = OLD, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lowered(*items, model=model, **changes).body)
    return made


def parts(*items: v.InputItem, model: ModelSettings = OLD) -> list[Any]:
    """Of the model's turn, which is followed by one of the user."""
    (turn,) = [turn for turn in body(*items, model=model)["contents"] if turn["role"] == "model"]
    made: list[Any] = turn["parts"]
    return made


def call(call_id: str = "c1", name: str = "look", args: Any = None, **members: Any) -> dict[str, Any]:
    return {"functionCall": {"id": call_id, "name": name, "args": args or {}}, **members}


def test_a_plain_request_says_no_more_than_it_must() -> None:
    made = lowered(instructions="Be short.", max_output_tokens=7, parallel_tool_calls=False)
    assert json.loads(made.body) == {
        "systemInstruction": {"parts": [{"text": "Be short."}]},
        "contents": [{"role": "user", "parts": [{"text": "hello there"}]}],
        "generationConfig": {"maxOutputTokens": 7},
    }
    assert (made.notes, made.states_dropped) == ((), 0)


def test_i6_the_bound_goes_upstream_as_the_request_has_it() -> None:
    assert body(max_output_tokens=31_999)["generationConfig"] == {"maxOutputTokens": 31_999}


def test_turns_alternate_and_a_result_names_its_tool_directly_behind_the_calls() -> None:
    made = body(
        build.text("a"), build.text("b"), build.said("c"), build.text("go"), build.call("c1", "look", '{"at": 1.50}'),
        build.said("Looking."), build.call("c2", "go", ""), build.text("well?"), build.result("c2", "gone"),
        build.result("c1", ""), build.text("and?"),
    )  # fmt: skip
    assert made["contents"] == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "model", "parts": [{"text": "c"}]},
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": [call("c1", args={"at": 1.5}), {"text": "Looking."}, call("c2", "go")]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "c2", "name": "go", "response": {"output": "gone"}}},
                {"functionResponse": {"id": "c1", "name": "look", "response": {"output": ""}}},
                {"text": "well?"},
                {"text": "and?"},
            ],
        },
    ]


def test_arguments_stand_as_they_were_said() -> None:
    assert (
        b'"args":{"at": 1.50, "n":12345678901234567890}'
        in lowered(build.call("c1", "look", '{"at": 1.50, "n":12345678901234567890}'), build.result("c1")).body
    )
    with pytest.raises(Rejected, match="no JSON object"):
        lowered(build.call("c1", "look", "[1]"), build.result("c1"))


def test_a_call_id_that_not_every_server_takes_is_mapped_alike_in_call_and_result() -> None:
    odd = "toolu/01:" + "x" * 100
    contents = body(build.call(odd), build.result(odd))["contents"]
    mapped = contents[0]["parts"][0]["functionCall"]["id"]
    assert mapped == contents[1]["parts"][0]["functionResponse"]["id"] != odd


# --- signatures ---------------------------------------------------------------------------------------------------


def test_h1_a_signature_goes_back_onto_the_part_that_it_came_on() -> None:
    made = parts(
        signed("text", "dGV4dA=="), build.said("Hm."), signed("call", "Y2FsbA=="), build.call("c1"), build.call("c2"),
        signed("empty", "ZW1wdHk="), build.result("c1"), build.result("c2"), model=ModelSettings(),
    )  # fmt: skip
    assert made == [
        {"text": "Hm.", "thoughtSignature": "dGV4dA=="},
        call("c1", thoughtSignature="Y2FsbA=="),
        call("c2"),
        {"text": "", "thoughtSignature": "ZW1wdHk="},
    ]


def test_a_text_that_was_signed_only_at_its_beginning_is_two_parts() -> None:
    assert parts(build.said("a"), signed("text", "c2ln", 2), build.said("bcd")) == [
        {"text": "a"},
        {"text": "bc", "thoughtSignature": "c2ln"},
        {"text": "d"},
    ]
    assert parts(signed("text", "c2ln", 9), build.said("bcd")) == [{"text": "bcd", "thoughtSignature": "c2ln"}]


@pytest.mark.parametrize(
    "items",
    [
        (signed("call"), build.said("x")), (signed("text"), build.call("c1"), build.result("c1")),
        (build.said("x"), signed("call")), (signed("text"), signed("text"), build.said("x")),
        (build.said("x"), signed("text"), build.text("y")),
    ],
)  # fmt: skip
def test_a_signature_whose_part_is_not_there_is_left_out_and_counted(items: Any) -> None:
    made = lowered(*items)
    assert made.states_dropped == 1
    assert made.body.count(b"thoughtSignature") == (1 if items[0].reasoning_state == items[1].reasoning_state else 0)


FORGED = [
    b"{}", b"[]", encode("gemini.sig", "gemini-y", {"on": "call", "sig": "c2ln"}),
    encode("openai.reasoning", "gemini-x", {"on": "call", "sig": "c2ln"}),
    *(encode("gemini.sig", "gemini-x", members) for members in (
        {"on": "call"}, {"sig": "c2ln"}, {"on": "end", "sig": "c2ln"}, {"on": ["call"], "sig": "c2ln"},
        {"on": "call", "sig": ""}, {"on": "call", "sig": 7}, {"on": "call", "sig": "not base64!"},
        {"on": "call", "sig": "c2ln", "args": {}}, {"on": "call", "sig": "c2ln", "n": 1},
        {"on": "text", "sig": "c2ln", "n": 0}, {"on": "text", "sig": "c2ln", "n": True},
        {"on": "text", "sig": "c2ln", "n": None},
    )),
]  # fmt: skip


@pytest.mark.parametrize("state", FORGED, ids=range(len(FORGED)))
def test_a_state_that_was_not_emitted_here_for_this_model_is_left_out_and_counted(state: bytes) -> None:
    item = build.state("google", "npc", state)
    made = lowered(item, build.call("c1"), build.result("c1"))
    assert (made.states_dropped, b"thoughtSignature" in made.body) == (1, False)
    with pytest.raises(Rejected, match="nothing is left"):
        lowered(item)


def test_a_call_made_elsewhere_gets_the_signature_that_switches_the_check_off_where_there_is_a_check() -> None:
    assert base64.b64decode(FILLER) == b"skip_thought_signature_validator"
    items = (build.said("x"), build.call("c1"), build.call("c2"), build.result("c1"), build.result("c2"))
    filled = [{"text": "x"}, call("c1", thoughtSignature=FILLER), call("c2")]
    assert parts(*items, model=ModelSettings(thinking="level")) == filled
    assert parts(*items, model=ModelSettings(thinking="budget")) == [{"text": "x"}, call("c1"), call("c2")]
    own = (signed("call"), build.call("c1"), build.result("c1"))
    assert parts(*own, model=ModelSettings()) == [call("c1", thoughtSignature="c2ln")]


def test_every_step_of_a_moved_conversation_is_filled() -> None:
    items = [item for at in "123" for item in (build.call(at), build.result(at))]
    assert lowered(*items, model=ModelSettings()).body.count(FILLER.encode()) == 3


# --- tools, thinking, schema --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("required", "ANY")])
def test_tools_are_declared_with_their_own_schema_as_it_stands(choice: Any, mode: str) -> None:
    made = lowered(tools=(LOOK,), tool_choice=choice, parallel_tool_calls=True)
    declared = {
        "name": "look",
        "description": "Look around.",
        "parametersJsonSchema": {"type": "object", "properties": {}},
    }
    assert json.loads(made.body)["tools"] == [{"functionDeclarations": [declared]}]
    assert json.loads(made.body)["toolConfig"] == {"functionCallingConfig": {"mode": mode}}
    assert LOOK.parameters_json.encode() in made.body
    assert made.notes == ()


@pytest.mark.parametrize(("name", "is_taken"), [("a.b:c-d_E9", True), ("_x", True), ("x" * 128, True), ("9x", False),
                                                ("x" * 129, False), ("a/b", False), ("-x", False)])  # fmt: skip
def test_a_tool_name_is_one_that_the_api_takes_or_is_rejected(name: str, is_taken: bool) -> None:
    tool = v.ToolDefinition(name=name, description="", parameters_json='{"type":"object"}')
    for changes, items in (({"tools": (tool,)}, ()), ({}, (build.call("c1", name), build.result("c1")))):
        if is_taken:
            assert name.encode() in lowered(*items, **changes).body
        else:
            with pytest.raises(Rejected, match="tool name"):
                lowered(*items, **changes)


def test_parameters_that_are_no_object_are_rejected() -> None:
    with pytest.raises(Rejected, match="type object"):
        lowered(tools=(v.ToolDefinition(name="look", description="", parameters_json='{"type":"string"}'),))


@pytest.mark.parametrize(
    ("model", "asked", "sent"),
    [
        (ModelSettings(), "low", {"thinkingLevel": "LOW"}), (ModelSettings(), "max", {"thinkingLevel": "HIGH"}),
        (ModelSettings(efforts=("high", "xhigh")), "max", {"thinkingLevel": "XHIGH"}),
        (ModelSettings(thinking="budget"), "low", {"thinkingBudget": 1024}),
        (ModelSettings(thinking="budget"), "max", {"thinkingBudget": 24_576}),
        (ModelSettings(), None, None), (OLD, None, None),
    ],
)  # fmt: skip
def test_an_effort_is_a_level_or_a_budget_and_never_both(model: ModelSettings, asked: Any, sent: Any) -> None:
    made = lowered(reasoning_effort=asked, model=model)
    assert json.loads(made.body)["generationConfig"].get("thinkingConfig") == sent
    assert made.notes == ()


@pytest.mark.parametrize("model", [ModelSettings(thinking="off"), ModelSettings(efforts=())])
def test_an_effort_that_the_model_has_no_place_for_is_noted(model: ModelSettings) -> None:
    made = lowered(reasoning_effort="high", model=model)
    assert (made.notes, b"thinking" in made.body) == (("effort_dropped",), False)


def test_an_effort_that_the_model_does_not_take_is_rejected() -> None:
    for asked, efforts in (("medium", ("low", "high")), ("max", ("low",))):
        with pytest.raises(Rejected, match="takes the reasoning efforts"):
            lowered(reasoning_effort=asked, model=ModelSettings(efforts=efforts))


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({"cache_retention": "short"}, ("retention_dropped",)),
        ({"tools": (LOOK,), "parallel_tool_calls": False}, ("parallel_calls_allowed",)),
        ({"output_schema_json": '{"type":"string","pattern":"a"}'}, ("schema_loosened",)),
        ({"output_schema_json": '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'}, ()),
    ],
)
def test_what_has_no_field_is_noted(changes: dict[str, Any], notes: tuple[str, ...]) -> None:
    assert lowered(**changes).notes == notes


def test_a_schema_stands_as_it_was_given() -> None:
    schema = '{"type": "object",  "additionalProperties": {"type":"number"}}'
    made = lowered(output_schema_json=schema)
    assert json.loads(made.body)["generationConfig"] == {
        "maxOutputTokens": 100, "responseMimeType": "application/json", "responseJsonSchema": json.loads(schema),
    }  # fmt: skip
    assert schema.encode() in made.body


@pytest.mark.parametrize(
    ("schema", "held"),
    [
        ({"$defs": {"a": {"enum": ["x"]}}, "anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}, True),
        ({"type": "array", "items": {"type": "string", "minLength": 1}}, False),
        ({"properties": {"pattern": {"type": "string"}}}, True), ({"properties": {"a": {"const": 1}}}, False),
        ({"additionalProperties": False}, True), ({"oneOf": [{}]}, False), ({"properties": []}, False),
        ({"prefixItems": [{"allOf": []}]}, False), ({"$defs": {"a": 7}}, False), ({"anyOf": {}}, False),
    ],
)  # fmt: skip
def test_a_schema_is_held_where_every_keyword_of_it_is_known(schema: dict[str, Any], held: bool) -> None:
    assert is_held(schema) == held


# --- bytes that stay ----------------------------------------------------------------------------------------------

PIECE = st.one_of(
    st.text(min_size=1, max_size=5).map(lambda text: [build.said(text)]),
    st.tuples(st.sampled_from(["text", "call", "empty"]), st.sampled_from(["c2ln", "AAAA"])).map(
        lambda s: [signed(*s)]
    ),
    st.tuples(st.text(min_size=1, max_size=5), st.integers(1, 6)).map(
        lambda said: [signed("text", "c2ln", said[1]), build.said(said[0])]
    ),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2).map(
        lambda args: [signed("call"), build.call("?", "look", json.dumps(args))]
    ),
    st.just([build.call("?", "look")]),
    st.just([build.state()]),
)
TURNS = st.lists(st.tuples(st.lists(PIECE, min_size=1, max_size=4), st.text(min_size=1, max_size=4)), max_size=4)


@given(TURNS, st.sampled_from([ModelSettings(), OLD]))
def test_an_earlier_turn_has_the_same_bytes_in_every_later_request(turns: Any, model: ModelSettings) -> None:
    items = [build.text("go")]
    before = b""
    for at, (pieces, user) in enumerate(turns):
        for each, item in enumerate(one for piece in pieces for one in piece):
            call = item.tool_call
            items.append(build.call(f"c{at}_{each}", call.name, call.arguments) if call else item)
        items += [build.result(item.tool_call.call_id) for item in items if item.tool_call and
                  item.tool_call.call_id.startswith(f"c{at}_")]  # fmt: skip
        items.append(build.text(user))
        made = lower(build.request(*items, instructions="Be brief."), "gemini-x", model).body
        contents = made.split(b',"generationConfig"')[0].removesuffix(b"]}]")
        assert contents.startswith(before)  # the user's side stays open: a turn of states alone leaves nothing
        before = contents
