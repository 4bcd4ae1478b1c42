"""An operator's frame in any layout is one value; what breaks its table or its rules is `malformed_frame`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import wire

from goldens import published_values as published
from sidecar.contract import frames
from sidecar.contract import operator_frames as o
from sidecar.contract.frames import BadFrame

CHECK = {"schema_id": o.OPERATOR_CHECK}
METRICS = {"schema_id": o.OPERATOR_METRICS}


@pytest.mark.parametrize("value", [published.resolve(), CHECK, METRICS], ids=["resolve", "check", "metrics"])
@pytest.mark.parametrize("layout", [wire.BACKWARDS, wire.LONGEST], ids=["backwards", "longest headers"])
def test_any_layout_says_the_same(value: dict[str, Any], layout: Any) -> None:
    parsed = frames.parse(wire.write(value))
    assert parsed == frames.parse(wire.write(value, layout))
    assert isinstance(parsed, o.OperatorResolve | o.OperatorCheck | o.OperatorMetrics)


@given(st.text(max_size=140) | st.text("abc \t\n", max_size=140))
def test_who_is_taken_exactly_where_it_is_printable_on_one_line_and_not_too_long(who: str) -> None:
    parsed = frames.parse(wire.write(published.resolve(who=who)))
    is_sound = 1 <= len(who) <= 128 and who.isprintable() and who.strip() != ""
    assert isinstance(parsed, o.OperatorResolve) == is_sound
    if not is_sound:
        assert parsed == BadFrame(
            "malformed_frame",
            "gamecult.model.operator_resolve.v1: who is not 1 to 128 printable characters on one line",
        )


@pytest.mark.parametrize("answer", [o.OPERATOR_RESOLVED, o.OPERATOR_CHECKED, o.OPERATOR_METERED])
def test_what_only_the_daemon_says_is_no_frame_that_it_takes(answer: str) -> None:
    parsed = frames.parse(wire.write({"schema_id": answer}))
    assert isinstance(parsed, BadFrame)
    assert parsed.code == "unknown_schema"


def test_the_longest_words_fit_the_longest_message() -> None:
    longest = "resolved by , the whole reservation is charged: "
    assert len(longest) + o.WHO_CHARACTERS_MAX + o.WHY_CHARACTERS_MAX <= 1024
