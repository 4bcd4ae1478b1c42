"""JSON that a caller carries as text: is it one object by RFC 8259?

Python's parser alone is too kind: it takes NaN, keeps the last of two equal
keys and limits neither depth nor (before it has recursed) memory. What is
parsed is dropped as soon as it is known to be sound: a number is nothing, and
a closed object is the same empty one. Source: CONTRACT section 3, rule 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

LEVELS_MAX: Final = 64

# A string is skipped whole, so that brackets inside it don't count as levels. One that never ends is a
# string up to the end of the text: were it no token, each quote inside it would be tried again, in quadratic time.
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class NotJsonObject(ValueError):
    """The text is no JSON object; the message says why."""


def _levels(text: str) -> int:
    deepest = depth = 0
    for token in _TOKENS.finditer(text):
        bracket = text[token.start()]
        if bracket in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in "]}":
            depth -= 1
    return deepest


def _no_constant(name: str) -> Any:
    raise NotJsonObject(f"{name} is no JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise NotJsonObject(f"a key of {len(double)} characters stands twice in one object")
    return _SOUND


_SOUND: Final[dict[str, Any]] = {}
# An integer of any length is valid JSON, and nothing here needs its value; looking it up in vain is the cheapest drop.
_dropped: Final[Callable[[str], None]] = dict[str, None]().get
_decoder = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_dropped, parse_float=_dropped
)


def check_object(text: str) -> None:
    """Raises NotJsonObject unless the text is one JSON object of at most 64 levels with no key twice."""
    if _levels(text) > LEVELS_MAX:
        raise NotJsonObject(f"more than {LEVELS_MAX} levels")
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJsonObject(f"{error.msg} at character {error.pos}") from None
    if not isinstance(value, dict):
        raise NotJsonObject("it is JSON, but no object")
