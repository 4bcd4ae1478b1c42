"""Whether a schema may be asked for strictly: then the provider holds every answer to it, or would answer 400. Pure.

The rules are OpenAI's, read narrowly: a keyword that is not surely known
makes a schema one that is only asked for, never one that is refused. Nothing
is ever rewritten to fit. Source: WIRE section 2.6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

LEVELS_MAX: Final = 10
PROPERTIES_MAX: Final = 5000
ENUM_VALUES_MAX: Final = 1000
NAME_CHARACTERS_MAX: Final = 120_000
LONG_ENUM_VALUES: Final = 250  # a text enum of more values than this
LONG_ENUM_CHARACTERS_MAX: Final = 15_000  # may hold so many characters
_KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "$defs", "$ref", "enum", "const",
     "description", "title", "pattern", "format", "minimum", "maximum", "multipleOf", "minItems", "maxItems"}
)  # fmt: skip
_SAYS_WHAT: Final = frozenset({"type", "anyOf", "$ref", "enum", "const"})


class _Sizes(Struct):
    """What adds up over a whole schema."""

    properties: int = 0
    enum_values: int = 0
    characters: int = 0

    def are_small(self) -> bool:
        return (
            self.properties <= PROPERTIES_MAX
            and self.enum_values <= ENUM_VALUES_MAX
            and self.characters <= NAME_CHARACTERS_MAX
        )


def is_strict(schema: dict[str, Any]) -> bool:
    """Whether every rule of strict mode holds for this schema, which is a JSON object of at most 64 levels."""
    sizes = _Sizes()
    is_root_an_object = schema.get("type") == "object" and "anyOf" not in schema
    return is_root_an_object and _fits(schema, 1, sizes) and sizes.are_small()


def _fits(schema: object, level: int, sizes: _Sizes) -> bool:
    if not isinstance(schema, dict) or level > LEVELS_MAX or not schema.keys() <= _KEYWORDS:
        return False
    if not schema.keys() & _SAYS_WHAT or not _is_reference(schema.get("$ref", "#")):
        return False
    kinds = _kinds(schema.get("type"))
    if ("object" in kinds or "properties" in schema) and not _is_closed(schema, sizes):
        return False
    if "array" in kinds and "items" not in schema:
        return False
    if not _is_enum_small(schema.get("enum", []), sizes):
        return False
    return all(_fits(inner, level + step, sizes) for inner, step in _inside(schema))


def _inside(schema: dict[str, Any]) -> Iterator[tuple[object, int]]:
    """The schemas inside one, each with how many levels deeper it stands."""
    for name in ("properties", "$defs"):
        held = schema.get(name, {})
        yield from ((inner, 1) for inner in (held.values() if isinstance(held, dict) else [None]))
    choices = schema.get("anyOf", [])
    yield from ((inner, 0) for inner in (choices if isinstance(choices, list) else [None]))
    if "items" in schema:
        yield schema["items"], 1


def _is_closed(schema: dict[str, Any], sizes: _Sizes) -> bool:
    """Nothing but the properties that are named, and each of them required."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    sizes.properties += len(properties)
    sizes.characters += sum(map(len, properties))
    return schema.get("additionalProperties") is False and sorted(map(str, required)) == sorted(properties)


def _is_enum_small(values: object, sizes: _Sizes) -> bool:
    if not isinstance(values, list):
        return False
    characters = sum(len(value) for value in values if isinstance(value, str))
    sizes.enum_values += len(values)
    sizes.characters += characters
    return len(values) <= LONG_ENUM_VALUES or characters <= LONG_ENUM_CHARACTERS_MAX


def _kinds(said: object) -> list[object]:
    return said if isinstance(said, list) else [said]


def _is_reference(said: object) -> bool:
    return isinstance(said, str) and (said == "#" or said.startswith("#/$defs/"))
