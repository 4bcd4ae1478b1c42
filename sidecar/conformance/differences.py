"""Where two encodings of MessagePack part, in words that a client's author can act on.

`difference` reads any MessagePack, also what no daemon takes: a report must be
able to say that a member is a double. Values that are no bytes are compared by
`value_difference`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

LEVELS_MAX: Final = 64  # far more than anything published has
_SHOWN_CHARACTERS_MAX: Final = 120
_DIGEST: Final = "_sha256"  # how the names of digests end
_DIGEST_BYTES: Final = 32


class _Broken(ValueError):
    """No MessagePack; the message says where."""


class _Node(Struct, frozen=True):
    """One value with its header's bytes. `value`: nodes, pairs of nodes, or what it is in Python."""

    kind: str
    head: bytes
    value: Any


def difference(expected: bytes, got: bytes) -> str | None:
    """The first place where these bytes differ from the canonical ones, and how; None if they don't."""
    if expected == got:
        return None
    try:
        node, at = _read(got, 0, 1)
    except _Broken as broken:
        return f"no MessagePack: {broken}"
    if at != len(got):
        return f"{len(got) - at} bytes stand behind the value"
    wanted, _ = _read(expected, 0, 1)
    return _parted(wanted, node, "") or "the bytes differ"


def value_difference(expected: Any, got: Any, path: str = "") -> str | None:
    """The first place where two JSON-like values differ; members that are None are the same as missing ones."""
    if isinstance(expected, dict) and isinstance(got, dict):
        expected, got = ({key: inner for key, inner in one.items() if inner is not None} for one in (expected, got))
        for key in expected:
            if key not in got:
                return f"{_dotted(path, key)} is missing; it is {shown(expected[key])}"
        for key in got:
            if key not in expected:
                return f"{_dotted(path, key)} should not be there; it is {shown(got[key])}"
        return _first(value_difference(expected[key], got[key], _dotted(path, key)) for key in expected)
    if isinstance(expected, list | tuple) and isinstance(got, list | tuple):
        inner = _first(
            value_difference(one, other, f"{path}[{at}]")
            for at, (one, other) in enumerate(zip(expected, got, strict=False))
        )
        return inner or (
            None if len(expected) == len(got) else f"{path or 'it'} has {len(got)} items of {len(expected)}"
        )
    if type(expected) is type(got) and expected == got:
        return None
    return f"{path or 'it'} is {shown(got)} in place of {shown(expected)}"


def shown(value: Any) -> str:
    """A value on one line, as JSON where it is some, cut where it is long."""
    try:
        text = value.hex() if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False)
    except TypeError:
        text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS_MAX:
        return text
    return f"{text[:_SHOWN_CHARACTERS_MAX]}... ({len(text)} characters)"


def _first(found: Any) -> str | None:
    return next((one for one in found if one is not None), None)


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


# --- comparing --------------------------------------------------------------------------------------------------


def _parted(expected: _Node, got: _Node, path: str) -> str | None:
    where = path or "the value"
    if expected.kind != got.kind:
        return f"{where} is {_named(got)} in place of {_named(expected)}"
    if expected.kind == "a map":
        return _maps_parted(expected, got, path)
    if expected.kind == "an array":
        if path.endswith(_DIGEST) and len(expected.value) == len(got.value) == _DIGEST_BYTES:
            return _digests_parted(expected, got, path)
        if len(expected.value) != len(got.value):
            return f"{where} has {len(got.value)} items in place of {len(expected.value)}"
        inner = _first(
            _parted(one, other, f"{path}[{at}]")
            for at, (one, other) in enumerate(zip(expected.value, got.value, strict=True))
        )
        return inner or _heads_parted(expected, got, where)
    if expected.value != got.value:
        return f"{where} is {shown(got.value)} in place of {shown(expected.value)}"
    return _heads_parted(expected, got, where)


def _digests_parted(expected: _Node, got: _Node, path: str) -> str | None:
    """Of a digest only that it is another says something; its layout is that of any array."""
    wanted, there = ([one.value for one in node.value] for node in (expected, got))
    kinds = {one.kind for one in got.value}
    if wanted != there and kinds == {"an unsigned integer"}:
        return f"{path} is {_hex(there)} in place of {_hex(wanted)}: the digested bytes are not the canonical ones"
    pairs = zip(expected.value, got.value, strict=True)
    inner = _first(_parted(one, other, f"{path}[{at}]") for at, (one, other) in enumerate(pairs))
    return inner or _heads_parted(expected, got, path)


def _hex(integers: list[int]) -> str:
    return "".join(f"{one:02x}" for one in integers[:4]) + "..."


