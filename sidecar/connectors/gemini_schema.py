"""Whether Gemini holds its answer to all of a schema: what it doesn't know of one, it passes over. Pure.

Source: the description of `responseJsonSchema` in the types of Google's SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_KEYWORDS: Final = frozenset(
    {"$id", "$defs", "$ref", "$anchor", "$schema", "type", "format", "title", "description", "enum", "items",
     "prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "properties", "additionalProperties",
     "required", "propertyOrdering"}
)  # fmt: skip
_NAMED: Final = ("properties", "$defs")
_LISTED: Final = ("anyOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")


def is_held(schema: object) -> bool:
    """Whether every keyword of this schema, a JSON document of at most 64 levels, is one that the answer is held to."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    return schema.keys() <= _KEYWORDS and all(map(is_held, _inside(schema)))


def _inside(schema: dict[str, Any]) -> Iterator[object]:
    for name in _NAMED:
        held = schema.get(name, {})
        yield from held.values() if isinstance(held, dict) else [None]
    for name in _LISTED:
        held = schema.get(name, [])
        yield from held if isinstance(held, list) else [None]
    yield from (schema[name] for name in _SINGLE if name in schema)
