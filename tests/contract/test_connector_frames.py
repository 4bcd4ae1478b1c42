"""Frames of a connector's process: read strictly, whatever their layout, and nothing else is."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import wire

from goldens import published_values as golden
from sidecar.contract import canonical
from sidecar.contract.connector_frames import BrokenFrame, parse_from_child

SAID = [*golden.connector_events(), *golden.connector_outcomes()]
EVENT = golden.connector_event({"TextDelta": {"text": "hm"}})


@pytest.mark.parametrize("value", [value for _, value in SAID], ids=[name for name, _ in SAID])
@pytest.mark.parametrize("layout", [wire.CANONICAL, wire.LONGEST, wire.BACKWARDS], ids=["canonical", "longest", "back"])
def test_every_layout_of_a_golden_is_read_as_the_same(value: dict[str, Any], layout: wire.Layout) -> None:
    read = parse_from_child(wire.write(value, layout))
    assert canonical.encode(read) == wire.write(wire.without_nil(value))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "truncated"),
        (b"\xc1", "malformed"),
        (wire.write([]), "object"),
        (wire.write({}), "schema_id"),
        (wire.write({**EVENT, "schema_id": "gamecult.model.connector_request.v1"}), "no frame that a child writes"),
        (wire.write({**EVENT, "schema_id": "gamecult.model.transport_result.v1"}), "no frame that a child writes"),
        (wire.write({**EVENT, "more": 1}), "unknown field"),
        (wire.write({**EVENT, "exchange": -1}), ">= 0"),
        (wire.write({**EVENT, "exchange": wire.Raw(b"\xcb" + bytes(8))}), "twice|float|`float`"),
        (wire.write(wire.Pairs([*EVENT.items(), ("exchange", 1)])), "twice"),
        (wire.write(EVENT) + b"\xc0", "trailing"),
        (wire.write(golden.connector_outcome(golden.completed(usage={"input_tokens": 1}))), "missing"),
        (
            wire.write(golden.connector_outcome(golden.completed(usage={**golden.USAGE, "output_tokens": -1}))),
            "output_tokens",
        ),
        (wire.write(golden.connector_outcome({**golden.completed(), **golden.failed()})), "exactly one"),
        (wire.write(golden.connector_event({"TextDelta": {"text": wire.Raw(b"\xa2\xed\xa0")}})), "utf-8|UTF-8"),
    ],
)
def test_a_frame_that_breaks_the_profile_or_its_schema_is_broken(frame: bytes, why: str) -> None:
    with pytest.raises(BrokenFrame, match=why):
        parse_from_child(frame)


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers(0, 9) | st.text(max_size=3), st.lists).map(msgpack.packb)
)
def test_whatever_is_written_is_read_or_broken(frame: bytes) -> None:
    with pytest.raises(BrokenFrame):
        parse_from_child(frame)
