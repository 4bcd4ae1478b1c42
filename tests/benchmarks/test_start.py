"""Not a measurement: that the benchmark of the start still works."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import start


def test_it_prints_what_a_start_is_made_of_and_whether_the_bar_holds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = start.main(["--rounds", "1", "--directory", str(tmp_path)])
    printed = capfd.readouterr().out
    for row in ("the interpreter alone", "start to ready / imports", "segments of 64 MiB", "begun anew"):
        assert row in printed
    assert printed.count(": holds") + printed.count(": DOES NOT HOLD") == 1
    assert (code == 0) == (": holds" in printed)
