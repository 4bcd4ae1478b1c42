"""What differs is named, in whatever way a client got it wrong; what does not differ is never named."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import wire

from sidecar.conformance.differences import difference, shown, value_difference
from sidecar.conformance.layouts import LAYOUTS, written

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2**64 - 1) | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=18),
    max_leaves=20,
)
BASE = {"a": 200, "b": ["x", {"c": 1}], "d_sha256": [*range(100, 132)], "e": b"bin", "f": True}
CANONICAL = wire.write(BASE)


@given(VALUES)
def test_equal_bytes_do_not_differ(value: Any) -> None:
    assert difference(wire.write(value), wire.write(value)) is None


@given(VALUES, VALUES)
def test_other_bytes_always_differ(one: Any, other: Any) -> None:
    same = wire.write(one) == wire.write(other)
    assert (difference(wire.write(one), wire.write(other)) is None) == same


@given(st.binary(max_size=60))
def test_any_bytes_can_be_told_from_the_canonical_ones(got: bytes) -> None:
    assert isinstance(difference(CANONICAL, got), str)


@given(VALUES)
def test_values_differ_from_nothing_but_others(value: Any) -> None:
    assert value_difference(value, value) is None
    assert value_difference([value], [value, 1]) is not None


@given(VALUES, st.sampled_from(sorted(LAYOUTS)))
def test_a_layout_says_the_same_value(value: Any, layout: str) -> None:
    relaid = written(value, LAYOUTS[layout])
    assert msgpack.unpackb(relaid, strict_map_key=False) == msgpack.unpackb(wire.write(value), strict_map_key=False)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (wire.write({**BASE, "a": 201}), "a is 201 in place of 200"),
        (wire.write({**BASE, "a": None}), "a is nil in place of an unsigned integer (200)"),
        (wire.write({**BASE, "g": None}), "g is a nil that must be left out"),
        (wire.write({**BASE, "g": 1}), "g is a member that is not asked for"),
        (wire.write({key: inner for key, inner in BASE.items() if key != "e"}), "e is missing"),
        (wire.write({**BASE, "e": "bin"}), 'e is a string ("bin") in place of bin'),
        (wire.write({**BASE, "e": [98, 105, 110]}), "e is an array in place of bin"),
        (wire.write({**BASE, "b": ["x", {"c": 2}]}), "b[1].c is 2 in place of 1"),
        (wire.write({**BASE, "b": ["x"]}), "b has 1 items in place of 2"),
        (wire.write({**BASE, "a": wire.Raw(b"\xd1\x00\xc8")}), "a is a signed integer (200) in place of an unsigned"),
        (wire.write({**BASE, "a": wire.Raw(b"\xcb" + bytes.fromhex("4069000000000000"))}), "a is a float (200.0)"),
        (wire.write({**BASE, "a": wire.Raw(b"\xcd\x00\xc8")}), "a has the header cd in place of cc"),
        (wire.write(BASE, wire.BACKWARDS), "the keys of the map are not sorted: f stands where a belongs"),
        (wire.write({**BASE, "d_sha256": [*range(32)]}), "d_sha256 is 00010203... in place of 64656667..."),
        (wire.write({**BASE, "d_sha256": [*range(32)], "a": 1}), "a is 1 in place of 200"),
        (wire.write({**BASE, "d_sha256": bytes(32)}), "d_sha256 is bin in place of an array"),
        (wire.write(wire.Pairs([*BASE.items(), ("a", 200)])), "the map has the key a twice"),
        (wire.write(wire.Pairs([*BASE.items(), (1, 200)])), "the map has a key that is no string"),
        (wire.write([]), "the value is an array in place of a map"),
        (CANONICAL + b"\xc0", "1 bytes stand behind the value"),
        (CANONICAL[:-1], "no MessagePack: it is cut"),
        (b"\xc1", "no MessagePack: the byte 0xc1"),
    ],
)  # fmt: skip
def test_the_fault_is_named(got: bytes, told: str) -> None:
    assert str(difference(CANONICAL, got)).startswith(told)


@pytest.mark.parametrize(
    ("expected", "got", "told"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, "a.b is 1.0 in place of 1"),
        ({"a": 1}, {"a": True}, "a is true in place of 1"),
        ({"a": [1, 2]}, {"a": [1]}, "a has 1 items of 2"),
        ({"a": 1}, {}, "a is missing; it is 1"),
        ({}, {"a": 1}, "a should not be there; it is 1"),
        ({"a": None}, {}, None),
        ({}, {"a": None}, None),
        ({"a": 2**64 - 1}, {"a": float(2**64 - 1)}, "a is 1.8446744073709552e+19 in place of 18446744073709551615"),
    ],
)
def test_values_say_where_they_part(expected: Any, got: Any, told: str | None) -> None:
    assert value_difference(expected, got) == told


def test_a_long_value_is_cut_where_it_is_shown() -> None:
    assert len(shown("x" * 100_000)) < 200
