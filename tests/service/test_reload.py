"""Reload over a real daemon: all of a new configuration is in force or none, and nothing that runs is disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit.daemon_process import Client, Process, invocation, packed, running_daemon, wait_until, write_config
from kit.ledger_view import LedgerView, view_of_live
from kit.road import receipt, said

from sidecar.cli.main import main

OPERATOR = "\n[[operator]]\n"
SLOW = '[[rule]]\ntext = "slow"\ndelay_ms = 700\n'
HANG = '[[rule]]\ntext = "hang"\nhang = true\n'
SECOND_MODEL = """
[[model]]
name = "npc2"
connector = "provider"
upstream = "echo-2"
[[model.price]]
input = 1
cache_read = 1
cache_write_short = 1
cache_write_long = 1
output = 1
"""
OTHER_CALLER = """
[[caller]]
id = "tavern"
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = {window}
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Process]:
    with running_daemon(tmp_path, script=SLOW + HANG, callers=OPERATOR) as process:
        yield process


def config_of(daemon: Process) -> Path:
    return daemon.folder / "sidecar.toml"


def change(daemon: Process, *replacements: tuple[str, str], more: str = "", **keys: object) -> None:
    """Texts replaced, keys given other values where they first stand, and tables added."""
    text = config_of(daemon).read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    for key, value in keys.items():
        text, changed = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, count=1, flags=re.MULTILINE)
        assert changed == 1
    config_of(daemon).write_text(text + more)