def _maps_parted(expected: _Node, got: _Node, path: str) -> str | None:
    where = path or "the map"
    wanted, there = ([key.value for key, _ in node.value] for node in (expected, got))
    inner = dict(zip(there, [value for _, value in got.value], strict=True)) if _all_texts(there) else {}
    if not inner and there:
        return f"{where} has a key that is no string"
    for key in there:
        if there.count(key) > 1:
            return f"{where} has the key {key} twice"
        if key not in wanted:
            nil = inner[key].kind == "nil"
            return (
                f"{_dotted(path, key)} is {'a nil that must be left out' if nil else 'a member that is not asked for'}"
            )
    for key in wanted:
        if key not in there:
            return f"{_dotted(path, key)} is missing"
    digests_last = sorted(expected.value, key=lambda pair: pair[0].value.endswith(_DIGEST))
    parted = _first(_parted(value, inner[key.value], _dotted(path, key.value)) for key, value in digests_last)
    if parted:
        return parted
    if wanted != there:
        at = next(at for at, (one, other) in enumerate(zip(wanted, there, strict=True)) if one != other)
        return f"the keys of {where} are not sorted: {there[at]} stands where {wanted[at]} belongs"
    keys = _first(
        _heads_parted(one, other, f"the key {one.value} of {where}")
        for (one, _), (other, _) in zip(expected.value, got.value, strict=True)
    )
    return keys or _heads_parted(expected, got, where)


def _all_texts(keys: list[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def _heads_parted(expected: _Node, got: _Node, where: str) -> str | None:
    if expected.head == got.head:
        return None
    return f"{where} has the header {got.head.hex()} in place of {expected.head.hex()}, the shortest one"


def _named(node: _Node) -> str:
    plain = node.kind in ("an unsigned integer", "a signed integer", "a float", "a string")
    return f"{node.kind} ({shown(node.value)})" if plain else node.kind


# --- reading ----------------------------------------------------------------------------------------------------

_Sized = tuple[str, int]
_SIZED: Final[dict[int, _Sized]] = {
    **{0xC4 + at: ("bin", 1 << at) for at in range(3)},
    **{0xD9 + at: ("a string", 1 << at) for at in range(3)},
    **{0xDC + at: ("an array", 2 << at) for at in range(2)},
    **{0xDE + at: ("a map", 2 << at) for at in range(2)},
    **{0xC7 + at: ("ext", 1 << at) for at in range(3)},
}
_CONSTANTS: Final = {0xC0: ("nil", None), 0xC2: ("a boolean", False), 0xC3: ("a boolean", True)}
_FIXED: Final[dict[int, tuple[str, int, Callable[[bytes], Any]]]] = {
    **{0xCC + at: ("an unsigned integer", 1 << at, lambda raw: int.from_bytes(raw, "big")) for at in range(4)},
    **{
        0xD0 + at: ("a signed integer", 1 << at, lambda raw: int.from_bytes(raw, "big", signed=True)) for at in range(4)
    },
    0xCA: ("a float", 4, lambda raw: struct.unpack(">f", raw)[0]),
    0xCB: ("a float", 8, lambda raw: struct.unpack(">d", raw)[0]),
    **{0xD4 + at: ("ext", 1 + (1 << at), bytes) for at in range(5)},
}


def _read(frame: bytes, at: int, level: int) -> tuple[_Node, int]:
    """The value that begins there, and where it ends."""
    if level > LEVELS_MAX:
        raise _Broken(f"more than {LEVELS_MAX} levels")
    first = _taken(frame, at, 1)[0]
    if first in _CONSTANTS:
        kind, constant = _CONSTANTS[first]
        return _Node(kind, frame[at : at + 1], constant), at + 1
    if first in _FIXED:
        kind, size, read = _FIXED[first]
        raw = _taken(frame, at + 1, size)
        return _Node(kind, frame[at : at + 1], read(raw)), at + 1 + size
    if first < 0x80:
        return _Node("an unsigned integer", frame[at : at + 1], first), at + 1
    if first >= 0xE0:
        return _Node("a signed integer", frame[at : at + 1], first - 0x100), at + 1
    if first in _SIZED:
        kind, size = _SIZED[first]
        length, begin = int.from_bytes(_taken(frame, at + 1, size), "big"), at + 1 + size
    elif first < 0xC0:
        kind = "a map" if first < 0x90 else "an array" if first < 0xA0 else "a string"
        length, begin = first & (0x1F if kind == "a string" else 0x0F), at + 1
    else:
        raise _Broken(f"the byte {first:#x} at {at}")
    head = frame[at:begin]
    if kind in ("a map", "an array"):
        return _container(frame, kind, head, length, begin, level)
    raw = _taken(frame, begin, length + (kind == "ext"))
    return _Node(kind, head, _text(raw, begin) if kind == "a string" else raw), begin + len(raw)


def _container(frame: bytes, kind: str, head: bytes, length: int, at: int, level: int) -> tuple[_Node, int]:
    inner: list[Any] = []
    for _ in range(length):
        node, at = _read(frame, at, level + 1)
        if kind == "a map":
            value, at = _read(frame, at, level + 1)
            inner.append((node, value))
        else:
            inner.append(node)
    return _Node(kind, head, inner), at


def _taken(frame: bytes, at: int, count: int) -> bytes:
    if at + count > len(frame):
        raise _Broken(f"it is cut at its {len(frame)} bytes")
    return frame[at : at + count]


def _text(raw: bytes, at: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _Broken(f"a string at {at} that is no UTF-8") from None
