"""A recorded conversation said anew: other ids and expiry, the same length, digests that are right where they were."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgpack
from kit import build, wire

from sidecar.conformance.daemon_vectors import Terms, conversations
from sidecar.conformance.fresh import Freshened, canonical, frames_in
from sidecar.conformance.goldens import found
from sidecar.rules.framing import framed

LATER_MS = 5_000_000


def freshened(suffix: str = "0123456789") -> Freshened:
    return Freshened(then_unix_ms=build.NOW, now_unix_ms=build.NOW + LATER_MS, suffix=suffix)


def said(fresh: Freshened, frame: bytes) -> dict[str, Any]:
    (again,) = frames_in(fresh.sent(framed(frame))) or ()
    return dict(msgpack.unpackb(again))


def test_an_invocation_keeps_its_length_and_has_right_digests() -> None:
    frame = build.frame(build.request(request_id="one"))
    value = said(freshened(), frame)
    request = value["request"]
    assert request["request_id"] == "one.0123456789"
    assert len(canonical(request)) == len(wire.write(msgpack.unpackb(frame)["request"]))
    assert value["expires_at_unix_ms"] == build.NOW + 60_000 + LATER_MS
    assert value["provider_request_sha256"] == [*sha256(wire.write(request)).digest()]
    assert value["native_request_sha256"] == value["provider_request_sha256"]


def test_a_digest_that_was_wrong_stays_wrong() -> None:
    value = said(freshened(), build.frame(provider_request_sha256=(1,) * 32))
    assert value["provider_request_sha256"] == [1] * 32
    assert value["native_request_sha256"] == [*sha256(wire.write(value["request"])).digest()]


def test_one_run_says_the_same_each_time_and_another_run_something_else() -> None:
    frame, one = framed(build.frame()), freshened()
    assert one.sent(frame) == one.sent(frame)
    assert one.sent(frame) != freshened("9876543210").sent(frame)


def test_what_is_no_whole_frame_is_said_as_it_was() -> None:
    for sent in (b"GET / HTTP/1.1\r\n", bytes(4), framed(b"\x80\x80"), framed(build.frame())[:-1]):
        assert freshened().sent(sent) == sent


def test_the_answer_follows_what_was_said() -> None:
    fresh = freshened()
    frame = build.frame(build.request(request_id="one"))
    new = said(fresh, frame)
    old = msgpack.unpackb(frame)
    receipt = {
        "request_id": "one",
        "provider_request_sha256": old["provider_request_sha256"],
        "outcome": {"Completed": {"provider_response_id": "scripted-one", "text": "one"}},
    }
    assert fresh.answered(receipt) == {
        "request_id": "one.0123456789",
        "provider_request_sha256": new["provider_request_sha256"],
        "outcome": {"Completed": {"provider_response_id": "scripted-one.0123456789", "text": "one"}},
    }


def test_every_vector_has_a_name_of_its_own_and_begins_or_says_why_not() -> None:
    terms = Terms(frame_bytes_max=4_194_304, now_unix_ms=build.NOW + LATER_MS)
    every = list(conversations(found()))
    assert len({one.name for one in every}) == len(every) > 250
    assert [one.name for one in every if isinstance(one.begun(terms), str)] == ["transcripts/resolve"]


def test_a_daemon_with_another_bound_or_an_early_clock_is_told_what_can_not_be_played() -> None:
    small = Terms(frame_bytes_max=1000, now_unix_ms=build.NOW + LATER_MS)
    early = Terms(frame_bytes_max=4_194_304, now_unix_ms=build.NOW)
    for terms, name in ((small, "streams/"), (early, "frames/variants/")):
        of_it = [one for one in conversations(found()) if one.name.startswith(name)]
        assert of_it
        assert all(isinstance(one.begun(terms), str) for one in of_it)
