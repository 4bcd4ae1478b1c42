"""Not a measurement, which is for a quiet machine: that the benchmarks still work, the road's with either client."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.lean_client import find_compiler


@pytest.mark.parametrize("client", ["--compile", "--no-compile"])
def test_it_prints_a_row_for_every_load_and_every_bar(
    client: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if client == "--compile" and not find_compiler():
        pytest.skip("there is no C compiler")
    code = main(["--rounds", "1", "--exchanges", "64", "--directory", str(tmp_path), client])
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "connections" in line]
    assert [row.split(" ")[0] for row in rows] == ["echo,", "daemon,"] * 3 + ["waiting,", "replays,"]
    assert printed.count(": holds") + printed.count(": DOES NOT HOLD") == 3
    assert (code == 0) == ("DOES NOT HOLD" not in printed)


def test_of_the_ledger_it_prints_every_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    few = {"requests": 200, "lookups": 50, "rounds": 1, "commits": 64, "directory": tmp_path}
    code = main(["ledger", *(f"--{name}={value}" for name, value in few.items())])
    printed = capfd.readouterr().out
    assert printed.count("made: ") == 2
    assert printed.count(": holds") + printed.count(": DOES NOT HOLD") == 6
    assert (code == 0) == ("DOES NOT HOLD" not in printed)
    assert not list(tmp_path.iterdir())


def test_live_events_are_measured_beside_the_relay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["first_token", "--rounds", "1", "--requests", "5", "--every-ms", "1", "--directory", str(tmp_path)])
    printed = capsys.readouterr().out
    rows = [line.split(" ")[0] for line in printed.splitlines() if ", relay " in line or ", daemon " in line]
    assert rows == ["1"] * 4 + ["64"] * 4
    assert printed.count(": holds") + printed.count(": DOES NOT HOLD") == 4
    assert code == (1 if "DOES NOT HOLD" in printed else 0)


def test_idle_connections_are_measured_and_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["idle", "--connections", "70", "--requests", "5", "--directory", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.count("started with a limit of 1024 descriptors") == 3
    assert printed.count(": holds") + printed.count(": DOES NOT HOLD") == 3
    assert code == (1 if "DOES NOT HOLD" in printed else 0)
