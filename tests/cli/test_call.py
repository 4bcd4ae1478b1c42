"""`sidecar call` against the real daemon: text, receipt, JSON, and what it says and exits with when it goes wrong."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import pwd
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from kit.daemon_process import Process, invocation, running_daemon, wait_until
from kit.ledger_view import LedgerView, view_of_live

from sidecar.cli.advice import of_refusal
from sidecar.cli.asking import asked_by
from sidecar.cli.call import add_arguments, call
from sidecar.cli.exits import (
    COMMAND_FAULTS,
    EXIT_CODES,
    FAILURES,
    HUNG_UP,
    REFUSALS,
    TERMINATED,
    TRANSPORT_ERRORS,
    CommandFault,
)
from sidecar.cli.main import main
from sidecar.cli.receipt import Sent
from sidecar.contract.values import FailureKind, Refusal, TransportErrorCode
from sidecar.service.errors import error_frame

ROOT = Path(__file__).resolve().parents[2]
LOGIN = pwd.getpwuid(os.getuid()).pw_name
NASTY = "a\x1b[2J\x07\x9bb\u202e\r\nc\td\x7f"
SCRIPT = f"""
[[rule]]
text = "two parts"
deltas = ["Grüße ", "from 北京 🙂"]
usage = {{input = 11, cache_read = 7, cache_write = 5, output = 3, reasoning = 2}}
[[rule]]
text = "be nasty"
deltas = [{json.dumps(NASTY)}]
[[rule]]
text = "be cut"
deltas = ["half an"]
stop = "max_output_tokens"
[[rule]]
text = "call a tool"
deltas = ["I look. "]
calls = [{{name = "look", arguments = '{{"at": "door"}}', id = "call_1"}}]
[[rule]]
text = "decline"
deltas = []
stop = "refusal"
[[rule]]
text = "only tools"
calls = [{{name = "look"}}, {{name = "look"}}]
[[rule]]
text = "use too much"
usage = {{output = 9000000}}
[[rule]]
text = "reject me"
reject = "too odd"
[[rule]]
text = "hang"
hang = true
[[rule]]
text = "wait with me"
fail = {{kind = "rate_limited", message = "slow down (the provider asks to wait 30 s)"}}
[[rule]]
text = "break midway"
deltas = ["half an answer"]
fail = {{kind = "unavailable", message = "gone"}}
""" + "".join(
    f'[[rule]]\ntext = "fail {kind}"\nfail = {{kind = "{kind}", message = "it says {kind}"}}\n'
    for kind in get_args(FailureKind)
)
CALLERS = f"""
[[caller]]
id = "{LOGIN}"
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 86_400
[[caller]]
id = "miser"
models = ["npc"]
spend_ceiling_micro_usd = 1
spend_window_seconds = 86_400
[[caller]]
id = "terse"
models = ["npc"]
payload_bytes_max = 100
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 86_400
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("d")
    with running_daemon(folder, script=SCRIPT, callers=CALLERS) as running:
        yield running


def asking(at: Path, *words: str, caller: str | None = "dungeon") -> list[str]:
    """A command line; what `words` say again wins over what stands before."""
    named = ["--caller", caller] if caller else []
    return ["call", "--socket", str(at), "--model", "npc", *named, "--max-output-tokens", "64", *words]


Told = tuple[int, str, str]


@pytest.fixture
def run(daemon: Process, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Told]:
    """Runs a call in this process: exit code, stdout, stderr."""

    def running(*words: str, caller: str | None = "dungeon", at: Path = daemon.socket_path) -> Told:
        code = main(asking(at, *words, caller=caller))
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return running


