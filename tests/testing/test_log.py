"""The daemon's log as the kit reads it, and the refusals in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.ops.log import Log
from sidecar.service.few_lines import LINES_PER_SECOND_MAX, FewLines
from sidecar.testing.faults import LogIncomplete
from sidecar.testing.log_lines import Followed, LogLine, LogLines, read_line
from sidecar.testing.refusals import RefusedRequest, refusals_in


@contextmanager
def followed() -> Iterator[tuple[int, Followed, LogLines]]:
    reading, writing = os.pipe()
    lines = LogLines()
    following = Followed(reading, lines)
    try:
        yield writing, following, lines
    finally:
        following.close()


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_however_the_bytes_come_they_are_the_same_lines(pieces: list[bytes]) -> None:
    with followed() as (writing, following, lines):
        for piece in pieces:
            os.write(writing, piece)
            following.take()
        os.close(writing)
        assert lines.wait_until(lambda: following.ended, 20)
    *whole, rest = b"".join(pieces).split(b"\n")
    expected = [*whole, rest] if rest else whole
    assert [line.text for line in lines.all()] == [line.decode("utf-8", "replace") for line in expected]


def test_more_than_a_pipe_holds_is_read_while_nobody_asks() -> None:
    with followed() as (writing, following, lines):
        for _ in range(100):
            os.write(writing, b"x" * 9_999 + b"\n")
        os.close(writing)
        assert lines.wait_until(lambda: following.ended, 20)
    assert len(lines) == 100


def test_closing_does_not_wait_for_others_that_hold_the_pipe_and_loses_nothing() -> None:
    with followed() as (writing, _, lines):
        os.write(writing, b"last words\n")
    assert [line.text for line in lines.all()] == ["last words"]
    os.close(writing)


@pytest.mark.parametrize("text", ["Traceback (most recent call last):", "{", "[1]", "7", '{"fact": 7}', ""])
def test_a_line_of_another_form_is_kept_as_it_is(text: str) -> None:
    assert read_line(text) == LogLine(text, None, {})


# --- refusals -----------------------------------------------------------------------------------------------


def logged(write: Any) -> list[LogLine]:
    """What the daemon's own log makes of it."""
    reading, writing = os.pipe()
    lines = LogLines()
    following = Followed(reading, lines)
    with TextIOWrapper(os.fdopen(writing, "wb")) as stream:
        write(Log(stream, "json"))
    lines.wait_until(lambda: following.ended, 20)
    following.close()
    return lines.all()


def test_refusals_are_read_from_the_lines_that_the_daemon_writes_of_them() -> None:
    def write(log: Log) -> None:
        log.info("ready", socket="s.sock")
        FewLines(log, lambda: 0, "refused").tell(refusal="CostBound", caller="dungeon", request="r1", why='at "most" 7')

    assert refusals_in(logged(write)) == [
        RefusedRequest(refusal="CostBound", caller_runtime_id="dungeon", request_id="r1", why='at "most" 7')
    ]


@pytest.mark.parametrize("is_settled", [True, False])
def test_where_the_daemon_may_have_only_counted_refusals_no_list_is_given(is_settled: bool) -> None:
    def write(log: Log) -> None:
        told = FewLines(log, lambda: 0, "refused")
        for at in range(LINES_PER_SECOND_MAX + 1):
            told.tell(refusal="CostBound", caller="dungeon", request=f"r{at}", why="why")
        if is_settled:
            told.settle()

    with pytest.raises(LogIncomplete, match="only counts"):
        refusals_in(logged(write))


def refused_at(*seconds: float) -> list[LogLine]:
    begin = datetime(2026, 11, 30, tzinfo=UTC)
    return [
        read_line(
            json.dumps(
                {"time": (begin + timedelta(seconds=at)).isoformat(timespec="milliseconds"), "fact": "refused"}
                | {"refusal": "Expired", "caller": "c", "request": "r", "why": "w"}
            )
        )
        for at in seconds
    ]


def test_many_refusals_over_a_longer_time_are_all_there() -> None:
    spread = refused_at(*(at * 1.01 / (LINES_PER_SECOND_MAX - 1) for at in range(200)))
    assert len(refusals_in(spread)) == 200
    with pytest.raises(LogIncomplete, match="look at the answers"):
        refusals_in(refused_at(*(at * 0.99 / (LINES_PER_SECOND_MAX - 1) for at in range(200))))


def test_a_flood_that_began_before_counts_for_what_comes_after_until_the_daemon_is_started_again() -> None:
    flood = refused_at(*(at / 1000 for at in range(LINES_PER_SECOND_MAX)))
    with pytest.raises(LogIncomplete):
        refusals_in(flood, since=LINES_PER_SECOND_MAX - 1)
    assert refusals_in(flood, since=LINES_PER_SECOND_MAX) == []
    again = [*flood, read_line('{"fact": "ready"}'), *refused_at(0.5)]
    assert len(refusals_in(again, since=LINES_PER_SECOND_MAX)) == 1


def test_lost_lines_are_told() -> None:
    with pytest.raises(LogIncomplete, match="12 lines of the log were lost"):
        refusals_in([read_line('{"fact": "lines_lost", "count": 12}')])
