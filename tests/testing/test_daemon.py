"""A daemon under test, over its real socket: told what to answer, asked what happened, killed and started again."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit.daemon_process import Client, invocation

import sidecar
from sidecar.testing.daemon import Daemon, spawned
from sidecar.testing.faults import FolderInUse, LogIncomplete, NoSidecar, NotAsked, NotReady, SocketPathTooLong
from sidecar.testing.refusals import RefusedRequest

NPC: dict[str, Any] = {"models": ["npc"]}


@pytest.fixture(scope="module")
def of_module() -> Iterator[Daemon]:
    with spawned(**NPC) as daemon:
        yield daemon


@pytest.fixture
def daemon(of_module: Daemon) -> Daemon:
    of_module.begin_anew()
    return of_module


_ids = iter(range(10**9))


def ask(daemon: Daemon, words: str = "hello there", request_id: str = "", **changes: Any) -> dict[str, Any]:
    with Client(daemon.socket) as client:
        frame = invocation(request_id or f"request-{next(_ids)}", words, **changes)
        result: dict[str, Any] = msgpack.unpackb(client.ask(frame))["disposition"]
    return result


def said(daemon: Daemon, words: str = "hello there") -> str:
    events = ask(daemon, words)["Transported"]["events"]
    return "".join(event["payload"]["TextDelta"]["text"] for event in events)


# --- what it answers ----------------------------------------------------------------------------------------


def test_it_echoes_until_something_is_said_and_says_the_newest_word(daemon: Daemon) -> None:
    assert said(daemon) == "hello there"
    daemon.says("It ", "sleeps.")
    assert said(daemon) == "It sleeps."
    daemon.says("It wakes.")
    assert said(daemon) == "It wakes."
    daemon.forget()
    assert said(daemon) == "hello there"


def test_a_case_goes_before_what_is_said_of_everything_and_a_counted_one_before_both(daemon: Daemon) -> None:
    daemon.on(text="dragon").says("a dragon")
    daemon.says("anything")
    daemon.on(times=1).says("first")
    daemon.on(text="dragon", times=1).says("second")
    assert [said(daemon, "the dragon") for _ in range(4)] == ["first", "second", "a dragon", "a dragon"]
    assert said(daemon) == "anything"


def test_a_count_is_kept_while_other_things_are_said_and_begins_anew_when_it_is_said_again(daemon: Daemon) -> None:
    daemon.on(times=2).says("twice")
    assert said(daemon) == "twice"
    daemon.on(text="other").says("other")
    assert [said(daemon), said(daemon)] == ["twice", "hello there"]
    daemon.on(times=2).says("twice")
    assert [said(daemon), said(daemon), said(daemon)] == ["twice", "twice", "hello there"]


def test_a_tool_call_and_what_is_said_to_its_result(daemon: Daemon) -> None:
    daemon.calls("look", {"at": "door"}, id="c1")
    daemon.on(tool="look").says("A staircase.")
    (event,) = ask(daemon)["Transported"]["events"]
    call = {"call_id": "c1", "name": "look", "arguments": '{"at": "door"}'}
    assert event["payload"] == {"ToolCall": call}
    history = [{"UserText": {"text": "x"}}, {"ToolCall": call}, {"ToolResult": {"call_id": "c1", "output": "dark"}}]
    answer = ask(daemon, input=history)["Transported"]
    assert answer["events"][0]["payload"] == {"TextDelta": {"text": "A staircase."}}


def test_failures_are_recorded_and_cost_what_is_said(daemon: Daemon) -> None:
    daemon.on(times=1).fails("rate_limited", "slow down", usage={"output": 3})
    daemon.on(times=1).fails("unavailable", nothing_sent=True)
    daemon.on(times=1).fails("provider", after=["It "])
    failed = [ask(daemon)["Transported"]["receipt"]["outcome"]["Failed"] for _ in range(3)]
    assert [one["kind"] for one in failed] == ["rate_limited", "unavailable", "provider"]
    assert failed[0]["message"] == "slow down"
    assert [one.outcome for one in daemon.requests] == ["rate_limited", "unavailable", "provider"]
    assert [one.charge_micro_usd for one in daemon.requests] == [15, 0, daemon.requests[2].reservation_micro_usd]


def test_a_request_that_hangs_is_asked_and_ends_at_its_deadline(daemon: Daemon) -> None:
    daemon.hangs("It ")
    answer = ask(daemon, seconds=0.3)["Transported"]
    assert answer["receipt"]["outcome"]["Failed"]["kind"] == "timeout"
    assert answer["events"][0]["payload"] == {"TextDelta": {"text": "It "}}
    assert len(daemon.asked) == 1


# --- what happened ------------------------------------------------------------------------------------------


def test_what_was_asked_is_there_in_order_when_the_answer_is(daemon: Daemon) -> None:
    for words in ("one", "two\nlines", "\N{DRAGON}"):
        said(daemon, words)
        assert daemon.asked[-1].input[0].user_text.text == words
    assert [request.model for request in daemon.asked] == ["npc"] * 3
    assert daemon.asked == daemon.asked


def test_a_refusal_is_there_with_its_reason_when_its_answer_is(daemon: Daemon) -> None:
    daemon.rejects("too odd")
    for at in range(20):
        assert ask(daemon, request_id=f"odd-{at}") == {"Refused": "ProviderRejected"}
        assert daemon.refused[-1] == RefusedRequest(
            refusal="ProviderRejected", caller_runtime_id="dungeon", request_id=f"odd-{at}", why="too odd"
        )
    assert (daemon.asked, daemon.requests) == ([], [])


def test_a_flood_of_refusals_is_no_list(daemon: Daemon) -> None:
    with Client(daemon.socket) as client:
        for at in range(300):
            client.send(invocation(f"flood-{at}", max_cost_micro_usd=1))
        for _ in range(300):
            client.receive()
    with pytest.raises(LogIncomplete, match="look at the answers"):
        _ = daemon.refused
    daemon.begin_anew()
    assert daemon.refused == []
    ask(daemon, max_cost_micro_usd=1)
    assert [one.refusal for one in daemon.refused] == ["CostBound"]


def test_the_ledger_tells_what_each_request_came_to(daemon: Daemon) -> None:
    daemon.says("x", usage={"input": 100, "output": 2})
    receipt = ask(daemon, request_id="turn-1")["Transported"]["receipt"]
    daemon.says("x", usage={"input": 5, "output": 10**7})
    ask(daemon, request_id="turn-2")
    first, second = daemon.requests
    assert (first.caller_runtime_id, first.request_id, first.model, first.state) == (
        "dungeon",
        "turn-1",
        "npc",
        "completed",
    )
    assert first.charge_micro_usd == receipt["cost_micro_usd"] == 110
    assert first.usage is not None
    assert first.usage.input_tokens == 100
    assert first.reservation_micro_usd > 110
    assert second.notes == ("over_run",)
    assert daemon.charged_micro_usd == 110 + 5 + 5 * 10**7


def test_begun_anew_it_tells_only_what_is_new(daemon: Daemon) -> None:
    daemon.on(times=5).says("x")
    said(daemon)
    ask(daemon, max_cost_micro_usd=1)
    assert (len(daemon.asked), len(daemon.refused), len(daemon.requests)) == (1, 1, 1)
    daemon.begin_anew()
    assert (daemon.asked, daemon.refused, daemon.requests, daemon.log, daemon.charged_micro_usd) == ([], [], [], [], 0)
    assert said(daemon) == "hello there"
    assert (len(daemon.asked), len(daemon.requests)) == (1, 1)
    assert [line.fact for line in daemon.log] == ["connected", "completed"]


def test_a_program_of_its_own_finds_the_socket_in_its_environment(daemon: Daemon) -> None:
    code = "import os, socket; socket.socket(socket.AF_UNIX).connect(os.environ['SIDECAR_SOCKET'])"
    subprocess.run([sys.executable, "-c", code], env=daemon.env, check=True, timeout=30)
    assert daemon.env.keys() - os.environ.keys() <= {"SIDECAR_SOCKET"}


# --- its process --------------------------------------------------------------------------------------------


def test_a_crash_leaves_open_what_ran_and_a_restart_answers_what_had_ended() -> None:
    with spawned(**NPC) as daemon:
        daemon.on(text="dragon").hangs()
        ended = invocation("ended")
        with Client(daemon.socket) as client:
            first = client.ask(ended)
            client.send(invocation("open", "the dragon"))
            client.ask(invocation("later"))  # so the one before it has begun
            daemon.kill()
        assert daemon.exit_code == -signal.SIGKILL
        assert [one.state for one in daemon.requests] == ["completed", "indeterminate", "completed"]
        daemon.restart()
        with Client(daemon.socket) as client:
            assert client.ask(ended) == first
        assert [line.values["request"] for line in daemon.log if line.fact == "indeterminate"] == ["open"]
        assert {request.request_id for request in daemon.asked} == {"ended", "open", "later"}
        assert daemon.stop() == 0
        daemon.kill()
        assert daemon.exit_code == 0


def test_what_was_said_holds_over_a_restart_of_a_daemon_that_runs() -> None:
    with spawned(**NPC) as daemon:
        daemon.says("It sleeps.")
        before = daemon.pid
        daemon.restart()
        assert daemon.pid != before
        assert said(daemon) == "It sleeps."
        assert [line.fact for line in daemon.log].count("ready") == 2


def test_who_waits_until_the_provider_is_asked_can_crash_it_in_mid_request() -> None:
    with spawned(**NPC) as daemon:
        daemon.hangs()
        with Client(daemon.socket) as client:
            client.send(invocation("open"))
            assert [request.request_id for request in daemon.wait_asked()] == ["open"]
            assert [one.state for one in daemon.requests] == ["indeterminate"]
            client.send(invocation("other"))
            assert len(daemon.wait_asked(2)) == 2
            daemon.kill()
        assert len(daemon.wait_asked(2)) == 2
        with pytest.raises(NotAsked, match="asked 2 times, not 3, and the daemon has ended"):
            daemon.wait_asked(3)


def test_who_waits_in_vain_is_told_so_with_the_log(daemon: Daemon) -> None:
    said(daemon)
    daemon.begin_anew()
    daemon.rejects("too odd")
    ask(daemon)
    with pytest.raises(NotAsked, match=r"(?s)asked 0 times, not 1, within 0\.01 s.*too odd"):
        daemon.wait_asked(seconds_max=0.01)


def test_beside_a_request_that_hangs_a_stop_takes_no_longer_than_a_short_drain() -> None:
    with spawned(**NPC) as daemon:
        assert tomllib.loads((daemon.folder / "sidecar.toml").read_text())["daemon"]["drain_seconds_max"] == 2
        daemon.hangs("It ")
        with Client(daemon.socket) as client:
            client.send(invocation("open"))
            daemon.wait_asked()
            assert daemon.stop() == 0
        assert [(one.state, one.outcome) for one in daemon.requests] == [("failed", "unavailable")]


def test_it_is_gone_with_its_folder_when_the_block_is_left_however_that_is() -> None:
    started: list[Daemon] = []

    def broken_test() -> None:
        with spawned() as daemon:
            started.append(daemon)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_test()
    assert not started[0].folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)


LEFT_BEHIND = """
import os, subprocess, sys, threading
from sidecar.testing import spawned
with spawned() as daemon:
    child = subprocess.Popen(["sleep", "60"])  # one that outlives it holds nothing of the daemon's
    print(daemon.pid, child.pid, flush=True)
    input()