def spawned(at: Path, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    ends: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen([sys.executable, "-m", "sidecar", *asking(at, *words)], **ends)


def replaying(err: str) -> list[str]:
    """The flags that a receipt or a failure names for the same request."""
    return re.findall(r"--request-id \S+ --expires-at-unix-ms \d+", err)[0].split()


# --- an answer --------------------------------------------------------------------------------------------------


def test_stdout_has_the_text_and_nothing_else_and_stderr_a_receipt(run: Callable[..., Told]) -> None:
    code, out, err = run("in two parts")
    assert (code, out) == (0, "Grüße from 北京 🙂")
    charge = -(-(11 * 2_000_003 + 7 * 3_000_017 + 5 * 5_000_011 + 3 * 11_000_027) // 1_000_000)
    assert err.splitlines()[:4] == [
        "model:   npc, answered by provider",
        "ended:   end_turn",
        "tokens:  11 in, 7 read from cache, 5 written to it, 3 out (2 of them reasoning)",
        f"charge:  {charge} micro-USD = $0.{charge:06d}, of a budget of 100000",
    ]
    assert re.fullmatch(r"request: call-[0-9a-f]{24} of caller dungeon", err.splitlines()[4])


def test_the_receipt_says_how_to_replay_and_the_replay_asks_nobody(run: Callable[..., Told], daemon: Process) -> None:
    _, out, err = run("say it twice")
    begins = len(LedgerView(daemon.folder / "ledger").begins)
    assert run("say it twice", *replaying(err)) == (0, out, err)
    assert len(LedgerView(daemon.folder / "ledger").begins) == begins


def test_without_a_request_id_each_run_is_a_request_of_its_own(run: Callable[..., Told]) -> None:
    first, second = (run("hello")[2] for _ in range(2))
    assert replaying(first)[1] != replaying(second)[1]


def test_the_caller_is_the_login_name_unless_it_is_given(run: Callable[..., Told]) -> None:
    code, _, err = run("hello", caller=None)
    assert code == 0
    assert f" of caller {LOGIN}" in err


def test_the_defaults_are_those_of_the_contract(daemon: Process, tmp_path: Path) -> None:
    assert main(["call", "--socket", str(daemon.socket_path), "--model", "npc", "--caller", "dungeon", "default"]) == 0
    begin = LedgerView(daemon.folder / "ledger").begins[-1]
    assert begin.max_output_tokens == 512
    assert 30_000 <= begin.expires_at_unix_ms - begin.admitted_at_unix_ms <= 60_000


def test_what_is_odd_about_an_answer_is_noted(run: Callable[..., Told]) -> None:
    assert "note:    cut at --max-output-tokens\n" in run("be cut")[2]
    assert "note:    1 tool call, though no tool was offered; --json shows all\n" in run("call a tool")[2]
    code, _, err = run("use too much")
    assert code == 0
    assert "note:    an over-run: " in err
    assert "= $99.000243, of a budget of 100000" in err


def test_an_answer_without_a_text_is_noted(run: Callable[..., Told]) -> None:
    code, out, err = run("decline")
    assert (code, out) == (0, "")
    assert "note:    the model declined to answer\nnote:    the answer has no text\n" in err
    code, out, err = run("only tools")
    assert (code, out) == (0, "")
    assert "note:    the answer has no text\nnote:    2 tool calls, though no tool was offered; --json" in err
    assert "note:" not in run("hello")[2]


def test_the_text_may_come_from_stdin(run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("zwei Wörter\n".encode())))
    assert run("-")[:2] == (0, "zwei Wörter\n")


def test_after_two_dashes_the_text_may_begin_with_a_dash(run: Callable[..., Told]) -> None:
    assert run("--", "--json")[:2] == (0, "--json")


# --- json -------------------------------------------------------------------------------------------------------


def test_json_holds_everything_and_the_receipt_as_it_is_published(run: Callable[..., Told]) -> None:
    code, out, err = run("call a tool", "--json", "--request-id", "json-1")
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert (said["ok"], said["exit_code"], said["text"], said["stop"]) == (True, 0, "I look. ", "tool_use")
    assert said["tool_calls"] == [{"call_id": "call_1", "name": "look", "arguments": '{"at": "door"}'}]
    assert said["failure"] is None
    assert said["charge_micro_usd"] == said["receipt"]["cost_micro_usd"] > 0
    assert said["usage"] == said["receipt"]["outcome"]["Completed"]["usage"]
    assert said["sent"]["request_id"] == said["receipt"]["request_id"] == "json-1"
    schema = json.loads((ROOT / "schemas/gamecult.model.transport_receipt.v1.schema.json").read_text())
    jsonschema.validate(said["receipt"], schema)


def test_json_has_the_same_members_whatever_happens(run: Callable[..., Told], tmp_path: Path) -> None:
    members = set(json.loads(run("hello", "--json")[1]))
    for told in (
        run("fail timeout", "--json"),
        run("hello", "--json", "--budget", "1"),
        run("hello", "--json", at=tmp_path / "none"),
        run("", "--json"),
    ):
        code, out, err = told
        said = json.loads(out)
        assert set(said) == members
        assert (said["ok"], said["exit_code"]) == (False, code)
        assert err.startswith(f"sidecar call: {said['failure']['kind']}: {said['failure']['message']}")


def test_json_tells_a_program_when_to_come_back(run: Callable[..., Told]) -> None:
    code, out, _ = run("wait with me", "--json")
    failure = json.loads(out)["failure"]
    assert code == os.EX_TEMPFAIL
    assert (failure["origin"], failure["kind"]) == ("outcome", "rate_limited")
    assert (failure["retry"], failure["retry_after_seconds"]) == ("new_id", 30)


def test_a_part_of_an_answer_is_no_answer(run: Callable[..., Told]) -> None:
    code, out, err = run("break midway")
    assert (code, out) == (os.EX_UNAVAILABLE, "")
    assert "note:    a part of an answer had come before; --json shows it\n" in err
    assert json.loads(run("break midway", "--json")[1])["text"] == "half an answer"


# --- refusals, failures and errors of the daemon ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "words", "caller"),
    [
        ("PayloadBound", ("hello",), "terse"),
        ("ModelNotAllowed", ("--model", "other", "hello"), "dungeon"),
        ("OutputBound", ("--max-output-tokens", "5000", "hello"), "dungeon"),
        ("CostBound", ("--budget", "1", "hello"), "dungeon"),
        ("ProviderRejected", ("reject me",), "dungeon"),
        ("SpendCeiling", ("hello",), "miser"),
    ],
)
def test_a_refusal_is_one_line_with_its_own_exit_code(
    run: Callable[..., Told], refusal: Refusal, words: Sequence[str], caller: str
) -> None:
    code, out, err = run(*words, caller=caller)
    assert (code, out) == (REFUSALS[refusal].exit_code, "")
    assert err == f"sidecar call: {refusal}: refused: it ran nothing and cost nothing; {REFUSALS[refusal].advice}\n"


