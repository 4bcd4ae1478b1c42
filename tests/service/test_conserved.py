"""Conservation on the real disk: checks under load are exact, and a daemon whose accounts are wrong stops."""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from kit import records
from kit.built_connectors import build_connectors
from kit.daemon_process import invocation, packed, write_config
from kit.ledger_view import LedgerView
from kit.road import said

from sidecar.audit.reading import Reading
from sidecar.cli import serve as serving
from sidecar.cli.serve import serve
from sidecar.cli.setup import load_config
from sidecar.config.values import Config
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger
from sidecar.ops.log import Log
from sidecar.rules.conservation import Tally
from sidecar.rules.windows import Account
from sidecar.service.accounts import listeners_of, windows_of
from sidecar.service.daemon import Daemon
from sidecar.service.limits import make_accounts, make_reservations
from sidecar.service.listener import Bound

CHECK = packed({"schema_id": "gamecult.model.operator_check.v1"})
SLOW = "[[rule]]\ndelay_ms = 3\n"
OPERATOR = "\n[[operator]]\n"


@pytest.fixture(autouse=True)
def _stop_signals_as_before() -> Iterator[None]:
    """A daemon leaves them ignored, which is right for a process that ends with it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class House:
    """A daemon in this process, on a real ledger; `accounts` are its own."""

    def __init__(self, folder: Path, script: str, files: DiskFiles | None = None) -> None:
        config: Config = load_config(write_config(folder, script=script, callers=OPERATOR))
        self.log = io.StringIO()
        self.accounts = make_accounts(config)
        self.ledger = Ledger.open(
            config.ledger.directory,
            segment_bytes=config.ledger.segment_bytes,
            frame_bytes_max=config.daemon.frame_bytes_max,
            requests_in_flight_max=config.daemon.requests_in_flight_max,
            files=files,
            listeners=listeners_of(self.accounts, Tally({})),
            window_of=windows_of(self.accounts),
        )
        reservations = make_reservations(config, self.accounts)
        self.bound = Bound(config.daemon.socket, config.daemon.socket_mode)
        self.directory = config.ledger.directory
        self._daemon = Daemon(config, build_connectors(config), self.ledger, reservations, Log(self.log, "text"))
        self.exit_code: int | None = None

    async def run(self) -> None:
        self.exit_code = await self._daemon.run(self.bound)
        self.bound.remove()

    def stop(self) -> None:
        self._daemon._listeners_of_stop.set()

    async def client(self) -> Client:
        return Client(await trio.open_unix_socket(str(self.bound._path)))


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = b""

    async def ask(self, frame: bytes) -> bytes:
        await self.stream.send_all(len(frame).to_bytes(4, "big") + frame)
        return await self.answer()

    async def answer(self) -> bytes:
        size = int.from_bytes(await self._exactly(4), "big")
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            piece = await self.stream.receive_some()
            assert piece, "the daemon closed"
            self._received += piece
        taken, self._received = self._received[:size], self._received[size:]
        return taken


async def test_checks_under_load_agree_to_the_micro_usd_and_hold_up_nobody(tmp_path: Path) -> None:
    """Eight clients, requests that are begun, run and end all the time, two rotations; thirty checks at least."""
    house = House(tmp_path, SLOW)
    checked: list[dict[str, Any]] = []
    answers: list[str] = []

    def enough() -> bool:
        return len(checked) >= 30 and len(list(house.directory.glob("*.segment"))) >= 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run)
        async with trio.open_nursery() as clients:

            async def play(name: int) -> None:
                client, number = await house.client(), 0
                while not enough():
                    frame = invocation(f"r-{name}-{number}", "a few words " * (1 + number % 7 * 100))
                    answers.append(said(await client.ask(frame)))
                    number += 1
                await client.stream.aclose()

            async def check() -> None:
                client = await house.client()
                while not enough():
                    before = len(answers)
                    checked.append(msgpack.unpackb(await client.ask(CHECK)))
                    while len(answers) < before + 5:
                        await trio.sleep(0.001)
                await client.stream.aclose()

            for name in range(8):
                clients.start_soon(play, name)
            clients.start_soon(check)
        house.stop()
    assert house.exit_code == os.EX_OK
    assert {one["schema_id"] for one in checked} == {"gamecult.model.operator_checked.v1"}, checked
    assert [one["mismatches"] for one in checked] == [[]] * len(checked)
    reading = Reading(house.directory)
    heads = {batch.number: batch.head for batch in reading.batches()}
    assert reading.segment > 2
    for one in checked:
        assert bytes(one["head_sha256"]) == heads[one["batch"]]
    assert any(one["open_micro_usd"] for one in checked)
    settled = [one["settled_micro_usd"] for one in checked]
    assert settled == sorted(settled)
    assert settled[-1] > 0
    assert set(answers) <= {"end_turn", "max_output_tokens"}


async def test_a_wrong_account_is_found_answered_and_stops_the_daemon_with_what_ran_recorded(tmp_path: Path) -> None:
    house = House(tmp_path, "[[rule]]\ndelay_ms = 300\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run)
        client, operator = await house.client(), await house.client()
        frame = invocation("running")
        await client.stream.send_all(len(frame).to_bytes(4, "big") + frame)
        while house.ledger.find("dungeon", "running") is None:
            await trio.sleep(0.005)
        account = house.accounts["dungeon"]
        [start] = account.figures().reserved
        account._reserved[start] += 5
        [sentence] = msgpack.unpackb(await operator.ask(CHECK))["mismatches"]
        assert f"window of 86400 s from {start}" in sentence
        assert said(await operator.ask(invocation("late"))) == "shutting_down"
        assert said(await client.answer()) == "end_turn"
        await client.stream.aclose()
        await operator.stream.aclose()
    assert house.exit_code == os.EX_SOFTWARE
    log = house.log.getvalue()
    assert "not_conserved caller=dungeon" in log
    assert "exit_code=70" in log
    reading = Reading(house.directory)
    assert sum(len(batch.lines) for batch in reading.batches()) == 4  # opened, begin, completed, closed
    assert not reading.open


async def test_a_check_that_reads_when_the_daemon_stops_is_given_up(tmp_path: Path) -> None:
    house = House(tmp_path, SLOW)
    token, reads, goes = trio.lowlevel.current_trio_token(), trio.Event(), house._daemon._operators
    tallied = goes._read_again

    def slowly(*terms: Any, goes_on: Callable[[], bool], **more: Any) -> Any:
        token.run_sync_soon(reads.set)
        while goes_on():
            pass
        return tallied(*terms, goes_on=goes_on, **more)

    goes._read_again = slowly
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run)
        client = await house.client()
        for number in range(3):
            await client.ask(invocation(f"r{number}"))
        asked = CHECK
        await client.stream.send_all(len(asked).to_bytes(4, "big") + asked)
        await reads.wait()
        house.stop()
        assert msgpack.unpackb(await client.answer())["code"] == "shutting_down"
        await client.stream.aclose()
    assert house.exit_code == os.EX_OK


# --- resolve, on a disk that is slow or fails ---------------------------------------------------------------------


def decision(charge: str) -> bytes:
    return packed(
        {"schema_id": "gamecult.model.operator_resolve.v1", "caller_runtime_id": "dungeon", "request_id": "request-2",
         "charge": charge, "who": "ada", "why": "it is not on the bill"}
    )  # fmt: skip


class HeldDisk(DiskFiles):
    """Once it is `armed`, each sync waits until the test lets it go, and then fails if it was told to."""

    def __init__(self) -> None:
        self.armed = False
        self.fails = False
        self.let_go = threading.Event()
        self.on_sync: Callable[[], None] = lambda: None

    def sync(self, descriptor: int) -> None:
        if self.armed:
            self.on_sync()
            self.let_go.wait()
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
        super().sync(descriptor)


async def _asked_to_resolve(house: House, disk: HeldDisk) -> Client:
    """A daemon whose commit thread is in the sync of a decision."""
    in_sync, token = trio.Event(), trio.lowlevel.current_trio_token()
    client = await house.client()
    while house.ledger.statistics().spares_ready < 2:
        await trio.sleep(0.005)
    disk.on_sync = lambda: token.run_sync_soon(in_sync.set)
    disk.armed = True
    frame = decision("reservation")
    await client.stream.send_all(len(frame).to_bytes(4, "big") + frame)
    await in_sync.wait()
    return client


async def test_a_decision_on_its_way_when_the_daemon_stops_is_recorded_and_answered(tmp_path: Path) -> None:
    await _two_requests(load_config(write_config(tmp_path, callers=OPERATOR)))
    disk = HeldDisk()
    house = House(tmp_path, SLOW, disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run)
        client = await _asked_to_resolve(house, disk)
        house.stop()
        while "draining" not in house.log.getvalue():
            await trio.sleep(0.005)
        assert house.accounts["dungeon"].figures().spent == {0: 60}
        disk.let_go.set()
        assert msgpack.unpackb(await client.answer())["found"] == "settled"
        await client.stream.aclose()
    assert house.exit_code == os.EX_OK
    assert house.accounts["dungeon"].figures().spent == {0: 160}
    assert [end.charge_micro_usd for _, end in LedgerView(house.directory).completes] == [60, 100]


async def test_a_decision_whose_sync_fails_is_not_said_to_stand_and_the_daemon_ends(tmp_path: Path) -> None:
    await _two_requests(load_config(write_config(tmp_path, callers=OPERATOR)))
    disk = HeldDisk()
    house = House(tmp_path, SLOW, disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.run)
        client = await _asked_to_resolve(house, disk)
        disk.fails = True
        disk.let_go.set()
        answer = msgpack.unpackb(await client.answer())
        assert (answer["code"], answer["request_id"]) == ("ledger_unavailable", "request-2")
        assert "not settled, as far as is known" in answer["message"]
        assert msgpack.unpackb(await client.ask(decision("nothing")))["code"] == "ledger_unavailable"
        assert msgpack.unpackb(await client.ask(CHECK))["code"] == "ledger_unavailable"
        await client.stream.aclose()
    assert house.exit_code == os.EX_IOERR
    figures = house.accounts["dungeon"].figures()
    assert (figures.spent, figures.reserved) == ({0: 60}, {0: 100})


# --- at open ----------------------------------------------------------------------------------------------------


async def _two_requests(config: Config) -> None:
    ledger = Ledger.open(
        config.ledger.directory,
        segment_bytes=config.ledger.segment_bytes,
        frame_bytes_max=config.daemon.frame_bytes_max,
        requests_in_flight_max=8,
    )
    async with ledger.running():
        begin = records.begin(1)
        await ledger.complete(begin, records.completed(await ledger.begin(begin)))
        await ledger.begin(records.begin(2))


@pytest.mark.parametrize(
    ("step", "said_wrong"),
    [("settle", "ledger_settled=60 ledger_open=100 account_settled=61 account_open=100"),
     ("reserve", "ledger_settled=60 ledger_open=100 account_settled=60 account_open=101")],
)  # fmt: skip
def test_accounts_that_are_not_the_sums_of_the_records_stop_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, step: str, said_wrong: str
) -> None:
    class Wrong(Account):
        def reserve(self, admitted_at_unix_ms: int, amount_micro_usd: int) -> None:
            super().reserve(admitted_at_unix_ms, amount_micro_usd + (step == "reserve"))

        def settle(self, admitted_at_unix_ms: int, reservation_micro_usd: int, charge_micro_usd: int) -> None:
            super().settle(admitted_at_unix_ms, reservation_micro_usd, charge_micro_usd + (step == "settle"))

    path = write_config(tmp_path)
    config = load_config(path)
    trio.run(_two_requests, config)
    made = make_accounts(config)
    monkeypatch.setattr(
        serving,
        "make_accounts",
        lambda config: {name: Wrong(one.window_seconds, one.ceiling_micro_usd) for name, one in made.items()},
    )
    assert serve(path, "text") == os.EX_SOFTWARE
    err = capsys.readouterr().err
    assert f"not_conserved caller=dungeon window_start_unix_ms=0 window_seconds=86400 {said_wrong}" in err
    assert " ready " not in err
    assert not config.daemon.socket.exists()
