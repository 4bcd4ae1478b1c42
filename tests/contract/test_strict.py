"""The strict profile, form by form and bound by bound."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import independent

from sidecar.contract import frames, strict
from sidecar.contract.strict import NotStrict, scan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=30,
)


def depth(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@given(VALUES)
def test_whatever_msgpack_writes_of_allowed_values_is_strict(value: object) -> None:
    if depth(value) <= strict.LEVELS_MAX:
        scan(msgpack.packb(value))


@given(VALUES)
def test_every_truncation_is_refused(value: object) -> None:
    frame = msgpack.packb(value)
    for end in range(len(frame)):
        with pytest.raises(NotStrict):
            scan(frame[:end])


@given(st.binary(max_size=60))
def test_any_bytes_are_judged_as_the_independent_reader_judges_them(frame: bytes) -> None:
    assert is_strict(frame) == is_independently_strict(frame)


def is_strict(frame: bytes) -> bool:
    try:
        scan(frame)
    except NotStrict:
        return False
    return True


def is_independently_strict(frame: bytes) -> bool:
    try:
        independent.unpacked(frame)
    except independent.Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "twice"),
        (b"\x81\x01\x02", "no string"),
        (b"\x81\xc4\x01a\x02", "no string"),
        (b"\x81\xa1a\xd4\x01\x00", "ext"),
        (b"\x81\xa1a\xd6\xff\x00\x00\x00\x00", "ext"),
        (b"\x81\xa1a\xca\x00\x00\x00\x00", "float"),
        (b"\x81\xa1a\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", "float"),
        (b"\x81\xa1a\xa2\xc3\x28", "UTF-8"),
        (b"\x81\xa1a\xa3\xed\xa0\x80", "UTF-8"),
        (b"\x81\xa1a\xa2\xc0\x80", "UTF-8"),
        (b"\x81\xa1a\x01\x00", "behind"),
        (b"\xc1", "0xc1"),
        (b"", "ends"),
    ],
)
def test_a_forbidden_form_is_refused_with_its_reason(frame: bytes, why: str) -> None:
    with pytest.raises(NotStrict, match=why):
        scan(frame)


def nested(levels: int) -> bytes:
    return b"\x91" * (levels - 1) + b"\x90"


def test_sixteen_levels_are_taken_and_seventeen_refused() -> None:
    scan(nested(16))
    with pytest.raises(NotStrict, match="levels"):
        scan(nested(17))


def test_items_are_counted_over_the_whole_frame() -> None:
    half = b"\xdc" + (32_767).to_bytes(2, "big") + b"\xc0" * 32_767
    assert scan(b"\x92" + half + half) == 65_536
    with pytest.raises(NotStrict, match="65536"):
        scan(b"\x93" + half + half + b"\xc0")


def test_longer_headers_than_needed_are_taken() -> None:
    assert scan(b"\xdf\x00\x00\x00\x01\xdb\x00\x00\x00\x01a\xcf" + bytes(8)) == 1


HOSTILE = {
    "small maps": b"\xdc\xff\xff" + b"\x80" * 65_535,
    "maps of one pair": b"\xdc\x7f\xff" + b"\x81\xa0\xc0" * 32_767,
    "many keys": b"\xde\xff\xff" + b"".join(b"\xa4%04x\xc0" % n for n in range(65_535)),
    "a huge array announced": b"\x81\xa9schema_id\xdd\xff\xff\xff\xff",
    "items of four MiB": b"\xdd\x00\x3f\xff\xfb" + b"\x01" * 0x3FFFFB,
    "nested arrays": b"\x91" * 4_000_000,
    "one long string": b"\x81\xa1a\xdb\x00\x3f\xff\xf0" + b"x" * 0x3FFFF0,
    "input items": msgpack.packb(
        {"schema_id": "gamecult.model.transport_invocation.v1",
         "request": {"request_id": "r", "input": [{"UserText": {"text": "x"}}] * 21_000}, "caller_runtime_id": "c"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_decoding_takes_a_small_multiple_of_the_frame(name: str) -> None:
    frame = HOSTILE[name]
    frames.parse(frame)
    tracemalloc.start()
    try:
        frames.parse(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{name}: {len(frame)} bytes, peak {peak / len(frame):.1f} x")
    most = 12 if name == "many keys" else 8  # a set of 65,535 keys is the dearest thing that a frame can ask for
    assert peak <= most * len(frame) + 65_536
