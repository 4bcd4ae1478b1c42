"""`sidecar status`: the table that a person reads, the object that a program reads, and both again and again."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.answering_daemon import answering_daemon
from kit.daemon_process import Process, invocation, running_daemon, wait_until
from kit.ledger_view import view_of_live

from goldens import published_values as published
from sidecar.cli import output, status_table
from sidecar.cli.exits import TRANSPORT_ERRORS
from sidecar.cli.main import main
from sidecar.cli.status import EXIT_CODES, add_arguments, run
from sidecar.contract.client_frames import LedgerState, TransportStatusReport
from sidecar.contract.values import TransportErrorCode

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "schemas/gamecult.model.transport_status_report.v1.schema.json").read_text())
Told = tuple[int, str, str]


def report(**changes: Any) -> TransportStatusReport:
    return msgspec.convert(published.report(**changes), TransportStatusReport)


def told_of(**changes: Any) -> str:
    return "".join(status_table.lines(report(**changes)))


def rows(text: str, title: str) -> list[dict[str, str]]:
    """The rows of the table whose first column has this title, each by its columns' titles."""
    lines = text.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith(f"{title}  "))
    titles = [one.strip() for one in lines[head].split("  ") if one.strip()]
    cells = []
    for line in lines[head + 1 :]:
        if not line or line.startswith("prices are"):
            break
        cells.append(dict(zip(titles, [one.strip() for one in line.split("  ") if one.strip()], strict=False)))
    return cells


# --- the table --------------------------------------------------------------------------------------------------


def test_the_daemon_s_own_lines_say_how_long_it_runs_and_what_it_takes() -> None:
    assert told_of().splitlines()[:5] == [
        "daemon:      sidecar 0.6.0, up 2 h 0 min",
        "now:         2026-09-21 14:13:20 UTC",
        "ledger:      ready",
        "requests:    2 running, of at most 256",
        "connections: 3, of at most 256",
    ]


@pytest.mark.parametrize("state", get_args(LedgerState))
def test_each_state_of_the_ledger_has_its_words(state: LedgerState) -> None:
    assert f"ledger:      {status_table.LEDGER_WORDS[state]}\n" in told_of(daemon=published.daemon_status(ledger=state))


def test_a_daemon_that_drains_says_so() -> None:
    assert ", draining: nothing new begins\n" in told_of(daemon=published.daemon_status(draining=True))


def test_a13_the_status_says_the_limit_window_start_and_length_ceiling_spent_and_reserved() -> None:
    (caller,) = rows(told_of(callers=[published.caller_status(over_runs=3, indeterminate=1)]), "caller")
    assert caller == {
        "caller": "dungeon",
        "live": "2",
        "spent": "$1.204177",
        "reserved": "$0.011122",
        "ceiling": "$5.000000",
        "window from (UTC)": "2026-09-21 00:00:00",
        "until (UTC)": "2026-09-22 00:00:00",
        "seconds": "86400",
        "over-runs": "3",
        "indeterminate": "1",
    }


def test_a8_an_explicit_price_of_zero_and_an_absent_row_are_told_apart() -> None:
    free = published.model_status("free", prices=[dict.fromkeys(published.PRICE, 0)])
    absent = published.model_status("absent", prices=[])
    text = told_of(models=[free, absent])
    of_free, of_absent = rows(text, "model")
    assert [of_free[name] for name in ("above tokens", "input", "output")] == ["-", "$0.000000", "$0.000000"]
    assert list(of_absent.values()) == ["absent", "claude", "claude-haiku-4-5", "8192", "none"]


def test_a_price_tier_stands_below_its_model() -> None:
    tier = {**published.PRICE, "above_input_tokens": 200_000}
    lines = told_of(models=[published.model_status(prices=[published.PRICE, tier])]).splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("npc-fast")]
    assert lines[at].split()[4:] == ["-", "$1.000003", "$0.100003", "$1.250009", "$2.000003", "$5.000011"]
    assert lines[at + 1].split() == ["200000", "$1.000003", "$0.100003", "$1.250009", "$2.000003", "$5.000011"]


