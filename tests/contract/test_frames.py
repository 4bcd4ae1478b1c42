"""Two ways to read a frame, and one truth."""

from __future__ import annotations

import random
from hashlib import sha256

import msgpack
import msgspec
import pytest
from kit import build, independent, mutate

from sidecar.contract import canonical, frames, strict
from sidecar.contract import values as v
from sidecar.contract.frames import BadFrame, BrokenInvocation, Invocation
from sidecar.rules.invocation import complaint

MUTATIONS = 20_000


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


def test_any_encoding_of_a_value_has_one_identity_and_one_request_digest() -> None:
    for frame in mutate.seeds():
        value = msgpack.unpackb(frame)
        shuffled = {key: value[key] for key in reversed(value)}
        shuffled["request"] = {**dict(reversed(value["request"].items())), "cache_retention": None} | {
            key: inner for key, inner in value["request"].items() if key == "cache_retention"
        }
        one, other = frames.parse(frame), frames.parse(msgpack.packb(shuffled))
        assert isinstance(one, Invocation)
        assert isinstance(other, Invocation)
        assert one.identity == other.identity == sha256(frame).digest()
        assert one.request_sha256 == other.request_sha256 == bytes(one.value.provider_request_sha256)
        assert one.request_bytes == other.request_bytes


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
