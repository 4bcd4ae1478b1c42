"""The goldens are what the generator makes, and hold both ways: value to bytes, bytes to value, one byte at a time."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from typing import Any

import msgpack
import msgspec
import pytest
from goldens.published_values import PUBLISHED
from goldens.spelling import read_bytes, read_value, spelt_bytes, spelt_value
from hypothesis import given
from hypothesis import strategies as st
from kit import independent, wire

from goldens import regenerate
from sidecar.contract import canonical, frames, strict
from sidecar.contract import values as v
from sidecar.contract.frames import BadFrame, BrokenInvocation, Invocation
from sidecar.rules.framing import FrameSize, FrameSplitter, framed
from sidecar.rules.invocation import complaint

INVOCATION = "transport_invocation.v1"


@cache
def vectors(path: str) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads((regenerate.GOLDENS / path).read_text())["vectors"])


def named(path: str) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in vectors(path)]


def every(folder: str) -> list[Any]:
    """Each vector of a folder's files, with the name of its file."""
    paths = sorted((regenerate.GOLDENS / folder).glob("*.json"))
    return [
        pytest.param(path.stem, vector, id=f"{path.stem}: {vector['name']}")
        for path in paths
        if path.stem != "variants"
        for vector in vectors(f"{folder}/{path.name}")
    ]


def test_the_files_are_what_the_generator_makes() -> None:
    made = regenerate.texts()
    there = {path: path.read_text() for path in regenerate.there()}
    assert sorted(made) == sorted(there), "run: python tests/goldens/regenerate.py"
    for path, text in made.items():
        assert there[path] == text, f"{path.name} differs; run: python tests/goldens/regenerate.py"


@pytest.mark.parametrize("path", ["values/" + name + ".json" for name in PUBLISHED])
def test_names_are_unique(path: str) -> None:
    assert len({vector["name"] for vector in vectors(path)}) == len(vectors(path))


@given(st.binary(max_size=80), st.integers(0, 700), st.binary(max_size=80))
def test_bytes_come_back_from_their_spelling(before: bytes, times: int, after: bytes) -> None:
    raw = before + b"\x00\xff" * times + after
    assert read_bytes(json.loads(json.dumps(spelt_bytes(raw)))) == raw


@given(st.text(max_size=8), st.integers(0, 700))
def test_texts_come_back_from_their_spelling(text: str, times: int) -> None:
    value = {"text": text * times, "state": text.encode() * times}
    assert read_value(json.loads(json.dumps(spelt_value(value)))) == value


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("schema", "vector"), every("values"))
def test_a_value_golden_holds_both_ways(schema: str, vector: dict[str, Any]) -> None:
    value, encoded = read_value(vector["value"]), read_bytes(vector["canonical"])
    type_ = PUBLISHED[schema][0]
    assert independent.is_valid(schema, value)
    assert wire.write(wire.without_nil(value)) == encoded
    assert canonical.encode(msgspec.msgpack.decode(encoded, type=type_)) == encoded
    assert canonical.encode(msgspec.msgpack.decode(msgpack.packb(value), type=type_)) == encoded
    assert independent.unpacked(encoded) == wire.without_nil(value)
    assert (len(encoded), sha256(encoded).hexdigest()) == (vector["bytes"], vector["sha256"])


@pytest.mark.parametrize("vector", named(f"values/{INVOCATION}.json"))
def test_an_invocation_golden_is_admissible_and_its_bounds_are_right(vector: dict[str, Any]) -> None:
    frame = read_bytes(vector["canonical"])
    parsed = frames.parse(frame)
    assert isinstance(parsed, Invocation)
    assert complaint(parsed.value) is None
    assert independent.accepts(frame)
    assert parsed.identity.hex() == vector["sha256"]
    assert parsed.request_sha256.hex() == vector["provider_request_sha256"]
    assert bytes(parsed.value.provider_request_sha256) == parsed.request_sha256
    request = wire.without_nil(read_value(vector["value"])["request"])
    request_bytes, tools_bytes = len(wire.write(request)), len(wire.write(request["tools"]))
    assert parsed.request_bytes == request_bytes == vector["provider_request_bytes"]
    for bound in vector["input_bounds"]:
        margins = bound["input_overhead_tokens"] + bound["input_overhead_tokens_per_item"] * len(request["input"])
        again = tools_bytes if bound["tools_rendered_twice"] else 0
        assert bound["input_bound_tokens"] == request_bytes + margins + again


def test_the_goldens_hold_every_word_of_every_enumeration() -> None:
    for name in PUBLISHED:
        written = b"".join(read_bytes(vector["canonical"]) for vector in vectors(f"values/{name}.json"))
        for word in enumerated(independent.schema(name)):
            assert wire.write(word) in written, word