def reloaded(daemon: Process, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    code = main(["reload", "--socket", str(daemon.socket_path), "--json"])
    told = dict(json.loads(capsys.readouterr().out))
    assert told["exit_code"] == code
    return told


def begun(daemon: Process, count: int = 1) -> None:
    wait_until(lambda: len(view_of_live(daemon.folder / "ledger").open) == count)


def status(client: Client) -> dict[str, Any]:
    return dict(msgpack.unpackb(client.ask(packed({"schema_id": "gamecult.model.transport_status.v1"}))))


def spent(client: Client, caller: str) -> tuple[int, int]:
    [of_caller] = [one for one in status(client)["callers"] if one["caller_runtime_id"] == caller]
    return of_caller["spent_micro_usd"], of_caller["reserved_micro_usd"]


def test_a_ceiling_a_price_and_a_callers_models_change_under_64_streams_and_no_request_fails(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    going, answers, fails = threading.Event(), [0] * 64, []
    going.set()

    def stream(number: int) -> None:
        with daemon.connect() as client:
            while going.is_set():
                request_id = f"r{number}-{answers[number]}"
                words = "slow" if number % 8 == 0 else "hello there"
                if (how := said(client.ask(invocation(request_id, words)))) != "end_turn":
                    fails.append(how)
                answers[number] += 1

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(answers) > 200)
        for ceiling, price, more in ((10**12 + 1, 2_000_004, SECOND_MODEL), (10**12 + 2, 4_000_000, "")):
            models = '["npc", "npc2"]'
            change(daemon, more=more, spend_ceiling_micro_usd=ceiling, input=price, models=models)
            before = sum(answers)
            told = reloaded(daemon, capsys)
            assert told["ok"], told
            wait_until(lambda before=before: sum(answers) > before + 200)
    finally:
        going.clear()
        for thread in threads:
            thread.join()
    assert fails == []
    with daemon.connect() as client:
        [caller] = status(client)["callers"]
        assert caller["ceiling_micro_usd"] == 10**12 + 2
        assert said(client.ask(invocation("two", model="npc2"))) == "end_turn"
    assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0
    assert daemon.stop() == 0
    prices = {begin.prices[0].input for begin in LedgerView(daemon.folder / "ledger").begins if begin.model == "npc"}
    assert prices == {2_000_003, 2_000_004, 4_000_000}


def test_what_changed_is_said_key_by_key_to_the_operator_and_in_the_log(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    change(daemon, input=2_000_005, concurrent_requests_max=7)
    told = reloaded(daemon, capsys)
    assert told["changes"] == [
        'caller "dungeon".concurrent_requests_max: 100 -> 7',
        'model "npc".price.input: 2000003 -> 2000005',
    ]
    log = daemon.log()
    assert f'reloaded by="uid {os.getuid()}, pid {os.getpid()}" changes=2' in log
    assert "config_changed what=" in log
    assert reloaded(daemon, capsys)["changes"] == []


def test_a_broken_file_changes_nothing_and_every_complaint_is_said(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    change(daemon, models='["npd"]', input=-1)
    told = reloaded(daemon, capsys)
    assert (told["ok"], told["exit_code"], told["changes"]) == (False, os.EX_CONFIG, [])
    assert len(told["complaints"]) == 2
    assert any("npd" in complaint for complaint in told["complaints"])
    with daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"
    assert "reload_refused" in daemon.log()
    assert daemon.log().count("config_complaint") == 2


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ('socket = "s.sock"', 'socket = "t.sock"', "daemon.socket"),
        ('socket = "s.sock"', 'socket = "s.sock"\nsocket_mode = "0600"', "daemon.socket_mode"),
        ('directory = "ledger"', 'directory = "ledger2"', "ledger.directory"),
        ("segment_bytes = 1048576", "segment_bytes = 2097152", "ledger.segment_bytes"),
    ],
)
def test_what_cant_change_live_is_refused_with_why_and_nothing_else_changes_with_it(
    daemon: Process, capsys: pytest.CaptureFixture[str], old: str, new: str, path: str
) -> None:
    change(daemon, (old, new), concurrent_requests_max=7)
    told = reloaded(daemon, capsys)
    assert not told["ok"]
    [complaint] = told["complaints"]
    assert path in complaint
    assert "can't change while the daemon runs" in complaint
    change(daemon, (new, old))
    assert reloaded(daemon, capsys)["changes"] == ['caller "dungeon".concurrent_requests_max: 100 -> 7']


def test_a_caller_removed_in_mid_request_gets_its_answer_and_then_is_nobody(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = invocation("r1", "slow")
    with daemon.connect() as client:
        client.send(frame)
        begun(daemon)
        change(daemon, ('id = "dungeon"', 'id = "cellar"'))
        told = reloaded(daemon, capsys)
        assert told["changes"] == ['caller "cellar": added', 'caller "dungeon": removed']
        answer = client.receive()
        assert answer is not None
        assert (said(answer), receipt(answer)["request_id"]) == ("end_turn", "r1")
        for late in (invocation("r2"), frame):
            assert said(client.ask(late)) == "IdentitySubstitution"
        assert said(client.ask(invocation("r3", caller_runtime_id="cellar"))) == "end_turn"
    assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0
    capsys.readouterr()
    change(daemon, ('id = "cellar"', 'id = "dungeon"'))
    assert reloaded(daemon, capsys)["ok"]
    with daemon.connect() as client:
        assert client.ask(frame) == answer
        assert spent(client, "dungeon") == (receipt(answer)["cost_micro_usd"], 0)


def test_a_request_that_runs_is_charged_and_bounded_by_the_terms_of_its_admission(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon.connect() as client:
        cheap = client.ask(invocation("r0", "slow"))
        client.send(invocation("r1", "slow"))
        begun(daemon)
        terms = ('kind = "scripted"', 'kind = "scripted"\nresponse_bytes_max = 1\nusage = "bound"')
        change(daemon, terms, input=900_000_000)
        assert reloaded(daemon, capsys)["ok"]
        answer = client.receive()
        assert answer is not None
        assert receipt(answer)["cost_micro_usd"] == receipt(cheap)["cost_micro_usd"]
        assert said(client.ask(invocation("r2", "slow"))) == "result_size"


@pytest.mark.parametrize("window", [86_400, 3_600])
def test_a_caller_that_the_ledger_knows_and_this_run_does_not_has_spent_what_it_has_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], window: int
) -> None:
    write_config(tmp_path, script=HANG, callers=OPERATOR + OTHER_CALLER.format(window=86_400))
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        paid = client.ask(invocation("r1", caller_runtime_id="tavern"))
        client.send(invocation("lost", "hang", caller_runtime_id="tavern"))
        begun(daemon)
        daemon.kill()
    [held] = [begin for begin in LedgerView(tmp_path / "ledger").begins if begin.request_id == "lost"]
    write_config(tmp_path, script=HANG, callers=OPERATOR)
    with running_daemon(tmp_path) as daemon:
        change(daemon, more=OTHER_CALLER.format(window=window))
        assert reloaded(daemon, capsys)["changes"] == ['caller "tavern": added']
        with daemon.connect() as client:
            assert spent(client, "tavern") == (receipt(paid)["cost_micro_usd"], held.reservation_micro_usd)
            [tavern] = [one for one in status(client)["callers"] if one["caller_runtime_id"] == "tavern"]
            assert (tavern["indeterminate"], tavern["window_seconds"]) == (1, window)
            assert client.ask(invocation("r2", caller_runtime_id="tavern"))
        assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0
        assert daemon.stop() == 0


def test_a_window_of_another_length_holds_what_was_spent_in_it_and_what_runs(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    with daemon.connect() as client:
        first = receipt(client.ask(invocation("r1")))["cost_micro_usd"]
        client.send(invocation("r2", "slow"))
        begun(daemon)
        change(daemon, spend_window_seconds=864_000)
        assert reloaded(daemon, capsys)["ok"]
        answer = client.receive()
        assert answer is not None
        assert spent(client, "dungeon") == (first + receipt(answer)["cost_micro_usd"], 0)
    assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0
    assert daemon.stop() == 0
    with running_daemon(daemon.folder) as again, again.connect() as client:
        assert spent(client, "dungeon") == (first + receipt(answer)["cost_micro_usd"], 0)


def test_an_open_connection_may_be_what_the_new_configuration_says(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = invocation("r1", caller_runtime_id="tavern")
    with daemon.connect() as client:
        assert said(client.ask(frame)) == "IdentitySubstitution"
        change(daemon, (OPERATOR, ""), more=OTHER_CALLER.format(window=60))
        assert reloaded(daemon, capsys)["ok"]
        assert said(client.ask(frame)) == "end_turn"
    assert main(["reload", "--socket", str(daemon.socket_path)]) == os.EX_NOPERM
    assert "[[operator]]" in capsys.readouterr().err


def test_sighup_reloads_too_and_says_so_in_the_log(daemon: Process) -> None:
    change(daemon, concurrent_requests_max=7)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: 'reloaded by="a signal" changes=1' in daemon.log())
    change(daemon, concurrent_requests_max="seven")
    os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: 'reload_refused by="a signal"' in daemon.log())
    with daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"


def test_a_burst_of_signals_ends_with_the_newest_file_in_force(daemon: Process) -> None:
    for number in range(20):
        text = re.sub(r"(concurrent_requests_max =) \d+", rf"\1 {number + 1}", config_of(daemon).read_text())
        (daemon.folder / "next.toml").write_text(text)
        os.replace(daemon.folder / "next.toml", config_of(daemon))
        os.kill(daemon.pid, signal.SIGHUP)
    wait_until(lambda: "-> 20" in daemon.log())
    assert daemon.stop() == 0


def test_a_bound_on_frames_counts_for_connections_from_then_on(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    large = invocation("r1", "w" * 5000)
    with daemon.connect() as before:
        change(daemon, frame_bytes_max=4096)
        assert reloaded(daemon, capsys)["ok"]
        assert said(before.ask(large)) == "result_size"  # its answer says the words again
    with daemon.connect() as after:
        assert msgpack.unpackb(after.ask(large))["code"] == "frame_size"


def test_a_script_is_read_again_and_an_unchanged_one_goes_on_counting(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    once = '[[rule]]\ntimes = 1\ndeltas = ["first"]\n[[rule]]\ndeltas = ["{}"]\n'

    def text(client: Client, request_id: str) -> str:
        return str(msgpack.unpackb(client.ask(invocation(request_id)))["disposition"]["Transported"]["events"])

    with daemon.connect() as client:
        (daemon.folder / "script.toml").write_text(once.format("second"))
        told = reloaded(daemon, capsys)
        assert told["changes"] == [
            'connector "provider": what it reads (a credential, a script, recordings) has been read again'
        ]
        assert "first" in text(client, "r1")
        assert reloaded(daemon, capsys)["changes"] == []
        assert "second" in text(client, "r2")
        (daemon.folder / "script.toml").write_text(once.format("third"))
        assert reloaded(daemon, capsys)["ok"]
        assert "first" in text(client, "r3")
        (daemon.folder / "script.toml").write_text("[[rule]]\nnonsense = 1\n")
        assert not reloaded(daemon, capsys)["ok"]
        assert "third" in text(client, "r4")


def children_of(pid: int) -> set[int]:
    """Also those that another of its threads has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for listed in lists for child in listed.read_text().split()}


def process_connector(folder: Path, mode: str) -> str:
    child = Path(__file__).parents[1] / "clients" / "process_child.py"
    return f'kind = "process"\nargv = ["{sys.executable}", "{child}"]\nenvironment = {{PARROT_MODE = "{mode}"}}\n'


def test_a_connector_that_is_gone_ends_behind_its_last_request_and_one_that_stays_keeps_its_children(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_daemon(tmp_path, connector=process_connector(tmp_path, "polite"), callers=OPERATOR) as daemon:
        wait_until(lambda: bool(children_of(daemon.pid)))
        first = children_of(daemon.pid)
        change(daemon, concurrent_requests_max=50)
        assert reloaded(daemon, capsys)["ok"]
        assert children_of(daemon.pid) == first
        change(daemon, ('PARROT_MODE = "polite"', 'PARROT_MODE = "loud"'))
        told = reloaded(daemon, capsys)
        assert told["changes"] == ["connector \"provider\".environment: ['PARROT_MODE'] -> ['PARROT_MODE']"]
        assert "loud" not in daemon.log()
        wait_until(lambda: bool(children_of(daemon.pid)) and not children_of(daemon.pid) & first)
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"
        assert daemon.stop() == 0


def test_a_reload_during_the_drain_disturbs_nothing(daemon: Process) -> None:
    with daemon.connect() as client:
        client.send(invocation("r1", "slow"))
        begun(daemon)
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: " draining " in daemon.log())
        os.kill(daemon.pid, signal.SIGHUP)
        answer = client.receive()
        assert answer is not None
        assert said(answer) == "end_turn"
        assert daemon.process.wait(timeout=20) == 0


def test_accounts_stay_equal_to_the_records_while_windows_change_again_and_again_under_load(
    daemon: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    going = threading.Event()
    going.set()
    fails: list[str] = []

    def load(number: int) -> None:
        with daemon.connect() as client:
            count = 0
            while going.is_set():
                if (how := said(client.ask(invocation(f"w{number}-{count}")))) != "end_turn":
                    fails.append(how)
                count += 1

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(12):
            change(daemon, spend_window_seconds=(864_000, 86_400)[turn % 2])
            assert reloaded(daemon, capsys)["ok"]
            assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0
            capsys.readouterr()
    finally:
        going.clear()
        for thread in threads:
            thread.join()
    assert fails == []
    assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == 0


RELOAD = packed({"schema_id": "gamecult.model.operator_reload.v1"})


@pytest.mark.parametrize("asked", [["signal"], ["operator"], ["signal", "operator"], ["operator", "operator"]])
def test_a_file_that_never_ends_holds_up_neither_requests_nor_the_exit(daemon: Process, asked: list[str]) -> None:
    config_of(daemon).unlink()
    os.mkfifo(config_of(daemon))
    operators = [daemon.connect() for by in asked if by == "operator"]
    if "signal" in asked:
        os.kill(daemon.pid, signal.SIGHUP)
    for operator in operators:
        operator.send(RELOAD)
    with daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"
    assert daemon.stop() == 0
    for operator in operators:
        answer = operator.receive()
        assert answer is not None
        assert said(answer) == "shutting_down"
        operator.close()
    assert main(["ledger", "verify", str(daemon.folder / "ledger")]) == 0


def test_a_signal_that_comes_before_the_daemon_serves_reloads_it_once_it_does(tmp_path: Path) -> None:
    """Just as the ledger has been opened: connectors with children of their own are started then."""
    more = "".join(f'[[connector]]\nname = "p{at}"\nkind = "process"\nargv = ["sleep", "1000"]\n' for at in range(8))
    write_config(tmp_path, callers="\n" + more)
    (tmp_path / "early.py").write_text(EARLY)
    wrapper = [sys.executable, str(tmp_path / "early.py")]
    with running_daemon(tmp_path, wrapper=wrapper) as daemon:
        wait_until(lambda: 'reloaded by="a signal"' in daemon.log())
        log = daemon.log()
        assert log.index(" ready ") < log.index(" reloaded by")
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"
        assert daemon.stop() == 0


EARLY = """
import os, signal, sys
from pathlib import Path
from sidecar.cli import serve
real = serve.open_ledger
def opened(*arguments):
    ledger = real(*arguments)
    os.kill(os.getpid(), signal.SIGHUP)
    return ledger
serve.open_ledger = opened
sys.exit(serve.serve(Path(sys.argv[-1]), None))
"""


@pytest.mark.parametrize("broken", ["", "\x00", "[" * 100_000, "x = " + "9" * 10_000, "\ufeff[daemon]"], ids=len)
def test_whatever_the_file_has_become_the_daemon_goes_on(
    daemon: Process, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    config_of(daemon).write_text(broken)
    told = reloaded(daemon, capsys)
    assert (told["ok"], bool(told["complaints"])) == (False, True)
    with daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"
