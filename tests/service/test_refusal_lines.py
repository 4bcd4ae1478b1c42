"""What the log says of refusals: all of few, a count of a flood."""

from __future__ import annotations

import io

from sidecar.ops.log import Log
from sidecar.service.refusal_lines import LINES_PER_SECOND_MAX, RefusalLines


def test_a_flood_is_told_in_part_and_counted_in_the_next_second() -> None:
    stream, now = io.StringIO(), [1_000]
    lines = RefusalLines(Log(stream, "journal"), lambda: now[0])
    for number in range(LINES_PER_SECOND_MAX + 7):
        lines.tell("Malformed", "dungeon", f"r{number}", "why")
    assert stream.getvalue().count("refused ") == LINES_PER_SECOND_MAX
    now[0] = 2_000
    lines.tell("Malformed", "dungeon", "later", "why")
    assert stream.getvalue().splitlines()[-2:] == [
        "<6>refused_more count=7",
        "<6>refused refusal=Malformed caller=dungeon request=later why=why",
    ]


def test_what_was_passed_over_is_told_at_the_end_and_once() -> None:
    stream = io.StringIO()
    lines = RefusalLines(Log(stream, "journal"), lambda: 1_000)
    for number in range(LINES_PER_SECOND_MAX + 1):
        lines.tell("Capacity", "dungeon", f"r{number}", "why")
    lines.settle()
    lines.settle()
    assert stream.getvalue().count("refused_more count=1") == 1
