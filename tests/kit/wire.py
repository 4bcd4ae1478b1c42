"""MessagePack written by hand: any layout that a value can have, and what no library would write.

`write(value)` is a second, independent canonical encoder (sorted keys,
shortest headers); with another `Layout` it writes the same value as other
clients might. `Raw` bytes and `Pairs` (a map with any keys, in any order,
also twice) stand for what is not allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Raw(bytes):
    """Encoded bytes, written as they are."""


class Pairs(list[tuple[Any, Any]]):
    """A map by its pairs."""


Members = list[tuple[str, Any]]


class Layout(NamedTuple):
    """`order` puts a map's members into the order in which they are written; `form` picks one of several headers."""

    order: Callable[[Members], Iterable[tuple[str, Any]]]
    form: Callable[[list[bytes]], bytes]


def by_key(members: Members) -> Members:
    return sorted(members, key=lambda member: member[0].encode())


CANONICAL = Layout(by_key, lambda forms: forms[0])
LONGEST = Layout(by_key, lambda forms: forms[-1])
BACKWARDS = Layout(lambda members: by_key(members)[::-1], lambda forms: forms[0])

_FORMS: dict[str, list[tuple[int, int, int]]] = {  # (first byte, greatest, bytes that hold it; 0: in the first byte)
    "str": [(0xA0, 31, 0), (0xD9, 2**8 - 1, 1), (0xDA, 2**16 - 1, 2), (0xDB, 2**32 - 1, 4)],
    "bin": [(0xC4, 2**8 - 1, 1), (0xC5, 2**16 - 1, 2), (0xC6, 2**32 - 1, 4)],
    "array": [(0x90, 15, 0), (0xDC, 2**16 - 1, 2), (0xDD, 2**32 - 1, 4)],
    "map": [(0x80, 15, 0), (0xDE, 2**16 - 1, 2), (0xDF, 2**32 - 1, 4)],
    "unsigned": [(0x00, 127, 0), (0xCC, 2**8 - 1, 1), (0xCD, 2**16 - 1, 2), (0xCE, 2**32 - 1, 4), (0xCF, 2**64 - 1, 8)],
    "signed": [(0xD0, 2**7 - 1, 1), (0xD1, 2**15 - 1, 2), (0xD2, 2**31 - 1, 4), (0xD3, 2**63 - 1, 8)],
}  # fmt: skip


def heads(kind: str, number: int) -> list[bytes]:
    """Every header of this kind that can say this number, the shortest first."""
    return [
        bytes([first | number]) if size == 0 else bytes([first]) + number.to_bytes(size, "big")
        for first, greatest, size in _FORMS[kind]
        if number <= greatest
    ]


def write(value: Any, layout: Layout = CANONICAL) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _integer(value, layout)
    if isinstance(value, str):
        text = value.encode()
        return layout.form(heads("str", len(text))) + text
    if isinstance(value, bytes):
        return layout.form(heads("bin", len(value))) + value
    if isinstance(value, Pairs | dict):
        pairs = value if isinstance(value, Pairs) else list(layout.order(list(value.items())))
        written = [write(key, layout) + write(inner, layout) for key, inner in pairs]
        return layout.form(heads("map", len(written))) + b"".join(written)
    assert isinstance(value, list | tuple), type(value)
    return layout.form(heads("array", len(value))) + b"".join(write(inner, layout) for inner in value)


def _integer(number: int, layout: Layout) -> bytes:
    if number < 0:
        assert number >= -(2**63)
        return bytes([0x100 + number]) if number >= -32 else b"\xd3" + number.to_bytes(8, "big", signed=True)
    return layout.form(heads("unsigned", number) + heads("signed", number))


def without_nil(value: Any) -> Any:
    """The value with its nil members left out, as canonical bytes leave them out."""
    if isinstance(value, dict):
        return {key: without_nil(inner) for key, inner in value.items() if inner is not None}
    return [without_nil(inner) for inner in value] if isinstance(value, list | tuple) else value
