"""The command: what it prints, its exit codes, and what it leaves on disk."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conformance import small_driver
from kit.daemon_process import running_daemon

import sidecar
from sidecar.cli.conformance import EXIT_CODES
from sidecar.cli.main import main
from sidecar.conformance import goldens
from sidecar.testing.daemon import spawned

CLIENT = f"{shlex.quote(sys.executable)} {shlex.quote(small_driver.__file__)}"


def run(*arguments: str | Path) -> int:
    return main(["conformance", *map(str, arguments)])


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--socket", "s", "--client", "c"],
        ["--client", "c", "--write-config", "d"],
        ["--write-config", "d", "--list"],
    ],
)
def test_it_does_one_thing_at_a_time(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == os.EX_USAGE
    assert "give one of --socket, --client and --write-config, or --list" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "x", "4000"])
def test_the_time_for_a_vector_is_bounded(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run("--socket", "s", "--timeout", seconds)
    assert left.value.code == os.EX_USAGE
    assert "is not above 0 and at most 3600" in capsys.readouterr().err


def test_a_client_that_passes_is_0_and_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--client", CLIENT, "--only", "order", "--only", "frames/two*") == os.EX_OK
    assert capsys.readouterr().out == "2 passed\n"


def test_a_client_that_fails_is_65_and_told_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "quotes another")
    assert run("--client", CLIENT, "--only", "quotes/refusal nil", "--only", "results/Refused*") == os.EX_DATAERR
    assert capsys.readouterr().out == (
        "failed: quotes/refusal nil\n"
        "    action 0 (quote) sent other bytes than the canonical ones:"
        " invocation.max_cost_micro_usd is 100001 in place of 100000\n"
        "15 passed, 1 failed\n"
    )


def test_what_is_not_claimed_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMS", "")
    assert run("--client", CLIENT, "--only", "order") == os.EX_OK
    out, err = capsys.readouterr()
    assert out == ("not claimed: order/the second answer first: the client does not claim concurrent\n1 not claimed\n")
    assert err == "sidecar conformance: nothing was proven\n"


def test_a_program_gets_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIMS", "concurrent")
    names = ("order", "streams/a refusal", "results/Refused CostBound")
    only = [word for name in names for word in ("--only", name)]
    assert run("--client", CLIENT, "--json", *only) == os.EX_OK
    document = told(capsys)
    assert document["counts"] == {"passed": 2, "failed": 0, "not_played": 0, "not_claimed": 1}
    assert (document["ok"], document["exit_code"]) == (True, 0)
    assert [(one["name"], one["state"]) for one in document["vectors"]] == [
        ("results/Refused CostBound", "passed"),
        ("order/the second answer first", "passed"),
        ("streams/a refusal", "not_claimed"),
    ]


def test_names_that_there_are_not_are_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--client", CLIENT, "--only", "nothing*") == os.EX_USAGE
    assert "no vector is called nothing*; --list names them all" in capsys.readouterr().err


def test_no_driver_and_no_daemon_are_69(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--client", "no-such-command") == os.EX_UNAVAILABLE
    assert run("--client", "'") == os.EX_UNAVAILABLE
    assert run("--client", " ") == os.EX_UNAVAILABLE
    assert run("--socket", tmp_path / "none") == os.EX_UNAVAILABLE
    said = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in said] == ["sidecar conformance"] * 4
    assert run("--socket", tmp_path / "none", "--json") == os.EX_UNAVAILABLE
    assert told(capsys)["exit_code"] == os.EX_UNAVAILABLE


def test_what_a_command_that_is_no_driver_wrote_to_stderr_is_a_block_below(capsys: pytest.CaptureFixture[str]) -> None:
    source = "import sys; sys.exit('usage: driver\\n  one word')"
    command = shlex.join([sys.executable, "-c", source])
    assert run("--client", command) == os.EX_UNAVAILABLE
    assert capsys.readouterr().err.splitlines() == [
        f"sidecar conformance: {sys.executable} is no driver: it ended before its opening line",
        "its stderr:",
        "    usage: driver",
        "      one word",
    ]


def test_a_daemon_on_another_configuration_is_69_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with spawned() as daemon:
        assert run("--socket", daemon.socket) == os.EX_UNAVAILABLE
        assert (daemon.asked, daemon.refused) == ([], [])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "--write-config" in err


def test_every_vector_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == os.EX_OK
    lines = capsys.readouterr().out.splitlines()
    assert {line.split("  ")[0] for line in lines} == {"daemon", "client"}
    assert len(lines) > 550
    assert run("--list", "--json", "--socket", "s", "--only", "streams/one frame") == os.EX_OK
    assert told(capsys) == {"daemon": ["streams/one frame"], "client": []}


def test_goldens_that_are_not_there_are_66(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--list", "--goldens", tmp_path) == os.EX_NOINPUT
    assert "holds no goldens: it needs values/ and transcripts/" in capsys.readouterr().err
    monkeypatch.setattr(goldens, "_PLACES", (tmp_path,))
    assert run("--list") == os.EX_NOINPUT
    assert "this installation has no goldens: name their directory with --goldens" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "why"), [("{", "is no JSON"), (None, "can't be read")])
def test_a_broken_golden_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, why: str
) -> None:
    (tmp_path / "values").mkdir()
    (tmp_path / "transcripts").mkdir()
    if text is not None:
        (tmp_path / "transcripts/text.json").write_text(text)
    assert run("--list", "--goldens", tmp_path) == os.EX_NOINPUT
    said = capsys.readouterr().err
    assert "transcripts/text.json" in said
    assert why in said


def test_the_daemons_files_are_written_once_and_start_a_daemon_that_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "d"
    assert run("--write-config", folder) == os.EX_OK
    assert capsys.readouterr().out == (
        f"sidecar serve --config {folder}/config.toml\nsidecar conformance --socket {folder}/s.sock\n"
    )
    assert run("--write-config", folder) == os.EX_CANTCREAT
    assert "is there already, and is left alone" in capsys.readouterr().err
    (folder / "config.toml").rename(folder / "sidecar.toml")
    with running_daemon(folder) as daemon:
        assert run("--socket", daemon.socket_path, "--only", "transcripts") == os.EX_OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("not played: transcripts/resolve: it begins after a crash")
    assert lines[1].endswith(" passed, 1 not played")


def test_a_reader_that_leaves_ends_the_run_quietly() -> None:
    command = [sys.executable, "-m", "sidecar", "conformance", "--list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (os.EX_OK, os.EX_IOERR)


STAYING = """
import json, os, sys, time
print(json.dumps({"driver": 1, "claims": []}), flush=True)
told = json.loads(input())
open(sys.argv[1], "w").write(f"{os.getpid()} {told['socket']}")
os.rename(sys.argv[1], sys.argv[2])
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["plain", "--json"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_stopped_it_ends_the_driver_and_leaves_no_folder(number: signal.Signals, how: str, tmp_path: Path) -> None:
    driver = [sys.executable, "-c", STAYING, str(tmp_path / "new"), str(tmp_path / "begun")]
    command = [sys.executable, "-m", "sidecar", "conformance", "--client", shlex.join(driver), "--only", "results"]
    with subprocess.Popen(
        command + ["--json"] * (how == "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
        pid, path = (tmp_path / "begun").read_text().split()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
    assert not Path(path).parent.exists()
    why = "stopped by hand" if number == signal.SIGINT else f"stopped by {number.name}"
    if how == "--json":
        assert json.loads(out) == {"ok": False, "exit_code": 128 + number, "error": why}
        assert err == ""
    else:
        assert (out, err) == ("", f"sidecar conformance: {why}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_stopped_beside_a_daemon_that_says_nothing_it_ends(number: signal.Signals, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(1)
        command = [sys.executable, "-m", "sidecar", "conformance", "--socket", str(tmp_path / "s")]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process, listening.accept()[0] as connection:
            assert connection.recv(1)
            process.send_signal(number)
            assert process.wait(timeout=30) == 128 + number


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    said = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in said


def test_a_wheel_carries_the_goldens_where_they_are_looked_for_and_the_schemas_beside_them() -> None:
    project = tomllib.loads((Path(sidecar.__file__).parents[1] / "pyproject.toml").read_text())
    carried = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert Path(sidecar.__file__).parents[1] / carried["goldens"] == goldens._PLACES[0]
    assert Path(sidecar.__file__).parents[1] / carried["schemas"] == goldens._PLACES[0].parent / "schemas"


def test_the_help_says_where_the_goldens_and_the_schemas_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = Path(sidecar.__file__).parents[1]
    with pytest.raises(SystemExit):
        run("--help")
    said = capsys.readouterr().out
    for place in ("goldens", "goldens/README.md", "goldens/DRIVERS.md", "schemas"):
        assert f" {root / place}\n" in said
        assert (root / place).exists()
    odd = tmp_path / "100%s"
    for inner in ("values", "transcripts"):
        (odd / inner).mkdir(parents=True)
    for places, told in (((odd,), f"{odd}/README.md\n"), ((), "This installation has no goldens.\n")):
        monkeypatch.setattr(goldens, "_PLACES", places)
        with pytest.raises(SystemExit):
            run("--help")
        assert told in capsys.readouterr().out
