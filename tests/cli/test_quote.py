"""`sidecar quote`: what a call would be answered and cost; the call then is the very request that was quoted."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from kit.answering_daemon import answering_daemon
from kit.daemon_process import Process, running_daemon, wait_until
from kit.ledger_view import LedgerView, view_of_live

from sidecar.cli.exits import REFUSALS
from sidecar.cli.main import main
from sidecar.cli.quote import EXIT_CODES
from sidecar.contract.values import Refusal
from sidecar.ops.clock import unix_ms

CALLERS = """
[[caller]]
id = "miser"
models = ["npc"]
spend_ceiling_micro_usd = 1
spend_window_seconds = 86_400
"""
SAME = ("--request-id", "turn-1", "--expires-at-unix-ms", "1790000000000")
Told = tuple[int, str, str]


def words(at: Path, *more: str, command: str = "quote", caller: str = "dungeon") -> list[str]:
    return [command, "--socket", str(at), "--model", "npc", "--caller", caller, "--max-output-tokens", "64", *more]


def answering(**changes: Any) -> Callable[[dict[str, Any]], list[Any]]:
    """A daemon's answer to a quote of the request that it is asked about."""

    def answer(said: dict[str, Any]) -> list[Any]:
        asked = said["invocation"]
        return [
            {
                "schema_id": "gamecult.model.transport_quoted.v1",
                "caller_runtime_id": asked["caller_runtime_id"],
                "request_id": asked["request"]["request_id"],
                "worst_case_micro_usd": 5561,
                **changes,
            }
        ]

    return answer


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], Told]:
    def run(command: list[str]) -> Told:
        code = main(command)
        return (code, *capsys.readouterr())

    return run


# --- asked of what speaks as a daemon ---------------------------------------------------------------------------


