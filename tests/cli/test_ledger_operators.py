"""`sidecar ledger resolve` and `check` through the socket of a running daemon, as an operator and as nobody."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit.daemon_process import Process, invocation, running_daemon, wait_until, write_config
from kit.ledger_view import LedgerView, view_of_live
from kit.road import receipt, said

from sidecar.cli.main import main

OPERATOR = "\n[[operator]]\n"
HANG_ONCE = '[[rule]]\ntext = "hang"\nhang = true\n'
WHY = "the provider's bill has no such call"


def resolved(*where: str, **changes: str) -> int:
    words = {"caller": "dungeon", "request": "lost", "charge": "nothing", "who": "ada", "why": WHY, **changes}
    return main(["ledger", "resolve", *where, *(f"--{key}={said}" for key, said in words.items())])


def through(daemon: Process, **changes: str) -> int:
    return resolved("--socket", str(daemon.socket_path), **changes)


def leave_open(folder: Path, **config: Any) -> bytes:
    """A daemon that is killed while a request runs; the request's frame."""
    frame = invocation("lost", "hang")
    with running_daemon(folder, script=HANG_ONCE, callers=OPERATOR, **config) as daemon, daemon.connect() as client:
        client.send(frame)
        wait_until(lambda: bool(view_of_live(folder / "ledger").open))
        daemon.kill()
    return frame