"""


@pytest.mark.parametrize("how", ["killed", "exits at once"])
def test_it_is_gone_when_the_test_s_own_process_is_however_that_went(how: str) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(sidecar.__file__).parents[1])}
    code = LEFT_BEHIND + ("" if how == "killed" else "    os._exit(3)\n")
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as test:
        assert test.stdin is not None
        assert test.stdout is not None
        daemon, child = (os.pidfd_open(int(pid)) for pid in test.stdout.readline().split())
        try:
            if how == "killed":
                test.kill()
            else:
                test.stdin.write("\n")
                test.stdin.flush()
            poll = select.poll()  # any number of descriptors may be open beside this one
            poll.register(daemon, select.POLLIN)
            assert poll.poll(30_000), "the daemon outlives its test"
        finally:
            for left in (daemon, child):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(left, signal.SIGKILL)
                os.close(left)


def test_a_daemon_that_a_thread_has_started_outlives_the_thread() -> None:
    with ExitStack() as stack:
        started: list[Daemon] = []
        thread = threading.Thread(target=lambda: started.append(stack.enter_context(spawned(**NPC))))
        thread.start()
        thread.join()
        assert said(started[0]) == "hello there"
        assert started[0].exit_code is None


def test_settings_are_laid_over_what_serves_a_test_well() -> None:
    with spawned(
        callers={"dungeon": {}, "miser": {"spend_ceiling_micro_usd": 1_000}},
        models={"npc": {"price": {"output": 7_000_000}}, "plain": {}},
        daemon={"frame_bytes_max": 131_072},
        connector={"time_limit_seconds": 0.2},
        extra_toml='[[connector]]\nname = "other"\nkind = "scripted"\n',
    ) as daemon:
        assert (daemon.callers, daemon.models) == (("dungeon", "miser"), ("npc", "plain"))
        assert ask(daemon, caller_runtime_id="miser") == {"Refused": "SpendCeiling"}
        daemon.says("x", usage={"output": 3})
        assert ask(daemon)["Transported"]["receipt"]["cost_micro_usd"] == 21
        assert ask(daemon, model="plain")["Transported"]["receipt"]["cost_micro_usd"] == 15
        daemon.hangs()
        assert ask(daemon)["Transported"]["receipt"]["outcome"]["Failed"]["kind"] == "timeout"


def test_the_daemon_is_of_the_very_package_that_the_test_has_imported(tmp_path: Path) -> None:
    root = str(Path(sidecar.__file__).parents[1])
    code = f"""
