"""Log lines: one fact a line, and nothing from outside can break out of it."""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sidecar.ops.log import Form, Log, Whole, default_form


def logged(form: Form, **values: object) -> str:
    stream = io.StringIO()
    Log(stream, form).warning("over_run", **values)
    return stream.getvalue()


def test_a_text_line_has_time_level_fact_and_values() -> None:
    line = logged("text", caller="dungeon", charge_micro_usd=12, usage=None)
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == "warning over_run caller=dungeon charge_micro_usd=12 usage=None\n"


@pytest.mark.parametrize(
    ("level", "priority"), [("info", 6), ("notice", 5), ("warning", 4), ("error", 3), ("critical", 2)]
)
def test_a_journal_line_begins_with_its_priority_and_leaves_the_time_to_the_journal(level: str, priority: int) -> None:
    stream = io.StringIO()
    getattr(Log(stream, "journal"), level)("stopped", why="a signal")
    assert stream.getvalue() == f'<{priority}>stopped why="a signal"\n'


def test_a_json_line_keeps_numbers_and_its_own_members() -> None:
    line = json.loads(logged("json", charge_micro_usd=12, clean=True, usage=None, where=Path("/run"), time="never"))
    assert line.pop("time") != "never"
    assert line == {
        "level": "warning", "fact": "over_run", "charge_micro_usd": 12, "clean": True, "usage": None, "where": "/run",
    }  # fmt: skip


def test_a_text_from_outside_is_cut_to_200_characters() -> None:
    assert logged("text", said="x" * 201).endswith(f"said={'x' * 200}...\n")
    assert logged("text", said="x" * 200).endswith(f"said={'x' * 200}\n")
    assert json.loads(logged("json", said="x" * 10_000))["said"] == "x" * 200 + "..."


@given(st.text(st.characters(exclude_categories=[])), st.sampled_from(["text", "journal", "json"]))
def test_whatever_is_said_stays_one_line_of_printable_ascii(said: str, form: Form) -> None:
    line = logged(form, said=said, after="end")
    assert line.endswith("\n")
    assert all(" " <= character <= "~" for character in line[:-1])


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
@example("plain after=end")
def test_a_value_can_be_read_back_and_no_value_looks_like_another_key(said: str) -> None:
    written = logged("journal", said=said, after="end").removeprefix("<4>over_run said=").removesuffix(" after=end\n")
    assert (json.loads(written) if written.startswith('"') else written) == said
    assert written.startswith('"') or not {" ", "=", '"'} & set(written)


def test_the_journal_form_is_for_a_stream_that_the_journal_reads(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        status = os.fstat(stream.fileno())
        assert default_form(stream, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}) == "journal"
        assert default_form(stream, {"JOURNAL_STREAM": "1:2"}) == "text"
        assert default_form(stream, {}) == "text"
    assert default_form(io.StringIO(), {"JOURNAL_STREAM": "1:2"}) == "text"


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_a_line_that_cannot_be_written_stops_nobody() -> None:
    Log(FullDisk(), "text").error("ledger_poisoned", why="the disk")
    closed = io.StringIO()
    closed.close()
    Log(closed, "text").info("stopped")


def test_gathered_lines_are_written_together_and_a_warning_takes_what_waits_with_it() -> None:
    put_off = []
    stream = io.StringIO()
    log = Log(stream, "journal")
    log.gather(put_off.append)
    log.info("completed", at=1)
    log.info("completed", at=2)
    assert stream.getvalue() == ""
    assert len(put_off) == 1
    log.warning("over_run", at=3)
    assert stream.getvalue() == "<6>completed at=1\n<6>completed at=2\n<4>over_run at=3\n"
    put_off[0]()
    log.info("completed", at=4)
    assert len(put_off) == 2
    put_off[1]()
    assert stream.getvalue().endswith("at=3\n<6>completed at=4\n")


# --- a reader that is slow --------------------------------------------------------------------------------------


class Reader:
    """A pipe or a pair of sockets that is read only when `read` is called; `log` writes into it."""

    def __init__(self, kind: str) -> None:
        if kind == "socket":
            ends = socket.socketpair()
            ends[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            self._reading, writing = (end.detach() for end in ends)
        else:
            self._reading, writing = os.pipe()
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2 * select.PIPE_BUF)
            os.set_blocking(writing, kind == "blocking pipe")
        os.set_blocking(self._reading, False)
        self.stream = os.fdopen(writing, "w")
        self.log = Log(self.stream, "journal")

    def read(self, most: int = 1 << 20) -> str:
        read = bytearray()
        while len(read) < most:
            try:
                read += os.read(self._reading, most - len(read))
            except BlockingIOError:
                break
        return read.decode()

    def close(self) -> None:
        self.stream.close()
        self.leave()

    def leave(self) -> None:
        with suppress(OSError):
            os.close(self._reading)