@pytest.mark.parametrize(
    ("words", "why", "what_helps"),
    [
        (("--timeout", "400"), "399|400", "a shorter --timeout"),
        (("--expires-at-unix-ms", "1000"), "passed", "a later --expires-at-unix-ms"),
        (("--expires-at-unix-ms", "9000000000000"), "further than the daemon takes", "an earlier --expires-at-unix-ms"),
    ],
)
def test_an_expiry_is_told_which_of_the_two_it_is_and_by_which_flag(
    run: Callable[..., Told], words: Sequence[str], why: str, what_helps: str
) -> None:
    code, _, err = run(*words, "hello")
    assert code == os.EX_DATAERR
    assert err.startswith("sidecar call: Expired: refused: it ran nothing and cost nothing; its expiry ")
    assert re.search(why, err)
    assert err.endswith(f": give {what_helps}\n")


def test_a_timeout_that_was_over_at_once_is_told_so() -> None:
    sent = Sent(caller="dungeon", request_id="r", model="npc", expires_at_unix_ms=1_000, max_cost_micro_usd=1)
    told = of_refusal("Expired", sent, by_timeout=True, now_unix_ms=1_004)
    assert told == "its expiry passed 0.004 s ago, and no answer is on record: give a longer --timeout"


@pytest.mark.parametrize("ahead_ms", [1, 60_000, 300_000])
def test_an_expiry_that_is_ahead_and_not_too_far_may_be_before_the_low_water(ahead_ms: int) -> None:
    sent = Sent(caller="dungeon", request_id="r", model="npc", expires_at_unix_ms=ahead_ms, max_cost_micro_usd=1)
    for by_timeout, flag in ((True, "a longer --timeout"), (False, "a later --expires-at-unix-ms")):
        told = of_refusal("Expired", sent, by_timeout=by_timeout, now_unix_ms=0)
        assert "may be at or before the daemon's low water (after a repair," in told
        assert f": give {flag}, or wait" in told
        assert "further than" not in told


def test_a_caller_that_it_may_not_be_is_named(run: Callable[..., Told]) -> None:
    code, _, err = run("hello", caller="stranger")
    assert code == os.EX_NOPERM
    assert "this user may not call as stranger, or" in err
    assert err.endswith(": --caller sets who it calls as\n")


