"""`sidecar call --stream`: the text as it comes, all of it in the end, and what is told when it breaks off."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.answering_daemon import answering_daemon
from kit.daemon_process import Process, running_daemon, wait_until

from goldens import published_values as published
from sidecar.cli import output
from sidecar.cli.main import main
from sidecar.cli.receipt import shown

SAME = ("--request-id", "turn-1", "--expires-at-unix-ms", "1790000000000")
Told = tuple[int, str, str]
Payload = dict[str, Any]


def words(at: Path, *more: str) -> list[str]:
    return ["call", "--stream", "--socket", str(at), "--model", "npc", "--caller", "dungeon", *SAME, *more]


def text(piece: str) -> Payload:
    return {"TextDelta": {"text": piece}}


def piece(said: str, sequence: int = 0) -> dict[str, Any]:
    return published.live_event(text(said), sequence)


def speaking(*said: Any) -> Callable[[dict[str, Any]], Iterator[Any]]:
    """A daemon that welcomes, and answers the invocation with these."""

    def answer(frame: dict[str, Any]) -> Iterator[Any]:
        if frame["schema_id"].endswith("hello.v1"):
            yield published.welcome(join=False)
        else:
            yield from said

    return answer


@pytest.fixture
def told(capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[[list[str]], Told]:
    def run(command: list[str]) -> Told:
        code = main(command)
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


def spawned(at: Path, *more: str, **ends: Any) -> subprocess.Popen[bytes]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **ends}
    return subprocess.Popen([sys.executable, "-m", "sidecar", *words(at, *more)], **pipes)


# --- the pieces -------------------------------------------------------------------------------------------------


def test_it_asks_for_live_events_and_not_to_join(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    with answering_daemon(tmp_path / "s", speaking(published.transported(text("hi")))) as heard:
        assert told(words(tmp_path / "s", "hello"))[:2] == (0, "hi")
    hello = heard[0]
    assert hello["client"].startswith("sidecar call ")
    assert (hello["protocol"], hello["stream_events"], hello["join"]) == (1, True, False)
    assert heard[1]["request"]["input"] == [published.user("hello")]


def test_each_piece_is_written_before_the_next_one_comes(tmp_path: Path) -> None:
    seen = threading.Event()

    def said() -> Iterator[Any]:
        yield piece("A stair")
        assert seen.wait(20)
        yield piece("case.")
        yield published.transported(text("A staircase."))

    def answer(frame: dict[str, Any]) -> Iterator[Any]:
        yield from speaking(*())(frame) if frame["schema_id"].endswith("hello.v1") else said()

    with answering_daemon(tmp_path / "s", answer):
        process = spawned(tmp_path / "s", "hello")
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"A stair"
        seen.set()
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"case.")
    assert err.startswith(b"model:   npc-fast, answered by claude\n")


@pytest.mark.parametrize(
    ("live", "whole"),
    [
        ([], [text("So be it.")]),
        ([piece("So be"), piece(" it.")], [text("So be it.")]),
        ([piece("So ")], [text("So be it.")]),
        (
            [piece("So "), published.live_event(published.call("c"), 1)],
            [text("So "), published.call("c"), text("be it.")],
        ),
    ],
    ids=["a replay sends none", "all of them", "the later ones dropped", "dropped behind a tool call"],
)
def test_what_was_not_live_is_written_from_the_result(
    tmp_path: Path, told: Callable[[list[str]], Told], live: list[Any], whole: list[Payload]
) -> None:
    with answering_daemon(tmp_path / "s", speaking(*live, published.transported(*whole))):
        code, out, err = told(words(tmp_path / "s", "hello"))
    assert (code, out) == (0, "So be it.")
    assert "gaps" not in err


def test_a_gap_in_the_pieces_is_said_and_all_of_the_text_stands_behind_it(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    with answering_daemon(
        tmp_path / "s", speaking(piece("So "), piece("it."), published.transported(text("So be it.")))
    ):
        code, out, err = told(words(tmp_path / "s", "hello"))
    assert (code, out) == (0, "So it.\nSo be it.")
    assert err.startswith(
        "sidecar call: note: the text that came live had gaps; all of it stands on the lines after it\n"
    )


def test_with_json_each_event_is_a_line_and_the_last_is_the_object_of_all(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    state = published.live_event({"ReasoningState": {"state": b"\x00\xff"}}, 2)
    live = [piece("I "), piece("look."), published.live_event(published.call("call_1"), 1), state]
    whole = published.transported(text("I look."), published.call("call_1"), {"ReasoningState": {"state": b"\x00\xff"}})
    with answering_daemon(tmp_path / "s", speaking(*live, whole)):
        code, out, err = told(words(tmp_path / "s", "--json", "hello"))
    *events, last = map(json.loads, out.splitlines())
    assert (code, err) == (0, "")
    assert [line["event"] for line in events] == [
        {"sequence": 0, "payload": text("I ")},
        {"sequence": 0, "payload": text("look.")},
        {"sequence": 1, "payload": published.call("call_1")},
        {"sequence": 2, "payload": {"ReasoningState": {"state": "AP8="}}},
    ]
    assert (last["ok"], last["text"], [one["name"] for one in last["tool_calls"]]) == (True, "I look.", ["look"])


def test_with_json_what_was_not_live_has_its_lines_too(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    whole = published.transported(text("I look."), published.call("call_1"), outcome=published.failed())
    with answering_daemon(tmp_path / "s", speaking(piece("I "), whole)):
        code, out, _ = told(words(tmp_path / "s", "--json", "hello"))
    *events, last = map(json.loads, out.splitlines())
    assert [line["event"]["payload"] for line in events] == [text("I "), text("look."), published.call("call_1")]
    assert (code, last["ok"], last["exit_code"], last["text"]) == (os.EX_TEMPFAIL, False, os.EX_TEMPFAIL, "I look.")


# --- how it may break off ---------------------------------------------------------------------------------------


def test_a_failure_after_some_text_leaves_the_text_and_says_why_there_is_no_more(
    tmp_path: Path, told: Callable[[list[str]], Told]
) -> None:
    failed = published.transported(text("half an answer"), outcome=published.failed("unavailable", usage=None))
    with answering_daemon(tmp_path / "s", speaking(piece("half an"), failed)):
        code, out, err = told(words(tmp_path / "s", "hello"))
    assert (code, out) == (os.EX_UNAVAILABLE, "half an")
    assert err.startswith("sidecar call: unavailable: the deadline passed; ")
    assert "note:    a part of an answer had come before\n" in err


@pytest.mark.parametrize(
    ("said", "code", "why"),
    [
        ([{"schema_id": "gamecult.model.transport_result.v1", "request_id": "turn-1", "caller_runtime_id": "dungeon",
           "disposition": {"Refused": "Capacity"}}], os.EX_TEMPFAIL, "Capacity: refused: it ran nothing"),
        ([piece("half"), None], os.EX_UNAVAILABLE, "connection_lost: the daemon closed the connection before"),
        ([piece("half"), published.welcome()], os.EX_PROTOCOL, "no_daemon_protocol: what listens on "),
        ([published.live_event(text("x"), request_id="another")], os.EX_PROTOCOL, "no_daemon_protocol: what listens"),
        ([{"schema_id": "gamecult.model.transport_error.v1", "code": "shutting_down", "message": "it stops"}],
         os.EX_TEMPFAIL, "shutting_down: it stops; "),
    ],
    ids=["refused", "lost midway", "another frame", "another request's event", "an error"],
)  # fmt: skip
def test_it_ends_as_a_call_without_it_does(
    tmp_path: Path, told: Callable[[list[str]], Told], said: Sequence[Any], code: int, why: str
) -> None:
    with answering_daemon(tmp_path / "s", speaking(*said)):
        got, out, err = told(words(tmp_path / "s", "hello"))
    assert (got, out) == (code, "half" if said[0] == piece("half") else "")
    assert err.startswith(f"sidecar call: {why}")


def test_a_daemon_that_knows_no_hello_has_run_nothing(tmp_path: Path, told: Callable[[list[str]], Told]) -> None:
    error = {"schema_id": "gamecult.model.transport_error.v1", "code": "unknown_schema", "message": "no such frame"}
    with answering_daemon(tmp_path / "s", lambda _: [error]) as heard:
        code, _, err = told(words(tmp_path / "s", "hello"))
    assert (code, len(heard)) == (os.EX_PROTOCOL, 1)
    assert err.startswith("sidecar call: unknown_schema: no such frame; the daemon and this command are of different")


def test_an_interrupt_in_the_middle_says_how_to_get_the_rest(tmp_path: Path) -> None:
    over = threading.Event()

    def answer(frame: dict[str, Any]) -> Iterator[Any]:
        yield from speaking(piece("half"))(frame)
        if "request" in frame:
            assert over.wait(20)

    with answering_daemon(tmp_path / "s", answer):
        process = spawned(tmp_path / "s", "hello")
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"half"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        over.set()
    assert process.returncode == 130
    assert err.decode() == (
        "sidecar call: interrupted: stopped by hand; what was sent goes on, and is paid for; to get its answer: the"
        f" same command with {' '.join(SAME)}\n"
    )


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_reader_that_leaves_ends_it_and_is_told_that_the_request_goes_on(tmp_path: Path, more: Sequence[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with answering_daemon(
        tmp_path / "s", speaking(piece("half"), piece(" an"), published.transported(text("half an answer")))
    ):
        process = spawned(tmp_path / "s", *more, "hello", stdout=write_end)
        os.close(write_end)
        _, err = process.communicate(timeout=30)
    assert process.returncode == os.EX_IOERR
    assert err.startswith(
        b"sidecar call: output: stdout can't be written: Broken pipe; what was sent goes on, and is paid"
    )
    assert b"Traceback" not in err


# --- a terminal -------------------------------------------------------------------------------------------------


class Terminal:
    """Takes what would be written to a terminal, as stdout does."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.buffer = self
        self.seen = b""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def write(self, said: bytes) -> None:
        self.seen += said