@pytest.fixture(params=["blocking pipe", "pipe that never blocks", "socket"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    made = Reader(request.param)
    yield made
    made.close()


def numbers(text: str) -> list[int]:
    return [int(line.rsplit("=", 1)[1]) for line in text.splitlines() if "completed" in line]


def test_what_a_full_pipe_does_not_take_is_lost_and_counted_and_nobody_waits(reader: Reader) -> None:
    for number in range(20_000):
        reader.log.info("completed", number=number)
    first = reader.read()
    assert first.endswith("\n")
    kept = numbers(first)
    assert kept == list(range(len(kept)))
    assert len(kept) < 20_000
    reader.log.info("completed", number=20_000)
    assert reader.read() == f"<4>lines_lost count={20_000 - len(kept)}\n<6>completed number=20000\n"
    reader.log.info("completed", number=20_001)
    assert reader.read() == "<6>completed number=20001\n"


def test_lines_that_nobody_takes_are_not_kept(reader: Reader) -> None:
    put_off: list[object] = []
    reader.log.gather(put_off.append)
    for number in range(20_000):
        reader.log.info("completed", number=number)
    assert len(reader.log._lines) <= 1000
    assert reader.read()


def test_a_line_that_went_out_in_part_is_finished_before_the_next(reader: Reader) -> None:
    """Longer than what goes out whole or not at all, it may be begun where it can't be finished."""
    long = {f"key_{n}": "é" * 150 for n in range(30)}
    assert len(reader.log._line("warning", "over_run", long)) > 5 * select.PIPE_BUF
    whole = reader.log._line("warning", "over_run", long)
    heard = ""
    for _ in range(50):
        reader.log.warning("over_run", **long)
        heard += reader.read(3000)
    tries, heard = until_the_end_is_heard(reader, heard)
    kept = [line for line in heard.splitlines() if "over_run" in line]
    assert set(kept) == {whole}
    assert len(kept) + 1 + lost_by(heard) == 50 + tries


def put(log: Log, line: str) -> None:
    """A line of any length, as it is."""
    log._lines.append(line)
    log._write()


def until_the_end_is_heard(reader: Reader, heard: str) -> tuple[int, str]:
    """How often it had to be said, and all that was heard."""
    tries = 0
    while "\nend\n" not in heard and heard != "end\n":
        assert tries < 100, heard[-200:]
        tries += 1
        put(reader.log, "end")
        heard += reader.read()
    return tries, heard


def lost_by(heard: str) -> int:
    return sum(int(line.rsplit("=", 1)[1]) for line in heard.splitlines() if line.startswith("<4>lines_lost count="))


def test_a_reader_that_has_left_stops_nobody(reader: Reader) -> None:
    reader.leave()
    for _ in range(3):
        reader.log.warning("over_run")


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9000)), max_size=30))
@settings(deadline=None)
def test_every_line_is_read_whole_or_counted_as_lost_whatever_the_reader_does(steps: list[tuple[int, int]]) -> None:
    reader = Reader("blocking pipe")
    try:
        heard = ""
        for at, (size, read) in enumerate(steps):
            put(reader.log, f"{at}:{'x' * size}.")
            heard += reader.read(read) if read else ""
        tries, heard = until_the_end_is_heard(reader, heard)
        kept = [line for line in heard.splitlines() if line != "end" and "lines_lost" not in line]
        assert set(kept) <= {f"{at}:{'x' * size}." for at, (size, _) in enumerate(steps)}
        assert len(kept) == len(set(kept))
        assert len(kept) + 1 + lost_by(heard) == len(steps) + tries
    finally:
        reader.close()


def test_a_sentence_of_ours_is_written_whole_and_has_a_bound_all_the_same() -> None:
    stream = io.StringIO()
    log = Log(stream, "journal")
    log.info("config_changed", what=Whole("x" * 1000), other="y" * 1000)
    log.info("config_changed", what=Whole("x" * 5000))
    first, second = stream.getvalue().splitlines()
    assert "x" * 1000 in first
    assert "y" * 201 not in first
    assert "x" * 1201 not in second
