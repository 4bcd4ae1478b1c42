"""From a request to a body of Llama Stack's native route: it holds to the published schema, and says what is lost."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build
from kit.stream_cases import RECORDED

from sidecar.connectors import llama_stack
from sidecar.connectors.llama_stack_lower import lower
from sidecar.connectors.llama_stack_tools import BUILTIN_TOOLS
from sidecar.connectors.promise import NO_SETTINGS, Lowered, Rejected
from sidecar.contract import values as v

SPECIFICATION = RECORDED.parent / "llama_stack_openapi.json"
NESTED = (
    '{"type":"object","properties":{"at":{"type":"string","description":"Where."},'
    '"how":{"enum":["slowly","fast"]},"who":{"type":["null","object"],"properties":{"n":{"type":"integer"}}},'
    '"times":{"type":"integer","default":12345678901234567890},"tags":{"items":{"$ref":"#/$defs/tag"},"title":"T"}},'
    '"required":["at","times"],"additionalProperties":false,"$defs":{"tag":{"type":"string"}}}'
)


def tool(name: str = "look", parameters: str = '{"type":"object"}') -> v.ToolDefinition:
    return v.ToolDefinition(name=name, description="Look.", parameters_json=parameters)


def lowered(*items: v.InputItem, **changes: Any) -> Lowered:
    return lower(build.request(*items, **changes), "llama")


def body(*items: v.InputItem, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lowered(*items, **changes).body)
    return made


def validator(schema: str) -> Any:
    """Of one of the published schemas; every object of them takes what it names and nothing else."""
    if not SPECIFICATION.is_file():
        pytest.skip(f"the specification is not there: {SPECIFICATION}")
    specification = json.loads(Path(SPECIFICATION).read_text())
    return jsonschema.Draft202012Validator({**specification, "$ref": f"#/components/schemas/{schema}"})


def test_a_plain_request_says_no_more_than_it_must() -> None:
    assert body(instructions="Be short.", max_output_tokens=7) == {
        "model_id": "llama",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hello there"}],
        "sampling_params": {"strategy": {"type": "greedy"}, "max_tokens": 7},
        "stream": True,
    }
    assert lowered().notes == ()


def test_i6_the_bound_goes_upstream_as_the_request_has_it() -> None:
    assert body(max_output_tokens=31_999)["sampling_params"]["max_tokens"] == 31_999


def test_turns_are_grouped_and_an_assistant_turn_says_how_it_ended() -> None:
    made = body(
        build.text("a"), build.text("b"), build.said("c"), build.said("d"), build.text("e"),
        build.call("c1", "look", '{"at": "door"}'), build.said("Looking."), build.call("c2", "look", ""),
        build.text("well?"), build.result("c2", "a wall"), build.result("c1", ""),
    )  # fmt: skip
    assert made["messages"] == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "cd", "stop_reason": "end_of_turn"},
        {"role": "user", "content": "e"},
        {
            "role": "assistant",
            "content": "Looking.",
            "stop_reason": "end_of_message",
            "tool_calls": [
                {
                    "call_id": "c1",
                    "tool_name": "look",
                    "arguments": {"at": "door"},
                    "arguments_json": '{"at": "door"}',
                },
                {"call_id": "c2", "tool_name": "look", "arguments": {}, "arguments_json": "{}"},
            ],
        },
        {"role": "tool", "call_id": "c2", "content": "a wall"},
        {"role": "tool", "call_id": "c1", "content": ""},
        {"role": "user", "content": "well?"},
    ]


@pytest.mark.parametrize(
    ("arguments", "stands"),
    [
        ('{"a":"x","b":null,"c":true,"d":1.5,"e":[],"f":{},"g":["x",0.25],"h":{"i":false}}', True),
        ('{"a":1}', False), ('{"a":1.0}', False), ('{"a":1e400}', False), ('{"a":[1]}', False),
        ('{"a":{"b":2}}', False), ('{"a":[[]]}', False), ('{"a":{"b":{}}}', False), ('{"a":{"b":[]}}', False),
    ],
)  # fmt: skip
def test_arguments_stand_as_an_object_where_the_schema_lets_them_and_as_their_text_always(
    arguments: str, stands: bool
) -> None:
    made = body(build.call("c1", "look", arguments), build.result("c1"))
    (call,) = made["messages"][0]["tool_calls"]
    assert call["arguments_json"] == arguments
    assert call["arguments"] == (json.loads(arguments) if stands else arguments)
    validator("ChatCompletionRequest").validate(made)


@pytest.mark.parametrize("arguments", ["[]", '{"a":', '"x"', '{"a":NaN}'])
def test_arguments_that_are_no_object_are_rejected(arguments: str) -> None:
    with pytest.raises(Rejected, match="no JSON object"):
        lowered(build.call("c1", "look", arguments), build.result("c1"))


def test_a_call_id_that_not_every_server_takes_is_mapped_alike_in_call_and_result() -> None:
    odd = "toolu/01:" + "x" * 100
    messages = body(build.call(odd), build.result(odd))["messages"]
    assert messages[0]["tool_calls"][0]["call_id"] == messages[1]["call_id"] != odd


# --- tools ------------------------------------------------------------------------------------------------------


def test_a_flat_tool_is_said_whole() -> None:
    parameters = (
        '{"type":"object","properties":{"at":{"type":"string","description":"Where.","default":"door"},'
        '"loud":{"type":"boolean"}},"required":["at"],"additionalProperties":false}'
    )
    made = lowered(tools=(tool("look", parameters),), parallel_tool_calls=True)
    assert json.loads(made.body)["tools"] == [
        {
            "tool_name": "look",
            "description": "Look.",
            "parameters": {
                "at": {"param_type": "string", "required": True, "description": "Where.", "default": "door"},
                "loud": {"param_type": "boolean", "required": False},
            },
        }
    ]
    assert made.notes == ()
    assert json.loads(made.body)["tool_choice"] == "auto"


def test_what_a_flat_map_cannot_say_stands_as_text_in_the_description_and_is_noted() -> None:
    made = lowered(tools=(tool("look", NESTED),), parallel_tool_calls=True)
    (flat,) = json.loads(made.body)["tools"]
    assert made.notes == ("tools_flattened",)
    assert flat["description"] == (
        'Look.\nIts parameters also follow this JSON Schema: {"$defs":{"tag":{"type":"string"}}}'
    )
    parameters = flat["parameters"]
    assert {name: (one["param_type"], one["required"]) for name, one in parameters.items()} == {
        "at": ("string", True), "how": ("string", False), "who": ("object", False), "times": ("integer", True),
        "tags": ("array", False),
    }  # fmt: skip
    assert parameters["at"]["description"] == "Where."
    assert parameters["how"]["description"] == 'JSON Schema: {"enum":["slowly","fast"]}'
    assert '"n":{"type":"integer"}' in parameters["who"]["description"]
    assert parameters["times"]["default"] == 12345678901234567890


@pytest.mark.parametrize(
    "parameters",
    ['{"type":"string"}', "{}", '{"type":["object","null"]}', '{"type":"object","anyOf":[]}',
     '{"type":"object","$ref":"#/$defs/a"}', '{"type":"object","oneOf":[{}]}', '{"type":"object","properties":[]}',
     '{"type":"object","properties":{"a":true}}', '{"type":"object","required":"a"}'],
)  # fmt: skip
def test_a_tool_whose_root_can_not_be_made_flat_is_rejected(parameters: str) -> None:
    with pytest.raises(Rejected, match="look"):
        lowered(tools=(tool("look", parameters),))


@pytest.mark.parametrize("name", sorted(BUILTIN_TOOLS))
def test_the_name_of_a_built_in_tool_is_rejected_where_a_tool_or_a_call_has_it(name: str) -> None:
    with pytest.raises(Rejected, match=name):
        lowered(tools=(tool(name),))
    with pytest.raises(Rejected, match=name):
        lowered(build.call("c1", name), build.result("c1"))


def test_a_name_that_not_every_server_takes_is_rejected() -> None:
    with pytest.raises(Rejected, match="tool name"):
        lowered(tools=(tool("a.b"),))


# --- what is lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({"reasoning_effort": "low"}, ("effort_dropped",)),
        ({"cache_retention": "long"}, ("retention_dropped",)),
        ({"parallel_tool_calls": False}, ()),
        ({"tools": (tool(),), "parallel_tool_calls": False}, ("parallel_calls_allowed",)),
        ({"tools": (tool(),), "parallel_tool_calls": True}, ()),
        ({"tools": (tool(),), "parallel_tool_calls": True, "tool_choice": "required"}, ("tool_choice_hinted",)),
        ({"output_schema_json": '{"type":"object"}'}, ("schema_loosened",)),
    ],
)
def test_what_the_route_has_no_place_for_is_noted(changes: dict[str, Any], notes: tuple[str, ...]) -> None:
    assert lowered(**changes).notes == notes


def test_a_schema_stands_as_it_was_given() -> None:
    schema = '{"type": "object",  "additionalProperties": {"type":"number"}}'
    assert schema.encode() in lowered(output_schema_json=schema).body
    assert body(output_schema_json=schema)["response_format"] == {
        "type": "json_schema",
        "json_schema": json.loads(schema),
    }


def test_h7_reasoning_states_are_left_out_and_counted() -> None:
    state = build.state("stack", "llama", b'{"k":"openai.reasoning","m":"llama","v":1}')
    made = lowered(build.text("a"), state, build.said("b"), state, build.text("c"))
    assert made.states_dropped == 2
    assert b"reasoning" not in made.body
    with pytest.raises(Rejected, match="nothing is left"):
        lowered(state)


# --- the schema, and bytes that stay ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(max_size=4), JSON, max_size=4)
PROPERTIES = st.dictionaries(
    st.text(max_size=4),
    st.fixed_dictionaries(
        {}, optional={"type": st.sampled_from(["string", "integer", "array", ["null", "number"], "null"]),
                      "default": JSON, "enum": st.lists(JSON, max_size=2), "description": st.text(max_size=4)}
    ),
    max_size=3,
)  # fmt: skip
TURNS = st.lists(
    st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=4), st.lists(OBJECTS, max_size=2)), max_size=4
)


def conversation(turns: list[tuple[str, str, list[dict[str, Any]]]]) -> list[list[v.InputItem]]:
    """User and assistant sides in turn, the last one the user's."""
    sides: list[list[v.InputItem]] = [[build.text("go")]]
    for at, (user, said, calls) in enumerate(turns):
        ids = [f"c{at}_{each}" for each in range(len(calls))]
        assistant = [build.state(), *([build.said(said)] if said or not calls else [])]
        assistant += [build.call(one, "look", json.dumps(call)) for one, call in zip(ids, calls, strict=True)]
        sides += [assistant, [*map(build.result, ids), build.text(user)]]
    return sides


