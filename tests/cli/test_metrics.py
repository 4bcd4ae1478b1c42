"""`sidecar metrics`: the text to stdout, as JSON, in a file; and the exit code where it can't be."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path

import pytest
from kit.answering_daemon import answering_daemon
from kit.daemon_process import invocation, running_daemon
from kit.exposition import read_exposition
from kit.road import said

from sidecar.cli.main import main

OPERATOR = "\n[[operator]]\n"


def test_an_operator_is_told_the_same_as_text_as_json_and_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_daemon(tmp_path, callers=OPERATOR) as daemon, daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"
        where = ["metrics", "--socket", str(daemon.socket_path)]
        assert main(where) == 0
        text = capsys.readouterr().out
        assert main([*where, "--json"]) == 0
        objects = [json.loads(line, parse_float=Decimal) for line in capsys.readouterr().out.splitlines()]
        assert main([*where, "--output", str(tmp_path / "m.prom")]) == 0
        assert capsys.readouterr().out == ""
    spend = read_exposition(text)["sidecar_spend_usd_total"]
    [(_, labels)] = spend.samples
    assert spend.total() > 0
    assert {"name": "sidecar_spend_usd_total", "labels": dict(labels), "value": spend.total()} in objects
    assert len(objects) == sum(not line.startswith("#") for line in text.splitlines())
    written = read_exposition((tmp_path / "m.prom").read_text())
    assert written["sidecar_spend_usd_total"].samples == spend.samples
    assert written.keys() >= {"sidecar_requests_total", "sidecar_build_info"}


def test_who_is_no_operator_gets_77_and_what_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path) as daemon:
        assert main(["metrics", "--socket", str(daemon.socket_path)]) == os.EX_NOPERM
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sidecar metrics: not_admitted: ")
    assert "[[operator]]" in err


def test_where_no_daemon_is_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "m.prom"
    output.write_text("old\n")
    asked = ["metrics", "--socket", str(tmp_path / "s.sock"), "--output", str(output)]
    assert main(asked) == os.EX_UNAVAILABLE
    assert output.read_text() == "old\n"
    assert capsys.readouterr().err.startswith("sidecar metrics: ")


def test_a_file_that_cannot_be_written_is_73(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"schema_id": "gamecult.model.operator_metered.v1", "exposition": "x 1\n"}
    with answering_daemon(tmp_path / "s.sock", lambda _: [answer]):
        asked = ["metrics", "--socket", str(tmp_path / "s.sock"), "--output", str(tmp_path / "no" / "m.prom")]
        assert main(asked) == os.EX_CANTCREAT
    assert "can't be written: No such file" in capsys.readouterr().err


def test_json_and_a_file_are_not_asked_for_together() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["metrics", "--socket", "s", "--json", "--output", "m"])
    assert ended.value.code == os.EX_USAGE
