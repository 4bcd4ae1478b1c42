"""From a request to a Chat Completions body: messages, tools, schemas, and what is refused before sending."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kit import build

from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.openai_chat_lower import lower
from sidecar.connectors.promise import Rejected
from sidecar.contract import values as v

PLAIN = Dialect()
LOOK = v.ToolDefinition(name="look", description="Look around.", parameters_json='{"type": "object",  "properties":{}}')


def body(*items: v.InputItem, dialect: Dialect = PLAIN, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(lower(build.request(*items, **changes), "tiny", dialect).body)
    return made


def test_a_plain_request_says_no_more_than_it_must() -> None:
    assert body(instructions="Be short.", max_output_tokens=7) == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hello there"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
    }


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_i6_the_bound_goes_upstream_as_the_request_has_it_in_the_servers_own_field(field: Any) -> None:
    made = body(max_output_tokens=31_999, dialect=Dialect(max_tokens_field=field))
    assert {name: value for name, value in made.items() if name.startswith("max")} == {field: 31_999}


def test_a_dialect_without_stream_options_sends_none() -> None:
    assert "stream_options" not in body(dialect=Dialect(send_stream_options=False))


def test_neighbouring_user_texts_are_one_message_and_assistant_texts_are_joined_with_nothing() -> None:
    made = body(build.text("a"), build.text("b"), build.said("c"), build.said("d"), build.text("e"))
    assert made["messages"] == [
        {"role": "user", "content": "a\n\nb"},
        {"role": "assistant", "content": "cd"},
        {"role": "user", "content": "e"},
    ]


def test_a_turn_with_calls_is_one_message_with_its_text_first_and_results_directly_behind_it() -> None:
    made = body(
        build.text("go"),
        build.call("c1", "look", '{"at": "door"}'),
        build.said("Looking."),
        build.call("c2", "look", ""),
        build.text("well?"),
        build.result("c2", "a wall"),
        build.result("c1", ""),
        build.text("and?"),
    )
    assert made["messages"][1:] == [
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "door"}'}},
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "a wall"},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "user", "content": "well?\n\nand?"},
    ]


def test_a_turn_of_calls_alone_has_null_content() -> None:
    assert body(build.call("c1"), build.result("c1"))["messages"][0]["content"] is None


def test_a_call_id_that_not_every_server_takes_is_mapped_alike_in_call_and_result() -> None:
    odd = "toolu/01:" + "x" * 100
    messages = body(build.call(odd), build.result(odd))["messages"]
    mapped = messages[0]["tool_calls"][0]["id"]
    assert re.fullmatch(r"c_[0-9a-f]{40}", mapped)
    assert messages[1]["tool_call_id"] == mapped


def test_the_calls_of_the_request_are_kept_apart_from_those_of_the_answer() -> None:
    lowered = lower(build.request(build.call("c1"), build.result("c1")), "tiny", PLAIN)
    assert lowered.call_ids == {"c1"}


def test_tools_and_their_choice_go_out_and_the_schema_byte_for_byte() -> None:
    raw = lower(build.request(tools=(LOOK,), tool_choice="required"), "tiny", PLAIN).body
    assert LOOK.parameters_json.encode() in raw
    made = json.loads(raw)
    assert made["tools"][0]["function"]["name"] == "look"
    assert (made["tool_choice"], made["parallel_tool_calls"]) == ("required", False)


def test_without_tools_neither_choice_nor_parallel_calls_are_named() -> None:
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body(parallel_tool_calls=True))


def test_a_server_without_tool_choice_is_not_sent_one_and_cannot_be_made_to_call() -> None:
    dialect = Dialect(send_tool_choice=False, send_parallel_tool_calls=False)
    assert not {"tool_choice", "parallel_tool_calls"} & set(body(tools=(LOOK,), dialect=dialect))
    with pytest.raises(Rejected, match="tool_choice"):
        body(tools=(LOOK,), tool_choice="required", dialect=dialect)


def test_i9_an_output_schema_goes_out_byte_for_byte() -> None:
    schema = '{"type":"object", "additionalProperties":true,"b":1.0,"a":12345678901234567890123}'
    raw = lower(build.request(output_schema_json=schema), "tiny", PLAIN).body
    assert b'"response_format":{"type":"json_schema","json_schema":{"name":"answer","schema":' + schema.encode() in raw


def test_a_schema_that_strict_mode_takes_as_it_stands_is_asked_for_strictly_and_no_other() -> None:
    closed = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
    for schema, dialect, strict in (
        (closed, PLAIN, True),
        (closed, Dialect(send_strict=False), None),
        (closed.replace('["a"]', "[]"), PLAIN, None),
    ):
        raw = lower(build.request(output_schema_json=schema), "tiny", dialect).body
        assert schema.encode() in raw
        assert json.loads(raw)["response_format"]["json_schema"].get("strict") is strict


@pytest.mark.parametrize(("asked", "sent"), [("low", "low"), ("medium", "medium"), ("high", "high"), ("max", "high")])
def test_an_effort_is_sent_only_where_the_server_is_said_to_know_it(asked: Any, sent: str) -> None:
    assert "reasoning_effort" not in body(reasoning_effort=asked)
    assert body(reasoning_effort=asked, dialect=Dialect(effort_field="reasoning_effort"))["reasoning_effort"] == sent
    assert "reasoning_effort" not in body(dialect=Dialect(effort_field="reasoning_effort"))


def test_reasoning_states_are_left_out_and_counted() -> None:
    lowered = lower(build.request(build.state(), build.text("hi"), build.state()), "tiny", PLAIN)
    assert lowered.states_dropped == 2
    assert json.loads(lowered.body)["messages"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("items", "changes", "why"),
    [
        ((build.state(),), {}, "nothing is left"),
        ((build.state(),), {"instructions": "Be short."}, "nothing is left"),
        ((build.call("c1", arguments="[1]"), build.result("c1")), {}, "no JSON object"),
        ((build.call("c1", arguments='{"a":'), build.result("c1")), {}, "no JSON object"),
        ((build.call("c1", name="inventory.look"), build.result("c1")), {}, "tool name"),
        ((), {"tools": (v.ToolDefinition(name="l:ook", description="", parameters_json='{"type":"object"}'),)}, "name"),
        ((), {"tools": (v.ToolDefinition(name="look", description="", parameters_json="{}"),)}, "type object"),
    ],
)
def test_what_the_api_cannot_take_is_rejected_before_sending(
    items: tuple[v.InputItem, ...], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        body(*items, **changes)


def test_a_schema_with_an_integer_of_any_length_goes_out_as_it_stands() -> None:
    schema = '{"type": "object", "maximum": ' + "9" * 5000 + "}"
    tool = build.v.ToolDefinition(name="look", description="", parameters_json=schema)
    lowered = lower(build.request(tools=(tool,)), "tiny", Dialect())
    assert b"9" * 5000 in lowered.body
