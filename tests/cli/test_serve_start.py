"""What a daemon sees to before it opens anything: its standard streams and the number of its descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from kit.daemon_process import Client, Process, invocation, running_daemon, wait_until, write_config
from kit.road import said
from kit.small_ledgers import open_small

from sidecar.cli.descriptors import descriptors_wanted
from sidecar.cli.ledger_reading import instant
from sidecar.cli.setup import load_config
from sidecar.contract.values import LowWaterRecord
from sidecar.ops.clock import unix_ms


def soft_limit(daemon: Process) -> int:
    return resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)[0]


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 1>&- 2>&-"])
def test_a_daemon_without_standard_streams_runs_and_gives_their_numbers_to_no_file(tmp_path: Path, closed: str) -> None:
    config = write_config(tmp_path)
    line = f'exec "$0" -m sidecar serve --config "$1" {closed}'
    with subprocess.Popen(["sh", "-c", line, sys.executable, str(config)]) as process:
        try:
            wait_until(lambda: (tmp_path / "s.sock").exists() or process.poll() is not None)
            assert process.poll() is None
            assert os.readlink(f"/proc/{process.pid}/fd/2") == "/dev/null"
            process.terminate()
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_a_log_that_nobody_reads_holds_up_no_request_and_no_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sidecar", "serve", "--config", str(write_config(tmp_path))]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
            wait_until(lambda: listens(tmp_path / "s.sock"))
            with Client(tmp_path / "s.sock") as client:
                answers = [client.ask(invocation(f"r{number}")) for number in range(100)]
            assert {said(answer) for answer in answers} == {"end_turn"}
            process.terminate()
            assert process.wait(timeout=30) == 0
            assert process.stderr.read().count(b" completed ") < 100
        finally:
            process.kill()


def test_the_soft_limit_of_descriptors_becomes_what_the_configuration_can_need(tmp_path: Path) -> None:
    wanted = descriptors_wanted(load_config(write_config(tmp_path)))
    assert wanted > 256 + 256
    with running_daemon(tmp_path, wrapper=["sh", "-c", 'ulimit -S -n 100; exec "$0" "$@"']) as daemon:
        assert soft_limit(daemon) == wanted
        assert "descriptors_short" not in daemon.log()


def test_a_limit_that_is_high_enough_is_left_alone(tmp_path: Path) -> None:
    with running_daemon(tmp_path, wrapper=["sh", "-c", 'ulimit -S -n 1500; exec "$0" "$@"']) as daemon:
        assert soft_limit(daemon) == 1500


def test_a_hard_limit_that_is_too_low_is_one_warning(tmp_path: Path) -> None:
    with running_daemon(tmp_path, wrapper=["sh", "-c", 'ulimit -S -n 100; ulimit -H -n 300; exec "$0" "$@"']) as daemon:
        assert soft_limit(daemon) == 300
        assert daemon.log().count(" warning descriptors_short wanted=") == 1
        assert "limit=300" in daemon.log()


@pytest.mark.parametrize("ahead_ms", [-1, 3_600_000])
def test_a_low_water_that_lies_ahead_is_told_at_the_start(tmp_path: Path, ahead_ms: int) -> None:
    until = unix_ms() + ahead_ms

    async def raise_low_water() -> None:
        ledger = open_small(tmp_path / "ledger")
        async with ledger.running():
            await ledger.append(LowWaterRecord(expires_at_unix_ms=until))

    trio.run(raise_low_water)
    with running_daemon(tmp_path) as daemon, daemon.connect() as client:
        is_told = f'low_water_ahead until="{instant(until)} UTC" now="what expires by then is refused' in daemon.log()
        assert said(client.ask(invocation("r1"))) == ("Expired" if ahead_ms > 0 else "end_turn")
    assert is_told == (ahead_ms > 0)