def test_the_published_schema_takes_nothing_that_it_does_not_name() -> None:
    made = body(tools=(tool(),))
    for wrong in ({"seed": 1}, {"tool_config": {"tool_choice": "auto"}}, {"tool_choice": "look"}):
        assert not validator("ChatCompletionRequest").is_valid({**made, **wrong}), wrong


@given(TURNS, PROPERTIES, OBJECTS, st.sampled_from(["auto", "required"]))
def test_what_is_sent_holds_to_the_published_schema(turns: Any, properties: Any, schema: Any, choice: Any) -> None:
    parameters = json.dumps({"type": "object", "properties": properties, "required": list(properties)})
    request = build.request(
        *(item for side in conversation(turns) for item in side), instructions="Be brief.", tool_choice=choice,
        tools=(tool("look", parameters), tool("go", NESTED)), output_schema_json=json.dumps(schema),
        reasoning_effort="high", cache_retention="short",
    )  # fmt: skip
    validator("ChatCompletionRequest").validate(json.loads(lower(request, "llama").body))


@given(TURNS)
def test_what_the_seed_release_is_sent_on_its_openai_route_holds_to_the_published_schema(turns: Any) -> None:
    request = build.request(
        *(item for side in conversation(turns) for item in side), instructions="Be brief.",
        tools=(tool("go", NESTED),), output_schema_json='{"type":"object","additionalProperties":false}',
        reasoning_effort="high", cache_retention="short",
    )  # fmt: skip
    seed = llama_stack.api(base_url="http://h/v1/openai/v1", secret=None, route="openai")
    made = seed.lower(request, "llama", NO_SETTINGS)
    validator("OpenaiChatCompletionRequest").validate(json.loads(made.body))
    assert set(made.notes) == {"retention_dropped", "effort_dropped"}


@given(TURNS)
def test_an_earlier_turn_has_the_same_bytes_in_every_later_request(turns: Any) -> None:
    sides = conversation(turns)
    before = b""
    for length in range(1, len(sides) + 1, 2):
        items = [item for side in sides[:length] for item in side]
        made = lower(build.request(*items, instructions="Be brief."), "llama").body
        messages = made.split(b',"sampling_params"')[0].removesuffix(b"]")
        assert messages.startswith(before)
        before = messages


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": [[]]},
        {"type": "object", "required": [{}]},
        {"type": "object", "properties": {"\ud800": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string", "description": "\udfff"}}},
        {"type": "object", "required": ["\ud800"]},
        {"type": "object", "\ud800": 1},
        {"type": "object", "$ref": "#/a\ud800"},
    ],
)
def test_an_odd_schema_is_taken_or_rejected_and_nothing_else(schema: dict[str, Any]) -> None:
    odd = v.ToolDefinition(name="look", description="", parameters_json=json.dumps(schema))
    with suppress(Rejected):
        json.loads(lower(build.request(tools=(odd,)), "llama").body)
