"""The real daemon over its real socket: deadlines, hang-ups, restarts, the ceiling, the stop, one instance."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from kit.daemon_process import invocation, running_daemon, spawn, wait_until, write_config
from kit.ledger_view import LedgerView, view_of_live
from kit.road import receipt, said

HANG = "[[rule]]\nhang = true\n"


def test_deadlines_twenty_times_over_real_sockets(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script=HANG, concurrent=1) as daemon, daemon.connect() as client:
        for number in range(20):
            answer = client.ask(invocation(f"r{number}", seconds=0.05))
            assert said(answer) == "timeout"
    view = LedgerView(tmp_path / "ledger")
    assert [record.outcome for _, record in view.completes] == ["timeout"] * 20
    assert not view.open


def test_i1_a_caller_that_hangs_up_is_served_and_its_retry_replays_even_after_a_restart(tmp_path: Path) -> None:
    """The same bytes get the same answer later, after its model left the config and after its price doubled."""
    slow = '[[rule]]\ndelay_ms = 100\ndeltas = ["the ", "answer"]\ntimes = 1\n[[rule]]\ndeltas = ["a second ask"]\n'
    frame = invocation("r1")
    with running_daemon(tmp_path, script=slow) as daemon:
        with daemon.connect() as client:
            client.send(frame)
            wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
        wait_until(lambda: "completed" in daemon.log())
        with daemon.connect() as client:
            answer = client.ask(frame)
        assert b"the answer" in answer
        assert daemon.stop() == 0
    price_doubled = write_config(tmp_path, script=slow, price_input=4_000_006)
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert client.ask(frame) == answer
    without_model = (
        price_doubled.read_text().replace('name = "npc"', 'name = "npc-two"').replace('["npc"]', '["npc-two"]')
    )
    price_doubled.write_text(without_model)
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert client.ask(frame) == answer
        assert said(client.ask(invocation("r2"))) == "ModelNotAllowed"
    view = LedgerView(tmp_path / "ledger")
    assert len(view.begins) == len(view.completes) == 1


def test_i2_a_hang_up_leaves_a_settlement_in_the_ledger(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script="[[rule]]\ndelay_ms = 50\nusage = {output = 3}\n") as daemon:
        for number in range(5):
            with daemon.connect() as client:
                client.send(invocation(f"r{number}"))
        wait_until(lambda: daemon.log().count(" completed ") == 5)
    assert [record.charge_micro_usd for _, record in LedgerView(tmp_path / "ledger").completes] == [34] * 5


CROWD = 64
HOLD_10 = 10


def test_64_at_once_and_ten_fit_over_real_sockets(tmp_path: Path) -> None:
    """Ten run, 54 are refused; no prefix of the ledger passes the ceiling; eight others make progress meanwhile."""
    others = "".join(
        f'[[caller]]\nid = "other-{n}"\nmodels = ["npc"]\nspend_ceiling_micro_usd = 1_000_000_000\n'
        "spend_window_seconds = 86_400\n"
        for n in range(8)
    )
    script = '[[rule]]\ntext = "wait"\ndelay_ms = 1500\ndeltas = ["done"]\n'
    frames = [invocation(f"r-{number:02}", "please wait", conversation_id="c") for number in range(CROWD)]
    probe_folder = tmp_path / "probe"
    probe_folder.mkdir()
    with running_daemon(probe_folder, script=script) as daemon, daemon.connect() as client:
        client.ask(frames[0])
    one = LedgerView(probe_folder / "ledger").begins[0].reservation_micro_usd
    ceiling = one * HOLD_10 + one // 2
    words: list[str] = []
    progress: list[str] = []

    with running_daemon(tmp_path, script=script, ceiling=ceiling, callers=others) as daemon:

        def ask(frame: bytes, into: list[str]) -> None:
            with daemon.connect() as client:
                into.append(said(client.ask(frame)))

        crowd = [threading.Thread(target=ask, args=(frame, words)) for frame in frames]
        for thread in crowd:
            thread.start()
        wait_until(lambda: len(words) == CROWD - HOLD_10)
        for n in range(8):
            ask(invocation("mine", "hello", caller_runtime_id=f"other-{n}"), progress)
        assert progress == ["end_turn"] * 8
        assert words == ["SpendCeiling"] * (CROWD - HOLD_10), "nobody was let in before all were decided"
        for thread in crowd:
            thread.join()
        assert sorted(words) == ["SpendCeiling"] * 54 + ["end_turn"] * 10
    spent = reserved = 0
    for record in LedgerView(tmp_path / "ledger").order:
        begin = record[0] if isinstance(record, tuple) else record
        if begin.caller_runtime_id == "dungeon":
            reserved += -begin.reservation_micro_usd if isinstance(record, tuple) else begin.reservation_micro_usd
            spent += record[1].charge_micro_usd if isinstance(record, tuple) else 0
            assert spent + reserved <= ceiling


def test_a5_130_calls_one_after_the_other_settle_and_leave_nothing_reserved(tmp_path: Path) -> None:
    script = "[[rule]]\nusage = {output = 9}\n"
    with running_daemon(tmp_path, script=script, ceiling=50_000) as daemon, daemon.connect() as client:
        for number in range(130):
            assert receipt(client.ask(invocation(f"r{number}")))["cost_micro_usd"] == 100
        assert daemon.stop() == 0
    view = LedgerView(tmp_path / "ledger")
    assert not view.open
    assert sum(record.charge_micro_usd for _, record in view.completes) == 13_000


# --- stopping ---------------------------------------------------------------------------------------------------


def test_c1_sigterm_lets_what_runs_finish_and_records_it(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script='[[rule]]\ndelay_ms = 300\ndeltas = ["done"]\n') as daemon:
        with daemon.connect() as client, daemon.connect() as late:
            frame = invocation("r1")
            client.send(frame)
            wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
            os.kill(daemon.pid, signal.SIGTERM)
            wait_until(lambda: "draining" in daemon.log())
            assert said(late.ask(invocation("r2"))) == "shutting_down"
            assert said(late.ask(invocation("r3", model="unknown"))) == "ModelNotAllowed"
            answer = client.receive()
            assert answer is not None
            assert said(answer) == "end_turn"
        assert daemon.process.wait(timeout=20) == 0
    assert not (tmp_path / "s.sock").exists()
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert "clean=True" in daemon.log()
        assert client.ask(frame) == answer


def test_a_second_signal_cancels_at_once_and_what_ran_is_recorded_unavailable(tmp_path: Path) -> None:
    with running_daemon(tmp_path, script=HANG) as daemon:
        with daemon.connect() as client:
            client.send(invocation("r1"))
            wait_until(lambda: len(view_of_live(tmp_path / "ledger").begins) == 1)
            os.kill(daemon.pid, signal.SIGTERM)
            wait_until(lambda: "draining" in daemon.log())
            os.kill(daemon.pid, signal.SIGTERM)
            answer = client.receive()
            assert answer is not None
            assert said(answer) == "unavailable"
        assert daemon.process.wait(timeout=20) == 0
    begin, record = LedgerView(tmp_path / "ledger").completes[0]
    assert (record.outcome, record.charge_micro_usd) == ("unavailable", begin.reservation_micro_usd)


def test_a_client_that_never_reads_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    script = f'[[rule]]\ndeltas = ["{"x" * 1000}"]\nrepeat = 150\n'
    with running_daemon(tmp_path, script=script) as daemon, daemon.connect() as client:
        for number in range(40):
            client.send(invocation(f"r{number}"))
        wait_until(lambda: daemon.log().count(" completed ") >= 8)
        assert daemon.stop() == 0


# --- one instance -----------------------------------------------------------------------------------------------


def test_a_second_daemon_exits_with_75_and_names_the_holder(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        (tmp_path / "second").mkdir()
        config = (tmp_path / "sidecar.toml").read_text().replace('"ledger"', f'"{tmp_path}/ledger"')
        (tmp_path / "second/sidecar.toml").write_text(config)
        second = spawn(tmp_path / "second")
        assert second.process.wait(timeout=20) == 75
        assert f"pid {daemon.pid}" in second.log()
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"


def test_a_second_daemon_with_its_own_ledger_leaves_a_live_socket_alone_and_its_ledger_is_clean(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        (tmp_path / "second").mkdir()
        config = write_config(tmp_path / "second")
        config.write_text(config.read_text().replace('"s.sock"', f'"{daemon.socket_path}"'))
        for _ in range(2):
            second = spawn(tmp_path / "second")
            assert second.process.wait(timeout=20) == 73
            assert "another process listens on" in second.log()
        assert "clean=True" in second.log()
        with daemon.connect() as client:
            assert said(client.ask(invocation("r1"))) == "end_turn"
        assert daemon.stop() == 0


def test_a_stale_socket_is_replaced_by_whoever_holds_the_ledger(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        daemon.kill()
    assert (tmp_path / "s.sock").is_socket()
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert said(client.ask(invocation("r1"))) == "end_turn"


def test_a_damaged_ledger_exits_with_65_and_says_where(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        client.ask(invocation("r1"))
        assert daemon.stop() == 0
    path = tmp_path / "ledger/0000000000000001.segment"
    with path.open("r+b") as file:
        file.seek(8192 + 300)
        file.write(b"x")
    refused = spawn(tmp_path)
    assert refused.process.wait(timeout=20) == 65
    assert f"{path} is damaged at byte 8192" in refused.log()


@pytest.mark.parametrize(("fault", "code"), [("socket = 5", 78), ("unknown_key = 1", 78)])
def test_a10_a_wrong_config_refuses_to_start(tmp_path: Path, fault: str, code: int) -> None:
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("drain_seconds_max = 20", f"drain_second_max = 20\n{fault}"))
    refused = spawn(tmp_path)
    assert refused.process.wait(timeout=20) == code
    assert "drain_seconds_max" in refused.log() or "duplicate" in refused.log() or "Cannot overwrite" in refused.log()


# --- the disk fails ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "error"), [("fdatasync", "EIO"), ("pwritev2", "ENOSPC")])
def test_a_failed_write_or_sync_in_use_ends_the_daemon_with_74(tmp_path: Path, call: str, error: str) -> None:
    """The fifth request's complete fails: it is not answered, what was durable is replayed meanwhile, and after."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when=10"]
    frames = [invocation(f"r{number}") for number in range(5)]
    with running_daemon(tmp_path, wrapper=["strace", "-f", "-qq", "-o", "/dev/null", *inject]) as daemon:
        with daemon.connect() as client:
            answers = [client.ask(frame) for frame in frames[:4]]
            assert said(client.ask(frames[4])) == "ledger_unavailable"
            assert client.ask(frames[0]) == answers[0]
            assert said(client.ask(invocation("later"))) == "ledger_unavailable"
        assert daemon.process.wait(timeout=30) == 74
        assert daemon.log().count("ledger_poisoned") == 1
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert [client.ask(frame) for frame in frames[:4]] == answers
        assert said(client.ask(frames[4])) in ("Indeterminate", "end_turn")


