"""What the log says of what comes again and again: all of few, a count of a flood."""

from __future__ import annotations

import io

from sidecar.ops.log import Log
from sidecar.service.few_lines import LINES_PER_SECOND_MAX, FewLines


def test_a_flood_is_told_in_part_and_counted_in_the_next_second() -> None:
    stream, now = io.StringIO(), [1_000]
    lines = FewLines(Log(stream, "journal"), lambda: now[0], "refused")
    for number in range(LINES_PER_SECOND_MAX + 7):
        lines.tell(refusal="Malformed", caller="dungeon", request=f"r{number}", why="why")
    assert stream.getvalue().count("refused ") == LINES_PER_SECOND_MAX
    now[0] = 2_000
    lines.tell(refusal="Malformed", caller="dungeon", request="later", why="why")
    assert stream.getvalue().splitlines()[-2:] == [
        "<6>refused_more count=7",
        "<6>refused refusal=Malformed caller=dungeon request=later why=why",
    ]


def test_what_was_passed_over_is_told_at_the_end_and_once() -> None:
    stream = io.StringIO()
    lines = FewLines(Log(stream, "journal"), lambda: 1_000, "refused")
    for number in range(LINES_PER_SECOND_MAX + 1):
        lines.tell(refusal="Capacity", caller="dungeon", request=f"r{number}", why="why")
    lines.settle()
    lines.settle()
    assert stream.getvalue().count("refused_more count=1") == 1