def test_figures_that_only_the_daemon_has_are_in_its_log(run: Callable[..., Told], daemon: Process) -> None:
    run("--max-output-tokens", "4999", "hello")
    assert "the daemon's log has the figures" in run("--budget", "1", "hello")[2]
    wait_until(lambda: "4999" in daemon.log())


def test_another_text_under_a_recorded_id_is_a_replay_conflict(run: Callable[..., Told]) -> None:
    again = replaying(run("one text")[2])
    code, _, err = run("another text", *again)
    assert code == os.EX_DATAERR
    assert "ReplayConflict" in err


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_a_failure_says_its_kind_its_message_and_what_it_cost(run: Callable[..., Told], kind: FailureKind) -> None:
    code, out, err = run(f"fail {kind}", "--budget", "1_000_000")
    first, *receipt = err.splitlines()
    assert (code, out) == (FAILURES[kind].exit_code, "")
    assert first == f"sidecar call: {kind}: it says {kind}; {FAILURES[kind].advice}"
    assert f"ended:   failed, {kind}" in receipt
    assert "tokens:  not known, so the whole reservation is charged" in receipt


def test_while_it_runs_its_slot_is_taken_and_a_retry_is_in_flight_and_after_a_crash_it_is_indeterminate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_daemon(tmp_path, script=SCRIPT, concurrent=1) as daemon:
        interrupted = spawned(daemon.socket_path, "hang")
        wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
        interrupted.send_signal(signal.SIGINT)
        out, err = interrupted.communicate(timeout=30)
        assert (interrupted.returncode, out) == (130, b"")
        assert err.startswith(b"sidecar call: interrupted: stopped by hand; what was sent goes on, and is paid for; ")
        again = replaying(err.decode())
        assert main(asking(daemon.socket_path, "hang", *again)) == os.EX_TEMPFAIL
        said = capsys.readouterr().err
        assert said.startswith("sidecar call: InFlight: refused: this try ran nothing; the one before it under this id")
        assert "wait until it has ended; to get its answer: the same command with --request-id" in said
        assert main(asking(daemon.socket_path, "hello")) == os.EX_TEMPFAIL
        assert "Capacity" in capsys.readouterr().err
        daemon.kill()
    with running_daemon(tmp_path) as daemon:
        assert main(asking(daemon.socket_path, "hang", *again)) == os.EX_NOPERM
        assert "Indeterminate" in (said := capsys.readouterr().err)
        assert "a person decides, with sidecar ledger resolve; a new id may pay twice" in said


def test_a_deadline_that_passes_is_a_timeout_said_by_the_daemon(run: Callable[..., Told]) -> None:
    code, _, err = run("hang", "--timeout", "0.5")
    assert code == os.EX_TEMPFAIL
    assert "sidecar call: timeout: the deadline passed" in err


def test_a_text_above_the_daemons_frame_bound_is_told_by_the_daemon(
    run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * 1_000_000)))
    code, _, err = run("-")
    assert code == os.EX_DATAERR
    assert err.startswith("sidecar call: frame_size: ")


def test_who_may_call_as_nobody_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path) as daemon:
        pass
    config = tmp_path / "sidecar.toml"
    config.write_text(config.read_text().replace('id = "dungeon"\n', 'id = "dungeon"\nuid = 64_999\n'))
    with running_daemon(tmp_path) as daemon:
        assert main(asking(daemon.socket_path, "hello")) == os.EX_NOPERM
    assert capsys.readouterr().err.startswith("sidecar call: not_admitted: ")


def test_a_daemon_that_is_full_or_stops_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path, script=SCRIPT, daemon="connections_max = 2") as daemon:
        with daemon.connect(), daemon.connect() as second:
            second.send(b"\x80")
            assert second.receive() is not None  # both connections are counted
            assert main(asking(daemon.socket_path, "hello")) == os.EX_TEMPFAIL
        assert "too_many_connections" in capsys.readouterr().err
        hanging = spawned(daemon.socket_path, "hang")
        wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: "draining" in daemon.log())
        assert main(asking(daemon.socket_path, "hello")) == os.EX_TEMPFAIL
        assert capsys.readouterr().err == (
            "sidecar call: shutting_down: the daemon is stopping; nothing was run: try again after its restart\n"
        )
        os.kill(daemon.pid, signal.SIGTERM)
        _, err = hanging.communicate(timeout=30)
        assert hanging.returncode == os.EX_UNAVAILABLE
        assert err.startswith(b"sidecar call: unavailable: ")


