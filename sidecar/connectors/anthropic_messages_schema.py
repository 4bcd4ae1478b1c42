"""Whether the API takes a schema for its answer: what it surely refuses is said before anything is sent. Pure.

Only what is known to be refused is looked for; a schema is sent as it stands or
not at all, for one that was changed to fit would hold the answer to something
that nobody asked for. Source: WIRE section 4.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

REFUSED_KEYWORDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
     "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)  # fmt: skip
_PROPERTIES: Final = "properties"
_DEFINITIONS: Final = ("$defs", "definitions")
_CHOICES: Final = ("anyOf", "allOf", "oneOf")
_PLACE_CHARACTERS_MAX: Final = 200


def why_refused(schema: dict[str, Any]) -> str | None:
    """What the API would answer 400 to, for a person; None where nothing is known against it.

    The schema is a JSON object of at most 64 levels whose integers may stand as texts.
    """
    left = [("$", schema)]
    while left:
        place, inner = left.pop()
        if why := _why_not(inner):
            return f"{place}: {why}"
        left += [(f"{place}.{name}"[:_PLACE_CHARACTERS_MAX], held) for name, held in _inside(inner)]
    return "a schema that holds itself is not taken" if _is_recursive(schema) else None


def _why_not(schema: dict[str, Any]) -> str | None:
    kinds = schema.get("type")
    is_object = "object" in kinds if isinstance(kinds, list) else kinds == "object" or "properties" in schema
    if is_object and schema.get("additionalProperties") is not False:
        return "an object needs additionalProperties false"
    if refused := sorted(REFUSED_KEYWORDS & schema.keys()):
        return f"{refused[0]} is not taken"
    if str(schema.get("minItems", 0)) not in ("0", "1"):
        return "minItems may only be 0 or 1"
    choices = schema.get("allOf")
    if isinstance(choices, list) and any(isinstance(one, dict) and "$ref" in one for one in choices):
        return "allOf may hold no $ref"
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return "a $ref may only point into the schema"
    return None


def _inside(schema: dict[str, Any], *, with_definitions: bool = True) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly inside one, each with a short name of its place."""
    return ((name, inner) for name, inner in _held(schema, with_definitions) if isinstance(inner, dict))


def _held(schema: dict[str, Any], with_definitions: bool) -> Iterator[tuple[str, object]]:
    for name in (_PROPERTIES, *_DEFINITIONS) if with_definitions else (_PROPERTIES,):
        held = schema.get(name)
        yield from ((f"{key:.40}", inner) for key, inner in (held.items() if isinstance(held, dict) else ()))
    for name in _CHOICES:
        held = schema.get(name)
        yield from ((f"{name}[{at}]", inner) for at, inner in enumerate(held if isinstance(held, list) else ()))
    yield "items", schema.get("items")


def _is_recursive(root: dict[str, Any]) -> bool:
    """Whether a walk from the root, into schemas and along references, meets one that it is still inside of."""
    walk = [(id(root), _ahead(root, root))]
    around, done = {id(root)}, set[int]()
    while walk:
        at, left = walk[-1]
        following = next(left, None)
        if following is None:
            walk.pop()
            around.discard(at)
            done.add(at)
        elif id(following) in around:
            return True
        elif id(following) not in done:
            around.add(id(following))
            walk.append((id(following), _ahead(following, root)))
    return False


def _ahead(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Where a value that is held to this schema is held to more: by those inside it, and by the one it refers to."""
    yield from (inner for _, inner in _inside(schema, with_definitions=False))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target: Any = root
        for part in reference.split("/")[1:]:
            target = target.get(part) if isinstance(target, dict) else None
        if isinstance(target, dict):
            yield target
