"""The strict profile, form by form and bound by bound."""

from __future__ import annotations

import random
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build, independent, wire

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


@pytest.mark.parametrize("keys", [2, 31, 32, 33, 85, 86, 400, 5000])
def test_a_key_is_found_twice_in_a_map_of_any_size(keys: int) -> None:
    names = [f"key {n}" for n in range(keys)]
    whole = [(name, None) for name in names]
    assert scan(wire.write(wire.Pairs(whole))) == keys
    for again in (names[0], names[keys // 2], names[-1]):
        with pytest.raises(NotStrict, match="twice"):
            scan(wire.write(wire.Pairs([*whole, (again, None)])))


@given(st.lists(st.text(max_size=3), max_size=200), st.randoms())
def test_keys_are_unique_whatever_headers_they_are_written_with(keys: list[str], chance: random.Random) -> None:
    layout = wire.Layout(wire.by_key, lambda forms: chance.choice(forms))
    frame = wire.write(wire.Pairs([(key, None) for key in keys]), layout)
    assert is_strict(frame) == (len(set(keys)) == len(keys))


def test_equal_keys_of_different_maps_are_fine() -> None:
    many = {f"key {n}": 0 for n in range(100)}
    assert scan(wire.write({"one": many, "other": many, "list": [many, many]})) == 405


INVOCATION = msgpack.unpackb(build.frame())


def with_request(**changes: object) -> bytes:
    return wire.write({**INVOCATION, "request": {**INVOCATION["request"], **changes}})


TOOL = {"name": "", "description": "", "parameters_json": ""}
KEYS = [bytes([33 + n // 8100, 33 + n // 90 % 90, 33 + n % 90]) for n in range(65_535)]
HOSTILE = {
    "small maps": b"\xdc\xff\xff" + b"\x80" * 65_535,
    "maps of one pair": b"\xdc\x7f\xff" + b"\x81\xa0\xc0" * 32_767,
    "many keys": b"\xde\xff\xff" + b"".join(b"\xa3" + key + b"\xc0" for key in KEYS),
    "many keys in every level": b"".join(
        b"\xde\x0f\xff" + b"".join(b"\xa3" + key + b"\xc0" for key in KEYS[:4094]) + b"\xa1z" for _ in range(15)
    ) + b"\xc0",
    "as many keys as a set keeps in every level": b"".join(
        b"\xde\x00\x1f" + b"".join(b"\xa3" + key + b"\xc0" for key in KEYS[:30]) + b"\xa1z" for _ in range(15)
    ) + b"\xc0",
    "a huge array announced": b"\x81\xa9schema_id\xdd\xff\xff\xff\xff",
    "a huge map announced": b"\x81\xa9schema_id\xdf\x00\x00\xff\xff",
    "items of four MiB": b"\xdd\x00\x3f\xff\xfb" + b"\x01" * 0x3FFFFB,
    "nested arrays": b"\x91" * 4_000_000,
    "one long string": b"\x81\xa1a\xdb\x00\x3f\xff\xf0" + b"x" * 0x3FFFF0,
    "a long digest": wire.write({**INVOCATION, "native_request_sha256": [0] * 60_000}),
    "empty texts, the first way": with_request(input=[{"UserText": {"text": ""}}] * 3_700),
    "empty texts, the second way": with_request(input=[{"UserText": {"text": ""}}] * 21_000),
    "empty results": with_request(input=[{"ToolResult": {"call_id": "", "output": ""}}] * 16_000),
    "empty states": with_request(input=[{"ReasoningState": {"model": "", "provider": "", "state": b""}}] * 13_000),
    "empty tools": with_request(tools=[TOOL] * 16_000),
    "one long text": with_request(instructions="x" * 4_000_000),
    "one long text that is not ASCII": with_request(instructions="\U0001f642" * 1_000_000),
    "one long text with one emoji": with_request(instructions="\U0001f642" + "x" * 4_000_000),
}  # fmt: skip
TIMES_THE_FRAME_MAX = 8
# Python holds a text with one emoji at 4 bytes a character, and takes 4 more while it writes it as UTF-8.
DEAREST = {"one long text with one emoji": 9}
SLACK_BYTES = 65_536  # what even the smallest frame may take


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
    assert peak <= DEAREST.get(name, TIMES_THE_FRAME_MAX) * len(frame) + SLACK_BYTES
