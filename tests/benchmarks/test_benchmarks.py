"""The benchmark itself works; what it measures is for a quiet machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import main
from benchmarks.lean_client import LeanClient


@pytest.mark.parametrize("compiled", [True, False])
def test_it_prints_a_row_for_every_load_and_every_bar(
    compiled: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("shutil.which", lambda _: None)
    elif not LeanClient(tmp_path).kind.startswith("C"):
        pytest.skip("there is no C compiler")
    code = main(["--rounds", "1", "--exchanges", "64", "--directory", str(tmp_path)])
    printed = capsys.readouterr().out
    rows: list[Any] = [line for line in printed.splitlines() if "connections" in line]
    assert [row.split(" ")[0] for row in rows] == ["echo,", "daemon,"] * 3 + ["replays,"]
    assert printed.count("hold") + printed.count("HOLD") >= 3
    assert (code == 0) == ("DOES NOT HOLD" not in printed)