@pytest.mark.parametrize("charge", ["nothing", "reservation"])
def test_what_a_crash_left_open_is_settled_by_the_daemon_and_replayed_from_then_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], charge: str
) -> None:
    frame = leave_open(tmp_path)
    reservation = LedgerView(tmp_path / "ledger").begins[0].reservation_micro_usd
    amount = reservation if charge == "reservation" else 0
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert said(client.ask(frame)) == "Indeterminate"
        assert resolved(str(tmp_path / "ledger"), charge=charge) == os.EX_TEMPFAIL
        assert f"held by pid {daemon.pid}: with --socket PATH in the place of" in capsys.readouterr().err
        assert through(daemon, charge=charge) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.startswith(f"request lost of caller dungeon is settled at {amount} micro-USD = $0.00")
        answer = client.ask(frame)
        assert (said(answer), receipt(answer)["cost_micro_usd"]) == ("unavailable", amount)
        assert WHY in receipt(answer)["outcome"]["Failed"]["message"]
        for request, known in (("lost", "it is on record how it ended"), ("never", "there is none on record")):
            assert through(daemon, request=request) == os.EX_UNAVAILABLE
            assert f"request {request} of caller dungeon is not indeterminate: {known}" in capsys.readouterr().err
        assert main(["ledger", "check", "--socket", str(daemon.socket_path), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["conserved"], told["settled_micro_usd"], told["open_micro_usd"]) == (True, amount, 0)
        [line] = [line for line in daemon.log().splitlines() if " resolved " in line]
        assert f"uid={os.getuid()} pid={os.getpid()} who=ada" in line
        assert daemon.stop() == 0
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert "indeterminate" not in daemon.log()
        assert client.ask(frame) == answer
    assert main(["ledger", "verify", str(tmp_path / "ledger")]) == 0


def test_money_that_is_held_for_a_lost_request_is_free_as_soon_as_it_is_resolved(tmp_path: Path) -> None:
    leave_open(tmp_path)
    reservation = LedgerView(tmp_path / "ledger").begins[0].reservation_micro_usd
    write_config(tmp_path, script=HANG_ONCE, callers=OPERATOR, ceiling=reservation)
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert said(client.ask(invocation("next", "word"))) == "SpendCeiling"
        assert through(daemon) == 0
        assert said(client.ask(invocation("next", "word"))) == "end_turn"


def test_what_runs_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(tmp_path, script="[[rule]]\ndelay_ms = 700\n", callers=OPERATOR)
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        client.send(invocation("lost"))
        wait_until(lambda: bool(view_of_live(tmp_path / "ledger").open))
        assert through(daemon) == os.EX_UNAVAILABLE
        assert "it is running" in capsys.readouterr().err
        answer = client.receive()
        assert answer is not None
        assert said(answer) == "end_turn"


def test_of_eight_operators_at_once_one_settles(tmp_path: Path) -> None:
    leave_open(tmp_path)
    found: list[str] = []
    frame = msgpack.packb(
        {"schema_id": "gamecult.model.operator_resolve.v1", "caller_runtime_id": "dungeon", "request_id": "lost",
         "charge": "reservation", "who": "ada", "why": WHY}
    )  # fmt: skip
    with running_daemon(tmp_path) as daemon:

        def ask() -> None:
            with daemon.connect() as client:
                found.append(msgpack.unpackb(client.ask(frame))["found"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found.count("settled") == 1
    assert set(found) <= {"settled", "being_resolved", "ended"}
    assert len(LedgerView(tmp_path / "ledger").completes) == 1


def test_a_check_is_listeners_of_a_person_and_to_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path, script="[[rule]]\nusage = {output = 9}\n", callers=OPERATOR) as daemon:
        with daemon.connect() as client:
            client.ask(invocation("r1"))
        words = ["ledger", "check", "--socket", str(daemon.socket_path)]
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert main([*words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert main(["ledger", "verify", str(tmp_path / "ledger"), "--json"]) == 0
        verified = json.loads(capsys.readouterr().out)
    assert out == (
        "the accounts are what the records say\n"
        "windows:    1\n"
        "settled:    100 micro-USD = $0.000100\n"
        "open:       0 micro-USD = $0.000000\n"
        f"chain head: {told['chain_head']}, after batch {told['batch']}\n"
    )
    assert told == {
        "ok": True, "exit_code": 0, "conserved": True, "windows": 1,
        "settled_micro_usd": 100, "open_micro_usd": 0, "batch": told["batch"],
        "chain_head": told["chain_head"], "mismatches": [],
    }  # fmt: skip
    assert (told["chain_head"], told["batch"]) == (verified["chain_head"], verified["batches"])


def test_who_is_no_operator_is_77(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon(tmp_path) as daemon:
        assert through(daemon) == os.EX_NOPERM
        assert main(["ledger", "check", "--socket", str(daemon.socket_path)]) == os.EX_NOPERM
        assert (
            re.findall("not_admitted: (.*)", capsys.readouterr().err)
            == ["this peer is no operator here; [[operator]] in the daemon's configuration names who may"] * 2
        )
        assert f" operator_refused uid={os.getuid()} pid={os.getpid()} " in daemon.log()
        assert main(["ledger", "check", "--json", "--socket", str(daemon.socket_path)]) == os.EX_NOPERM
        out, err = capsys.readouterr()
        told = json.loads(out)
        assert (told["ok"], told["exit_code"], told["error"].partition(":")[0], err) == (False, 77, "not_admitted", "")
        assert daemon.stop() == 0


def test_no_daemon_is_69_and_what_is_no_daemon_is_76(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "s.sock")
    assert resolved("--socket", nowhere) == os.EX_UNAVAILABLE
    assert main(["ledger", "check", "--socket", nowhere]) == os.EX_UNAVAILABLE
    assert capsys.readouterr().err.count("there is no socket at") == 2
    assert main(["ledger", "check", "--json", "--socket", nowhere]) == os.EX_UNAVAILABLE
    assert json.loads(capsys.readouterr().out) == {
        "ok": False, "exit_code": 69, "error": f"there is no socket at {nowhere}",
    }  # fmt: skip
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x01\xc0", b""):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(nowhere)
            listening.listen()
            thread = threading.Thread(target=_answer_once, args=(listening, answer))
            thread.start()
            code = main(["ledger", "check", "--socket", nowhere])
            thread.join()
        os.unlink(nowhere)
        assert code == (os.EX_PROTOCOL if answer else os.EX_UNAVAILABLE)


def _answer_once(listening: socket.socket, answer: bytes) -> None:
    accepted, _ = listening.accept()
    with accepted:
        accepted.recv(65_536)
        accepted.sendall(answer)


def test_a_mismatch_is_65_with_each_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = {
        "schema_id": "gamecult.model.operator_checked.v1", "batch": 3, "head_sha256": [1] * 32, "windows": 2,
        "settled_micro_usd": 5, "open_micro_usd": 7, "mismatches": ["caller a, window of 1 s from 0: they differ"],
    }  # fmt: skip
    frame = msgpack.packb(checked)
    for words in ([], ["--json"]):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "s.sock"))
            listening.listen()
            thread = threading.Thread(target=_answer_once, args=(listening, len(frame).to_bytes(4, "big") + frame))
            thread.start()
            assert main(["ledger", "check", "--socket", str(tmp_path / "s.sock"), *words]) == os.EX_DATAERR
            thread.join()
        os.unlink(tmp_path / "s.sock")
        out = capsys.readouterr().out
        assert "caller a, window of 1 s from 0: they differ" in out
    assert json.loads(out)["conserved"] is False


@pytest.mark.parametrize(
    ("where", "changes"),
    [((), {}), (("a", "--socket", "b"), {}), (("--socket", ""), {}), (("a",), {"request": "not an id"})],
)
def test_a_wrong_command_line_is_64(
    capsys: pytest.CaptureFixture[str], where: tuple[str, ...], changes: dict[str, str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        resolved(*where, **changes)
    assert raised.value.code == os.EX_USAGE
    said = capsys.readouterr().err
    assert "sidecar ledger resolve" in said
    assert ("not both" in said) == (where == ("a", "--socket", "b"))