def enumerated(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(enumerated, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("enum", ())).union(*(enumerated(inner) for inner in schema.values()))


# --- frames -----------------------------------------------------------------------------------------------------


def first_way(frame: bytes) -> bool:
    try:
        value = msgspec.msgpack.decode(frame, type=v.TransportInvocation)
    except msgspec.MsgspecError:
        return False
    return canonical.encode(value) == frame and complaint(value) is None


def second_way(frame: bytes) -> bool:
    try:
        strict.scan(frame)
        value = msgspec.msgpack.decode(frame, type=v.TransportInvocation)
    except (strict.NotStrict, msgspec.MsgspecError):
        return False
    return complaint(value) is None


@pytest.mark.parametrize("vector", named("frames/variants.json"))
def test_a_variant_is_accepted_with_the_digest_of_its_golden(vector: dict[str, Any]) -> None:
    golden = next(one for one in vectors(f"values/{INVOCATION}.json") if one["name"] == vector["same_as"])
    frame = read_bytes(vector["frame"])
    assert frame != read_bytes(golden["canonical"])
    parsed = frames.parse(frame)
    assert isinstance(parsed, Invocation)
    assert parsed.identity.hex() == vector["identity_sha256"] == golden["sha256"]
    assert parsed.request_sha256.hex() == golden["provider_request_sha256"]
    assert parsed.request_bytes == golden["provider_request_bytes"]
    assert second_way(frame)
    assert not first_way(frame)
    assert independent.accepts(frame)


@pytest.mark.parametrize(("file", "vector"), every("frames"))
def test_a_rejected_frame_gets_its_answer(file: str, vector: dict[str, Any]) -> None:
    frame, answer = read_bytes(vector["frame"]), vector["answer"]
    assert not first_way(frame)
    assert not second_way(frame)
    assert not independent.accepts(frame)
    parsed = frames.parse(frame)
    if "refused" not in answer:
        assert isinstance(parsed, BadFrame)
        assert parsed.code == answer["transport_error"]
        return
    assert answer["refused"] == "Malformed"
    if isinstance(parsed, BrokenInvocation):
        ids = parsed.caller_runtime_id, parsed.request_id
    else:
        assert isinstance(parsed, Invocation)
        assert complaint(parsed.value) is not None
        ids = parsed.value.caller_runtime_id, parsed.value.request.request_id
    assert ids == (answer["caller_runtime_id"], answer["request_id"])


@pytest.mark.parametrize(("file", "vector"), every("frames"))
def test_the_profile_is_what_the_files_say(file: str, vector: dict[str, Any]) -> None:
    try:
        independent.unpacked(read_bytes(vector["frame"]))
    except independent.Refused:
        assert file == "not_strict"
    else:
        assert file != "not_strict"


@pytest.mark.parametrize("name", [INVOCATION, "transport_result.v1"])
def test_the_goldens_come_whole_out_of_a_stream_one_byte_at_a_time(name: str) -> None:
    expected = [read_bytes(vector["canonical"]) for vector in vectors(f"values/{name}.json") if vector["bytes"] < 5000]
    splitter = FrameSplitter(2**24 - 1)
    got = []
    for byte in b"".join(map(framed, expected)):
        splitter.feed(bytes([byte]))
        while (frame := splitter.next_frame()) is not None:
            got.append(frame)
    assert got == expected


# --- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named("streams.json"))
def test_a_stream_gives_its_frames_and_its_end(vector: dict[str, Any]) -> None:
    sent = read_bytes(vector["sent"])
    pieces = [sent] if len(sent) > 10_000 else [bytes([byte]) for byte in sent]
    frame_bytes_max = json.loads((regenerate.GOLDENS / "streams.json").read_text())["frame_bytes_max"]
    splitter, got, code = FrameSplitter(frame_bytes_max), [], None
    try:
        for piece in pieces:
            splitter.feed(piece)
            while (frame := splitter.next_frame()) is not None:
                got.append({"bytes": len(frame), "sha256": sha256(frame).hexdigest()})
    except FrameSize:
        code = "frame_size"
    assert (got, code) == (vector["frames"], vector["transport_error"])


# --- transcripts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted((regenerate.GOLDENS / "transcripts").glob("*.json")), ids=lambda path: path.stem
)
def test_what_the_daemon_says_in_a_transcript_is_framed_canonical_and_published(path: Any) -> None:
    splitter = FrameSplitter(2**24 - 1)
    steps = [step for step in json.loads(path.read_text())["steps"] if step["from"] == "server"]
    assert steps
    for step in steps:
        splitter.feed(read_bytes(step["bytes_base64"]))
        frame = splitter.next_frame()
        assert frame is not None
        value = independent.unpacked(frame)
        assert wire.write(value) == frame
        assert independent.is_valid(value["schema_id"].removeprefix("gamecult.model."), value)
    assert not splitter.in_frame