def test_what_would_be_admitted_is_told_with_its_worst_case_and_how_to_call_it(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    with answering_daemon(tmp_path / "s", answering()):
        assert told(words(tmp_path / "s", *SAME, "hello")) == (
            0,
            "quote:    it would be admitted, or replayed\n"
            "at worst: 5561 micro-USD = $0.005561, of a budget of 100000\n"
            "request:  turn-1 of caller dungeon, for model npc\n"
            f"call:     sidecar call with the same arguments and {' '.join(SAME)}\n",
            "",
        )


@pytest.mark.parametrize("refusal", get_args(Refusal))
def test_each_refusal_has_its_own_exit_code_and_says_what_to_do(
    tmp_path: Path, told: Callable[[list[str]], Told], refusal: Refusal
) -> None:
    with answering_daemon(tmp_path / "s", answering(refusal=refusal)):
        code, out, err = told(words(tmp_path / "s", "hello"))
    assert code == REFUSALS[refusal].exit_code
    assert out.startswith(f"quote:    it would be refused: {refusal}\nat worst: 5561 ")
    assert "call:" not in out
    assert err.startswith(f"sidecar quote: {refusal}: it would be refused; ")
    assert "it ran nothing" not in err


def test_a_refusal_before_the_cost_has_no_worst_case(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    refused = answering(refusal="ModelNotAllowed", worst_case_micro_usd=None)
    with answering_daemon(tmp_path / "s", refused):
        assert "at worst: not known: a rule before the cost applies\n" in told(words(tmp_path / "s", "hello"))[1]
        said = json.loads(told(words(tmp_path / "s", "--json", "hello"))[1])
    assert (said["worst_case_micro_usd"], said["refusal"]) == (None, "ModelNotAllowed")


def test_json_has_the_same_members_whatever_happens(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    with answering_daemon(tmp_path / "s", answering()):
        said = json.loads(told(words(tmp_path / "s", "--json", *SAME, "hello"))[1])
    assert said == {
        "ok": True,
        "exit_code": 0,
        "sent": {
            "caller": "dungeon",
            "request_id": "turn-1",
            "model": "npc",
            "expires_at_unix_ms": 1790000000000,
            "max_cost_micro_usd": 100_000,
        },
        "worst_case_micro_usd": 5561,
        "refusal": None,
        "failure": None,
    }
    with answering_daemon(tmp_path / "t", answering(refusal="Capacity")):
        runs = [told(words(at, "--json", text)) for at in (tmp_path / "t", tmp_path / "none") for text in ("hello", "")]
    for code, out, err in runs:
        other = json.loads(out)
        assert set(other) == set(said)
        assert (other["ok"], other["exit_code"]) == (False, code)
        assert err.startswith(f"sidecar quote: {other['failure']['kind']}: {other['failure']['message']}; ")
    assert json.loads(runs[0][1])["refusal"] == "Capacity"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (
            [None],
            os.EX_UNAVAILABLE,
            "connection_lost: the daemon closed the connection before it had answered; nothing is",
        ),
        (answering(request_id="another"), os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        (answering(refusal="NoSuch"), os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        ([b"\0\0\0\0"], os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
    ],
    ids=["closes", "another request", "no refusal that there is", "no frame"],
)
def test_what_is_no_answer_is_told_so_and_nothing_has_run(
    tmp_path: Path, told: Callable[[list[str]], Told], answer: Any, code: int, said: str
) -> None:
    with answering_daemon(tmp_path / "s", answer if callable(answer) else lambda _: answer):
        got, out, err = told(words(tmp_path / "s", "hello"))
    assert (got, out) == (code, "")
    assert err.startswith(f"sidecar quote: {said}")
    assert "may have run" not in err


def test_the_invocation_in_it_is_the_one_that_a_call_sends(
    tmp_path: Path, told: Callable[[list[str]], Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(said: dict[str, Any]) -> list[Any]:
        return answering()(said) if "invocation" in said else [None]

    more = (*SAME, "--budget", "7", "-")
    with answering_daemon(tmp_path / "s", answer) as heard:
        for command in ("quote", "call"):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwei Wörter".encode())))
            told(words(tmp_path / "s", *more, command=command))
    quoted, called = heard
    assert quoted["invocation"] == called


@pytest.mark.parametrize("wrong", [("--stream",), ("--budget", "0"), ("another", "text")])
def test_a_wrong_command_line_ends_with_64(wrong: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words(Path("s"), *wrong, "hello"))
    assert raised.value.code == os.EX_USAGE
    assert "sidecar quote: " in capsys.readouterr().err


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quote", "--help"])
    said = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in said


# --- asked of the daemon ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    script = '[[rule]]\ntext = "hang"\nhang = true\n'
    with running_daemon(tmp_path_factory.mktemp("d"), callers=CALLERS, script=script) as running:
        yield running


def named(out: str) -> list[str]:
    """The flags that a quote names for its call."""
    return re.findall(r"--request-id \S+ --expires-at-unix-ms \d+", out)[0].split()


def test_a_call_by_the_named_flags_reserves_what_was_quoted_and_a_quote_writes_nothing(
    daemon: Process, told: Callable[[list[str]], Told]
) -> None:
    code, out, err = told(words(daemon.socket_path, "who goes there?"))
    assert (code, err) == (0, "")
    assert not any(begin.request_id in out for begin in view_of_live(daemon.folder / "ledger").begins)
    worst = int(re.findall(r"at worst: (\d+) micro-USD", out)[0])
    assert told(words(daemon.socket_path, *named(out), "who goes there?", command="call"))[0] == 0
    begin = LedgerView(daemon.folder / "ledger").begins[-1]
    assert (begin.request_id, begin.reservation_micro_usd) == (named(out)[1], worst)
    assert told(words(daemon.socket_path, *named(out), "who goes there?")) == (0, out, "")


@pytest.mark.parametrize(
    ("refusal", "more", "caller"),
    [
        ("IdentitySubstitution", (), "stranger"),
        ("Expired", ("--expires-at-unix-ms", "1000"), "dungeon"),
        ("ModelNotAllowed", ("--model", "other"), "dungeon"),
        ("OutputBound", ("--max-output-tokens", "5000"), "dungeon"),
        ("CostBound", ("--budget", "1"), "dungeon"),
        ("SpendCeiling", (), "miser"),
    ],
)
def test_a_quote_is_refused_as_its_call_would_be(
    daemon: Process, told: Callable[[list[str]], Told], refusal: Refusal, more: Sequence[str], caller: str
) -> None:
    code, out, err = told(words(daemon.socket_path, *more, "hello", caller=caller))
    assert code == REFUSALS[refusal].exit_code
    assert f"it would be refused: {refusal}\n" in out
    assert err.startswith(f"sidecar quote: {refusal}: it would be refused; ")
    assert told(words(daemon.socket_path, *more, "hello", caller=caller, command="call"))[0] == code


def test_a_request_that_runs_is_quoted_as_in_flight_at_its_reservation(
    daemon: Process, told: Callable[[list[str]], Told]
) -> None:
    later = str(unix_ms() + 60_000)
    same = ("--request-id", "runs", "--expires-at-unix-ms", later, "hang")
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-m", "sidecar", *words(daemon.socket_path, *same, command="call")]
    with subprocess.Popen(command, **both) as process:
        wait_until(lambda: any(begin.request_id == "runs" for begin in view_of_live(daemon.folder / "ledger").begins))
        code, out, _ = told(words(daemon.socket_path, *same))
        begin = next(one for one in view_of_live(daemon.folder / "ledger").begins if one.request_id == "runs")
        ids = ("--caller", "dungeon", "--request-id", "runs")
        assert main(["cancel", "--socket", str(daemon.socket_path), *ids]) == 0
        process.communicate(timeout=30)
    assert code == os.EX_TEMPFAIL
    assert "it would be refused: InFlight\n" in out
    assert f"at worst: {begin.reservation_micro_usd} micro-USD" in out
