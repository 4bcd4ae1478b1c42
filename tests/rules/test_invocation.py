"""Rule 3 beyond the schema: each bound from both sides."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build, independent

from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.rules.invocation import complaint


def request_complaint(*items: v.InputItem, **changes: Any) -> str | None:
    return complaint(build.invocation(build.request(*items, **changes)))


def tool(name: str = "look", parameters: str = "{}") -> v.ToolDefinition:
    return v.ToolDefinition(name=name, description="", parameters_json=parameters)


def test_a_plain_invocation_is_well_formed() -> None:
    assert complaint(build.invocation()) is None


@pytest.mark.parametrize("good", ["x", "!" * 256, "a~b"])
@pytest.mark.parametrize("member", ["conversation_id", "model", "request_id"])
def test_ids_of_1_to_256_printable_bytes_are_taken(member: str, good: str) -> None:
    assert request_complaint(**{member: good}) is None


@pytest.mark.parametrize("bad", ["", "a b", "x" * 257, "é", "a\n", "\x7f"])
@pytest.mark.parametrize("member", ["conversation_id", "model", "request_id"])
def test_other_ids_are_malformed(member: str, bad: str) -> None:
    assert member in (request_complaint(**{member: bad}) or "")


def test_a_zero_amount_is_malformed() -> None:
    assert "max_cost" in (complaint(build.invocation(max_cost_micro_usd=0)) or "")
    assert "expires" in (complaint(build.invocation(expires_at_unix_ms=0)) or "")
    assert "native" in (complaint(build.invocation(native_request_sha256=(0,) * 32)) or "")
    assert complaint(build.invocation(native_request_sha256=(0,) * 31 + (1,))) is None


@pytest.mark.parametrize("max_output_tokens", [0])
def test_a3_zero_output_tokens_are_malformed(max_output_tokens: int) -> None:
    assert "max_output_tokens" in (request_complaint(max_output_tokens=max_output_tokens) or "")


def test_empty_texts_and_an_empty_input_are_malformed() -> None:
    assert complaint(build.invocation(build.request(input=()))) is not None
    assert request_complaint(build.text("")) is not None
    assert request_complaint(build.text(), build.said(""), build.text()) is not None
    assert request_complaint(build.text(), build.call("c"), build.result("c", output="")) is None


def test_tools_have_unique_names_and_json_objects() -> None:
    assert request_complaint(tools=(tool("a"), tool("b"))) is None
    assert "name" in (request_complaint(tools=(tool("a"), tool("a"))) or "")
    assert "name" in (request_complaint(tools=(tool("a b"),)) or "")
    assert "tool_choice" in (request_complaint(tool_choice="required") or "")
    assert request_complaint(tool_choice="required", tools=(tool(),)) is None


@pytest.mark.parametrize(
    "text",
    ["{}", ' {"a": [1, 1.5e9, true, null, "]"]} ', '{"a":' * 63 + "{}" + "}" * 63, '{"n": ' + "9" * 5000 + "}",
     '{"\\ud800": 1}'],
)  # fmt: skip
def test_a_json_object_is_taken(text: str) -> None:
    assert request_complaint(tools=(tool(parameters=text),)) is None
    assert request_complaint(output_schema_json=text) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "null", '"x"', "{", '{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}', '{"a": 1, "\\u0061": 2}',
     '{"a": 01}', "{'a': 1}", '{"a": 1} x', '{"a":' * 64 + "{}" + "}" * 64, "[" * 100_000, '{"a": "\n"}', "\ufeff{}"],
)  # fmt: skip
def test_what_is_no_json_object_is_malformed(text: str) -> None:
    assert request_complaint(tools=(tool(parameters=text),)) is not None
    assert request_complaint(output_schema_json=text) is not None


def with_id(place: str, text: str) -> v.TransportInvocation:
    """A sound invocation with this id at one of the places that an invocation has."""
    if place == "caller_runtime_id":
        return build.invocation(caller_runtime_id=text)
    if place in ("request_id", "conversation_id", "model"):
        return build.invocation(build.request(**{place: text}))
    if place == "tool.name":
        return build.invocation(build.request(tools=(tool(text),)))
    items = {
        "ToolCall.call_id": (build.call(text), build.result(text)),
        "ToolCall.name": (build.call("c", name=text), build.result("c")),
        "ReasoningState.provider": (build.state(provider=text),),
        "ReasoningState.model": (build.state(model=text),),
    }
    return build.invocation(build.request(build.text(), *items[place]))


ID_PLACES = ["caller_runtime_id", "request_id", "conversation_id", "model", "tool.name", "ToolCall.call_id",
             "ToolCall.name", "ReasoningState.provider", "ReasoningState.model"]  # fmt: skip


@pytest.mark.parametrize("place", ID_PLACES)
def test_every_id_is_1_to_256_printable_bytes(place: str) -> None:
    for good in ("x", "!", "~", "x" * 256):
        assert complaint(with_id(place, good)) is None
    for bad in ("", " ", "a b", "x" * 257, "\x20x", "\x7f", "\x00", "é", "x\n", "\uff21"):
        assert place.split(".")[-1] in (complaint(with_id(place, bad)) or ""), bad


@given(st.sampled_from(ID_PLACES), st.text(max_size=3) | st.integers(250, 260).map(lambda size: "x" * size))
def test_an_id_is_judged_as_by_the_independent_reader(place: str, text: str) -> None:
    invocation = with_id(place, text)
    plain = msgpack.unpackb(canonical.encode(invocation))
    assert (complaint(invocation) is None) == independent.obeys_rule_3(plain)


def test_the_amounts_may_be_one_and_the_greatest() -> None:
    for amount in (1, v.U64_MAX):
        assert complaint(build.invocation(max_cost_micro_usd=amount, expires_at_unix_ms=amount)) is None
    for tokens in (1, 2**32 - 1):
        assert request_complaint(max_output_tokens=tokens) is None


def test_what_may_be_empty() -> None:
    assert request_complaint(instructions="") is None
    assert request_complaint(build.text(), build.call("c", arguments=""), build.result("c", output="")) is None
    assert request_complaint(build.text(), build.state(opaque=b"")) is None
    assert request_complaint(build.text(" ")) is None


JSON_PIECES = st.lists(
    st.sampled_from(
        ["{", "}", "[", "]", ",", ":", '"a"', '"b"', '"\\u0061"', "1", "-0.5e3", "NaN", "null", " ", '"', "\\"]
    ),
    max_size=14,
).map("".join)


@given(JSON_PIECES | JSON_PIECES.map(lambda text: "{" + text + "}"))
def test_json_text_is_judged_as_by_the_independent_reader(text: str) -> None:
    invocation = build.invocation(build.request(tools=(tool(parameters=text),)))
    plain = msgpack.unpackb(canonical.encode(invocation))
    assert (complaint(invocation) is None) == independent.obeys_rule_3(plain)


ITEMS = st.lists(
    st.one_of(
        st.sampled_from([build.text(), build.said("so"), build.state()]),
        st.sampled_from("abc").map(build.call),
        st.sampled_from("abcd").map(build.result),
    ),
    min_size=1,
    max_size=10,
)


@given(ITEMS)
def test_f9_calls_and_results_are_judged_as_by_an_independent_model(items: list[v.InputItem]) -> None:
    invocation = build.invocation(build.request(*items))
    plain = msgpack.unpackb(canonical.encode(invocation))
    assert (complaint(invocation) is None) == independent.calls_are_answered(plain["request"]["input"])


@pytest.mark.parametrize(
    ("items", "is_fine"),
    [
        ((build.text(), build.call("a"), build.call("b"), build.result("b"), build.result("a")), True),
        ((build.text(), build.call("a"), build.result("a"), build.text("and?")), True),
        ((build.text(), build.call("a"), build.text("well?"), build.result("a")), True),
        ((build.text(), build.call("a")), False),
        ((build.text(), build.call("a"), build.text("well?")), False),
        ((build.text(), build.result("a")), False),
        ((build.text(), build.call("a"), build.result("a"), build.result("a")), False),
        ((build.text(), build.call("a"), build.call("a"), build.result("a")), False),
        ((build.text(), build.call("a"), build.result("a"), build.call("a"), build.result("a")), False),
        (
            (build.text(), build.call("a"), build.call("b"), build.result("a"), build.said("so"), build.result("b")),
            False,
        ),
    ],
)
def test_f9_each_call_is_answered_once_before_the_next_assistant_turn(
    items: tuple[v.InputItem, ...], is_fine: bool
) -> None:
    assert (request_complaint(*items) is None) == is_fine


@pytest.mark.parametrize("text", ['{"a":"' + '\\"' * 500_000, '{"a":"' + "x" * 900_000 + "\\", '"' * 900_001])
def test_a_long_text_with_an_unterminated_string_is_judged_in_one_pass(text: str) -> None:
    """Each character is looked at once; a check that tries every quote again takes hours for this one."""
    assert request_complaint(output_schema_json=text) is not None