@given(st.lists(st.text("\x1b[2J\r\n\u202e\x9bab\t", max_size=4), max_size=6))
def test_however_a_text_is_cut_a_terminal_shows_what_it_would_of_the_whole(pieces: list[str]) -> None:
    whole, cut = Terminal(), Terminal()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", whole)
        output.write_out("".join(pieces))
        patched.setattr(sys, "stdout", cut)
        live = output.LiveText()
        for one in pieces:
            live.write(one)
        live.end()
    assert cut.seen == whole.seen
    assert not set("\x1b\x9b\u202e") & set(cut.seen.decode())
    assert shown("".join(pieces)).encode() in whole.seen


def test_an_escape_sequence_in_two_pieces_drives_no_terminal_and_what_is_told_has_a_line_of_its_own(
    tmp_path: Path,
) -> None:
    primary, secondary = pty.openpty()
    said = [piece("a\x1b"), piece("[2Jb\r"), piece("\nc")]
    with answering_daemon(tmp_path / "s", speaking(*said, published.transported(text("a\x1b[2Jb\r\nc")))):
        process = spawned(tmp_path / "s", "hello", stdout=secondary)
        _, err = process.communicate(timeout=30)
    os.close(secondary)
    seen = os.read(primary, 4096).decode()
    os.close(primary)
    assert (process.returncode, seen) == (0, "a\ufffd[2Jb\r\nc\r\n"), err


