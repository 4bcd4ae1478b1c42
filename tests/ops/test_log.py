"""Log lines: one fact a line, and nothing from outside can break out of it."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.ops.log import Form, Log, default_form


def logged(form: Form, **values: object) -> str:
    stream = io.StringIO()
    Log(stream, form).warning("over_run", **values)
    return stream.getvalue()


def test_a_text_line_has_time_level_fact_and_values() -> None:
    line = logged("text", caller="dungeon", charge_micro_usd=12, usage=None)
    time, rest = line.split(" ", 1)
    assert time.endswith("+00:00")
    assert rest == "warning over_run caller=dungeon charge_micro_usd=12 usage=None\n"


@pytest.mark.parametrize(("level", "priority"), [("info", 6), ("warning", 4), ("error", 3)])
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
