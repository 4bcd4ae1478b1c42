"""A busy daemon on an ext4 of its own whose power is cut, and that is killed, again and again.

    python -m pytest -m campaign tests/campaigns/test_faults_crashes.py -s

After each crash the ledger is read as `verify` reads it, and the next daemon is
asked everything that was sent since the crash before: it answers with the same
bytes what was answered or is on record, says that the rest is indeterminate,
and runs only what never began. Then it is under load until its own crash.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from kit import disk_faults
from kit.counted_provider import counted_provider
from kit.daemon_process import Process, running_daemon
from kit.disk_faults import MEBIBYTE
from kit.disk_scenarios import FEW_AT_ONCE, busy_callers
from kit.disk_trial import Trial, at_level, poisoned_once

pytestmark = [pytest.mark.campaign, pytest.mark.faults]

CUTS = int(os.environ.get("SIDECAR_POWER_CUTS", "100"))
KILLS = int(os.environ.get("SIDECAR_KILLS", "100"))
CALLERS = 8
LONGEST_LOAD_SECONDS = 0.1
CRASHES_OF_A_LEDGER = 10
SIZE_BYTES = 256 * MEBIBYTE

Crash = Callable[[Process, disk_faults.Ext4], None]  # and what a start needs after it


def test_power_cuts_under_load_lose_no_answer_and_run_nothing_twice(tmp_path: Path) -> None:
    """Everything that was not synced is gone after each cut."""

    def cut(daemon: Process, disk: disk_faults.Ext4) -> None:
        disk.cut_power()
        try:
            code = daemon.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            # Where the cut met only a spare in the making, begins are refused and nothing is written until the goodbye.
            code = daemon.stop()
        assert code == 74
        poisoned_once(daemon, "Input/output error")
        disk.mount_again()

    crash_again_and_again(tmp_path, "power cuts", CUTS, cut)


def test_kills_under_load_lose_no_answer_and_run_nothing_twice(tmp_path: Path) -> None:
    crash_again_and_again(tmp_path, "kills", KILLS, lambda daemon, _: daemon.kill())


def crash_again_and_again(folder: Path, name: str, times: int, crash: Crash) -> None:
    """Ledger after ledger, each for some crashes: it is read whole after every one."""
    words: Counter[str] = Counter()
    chance, began = random.Random(7), time.monotonic()
    for first in range(0, times, CRASHES_OF_A_LEDGER):
        place = folder / str(first)
        place.mkdir()
        with counted_provider() as provider, disk_faults.ext4(place / "image", place / "ledger", SIZE_BYTES) as disk:
            trial = Trial(place, provider)
            crashes = range(first, min(first + CRASHES_OF_A_LEDGER, times))
            words += crashed(trial, crashes, chance, lambda daemon, disk=disk: crash(daemon, disk))
            trial.check(daemon=FEW_AT_ONCE)
    print(f"{times} {name} in {time.monotonic() - began:.0f} s: {dict(words)}")
    assert words["answered before"] > times
    assert words["then end_turn"] >= words["answered before"]


def crashed(trial: Trial, crashes: range, chance: random.Random, crash: Callable[[Process], None]) -> Counter[str]:
    words: Counter[str] = Counter()
    asked_last: list[str] = []
    held: set[str] = set()
    for number in [*crashes, None]:
        with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
            words += what_is_said_after(trial, daemon, asked_last, held)
            assert at_level(daemon, "critical") == at_level(daemon, "error") == []
            if number is not None:
                known, before = set(trial.sent), len(trial.answers)
                with busy_callers(trial, daemon, f"{number:03}", CALLERS):
                    time.sleep(chance.uniform(0, LONGEST_LOAD_SECONDS))
                    crash(daemon)
                asked_last = [request_id for request_id in trial.sent if request_id not in known]
                words["answered before"] += len(trial.answers) - before
        view = trial.view()
        trial.check_ledger(view)
        held = {begin.request_id for begin in view.open.values()}
    return words


def what_is_said_after(trial: Trial, daemon: Process, asked_last: list[str], held: set[str]) -> Counter[str]:
    """The answers to everything that was sent before the last crash; as many at once as may run."""
    before = trial.provider.asked.copy()
    words: dict[str, str] = {}
    with daemon.connect() as client:
        for at in range(0, len(asked_last), CALLERS):
            some = asked_last[at : at + CALLERS]
            for request_id in some:
                trial.send(client, request_id)
            for _ in some:
                answer = client.receive()
                assert answer is not None
                words[msgpack.unpackb(answer)["request_id"]] = trial.heard(answer)
    for request_id in asked_last:
        assert words[request_id] == ("Indeterminate" if request_id in held else "end_turn")
        assert trial.provider.asked[request_id] == max(before[request_id], request_id not in held)
    return Counter(f"then {word}" for word in words.values())