def test_what_there_is_none_of_is_said() -> None:
    text = told_of(callers=[], models=[], connectors=[])
    for what in ("callers", "models", "connectors"):
        assert f"{what}: none that this user may see\n" in text


def test_a_name_can_neither_drive_a_terminal_nor_make_a_line_of_its_own() -> None:
    nasty = "a\x1b[2J\nb\u202ec"
    text = told_of(
        callers=[published.caller_status(nasty)],
        models=[published.model_status(nasty, upstream=nasty, connector=nasty)],
        connectors=[published.connector_status(nasty, kind=nasty)],
        daemon=published.daemon_status(server=nasty),
    )
    assert text.count("a\ufffd[2J b\ufffdc") == 7
    assert not set("\x1b\u202e") & set(text)


def test_the_greatest_numbers_have_their_place() -> None:
    text = "".join(status_table.lines(report(**published._greatest())))
    assert "$18446744073709.551615" in text


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min 0 s"),
        (3_600_000, "1 h 0 min"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_told_in_its_two_largest_units(milliseconds: int, said: str) -> None:
    assert status_table.lasting(milliseconds) == said


# --- asked of what speaks as a daemon ---------------------------------------------------------------------------


def error(code: str, message: str = "so it is") -> dict[str, Any]:
    return {"schema_id": "gamecult.model.transport_error.v1", "code": code, "message": message}


def asked(at: Path, *words: str, pause: Callable[[float], None]) -> int:
    """In this process, with another wait between two reports."""
    parser = ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(["--socket", str(at), *words]), pause=pause)


def test_json_is_the_report_as_it_is_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering_daemon(tmp_path / "s", lambda _: [published.report()]) as heard:
        assert main(["status", "--socket", str(tmp_path / "s"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["exit_code"]) == (True, 0)
    assert said["report"] == published.report()
    jsonschema.validate(said["report"], SCHEMA)
    assert heard == [{"schema_id": "gamecult.model.transport_status.v1"}]


@pytest.mark.parametrize("code", get_args(TransportErrorCode))
def test_an_error_of_the_daemon_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: TransportErrorCode
) -> None:
    with answering_daemon(tmp_path / "s", lambda _: [error(code)]):
        assert main(["status", "--socket", str(tmp_path / "s")]) == TRANSPORT_ERRORS[code].exit_code
        assert main(["status", "--socket", str(tmp_path / "s"), "--json"]) == TRANSPORT_ERRORS[code].exit_code
    out, err = capsys.readouterr()
    assert err.startswith(f"sidecar status: {code}: so it is; ")
    assert json.loads(out)["exit_code"] == TRANSPORT_ERRORS[code].exit_code


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (
            [None],
            os.EX_UNAVAILABLE,
            "connection_lost: the daemon closed the connection before it had answered; nothing is",
        ),
        ([published.quoted()], os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        ([{"schema_id": "gamecult.model.transport_status_report.v1"}], os.EX_PROTOCOL, "no_daemon_protocol: "),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], os.EX_PROTOCOL, "no_daemon_protocol: "),
    ],
    ids=["closes", "answers something else", "half a report", "http"],
)
def test_what_is_no_answer_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: list[Any], code: int, said: str
) -> None:
    with answering_daemon(tmp_path / "s", lambda _: answer):
        assert main(["status", "--socket", str(tmp_path / "s")]) == code
    assert capsys.readouterr().err.startswith(f"sidecar status: {said}")


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--socket", str(tmp_path / "none")]) == os.EX_UNAVAILABLE
    assert "; nothing was sent; start it with: sidecar serve --config FILE\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--watch", "0"], ["--watch", "soon"], ["--watch", "1", "more"], []])