# --- the daemon -------------------------------------------------------------------------------------------------

SCRIPT = """
[[rule]]
text = "slowly"
deltas = ["Who ", "goes ", "there?"]
delta_delay_ms = 1
[[rule]]
text = "and hang"
deltas = ["Who "]
hang = true
[[rule]]
text = "at length"
deltas = ["0123456789"]
repeat = 12_000
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with running_daemon(tmp_path_factory.mktemp("d"), script=SCRIPT) as running:
        yield running


def asking(daemon: Process, *more: str) -> list[str]:
    return ["call", "--stream", "--socket", str(daemon.socket_path), "--model", "npc", "--caller", "dungeon", *more]


def test_the_daemon_s_pieces_come_live_and_add_up(daemon: Process, told: Callable[[list[str]], Told]) -> None:
    code, out, err = told(asking(daemon, "--json", "slowly"))
    *events, last = map(json.loads, out.splitlines())
    assert (code, err) == (0, "")
    assert [(line["event"]["sequence"], line["event"]["payload"]) for line in events] == [
        (0, text("Who ")),
        (0, text("goes ")),
        (0, text("there?")),
    ]
    assert last["text"] == "Who goes there?"


def test_a_replay_is_told_at_once_and_whole(daemon: Process, told: Callable[[list[str]], Told]) -> None:
    first = told(asking(daemon, "--request-id", "again", "slowly"))
    same = [word for word in first[2].split() if word.isdecimal() and len(word) == 13][-1]
    again = ("--request-id", "again", "--expires-at-unix-ms", same)
    assert told(asking(daemon, *again, "slowly")) == first
    event, last = map(json.loads, told(asking(daemon, "--json", *again, "slowly"))[1].splitlines())
    assert event == {"event": {"sequence": 0, "payload": text("Who goes there?")}}
    assert last["text"] == "Who goes there?"


def test_the_first_piece_is_there_while_the_rest_is_not(daemon: Process) -> None:
    command = asking(daemon, "--request-id", "hangs", "and hang")
    cancel = ["cancel", "--socket", str(daemon.socket_path), "--caller", "dungeon", "--request-id", "hangs"]
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "sidecar", *command], **both) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"Who "
        assert main(cancel) == 0
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (os.EX_TEMPFAIL, b"")
    assert err.startswith(b"sidecar call: timeout: ")


def test_a_reader_that_is_too_slow_for_live_events_misses_nothing(daemon: Process) -> None:
    command = asking(
        daemon, "--request-id", "long", "--max-output-tokens", "4096", "--budget", "1_000_000", "at length"
    )
    both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "sidecar", *command], **both) as process:
        wait_until(lambda: "completed caller=dungeon request=long" in daemon.log())
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"0123456789" * 12_000)
    assert b"gaps" not in err