def test_any_number_of_signals_still_ends_with_0_and_a_clean_ledger(tmp_path: Path) -> None:
    for _ in range(3):
        with running_daemon(tmp_path) as daemon:
            for _ in range(20):
                os.kill(daemon.pid, signal.SIGTERM)
            assert daemon.process.wait(timeout=30) == 0
    with running_daemon(tmp_path) as daemon:
        assert "clean=True" in daemon.log()


def test_a_ledger_that_failed_exits_with_74_also_when_it_is_listeners_of_stop(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    inject = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=10"]
    running = running_daemon(tmp_path, wrapper=["strace", "-f", "-qq", "-o", "/dev/null", *inject])
    with running as daemon, daemon.connect() as client:
        for number in range(4):
            client.ask(invocation(f"r{number}"))
        assert said(client.ask(invocation("r5"))) == "ledger_unavailable"
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.process.wait(timeout=30) == 74


def test_starting_again_and_again_does_not_pile_up_disk(tmp_path: Path) -> None:
    """Each start has a segment of its own; what the ones before left unused is given back."""
    for number in range(6):
        with running_daemon(tmp_path) as daemon, daemon.connect() as client:
            client.ask(invocation(f"r{number}"))
            if number % 2:
                assert daemon.stop() == 0
            else:
                daemon.kill()
    with running_daemon(tmp_path):
        taken = sum(path.stat().st_blocks * 512 for path in (tmp_path / "ledger").glob("*.segment"))
    assert taken <= 2 * 1_048_576


def test_replays_do_not_hold_up_the_drain(tmp_path: Path) -> None:
    frame = invocation("r1")
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        client.ask(frame)
        stopping = threading.Event()

        again = daemon.connect()

        def replay() -> None:
            with again, suppress(ConnectionError):  # the end of the daemon is the end of this
                while not stopping.is_set():
                    again.send(frame)
                    if again.receive() is None:
                        return

        thread = threading.Thread(target=replay)
        thread.start()
        try:
            assert daemon.stop() == 0
        finally:
            stopping.set()
            thread.join()
        assert "cancelling" not in daemon.log()