import sys
sys.path.insert(0, {root!r})
from sidecar.testing.daemon import spawned
with spawned() as daemon:
    print(open(f"/proc/{{daemon.pid}}/environ").read().replace("\\0", "\\n"))
"""
    environ = {**os.environ, "PYTHONPATH": "relative"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert f"PYTHONPATH={root}:{tmp_path}/relative" in done.stdout.splitlines()


def test_a_folder_that_is_given_stays_and_its_ledger_is_served_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("f")
    with spawned(folder=folder, **NPC) as daemon:
        ask(daemon, request_id="turn-1")
    with spawned(folder=folder, **NPC) as daemon:
        assert [one.request_id for one in daemon.requests] == ["turn-1"]
        assert daemon.asked == []


# --- what can go wrong --------------------------------------------------------------------------------------


def test_settings_that_the_daemon_does_not_take_are_told_in_its_own_words() -> None:
    with (
        pytest.raises(NotReady, match=r"(?s)ended with 78 .*settings.*spend_celing.*did you mean spend_ceiling"),
        spawned(callers={"dungeon": {"spend_celing_micro_usd": 5}}),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"daemon": {"socket": "x"}}, "socket of daemon can't be set"),
        ({"callers": "dungeon"}, "a list of names"),
        ({"ledger": {"retention_days": None}}, "can't be written as TOML"),
    ],
)
def test_settings_that_no_daemon_needs_to_see_are_told_at_once(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=why), spawned(**settings):
        pass


def test_a_second_daemon_in_a_folder_is_refused_and_harms_nothing(daemon: Daemon) -> None:
    daemon.says("It sleeps.")
    with pytest.raises(FolderInUse, match="a folder of its own"), spawned(folder=daemon.folder):
        pass
    assert said(daemon) == "It sleeps."


def test_a_folder_whose_socket_no_kernel_takes_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(SocketPathTooLong, match=r"takes 107 for a socket: a shorter"), spawned(folder=deep):
        pass


def test_where_the_usual_folder_is_too_long_a_shorter_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with spawned() as daemon:
        assert daemon.folder.parent == Path("/tmp")


@pytest.mark.parametrize("python", ["", "/nowhere/python", "bare"])
def test_where_no_sidecar_can_be_run_it_is_said(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if python == "bare":
        bare = tmp_path / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
        bare.chmod(0o700)
        python = str(bare)
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(NoSidecar, match="install model-sidecar where the tests run"), spawned():
        pass


def test_a_daemon_that_ends_before_it_is_ready_is_shown_with_its_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("f")
    with spawned(folder=folder):
        pass
    (segment,) = (folder / "ledger").glob("*.segment")
    segment.write_bytes(b"x" * 8192 + segment.read_bytes()[8192:])
    with (
        pytest.raises(NotReady, match=r"(?s)ended with 65 .*the ledger in this folder is damaged.*The end of its log"),
        spawned(folder=folder),
    ):
        pass
