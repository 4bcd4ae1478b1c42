"""What the log says of accepts that fail: the first at once, then a line a minute with a count."""

from __future__ import annotations

import errno
import io
import logging

from sidecar.ops.log import Log
from sidecar.service.accept_lines import accept_faults_in

TRIO = logging.getLogger("trio.serve_listeners")


def fail() -> None:
    try:
        raise OSError(errno.EMFILE, "Too many open files")
    except OSError:
        TRIO.exception("accept failed")


def test_an_hour_without_descriptors_is_a_line_a_minute_and_none_is_left_uncounted() -> None:
    stream, now = io.StringIO(), [0]
    with accept_faults_in(Log(stream, "journal"), lambda: now[0]):
        for now[0] in range(1_000, 3_600_000, 100):
            fail()
    lines = stream.getvalue().splitlines()
    told = '<4>accept_failed why="[Errno 24] Too many open files" count='
    assert lines[:3] == [told + "1", told + "600", told + "600"]
    assert len(lines) == 61
    assert sum(int(line.rpartition("=")[2]) for line in lines) == 35_990


def test_after_a_quiet_minute_and_with_a_clock_that_was_put_back_a_fault_is_told_at_once() -> None:
    stream, now = io.StringIO(), [0]
    with accept_faults_in(Log(stream, "journal"), lambda: now[0]):
        for now[0] in (100_000, 100_100, 160_000, 50_000):
            fail()
        assert [line[-1] for line in stream.getvalue().splitlines()] == ["1", "2", "1"]
    assert stream.getvalue().count("accept_failed") == 3, "all are told"


def test_afterwards_trio_s_logger_is_as_it_was() -> None:
    with accept_faults_in(Log(io.StringIO(), "journal"), lambda: 0):
        assert not TRIO.propagate
        assert len(TRIO.handlers) == 1
    assert TRIO.propagate
    assert TRIO.handlers == []