# --- no daemon, or none that speaks -----------------------------------------------------------------------------


@contextmanager
def listening(at: Path, say: bytes | None) -> Iterator[None]:
    """Something on the socket that says these bytes to the first who asks and closes; None: it never accepts."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(at))
        listener.listen(1)

        def serve() -> None:
            stream, _ = listener.accept()
            with closing(stream):
                stream.recv(1 << 20)
                stream.sendall(say or b"")

        thread = threading.Thread(target=serve, daemon=True)
        if say is not None:
            thread.start()
        yield
        if say is not None:
            thread.join(timeout=20)


def called(at: Path, *words: str, grace_seconds: float) -> int:
    """In this process, without the wait that a daemon is granted beyond the deadline."""
    parser = ArgumentParser()
    add_arguments(parser)
    return call(asked_by(parser.parse_args(asking(at, *words)[1:])), grace_seconds=grace_seconds)


def test_a_socket_that_is_not_there_or_that_nobody_listens_on(run: Callable[..., Told], tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / "left"))
    (tmp_path / "file").write_text("")
    for name, said, advice in (
        ("none", "no_daemon: there is no socket at", "start it with: sidecar serve --config FILE"),
        ("left", "no_daemon: no daemon listens on", "start it with: sidecar serve --config FILE"),
        ("file", "no_socket: there is something else than a socket at", "look at --socket"),
    ):
        code, out, err = run("hello", at=tmp_path / name)
        assert (code, out) == (os.EX_UNAVAILABLE, "")
        assert err == f"sidecar call: {said} {tmp_path / name}; nothing was sent; {advice}\n"
    _, out, _ = run("--json", "hello", at=tmp_path / "none")
    assert json.loads(out)["failure"]["retry"] == "same_id"  # nothing was sent
    assert run("hello", at=tmp_path / "file/below")[0] == os.EX_UNAVAILABLE
    code, _, err = run("hello", at=Path("/" + "x" * 199))
    told = "sidecar call: usage: --socket has 200 bytes; the kernel takes 107; nothing was sent\n"
    assert (code, err) == (os.EX_USAGE, told)


def test_a_socket_that_this_user_may_not_use(tmp_path: Path) -> None:
    """Root may use any, so it becomes nobody first, with all modules read: nobody may not read them everywhere."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    drop = "os.setgroups([]); os.setgid(65534); os.setuid(65534)" if os.geteuid() == 0 else "pass"
    command = asking(closed / "s", "hello")
    source = f"import os, sys, sidecar.cli.call; from sidecar.cli.main import main; {drop}; sys.exit(main({command!r}))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_NOPERM
    assert done.stderr.startswith(f"sidecar call: not_permitted: this user may not connect to {closed / 's'}; ")


@pytest.mark.parametrize("said", [b"", b"\0\0", b"\0\0\1\0half a frame"], ids=["nothing", "half a length", "half"])
def test_a_connection_that_closes_midway(run: Callable[..., Told], tmp_path: Path, said: bytes) -> None:
    with listening(tmp_path / "s", said):
        code, _, err = run("hello", at=tmp_path / "s")
    assert code == os.EX_UNAVAILABLE
    assert err.startswith("sidecar call: connection_lost: ")
    assert "it may have run; to get its answer: the same command with --request-id call-" in err


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\1\xc1",
        b"\0\0\0\1\x80",
        b"\0\0\0\0",
        b"\0\0\0\x03abc",
    ],
    ids=["http", "no msgpack", "no answer", "no length", "text"],
)
def test_what_does_not_speak_as_a_daemon_is_told_so(run: Callable[..., Told], tmp_path: Path, said: bytes) -> None:
    with listening(tmp_path / "s", said):
        code, _, err = run("hello", at=tmp_path / "s")
    assert code == os.EX_PROTOCOL
    assert err.startswith(f"sidecar call: no_daemon_protocol: what listens on {tmp_path / 's'} does not speak as")


def test_an_answer_to_another_request_is_no_answer(run: Callable[..., Told], daemon: Process, tmp_path: Path) -> None:
    with daemon.connect() as client:
        other = client.ask(invocation("somebody-elses"))
    with listening(tmp_path / "s", len(other).to_bytes(4, "big") + other):
        code, _, err = run("hello", at=tmp_path / "s")
    assert code == os.EX_PROTOCOL
    assert "answered another request than ours" in err


