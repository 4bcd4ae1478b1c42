"""Which output schemas the Messages API surely refuses: named before sending, never changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.connectors.anthropic_messages_schema import REFUSED_KEYWORDS, why_refused


def refused(schema: Any) -> str | None:
    return why_refused(json.loads(json.dumps(schema), parse_int=str))


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


@pytest.mark.parametrize(
    "schema",
    [
        an_object(),
        an_object(a={"type": "string", "enum": ["x"], "default": "x", "format": "date"}, b={"const": 1}),
        an_object(a={"anyOf": [an_object(), {"type": "null"}]}, b={"allOf": [{"type": "string"}]}),
        an_object(a={"type": "array", "items": an_object(), "minItems": 1}, b={"type": "array", "minItems": 0}),
        {**an_object(a={"$ref": "#/$defs/x"}, b={"$ref": "#/$defs/x"}), "$defs": {"x": an_object()}},
        an_object(minimum={"type": "integer"}, properties={"type": "string"}),
        {"type": ["string", "null"]},
        an_object(a={"unheard_of": {"minimum": 1}}, b={"enum": [{"maximum": 1}]}),
        an_object(a={"$ref": "#/$defs/absent"}),
        {"type": 7, "anyOf": 7, "allOf": {}, "items": True, "$defs": None},
    ],
)
def test_a_schema_that_nothing_is_known_against_is_taken(schema: dict[str, Any]) -> None:
    assert refused(schema) is None


@pytest.mark.parametrize("keyword", sorted(REFUSED_KEYWORDS))
def test_a_keyword_that_is_not_taken_is_named_with_its_place(keyword: str) -> None:
    assert refused(an_object(a={"type": "array", "items": {keyword: 1}})) == f"$.a.items: {keyword} is not taken"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object"}, "additionalProperties"),
        ({"properties": {}}, "additionalProperties"),
        ({"type": ["object", "null"], "additionalProperties": True}, "additionalProperties"),
        (an_object(a={"type": "object", "additionalProperties": {}}), r"$.a: an object"),
        ({**an_object(), "$defs": {"x": {"type": "object"}}}, "$.x: an object"),
        (an_object(a={"type": "array", "minItems": 2}), "minItems"),
        (an_object(a={"allOf": [{"$ref": "#/$defs/x"}]}), "allOf"),
        (an_object(a={"$ref": "https://h/x"}), "into the schema"),
        (an_object(a={"$ref": 7}), "into the schema"),
        (an_object(a={"$ref": "#"}), "holds itself"),
        ({**an_object(a={"$ref": "#/$defs/x"}), "$defs": {"x": an_object(b={"$ref": "#/$defs/x"})}}, "holds itself"),
        (an_object(a=an_object(b={"type": "array", "items": {"$ref": "#/properties/a"}})), "holds itself"),
    ],
)  # fmt: skip
def test_what_the_api_refuses_is_said_with_its_reason(schema: dict[str, Any], why: str) -> None:
    assert why in (refused(schema) or "")


def test_a_schema_of_long_names_and_many_references_is_looked_at_once() -> None:
    deep: dict[str, Any] = an_object()
    for _ in range(30):
        deep = an_object(**{"k" * 2_000: deep}, other={"$ref": "#/$defs/x"})
    wide = an_object(**{f"p{at}": {"$ref": "#/$defs/x"} for at in range(20_000)}, deep=deep)
    assert refused({**wide, "$defs": {"x": an_object()}}) is None
