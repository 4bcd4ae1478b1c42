"""Which schemas strict mode takes as they stand; every other is only asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors import strict_schema
from sidecar.connectors.strict_schema import is_strict


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


TEXT = {"type": "string"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = closed(leaf=TEXT)
    for _ in range(levels - 2):
        schema = closed(inner=schema)
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        closed(),
        {"type": "object", "additionalProperties": False},
        closed(a=TEXT, b={"type": ["integer", "null"], "minimum": 0}, c={"enum": ["x", "y"]}, d={"const": 1}),
        closed(a={"type": "array", "items": closed(b=TEXT), "minItems": 1, "maxItems": 3}),
        closed(a={"anyOf": [TEXT, closed(b=TEXT)]}),
        {**closed(a={"$ref": "#/$defs/node"}), "$defs": {"node": closed(next={"$ref": "#"})}},
        closed(a={"type": "string", "description": "d", "title": "t", "pattern": "x", "format": "date"}),
        nested(10),
        closed(a={"enum": ["x" * 60] * 250}),
    ],
)
def test_a_closed_schema_with_every_property_required_is_strict(schema: dict[str, Any]) -> None:
    assert is_strict(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "array", "items": TEXT},
        {**closed(a=TEXT), "additionalProperties": True},
        {**closed(a=TEXT), "additionalProperties": {}},
        {**closed(a=TEXT), "required": []},
        {**closed(a=TEXT, b=TEXT), "required": ["a", "a"]},
        {**closed(a=TEXT), "required": ["a", "b"]},
        {**closed(a=TEXT), "required": "a"},
        {**closed(a=TEXT), "properties": ["a"]},
        {**closed(a=TEXT), "anyOf": [closed(a=TEXT)]},
        {**closed(a=TEXT), "oneOf": [TEXT]},
        {**closed(a=TEXT), "$schema": "x"},
        closed(a={}),
        closed(a=True),
        closed(a={"type": "object"}),
        closed(a={"type": ["object", "null"]}),
        closed(a={"properties": {}}),
        closed(a={"type": "array"}),
        closed(a={"type": "array", "items": [TEXT]}),
        closed(a={"type": "string", "default": "x"}),
        closed(a={"type": "string", "minLength": 1}),
        closed(a={"anyOf": TEXT}),
        closed(a={"anyOf": [TEXT, {"not": {}}]}),
        closed(a={"$ref": "https://elsewhere.example/schema"}),
        closed(a={"enum": "x"}),
        {**closed(a=TEXT), "$defs": {"open": {"type": "object"}}},
        {**closed(a=TEXT), "$defs": []},
        nested(11),
        closed(a={"enum": ["x" * 60] * 251}),
        closed(a={"enum": [*range(1001)]}),
        closed(**{f"p{at}": TEXT for at in range(5001)}),
        closed(**{"p" * 120_001: TEXT}),
    ],
)
def test_anything_else_is_not(schema: dict[str, Any]) -> None:
    assert not is_strict(schema)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*strict_schema._KEYWORDS]) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from([*strict_schema._KEYWORDS]), JSON, max_size=6))
def test_no_schema_at_all_raises(schema: dict[str, Any]) -> None:
    assert is_strict({**schema, "type": "object"}) in (True, False)