def test_a_wrong_command_line_ends_with_64(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    socket = ["--socket", "s"] if words else []
    with pytest.raises(SystemExit) as raised:
        main(["status", *socket, *words])
    assert raised.value.code == os.EX_USAGE
    assert "sidecar status: " in capsys.readouterr().err


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    told = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in told


# --- again and again --------------------------------------------------------------------------------------------


class Stop(Exception):
    """Enough was seen."""


def pausing(times: int) -> tuple[list[float], Callable[[float], None]]:
    """A wait that notes its lengths, and raises Stop at the last of so many."""
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == times:
            raise Stop

    return waits, pause


@pytest.mark.parametrize(("words", "seconds"), [(["--watch"], 1.0), (["--watch", "0.25"], 0.25)])
def test_watch_asks_again_over_the_same_connection_and_prints_below_where_stdout_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str], seconds: float
) -> None:
    waits, pause = pausing(3)
    with answering_daemon(tmp_path / "s", lambda _: [published.report()]) as heard, pytest.raises(Stop):
        asked(tmp_path / "s", *words, pause=pause)
    assert (waits, len(heard)) == ([seconds] * 3, 3)
    once = told_of()
    assert capsys.readouterr().out == f"{once}\n{once}\n{once}"


def test_watch_with_json_is_an_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, pause = pausing(2)
    with answering_daemon(tmp_path / "s", lambda _: [published.report()]), pytest.raises(Stop):
        asked(tmp_path / "s", "--watch", "--json", pause=pause)
    assert [json.loads(line)["report"] for line in capsys.readouterr().out.splitlines()] == [published.report()] * 2


def test_watch_ends_with_the_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([[published.report()], [None]])
    with answering_daemon(tmp_path / "s", lambda _: next(answers)):
        assert asked(tmp_path / "s", "--watch", pause=lambda _: None) == os.EX_UNAVAILABLE
    out, err = capsys.readouterr()
    assert out == told_of()
    assert err.startswith("sidecar status: connection_lost: ")


def test_watch_draws_a_terminal_anew_and_cuts_what_is_higher_and_an_interrupt_ends_it(tmp_path: Path) -> None:
    callers = [published.caller_status(f"caller-{number}") for number in range(40)]
    primary, secondary = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "sidecar", "status", "--socket", str(tmp_path / "s"), "--watch", "0.01"]
    with answering_daemon(tmp_path / "s", lambda _: [published.report(callers=callers)]) as heard:
        process = subprocess.Popen(command, stdout=secondary, stderr=subprocess.PIPE, env=environ)
        os.close(secondary)
        seen = b""
        while len(heard) < 4:
            seen += os.read(primary, 65_536)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    os.close(primary)
    assert (process.returncode, err) == (130, b"")
    drawn = seen.decode().split("\x1b[H\x1b[J")[1]
    assert drawn.startswith("daemon:      sidecar 0.6.0, up 2 h 0 min\r\n")
    assert drawn.endswith(" more lines)\r\n")


