"""Two ways to read a frame, and one truth."""

from __future__ import annotations

import random
from hashlib import sha256
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import build, independent, mutate, wire

from sidecar.contract import canonical, frames, strict
from sidecar.contract import values as v
from sidecar.contract.frames import BadFrame, BrokenInvocation, Invocation
from sidecar.rules.invocation import complaint

MUTATIONS = 20_000
EDGES = [edge + one for edge in (2**7, 2**8, 2**16, 2**31, 2**32, 2**53, 2**63) for one in (-1, 0)] + [2**64 - 1]


def first_way(frame: bytes) -> v.TransportInvocation | None:
    try:
        value = msgspec.msgpack.decode(frame, type=v.TransportInvocation)
    except msgspec.MsgspecError:
        return None
    return value if canonical.encode(value) == frame else None


def second_way(frame: bytes) -> v.TransportInvocation | None:
    try:
        strict.scan(frame)
        return msgspec.msgpack.decode(frame, type=v.TransportInvocation)
    except (strict.NotStrict, msgspec.MsgspecError):
        return None


def mutations(count: int, seed: int) -> list[bytes]:
    chance = random.Random(seed)
    originals = mutate.seeds()
    return [mutate.mutated(chance.choice(originals), chance) for _ in range(count)]


def test_no_frame_is_accepted_by_the_first_way_and_refused_by_the_second() -> None:
    accepted = 0
    for frame in [*mutate.seeds(), *mutations(MUTATIONS, seed=1)]:
        value = first_way(frame)
        if value is not None:
            accepted += 1
            assert second_way(frame) == value
    assert accepted > 100


def test_the_independent_reader_accepts_the_same_frames() -> None:
    accepted = 0
    for frame in mutations(MUTATIONS, seed=2):
        parsed = frames.parse(frame)
        ours = isinstance(parsed, Invocation) and complaint(parsed.value) is None
        assert ours == independent.accepts(frame), frame.hex()
        accepted += ours
    assert accepted > 100


def any_layout(chance: random.Random) -> wire.Layout:
    return wire.Layout(lambda members: chance.sample(members, len(members)), chance.choice)


def with_nil(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The invocation with some of the optional members that it leaves out written as nil."""
    request = dict(value["request"])
    for name in ("cache_retention", "output_schema_json", "reasoning_effort"):
        if chance.random() < 0.5:
            request.setdefault(name, None)
    return {**value, "request": request}


@given(st.sampled_from(mutate.seeds()), st.randoms(use_true_random=False))
def test_any_encoding_of_a_value_has_one_identity_and_one_request_digest(frame: bytes, chance: random.Random) -> None:
    written = wire.write(with_nil(msgpack.unpackb(frame), chance), any_layout(chance))
    one, other = frames.parse(frame), frames.parse(written)
    assert isinstance(one, Invocation)
    assert isinstance(other, Invocation)
    assert one.value == other.value
    assert one.identity == other.identity == sha256(frame).digest()
    assert one.request_sha256 == other.request_sha256 == bytes(one.value.provider_request_sha256)
    assert one.request_bytes == other.request_bytes == len(canonical.encode(one.value.request))
    assert other.frame_bytes == len(written)


@given(st.data())
def test_two_independent_encoders_write_the_same_canonical_bytes(draw: st.DataObject) -> None:
    value = msgpack.unpackb(draw.draw(st.sampled_from(mutate.seeds())))
    value["request"]["instructions"] = draw.draw(st.text() | st.integers(0, 70_000).map(lambda size: "x" * size))
    value["max_cost_micro_usd"] = draw.draw(st.integers(0, 2**64 - 1) | st.sampled_from(EDGES))
    parsed = frames.parse(wire.write(value))
    assert isinstance(parsed, Invocation)
    assert canonical.encode(parsed.value) == wire.write(value)
    assert first_way(wire.write(value)) == parsed.value


@pytest.mark.parametrize("padding", range(-2, 3))
def test_a_frame_that_could_hold_too_many_items_takes_the_second_way_to_the_same_value(padding: int) -> None:
    digests = {"native_request_sha256": (1,) * 32, "provider_request_sha256": (1,) * 32}
    plain = build.frame(build.request(instructions="x" * 65_000), **digests)
    size = 65_000 + frames.FIRST_WAY_BYTES_MAX + padding - len(plain)
    frame = build.frame(build.request(instructions="x" * size), **digests)
    assert len(frame) == frames.FIRST_WAY_BYTES_MAX + padding
    parsed = frames.parse(frame)
    assert isinstance(parsed, Invocation)
    assert parsed.identity == sha256(frame).digest()


def packed(**changes: object) -> bytes:
    return bytes(msgpack.packb({**msgpack.unpackb(build.frame()), **changes}))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x90", "malformed_frame"),
        (b"\x01", "malformed_frame"),
        (b"\x80", "malformed_frame"),
        (b"\x81\xa9schema_id\x01", "malformed_frame"),
        (b"\x81\xa9schema_id\xa3abc", "unknown_schema"),
        (packed(schema_id="gamecult.model.transport_invocation.v2"), "unknown_schema"),
        (packed(caller_runtime_id="with space"), "malformed_frame"),
        (packed(caller_runtime_id=""), "malformed_frame"),
        (packed(caller_runtime_id="x" * 257), "malformed_frame"),
        (packed(caller_runtime_id=7), "malformed_frame"),
        (packed(request=None), "malformed_frame"),
        (packed(request={}), "malformed_frame"),
        (packed(request={"request_id": ""}), "malformed_frame"),
    ],
)
def test_what_only_a_transport_error_can_answer(frame: bytes, code: str) -> None:
    parsed = frames.parse(frame)
    assert isinstance(parsed, BadFrame)
    assert parsed.code == code


@pytest.mark.parametrize(
    "frame",
    [
        packed(extra=1),
        packed(expires_at_unix_ms=-1),
        packed(native_request_sha256=[0] * 31),
        packed(request={"request_id": "request-1"}),
        packed(max_cost_micro_usd=True),
    ],
)
def test_a_broken_invocation_with_readable_ids_says_which_request_it_was(frame: bytes) -> None:
    parsed = frames.parse(frame)
    assert isinstance(parsed, BrokenInvocation)
    assert (parsed.caller_runtime_id, parsed.request_id) == ("dungeon", "request-1")
    assert parsed.complaint