def test_a_daemon_that_hangs_is_left_when_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listening(tmp_path / "s", None):
        assert called(tmp_path / "s", "--timeout", "0.05", "hello", grace_seconds=0.05) == os.EX_TEMPFAIL
    said = capsys.readouterr().err
    assert said.startswith("sidecar call: no_answer: the daemon has not answered in time; it may be running still; ")


def test_a_daemon_whose_queue_is_full_is_busy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    with listening(tmp_path / "s", None):
        for one in waiting:
            one.connect(str(tmp_path / "s"))
        assert called(tmp_path / "s", "hello", grace_seconds=1) == os.EX_TEMPFAIL
    for one in waiting:
        one.close()
    assert capsys.readouterr().err.startswith("sidecar call: busy: ")


@pytest.mark.parametrize("error", get_args(TransportErrorCode))
def test_every_transport_error_has_its_line_and_its_code(
    run: Callable[..., Told], tmp_path: Path, error: TransportErrorCode
) -> None:
    frame = error_frame(error, "so it is")
    with listening(tmp_path / "s", len(frame).to_bytes(4, "big") + frame):
        code, _, err = run("hello", at=tmp_path / "s")
    assert code == TRANSPORT_ERRORS[error].exit_code
    assert err.startswith(f"sidecar call: {error}: so it is; {TRANSPORT_ERRORS[error].advice}")


@pytest.mark.parametrize(
    ("why", "is_damage"),
    [
        ("the recorded answer can't be read back: expected a CRC that fits", True),
        ("a record can't be read back: expected a Begin in this place", True),
        ("0001-0002.seal is damaged at byte 1024", True),
        ("a bug in the daemon: KeyError", False),
    ],
)
def test_a_damaged_record_is_no_bug_and_is_said_to_have_cost_nothing(
    run: Callable[..., Told], tmp_path: Path, why: str, is_damage: bool
) -> None:
    frame = error_frame("internal", why)
    with listening(tmp_path / "s", len(frame).to_bytes(4, "big") + frame):
        code, _, err = run("hello", at=tmp_path / "s")
    assert code == os.EX_SOFTWARE
    assert is_damage == ("nothing was run, nothing charged" in err and "(record_unreadable) says where" in err)
    assert is_damage != ("; a bug in the daemon; its log says more" in err)


