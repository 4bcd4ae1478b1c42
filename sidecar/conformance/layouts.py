"""The same value as other encoders write it: what a daemon takes, and answers as the canonical one.

Each layout is one that some library of the field writes by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

_Head = tuple[int, int, int]  # first byte, greatest number, bytes that hold it (0: in the first byte)
_HEADS: Final[Mapping[str, tuple[_Head, ...]]] = {
    "str": ((0xA0, 31, 0), (0xD9, 2**8 - 1, 1), (0xDA, 2**16 - 1, 2), (0xDB, 2**32 - 1, 4)),
    "bin": ((0xC4, 2**8 - 1, 1), (0xC5, 2**16 - 1, 2), (0xC6, 2**32 - 1, 4)),
    "array": ((0x90, 15, 0), (0xDC, 2**16 - 1, 2), (0xDD, 2**32 - 1, 4)),
    "map": ((0x80, 15, 0), (0xDE, 2**16 - 1, 2), (0xDF, 2**32 - 1, 4)),
    "unsigned": ((0, 127, 0), (0xCC, 2**8 - 1, 1), (0xCD, 2**16 - 1, 2), (0xCE, 2**32 - 1, 4), (0xCF, 2**64 - 1, 8)),
    "signed": ((0xD0, 2**7 - 1, 1), (0xD1, 2**15 - 1, 2), (0xD2, 2**31 - 1, 4), (0xD3, 2**63 - 1, 8)),
}


class Layout(Struct, frozen=True):
    """`backwards`: keys in falling order. `pick` takes one of a header's forms, which stand from short to long."""

    backwards: bool
    pick: Callable[[list[bytes]], bytes]


def _shortest(forms: list[bytes]) -> bytes:
    return forms[0]


def _longest(forms: list[bytes]) -> bytes:
    return forms[-1]


def _signed(forms: list[bytes]) -> bytes:
    return next((form for form in forms if 0xD0 <= form[0] <= 0xD3), forms[0])


LAYOUTS: Final[Mapping[str, Layout]] = {
    "keys backwards": Layout(True, _shortest),
    "every header as long as it can be": Layout(False, _longest),
    "signed integers": Layout(False, _signed),
    "nil members written": Layout(False, _shortest),  # the value has them; see daemon_vectors
}


def written(value: Any, layout: Layout) -> bytes:
    """A plain value without negative integers, floats or ext."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return layout.pick(_heads("unsigned", value) + _heads("signed", value))
    if isinstance(value, str):
        text = value.encode()
        return layout.pick(_heads("str", len(text))) + text
    if isinstance(value, bytes):
        return layout.pick(_heads("bin", len(value))) + value
    if isinstance(value, dict):
        keys = sorted(value, reverse=layout.backwards)
        pairs = [written(key, layout) + written(value[key], layout) for key in keys]
        return layout.pick(_heads("map", len(pairs))) + b"".join(pairs)
    assert isinstance(value, list), type(value)
    return layout.pick(_heads("array", len(value))) + b"".join(written(inner, layout) for inner in value)


def _heads(kind: str, number: int) -> list[bytes]:
    """Every header of this kind that can say this number, the shortest first."""
    return [
        bytes([first | number]) if size == 0 else bytes([first]) + number.to_bytes(size, "big")
        for first, greatest, size in _HEADS[kind]
        if number <= greatest
    ]
