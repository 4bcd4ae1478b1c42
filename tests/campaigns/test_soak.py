"""A daemon under mixed load that is killed every few seconds; then its ledger comes to what its callers hold.

    SIDECAR_SOAK_SECONDS=600 python -m pytest -m campaign tests/campaigns/test_soak.py -s

The same for a few seconds is in every run.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit import soak
from kit.counted_provider import serving
from kit.daemon_process import running_daemon, write_config
from kit.disk_faults import resident_kib
from kit.disk_trial import at_level
from kit.soak import Books, Caller, Key, UnevenProvider

SOAK_SECONDS = float(os.environ.get("SIDECAR_SOAK_SECONDS", "600"))
STOPS_SHARE = 0.25  # of all ends: SIGTERM instead of SIGKILL
REPLAYS_AT_THE_END = 2000


def test_a_few_seconds_of_kills_under_mixed_load_end_in_what_the_callers_hold(tmp_path: Path) -> None:
    soaked(tmp_path, seconds=4, between_seconds=(0.3, 0.6))


@pytest.mark.campaign
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_ten_minutes_of_kills_under_mixed_load_end_in_what_the_callers_hold(tmp_path: Path) -> None:
    soaked(tmp_path, seconds=SOAK_SECONDS, between_seconds=(1.0, 5.0))


def soaked(folder: Path, *, seconds: float, between_seconds: tuple[float, float]) -> None:
    books, provider = Books(), UnevenProvider()
    write_config(
        folder, script=soak.SCRIPT, connector=provider.connector + soak.SCRIPTED_TOO, callers=soak.EXTRA_CALLERS,
        frame_bytes_max=soak.FRAME_BYTES_MAX,
    )  # fmt: skip
    with serving(provider):
        ends, resident = killed_again_and_again(folder, books, seconds, between_seconds)
        shown, resident_last = the_rest_is_heard_of(folder, books)
    verified = ledger_tool(folder, "verify")[0]
    its_end_is_what_the_callers_hold(folder, books, shown, verified)
    nothing_was_asked_twice(provider.asked, shown)
    tell(books, ends, [*resident, resident_last], verified)


def killed_again_and_again(
    folder: Path, books: Books, seconds: float, between_seconds: tuple[float, float]
) -> tuple[Counter[str], list[int]]:
    """The last end is a kill, with all callers at work. How often it ended how, and its memory at each end, in KiB."""
    chance, give_up_at = random.Random(23), time.monotonic() + seconds
    ends, resident = Counter[str](), list[int]()
    with callers_at_work(folder, books) as failed:
        while not failed.is_set() and (not resident or time.monotonic() < give_up_at or not ends["kills"]):
            with running_daemon(folder) as daemon:
                failed.wait(chance.uniform(*between_seconds))
                resident.append(resident_kib(daemon.pid))
                is_last = time.monotonic() >= give_up_at
                if chance.random() < STOPS_SHARE and not is_last:
                    assert daemon.stop() == 0
                    ends["stops"] += 1
                else:
                    daemon.kill()
                    ends["kills"] += 1
                assert at_level(daemon, "critical") == at_level(daemon, "error") == []
    return ends, resident


@contextmanager
def callers_at_work(folder: Path, books: Books) -> Iterator[threading.Event]:
    """Gives what is set when one of them has seen a promise broken; at the end, that is raised."""
    over, failed, faults = threading.Event(), threading.Event(), list[BaseException]()

    def run(number: int) -> None:
        try:
            Caller(folder / "s.sock", books, number).run(over)
        except BaseException as fault:
            faults.append(fault)
            failed.set()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(soak.CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if faults:
        raise faults[0]


def the_rest_is_heard_of(folder: Path, books: Books) -> tuple[dict[Key, Any], int]:
    """What was sent and never answered is asked for again, as far as it is on record; so is some of the rest."""
    shown = {Key(one["caller_runtime_id"], one["request_id"]): one for one in ledger_tool(folder, "show")}
    with running_daemon(folder) as daemon, daemon.connect() as client:
        for key in [key for key in books.unanswered if key in shown]:
            word = books.hear(client.ask(books.frames[key]))
            assert (word == "Indeterminate") == (shown[key]["state"] == "indeterminate")
        some = random.Random(1).sample(sorted(books.answers), min(REPLAYS_AT_THE_END, len(books.answers)))
        for key in some:
            books.hear(client.ask(books.frames[key]))
        resident = resident_kib(daemon.pid)
        assert daemon.stop() == 0
        assert at_level(daemon, "critical") == at_level(daemon, "error") == []
    return shown, resident


def its_end_is_what_the_callers_hold(folder: Path, books: Books, shown: dict[Key, Any], verified: Any) -> None:
    """To the request, and to the micro-USD."""
    open_ = {key for key, one in shown.items() if one["state"] == "indeterminate"}
    assert open_ == books.indeterminate
    assert set(shown) == set(books.answers) | open_, "on record is what was answered, and what is not known"
    for key, held in books.answers.items():
        assert shown[key]["charge_micro_usd"] == held.cost_micro_usd
    spent: dict[str, Counter[str]] = {caller: Counter() for caller in ("dungeon", "arena", "poor")}
    for row in ledger_tool(folder, "spend"):
        spent[row["caller_runtime_id"]].update(
            {name: row[name] for name in ("requests", "charged_micro_usd", "indeterminate", "held_micro_usd")}
        )
    for caller, sums in spent.items():
        costs = [held.cost_micro_usd for key, held in books.answers.items() if key.caller == caller]
        never_heard = [shown[key]["reservation_micro_usd"] for key in open_ if key.caller == caller]
        assert sums["charged_micro_usd"] == sum(costs)
        assert sums["held_micro_usd"] == sum(never_heard)
        assert sums["requests"] == len(costs) + len(never_heard)
        assert sums["indeterminate"] == len(never_heard)
    assert verified["ok"]
    assert verified["closed"]
    assert verified["charged_micro_usd"] == sum(sums["charged_micro_usd"] for sums in spent.values())
    assert verified["held_micro_usd"] == sum(sums["held_micro_usd"] for sums in spent.values())
    assert verified["requests"] == len(shown)


def nothing_was_asked_twice(asked: Counter[str], shown: dict[Key, Any]) -> None:
    """Its words are its id. (For the scripted connector `verify` has seen it: no id begins twice.)"""
    assert max(asked.values()) == 1
    assert set(asked) <= {key.request_id for key in shown}
    done = {key.request_id for key, one in shown.items() if one["provider"] == "provider" and one["usage"]}
    assert done <= set(asked)


def ledger_tool(folder: Path, tool: str) -> list[Any]:
    """What `sidecar ledger TOOL --json` says: one document, or one a line."""
    command = [sys.executable, "-m", "sidecar", "ledger", tool, str(folder / "ledger"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) in ((0, ""),), done.stderr
    return [json.loads(done.stdout)] if tool == "verify" else [json.loads(line) for line in done.stdout.splitlines()]


def tell(books: Books, ends: Counter[str], resident: list[int], verified: Any) -> None:
    counts = books.counts
    print(
        f"{ends['kills']} kills, {ends['stops']} stops; {counts['frames sent']} frames sent, {len(books.answers)}"
        f" requests answered, {counts['replays']} replays, {len(books.indeterminate)} indeterminate,"
        f" {len(books.unanswered) - len(books.indeterminate)} that never began, {len(books.refused)} refused;"
        f" charged {verified['charged_micro_usd']} and held {verified['held_micro_usd']} micro-USD;"
        f" {verified['segments']} segments, {verified['records']} records;"
        f" resident {resident[0]} KiB at first, {resident[-1]} at last, {max(resident)} at most; {dict(counts)}"
    )
