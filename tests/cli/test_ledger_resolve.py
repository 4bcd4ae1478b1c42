"""`sidecar ledger resolve`: a person settles what a crash left open; the answer says who and why, and is replayed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kit.daemon_process import invocation, running_daemon, wait_until
from kit.dropped_segments import drop
from kit.ledger_view import LedgerView, view_of_live
from kit.road import receipt, said
from kit.small_ledgers import BLOCK, contents_of, damage, open_small, session, three_segments

from sidecar.audit.reading import Reading
from sidecar.audit.requests import Request, requests_of
from sidecar.cli import ledger_resolve
from sidecar.cli.main import main
from sidecar.contract import values as v
from sidecar.ledger.files import DiskFiles
from sidecar.service import resolution
from sidecar.service.settlement import result_frame

WHY = "the provider's bill has no such call"


def resolved(directory: Path, **changes: str) -> int:
    words = {"caller": "dungeon", "request": "request-5", "charge": "nothing", "who": "ada", "why": WHY, **changes}
    return main(["ledger", "resolve", str(directory), *(f"--{key}={said}" for key, said in words.items())])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    trio.run(three_segments, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("charge", "amount", "usage", "decided"),
    [
        ("nothing", 0, v.NOTHING_USED, "nothing is charged"),
        ("reservation", 100, None, "the whole reservation is charged"),
    ],
)
def test_the_record_names_who_and_why_and_settles(
    directory: Path, capsys: pytest.CaptureFixture[str], charge: str, amount: int, usage: v.Usage | None, decided: str
) -> None:
    assert resolved(directory, charge=charge) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == f"request request-5 of caller dungeon is settled at {amount} micro-USD = $0.000{amount:03d}\n"
    view = LedgerView(directory)
    begin, record = view.completes[-1]
    assert not view.open
    assert (begin.request_id, record.charge_micro_usd, record.outcome, record.usage) == (
        "request-5", amount, "unavailable", usage,
    )  # fmt: skip
    result = msgspec.msgpack.decode(record.response[1:], type=v.TransportResult)
    transported = result.disposition.transported
    assert transported
    receipt, failed = transported.receipt, transported.receipt.outcome.failed
    assert failed == v.Failed(kind="unavailable", message=f"resolved by ada, {decided}: {WHY}", usage=usage)
    assert (receipt.request_id, receipt.cost_micro_usd, transported.events) == ("request-5", amount, ())
    assert receipt.native_request_sha256 == begin.native_request_sha256
    assert main(["ledger", "verify", str(directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["indeterminate"], told["charged_micro_usd"], told["closed"]) == (0, 300 + amount, True)


def test_only_once_and_only_what_is_indeterminate(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert resolved(directory) == 0
    ended, unknown = "it is on record how it ended", "there is none on record under this id"
    for request, known in (("request-5", ended), ("request-1", ended), ("x", unknown)):
        before = contents_of(directory)
        assert resolved(directory, request=request) == os.EX_UNAVAILABLE
        told = f"request {request} of caller dungeon is not indeterminate: {known}; nothing was changed\n"
        assert capsys.readouterr().err == f"sidecar ledger resolve: {told}"
        assert contents_of(directory) == before
    assert resolved(directory, caller="arena") == os.EX_UNAVAILABLE


def test_a_ledger_that_a_daemon_holds_is_75_and_left_alone(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = open_small(directory)
    try:
        before = contents_of(directory)
        assert resolved(directory) == os.EX_TEMPFAIL
        assert capsys.readouterr().err == (
            f"sidecar ledger resolve: the ledger {directory} is held by pid {os.getpid()}: with --socket PATH in the"
            f" place of {directory} that daemon settles it; or stop it first\n"
        )
        assert contents_of(directory) == before
    finally:
        ledger._let_go()


def test_a_damaged_ledger_and_none_are_refused_and_nothing_is_written(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(directory, 1, 4 * BLOCK)
    before = contents_of(directory)
    assert resolved(directory) == os.EX_DATAERR
    err = capsys.readouterr().err
    assert (err.count("sidecar ledger verify"), err.endswith("; nothing was written\n")) == (1, True)
    assert contents_of(directory) == before
    assert resolved(directory / "nowhere") == os.EX_NOINPUT
    assert not (directory / "nowhere").exists()


def test_a_ledger_of_another_user_is_left_to_that_user(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = directory.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    before = contents_of(directory)
    assert resolved(directory) == os.EX_NOPERM
    assert f"belongs to uid {owner}" in capsys.readouterr().err
    assert contents_of(directory) == before


def test_a_stop_while_it_still_reads_settles_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(reading: Reading) -> Iterator[Request]:
        signal.raise_signal(signal.SIGINT)
        return requests_of(reading)

    monkeypatch.setattr(ledger_resolve, "requests_of", interrupted)
    before = contents_of(directory)
    assert resolved(directory) == 130
    assert contents_of(directory) == before


def test_a_stop_while_it_settles_waits_until_the_record_is_on_disk(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*terms: Any) -> bytes:
        signal.raise_signal(signal.SIGTERM)
        return result_frame(*terms)

    monkeypatch.setattr(resolution, "result_frame", stopped)
    assert resolved(directory) == 143
    assert "is settled at 0 micro-USD" in capsys.readouterr().out
    assert not LedgerView(directory).open


def test_a_disk_that_fails_is_74_and_nothing_is_said_to_be_settled(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = 0

    def sync(self: DiskFiles, descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs > 3:  # the new segment, its header, its first record
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(DiskFiles, "sync", sync)
    assert resolved(directory) == os.EX_IOERR
    out, err = capsys.readouterr()
    assert out == ""
    assert "not settled, as far as is known: writing 0000000000000004.segment failed: Input/output error" in err


def test_the_longest_words_fit_whole(directory: Path) -> None:
    assert resolved(directory, who="w" * 128, why="y" * 768, charge="reservation") == 0
    _, record = LedgerView(directory).completes[-1]
    assert b"y" * 768 in record.response


def test_a_torn_tail_is_set_aside_first_as_at_any_open(tmp_path: Path) -> None:
    async def crash() -> None:
        await session(tmp_path, [], unfinished=[5, 6], clean=False)

    trio.run(crash)
    damage(tmp_path, 1, 3 * BLOCK)  # the second begin
    assert resolved(tmp_path) == 0
    assert not LedgerView(tmp_path).open
    assert list((tmp_path / "quarantine").iterdir())


def test_the_next_daemon_answers_the_same_bytes_with_what_was_decided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = invocation("killed")
    with running_daemon(tmp_path, script="[[rule]]\nhang = true\n") as daemon:
        with daemon.connect() as client:
            client.send(frame)
            wait_until(lambda: bool(view_of_live(tmp_path / "ledger").open))
            assert main(["ledger", "verify", str(tmp_path / "ledger"), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["may_be_running"] == 1
            assert resolved(tmp_path / "ledger", request="killed") == os.EX_TEMPFAIL
        daemon.kill()
    assert resolved(tmp_path / "ledger", request="killed", charge="reservation") == 0
    reservation = LedgerView(tmp_path / "ledger").begins[0].reservation_micro_usd
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        assert "indeterminate" not in daemon.log()
        answer = client.ask(frame)
        assert said(answer) == "unavailable"
        assert receipt(answer)["cost_micro_usd"] == reservation
        assert WHY in receipt(answer)["outcome"]["Failed"]["message"]


def test_a_request_that_only_a_checkpoint_keeps_is_shown_and_settled(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trio.run(drop, directory, 2)
    assert main(["ledger", "show", str(directory), "--json", "--state", "indeterminate"]) == 0
    [shown] = map(json.loads, capsys.readouterr().out.splitlines())
    assert (shown["request_id"], shown["begin_segment"]) == ("request-5", 2)
    assert resolved(directory, charge="reservation") == 0
    capsys.readouterr()
    assert main(["ledger", "verify", str(directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["indeterminate"], told["charged_micro_usd"], told["requests"]) == (0, 400, 6)
    assert resolved(directory) == os.EX_UNAVAILABLE
    assert "it is on record how it ended; nothing was changed" in capsys.readouterr().err