@given(st.lists(st.integers(0, 30), max_size=12), st.integers(1, 12), st.integers(2, 12))
def test_what_is_cut_fits_the_screen_and_says_how_much_is_not_there(
    lengths: list[int], columns: int, rows: int
) -> None:
    lines = ["x" * length for length in lengths]
    kept = output.cut(lines, columns, rows)
    *whole, last = kept or [""]
    if kept != lines:
        assert last == f"({len(lines) - len(whole)} more lines)"
        assert whole == lines[: len(whole)]
        kept = [*whole, ""]
    assert sum(max(1, -(-len(line) // columns)) for line in kept) <= rows - 1


# --- asked of the daemon ----------------------------------------------------------------------------------------

SCRIPT = '[[rule]]\ntext = "hang"\nhang = true\n'


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running_daemon(tmp_path_factory.mktemp("d"), script=SCRIPT, ceiling=5_000_000, concurrent=7) as running:
        yield running


def test_what_the_daemon_holds_is_told_with_what_runs_now(daemon: Process, capsys: pytest.CaptureFixture[str]) -> None:
    with daemon.connect() as client:
        client.ask(invocation("done"))
        client.send(invocation("runs", "hang"))
        wait_until(lambda: len(view_of_live(daemon.folder / "ledger").begins) == 2)
        assert main(["status", "--socket", str(daemon.socket_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["report"]
    jsonschema.validate(told, SCHEMA)
    view = view_of_live(daemon.folder / "ledger")
    (caller,) = told["callers"]
    assert caller["live_requests"] == told["daemon"]["live_requests"] == 1
    assert caller["reserved_micro_usd"] == view.begins[-1].reservation_micro_usd
    assert caller["ceiling_micro_usd"] == 5_000_000
    assert (caller["window_seconds"], caller["window_start_unix_ms"] % 86_400_000) == (86_400, 0)
    assert caller["spent_micro_usd"] > 0
    assert [connector["live_requests"] for connector in told["connectors"]] == [1]


def test_a13_a_refusal_for_the_ceiling_is_followed_up_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_daemon(tmp_path, ceiling=1) as running:
        with running.connect() as client:
            assert b"SpendCeiling" in client.ask(invocation("too-much"))
        assert main(["status", "--socket", str(running.socket_path)]) == 0
    (caller,) = rows(capsys.readouterr().out, "caller")
    assert (caller["ceiling"], caller["spent"], caller["reserved"]) == ("$0.000001", "$0.000000", "$0.000000")
    assert caller["window from (UTC)"].endswith(" 00:00:00")
    assert caller["seconds"] == "86400"


def test_a8_the_daemon_s_prices_of_zero_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path, price_input=0) as running:
        assert main(["status", "--socket", str(running.socket_path), "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["report"]["models"]
        assert [(price["input"], price["output"]) for price in model["prices"]] == [(0, 11_000_027)]
        assert main(["status", "--socket", str(running.socket_path)]) == 0
    (row,) = rows(capsys.readouterr().out, "model")
    assert (row["above tokens"], row["input"], row["output"]) == ("-", "$0.000000", "$11.000027")


def test_a_daemon_that_drains_still_tells_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path, script=SCRIPT) as running, running.connect() as client:
        client.send(invocation("runs", "hang"))
        wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
        os.kill(running.pid, signal.SIGTERM)
        wait_until(lambda: "draining" in running.log())
        assert main(["status", "--socket", str(running.socket_path)]) == 0
        out = capsys.readouterr().out
        assert ", draining: nothing new begins\n" in out
        assert "requests:    1 running, of at most 256\n" in out


def test_a_user_who_may_call_as_nobody_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path) as running:
        pass
    config = tmp_path / "sidecar.toml"
    config.write_text(config.read_text().replace('id = "dungeon"\n', 'id = "dungeon"\nuid = 64_999\n'))
    with running_daemon(tmp_path) as running:
        assert main(["status", "--socket", str(running.socket_path)]) == os.EX_NOPERM
    assert capsys.readouterr().err.startswith("sidecar status: not_admitted: ")


def test_an_operator_sees_the_callers_that_it_may_not_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path) as running:
        pass
    config = tmp_path / "sidecar.toml"
    of_another = config.read_text().replace('id = "dungeon"\n', 'id = "dungeon"\nuid = 64_999\n')
    config.write_text(f"{of_another}\n[[operator]]\nuid = {os.getuid()}\n")
    with running_daemon(tmp_path) as running:
        assert main(["status", "--socket", str(running.socket_path)]) == 0
        assert [row["caller"] for row in rows(capsys.readouterr().out, "caller")] == ["dungeon"]
        cancel = ["cancel", "--caller", "dungeon", "--request-id", "turn-1"]
        assert main([*cancel, "--socket", str(running.socket_path)]) == os.EX_NOPERM
    assert "may not call as dungeon, but as nobody: " in capsys.readouterr().err