# --- what is typed, and where it goes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (b"", "text: the text is empty; nothing was sent"),
        (b"\xff\xfe", "text: the text is not UTF-8; nothing was sent"),
        (b"x" * (1 << 24), "text: the text is larger than any request may be, 16777215 bytes; nothing was sent"),
        (
            b"x" * ((1 << 24) - 1),
            "text: the text makes a request of",
        ),
    ],
    ids=["empty", "not UTF-8", "above any frame", "just below it"],
)
def test_a_text_that_can_not_be_sent(
    run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, given: bytes, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    code, out, err = run("-")
    assert (code, out) == (os.EX_DATAERR, "")
    assert err.startswith(f"sidecar call: {said}")


def test_stdin_that_is_closed_is_said(run: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run("-") == (os.EX_NOINPUT, "", "sidecar call: no_input: stdin is closed; nothing was sent\n")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--budget", "0"),
        ("--budget", "-1"),
        ("--budget", "1.5"),
        ("--budget", str(2**64)),
        ("--max-output-tokens", str(2**32)),
        ("--timeout", "0"),
        ("--timeout", "nan"),
        ("--timeout", "inf"),
        ("--timeout", "soon"),
        ("--request-id", "two words"),
        ("--caller", ""),
        ("--model", "x" * 257),
        ("--expires-at-unix-ms", "tomorrow"),
        ("--stream-it", "x"),
        ("--socket", ""),
        ("another", "text"),
    ],
)
def test_a_wrong_command_line_ends_with_64_before_anything_is_sent(
    run: Callable[..., Told], capsysbinary: pytest.CaptureFixture[bytes], wrong: Sequence[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        run(*wrong, "hello")
    assert raised.value.code == os.EX_USAGE
    out, err = capsysbinary.readouterr()
    assert out == b""
    assert b"sidecar" in err.splitlines()[-1]


def test_an_argument_that_is_not_utf_8(daemon: Process) -> None:
    command: list[Any] = [sys.executable, "-m", "sidecar", *asking(daemon.socket_path)]
    done = subprocess.run([*command, b"\xff"], capture_output=True, timeout=60, check=False)
    assert done.returncode == os.EX_DATAERR
    assert done.stderr == b"sidecar call: text: the text is not UTF-8; nothing was sent\n"


@pytest.mark.parametrize("words", [("be nasty",), ("be nasty", "--json")], ids=["text", "json"])
@pytest.mark.parametrize("end", ["pipe", "full", "closed"])
def test_a_stdout_that_takes_nothing_is_said_and_the_answer_can_be_asked_for_again(
    daemon: Process, run: Callable[..., Told], end: str, words: Sequence[str]
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    full = os.open("/dev/full", os.O_WRONLY)
    close: Callable[[], None] | None = (lambda: os.close(1)) if end == "closed" else None
    to = {"pipe": write_end, "full": full, "closed": subprocess.DEVNULL}[end]
    process = spawned(daemon.socket_path, *words, stdout=to, preexec_fn=close)
    _, err = process.communicate(timeout=60)
    os.close(write_end)
    os.close(full)
    assert process.returncode == os.EX_IOERR
    assert err.startswith(b"sidecar call: output: stdout can't be written: ")
    assert b"Traceback" not in err
    assert b"Exception" not in err
    assert run("be nasty", *replaying(err.decode()))[:2] == (0, NASTY)


def test_a_stderr_that_takes_nothing_loses_the_receipt_and_not_the_text(daemon: Process) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = spawned(daemon.socket_path, "in two parts", stderr=full)
    out, _ = process.communicate(timeout=60)
    os.close(full)
    assert (process.returncode, out.decode()) == (0, "Grüße from 北京 🙂")
    closed = spawned(daemon.socket_path, "in two parts", stderr=None, preexec_fn=lambda: os.close(2))
    out, _ = closed.communicate(timeout=60)
    assert (closed.returncode, out.decode()) == (0, "Grüße from 北京 🙂")


def test_interrupted_before_anything_is_sent(daemon: Process) -> None:
    process = spawned(daemon.socket_path, "-", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"half a sen")
    process.stdin.flush()
    wait_until(lambda: _unread_bytes(process.stdin) == 0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err == b"sidecar call: interrupted: stopped by hand; nothing was sent\n"


def _unread_bytes(pipe: Any) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_model_can_not_drive_the_terminal_but_a_pipe_gets_its_very_bytes(
    daemon: Process, run: Callable[..., Told]
) -> None:
    assert run("be nasty")[1] == NASTY
    primary, secondary = pty.openpty()
    process = spawned(daemon.socket_path, "be nasty", stdout=secondary)
    _, err = process.communicate(timeout=60)
    os.close(secondary)
    seen = os.read(primary, 4096).decode()
    os.close(primary)
    assert (process.returncode, seen) == (0, "a\ufffd[2J\ufffd\ufffdb\ufffd\r\nc\td\ufffd\r\n"), err
    # The \r are the terminal driver's own.


# --- the tables -------------------------------------------------------------------------------------------------


def test_every_way_to_end_has_a_meaning_and_every_code_is_explained() -> None:
    assert set(REFUSALS) == set(get_args(Refusal))
    assert set(FAILURES) == set(get_args(FailureKind))
    assert set(TRANSPORT_ERRORS) == set(get_args(TransportErrorCode))
    assert set(COMMAND_FAULTS) == set(get_args(CommandFault))
    meanings = [*REFUSALS.values(), *FAILURES.values(), *TRANSPORT_ERRORS.values(), *COMMAND_FAULTS.values()]
    assert {meaning.exit_code for meaning in meanings} | {0, HUNG_UP, TERMINATED} == set(EXIT_CODES)


def test_75_is_for_what_may_work_in_a_while_and_for_nothing_else() -> None:
    for table in (REFUSALS, FAILURES, TRANSPORT_ERRORS, COMMAND_FAULTS):
        for kind, meaning in table.items():
            if meaning.exit_code == os.EX_TEMPFAIL:
                assert meaning.retry != "no", kind


def test_the_help_and_the_readme_list_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["call", "--help"])
    told = capsys.readouterr().out
    readme = (ROOT / "README.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"{code:>3}  {meaning}" in told
        assert f"| {code} | {meaning} |" in readme
