"""A client's frame in any layout is one value; what breaks its table is `malformed_frame`; a quote judges as the frame.

What only the daemon says is no frame that it takes.
"""

from __future__ import annotations

from typing import Any

import pytest
from kit import wire

from goldens import published_values as published
from goldens import sample_frames
from sidecar.contract import client_frames as f
from sidecar.contract import frames
from sidecar.contract.frames import BadFrame, BrokenInvocation, Invocation, Quote

CANCEL = {"schema_id": f.TRANSPORT_CANCEL, "caller_runtime_id": "dungeon", "request_id": "turn-1"}
STATUS = {"schema_id": f.TRANSPORT_STATUS}
SAID = [
    (published.hello(), f.TransportHello),
    (CANCEL, f.TransportCancel),
    (STATUS, f.TransportStatus),
]
LAYOUTS = pytest.mark.parametrize("layout", [wire.BACKWARDS, wire.LONGEST], ids=["backwards", "longest headers"])


@pytest.mark.parametrize(("value", "type_"), SAID, ids=["hello", "cancel", "status"])
@LAYOUTS
def test_any_layout_says_the_same(value: dict[str, Any], type_: type, layout: Any) -> None:
    parsed = frames.parse(wire.write(value))
    assert isinstance(parsed, type_)
    assert parsed == frames.parse(wire.write(value, layout))


@LAYOUTS
def test_a_quote_in_any_layout_asks_for_the_same_invocation(layout: Any) -> None:
    value = published.quote(published.invocation(published.full_request()))
    outside = frames.parse(wire.write(value["invocation"]))
    assert isinstance(outside, Invocation)
    for frame in (wire.write(value), wire.write(value, layout)):
        parsed = frames.parse(frame)
        assert isinstance(parsed, Quote)
        assert isinstance(parsed.invocation, Invocation)
        assert parsed.invocation.value == outside.value
        assert parsed.invocation.identity == outside.identity
        assert parsed.invocation.request_sha256 == outside.request_sha256
        assert parsed.invocation.request_bytes == outside.request_bytes
        assert parsed.invocation.frame_bytes == len(frame)


@pytest.mark.parametrize(
    "schema_id",
    [f.TRANSPORT_WELCOME, f.TRANSPORT_QUOTED, f.TRANSPORT_STATUS_REPORT, f.TRANSPORT_EVENT],
)
def test_what_only_the_daemon_says_is_no_frame_that_it_takes(schema_id: str) -> None:
    sound = {
        f.TRANSPORT_WELCOME: published.welcome(),
        f.TRANSPORT_QUOTED: published.quoted(),
        f.TRANSPORT_STATUS_REPORT: published.report(),
        f.TRANSPORT_EVENT: published.live_event(published.call("call_1")),
    }[schema_id]
    parsed = frames.parse(wire.write(sound))
    assert isinstance(parsed, BadFrame)
    assert parsed.code == "unknown_schema"


def broken_invocations() -> list[Any]:
    """Each strict invocation that a golden calls broken, with or without ids that can be read."""
    samples = [*sample_frames.malformed(), *sample_frames.ids_unreadable()]
    return [pytest.param(sample.frame, id=sample.name) for sample in samples]


@pytest.mark.parametrize("frame", broken_invocations())
def test_an_invocation_inside_a_quote_is_judged_like_one_outside(frame: bytes) -> None:
    inside = frames.parse(wire.write({"schema_id": f.TRANSPORT_QUOTE, "invocation": wire.Raw(frame)}))
    outside = frames.parse(frame)
    if isinstance(outside, BadFrame):
        assert inside == outside
        return
    assert isinstance(inside, Quote)
    if isinstance(outside, Invocation):  # rule 3, which is asked later, refuses it
        assert isinstance(inside.invocation, Invocation)
        assert inside.invocation.value == outside.value
        return
    assert isinstance(outside, BrokenInvocation)
    assert isinstance(inside.invocation, BrokenInvocation)
    assert ids_and_complaint(inside.invocation) == ids_and_complaint(outside)


def ids_and_complaint(broken: BrokenInvocation) -> tuple[str, str, str]:
    return broken.caller_runtime_id, broken.request_id, broken.complaint


@pytest.mark.parametrize("sample", list(sample_frames.not_strict()), ids=lambda sample: sample.name)
def test_what_breaks_the_strict_profile_breaks_it_inside_a_quote_too(sample: sample_frames.Sample) -> None:
    parsed = frames.parse(wire.write({"schema_id": f.TRANSPORT_QUOTE, "invocation": wire.Raw(sample.frame)}))
    assert isinstance(parsed, BadFrame)
    assert parsed.code == "malformed_frame"


def test_a_broken_frame_is_told_by_its_name_and_its_member() -> None:
    parsed = frames.parse(wire.write(published.hello(protocol="1")))
    assert isinstance(parsed, BadFrame)
    assert parsed.message.startswith(f"{f.TRANSPORT_HELLO}: ")
    assert "$.protocol" in parsed.message
