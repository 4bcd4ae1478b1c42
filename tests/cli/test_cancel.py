"""`sidecar cancel`: what is told once the daemon has read it, and what else may come of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.answering_daemon import answering_daemon
from kit.daemon_process import running_daemon, wait_until
from kit.ledger_view import view_of_live

from goldens import published_values as published
from sidecar.cli.cancel import EXIT_CODES
from sidecar.cli.main import main

Told = tuple[int, str, str]
SENT = (
    "sent: cancel turn-1 of caller dungeon; where it runs, its deadline is now, and its result says how it ended; where"
    " it does not, nothing changes\n"
)


def words(at: Path, *more: str) -> list[str]:
    return ["cancel", "--socket", str(at), "--caller", "dungeon", "--request-id", "turn-1", *more]


def answering(**changes: Any) -> Callable[[dict[str, Any]], list[Any]]:
    """A daemon that welcomes, and says nothing else."""

    def answer(said: dict[str, Any]) -> list[Any]:
        return [published.welcome(**changes)] if said["schema_id"].endswith("hello.v1") else []

    return answer


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], Told]:
    def run(command: list[str]) -> Told:
        code = main(command)
        return (code, *capsys.readouterr())

    return run


def test_it_says_only_what_is_known_once_the_daemon_has_read_it(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    with answering_daemon(tmp_path / "s", answering()) as heard:
        assert told(words(tmp_path / "s")) == (0, SENT, "")
        code, out, err = told(words(tmp_path / "s", "--json"))
    assert (code, err) == (0, "")
    ids = {"caller_runtime_id": "dungeon", "request_id": "turn-1"}
    assert json.loads(out) == {"ok": True, "exit_code": 0, **ids}
    assert heard[1] == heard[3] == {"schema_id": "gamecult.model.transport_cancel.v1", **ids}
    assert not heard[0]["stream_events"]


def test_a_caller_that_this_user_may_not_be_is_told_because_the_daemon_would_not(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    with answering_daemon(tmp_path / "s", answering(callers=["tavern", "market"])) as heard:
        code, out, err = told(words(tmp_path / "s"))
    assert (code, out) == (os.EX_NOPERM, "")
    assert err == (
        "sidecar cancel: this user may not call as dungeon, but as tavern, market: --caller says whose request it is\n"
    )
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("first", "then", "code", "said"),
    [
        ([None], [], os.EX_UNAVAILABLE, "connection_lost: the daemon closed the connection before it had answered"),
        ([published.quoted()], [], os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        ([published.welcome()], [published.quoted()], os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        (
            "unknown_schema",
            [],
            os.EX_PROTOCOL,
            "unknown_schema: so it is; the daemon and this command are of different",
        ),
        ("too_many_connections", [], os.EX_TEMPFAIL, "too_many_connections: so it is; try again shortly"),
        ([published.welcome()], "malformed_frame", os.EX_PROTOCOL, "malformed_frame: so it is; "),
    ],
)
def test_what_does_not_take_it_is_told_so(
    tmp_path: Path, told: Callable[[list[str]], Told], first: Any, then: Any, code: int, said: str
) -> None:
    def answer(frame: dict[str, Any]) -> list[Any]:
        one = first if frame["schema_id"].endswith("hello.v1") else then
        error = {"schema_id": "gamecult.model.transport_error.v1", "code": one, "message": "so it is"}
        return [error] if isinstance(one, str) else list(one)

    with answering_daemon(tmp_path / "s", answer):
        got, out, err = told(words(tmp_path / "s"))
    assert (got, out) == (code, "")
    assert err.startswith(f"sidecar cancel: {said}")


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    code, out, err = told(words(tmp_path / "none", "--json"))
    assert (code, err) == (os.EX_UNAVAILABLE, "")
    assert json.loads(out)["error"].startswith("no_daemon: there is no socket at ")


def test_a_request_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["cancel", "--socket", "s"])
    assert raised.value.code == os.EX_USAGE
    assert "--request-id" in capsys.readouterr().err


def test_the_help_lists_the_exit_codes_and_says_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cancel", "--help"])
    said = capsys.readouterr().out
    assert "its whole\nreservation" in said
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in said


# --- asked of the daemon ----------------------------------------------------------------------------------------


def test_a_request_that_runs_ends_at_once_and_its_caller_is_told_how(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    call = ["call", "--model", "npc", "--caller", "dungeon", "--request-id", "turn-1", "hang"]
    with running_daemon(tmp_path, script='[[rule]]\ntext = "hang"\nhang = true\n') as daemon:
        command = [sys.executable, "-m", "sidecar", *call, "--socket", str(daemon.socket_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
            assert told(words(daemon.socket_path)) == (0, SENT, "")
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (os.EX_TEMPFAIL, b"")
        assert err.startswith(b"sidecar call: timeout: ")
        assert b"tokens:  not known, so the whole reservation is charged\n" in err
        assert told(words(daemon.socket_path)) == (0, SENT, "")  # it does not run any more: nothing changes
