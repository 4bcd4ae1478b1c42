"""A busy daemon killed at random moments, again and again; what was answered stays answered."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest
from kit.daemon_process import Process, invocation, running_daemon
from kit.ledger_view import LedgerView
from kit.road import said

ROUNDS = int(os.environ.get("SIDECAR_KILL_ROUNDS", "20"))
CALLERS = 8
SCRIPT = "[[rule]]\ndelay_ms = 1\n"


def busy(daemon: Process, number: int, round_: int, answers: dict[bytes, bytes], sent: list[bytes]) -> None:
    """Asks until the daemon is gone; keeps every answer that came."""
    try:
        with daemon.connect() as client:
            for turn in range(10_000):
                frame = invocation(f"r{round_}-{number}-{turn}")
                sent.append(frame)
                client.send(frame)
                answer = client.receive()
                if answer is None:
                    return
                answers[frame] = answer
    except OSError:
        return


@pytest.mark.campaign
def test_what_was_answered_is_replayed_byte_for_byte_after_every_kill(tmp_path: Path) -> None:
    chance = random.Random(11)
    answers: dict[bytes, bytes] = {}
    sent: list[bytes] = []
    for round_ in range(ROUNDS):
        with running_daemon(tmp_path, script=SCRIPT) as daemon:
            threads = [threading.Thread(target=busy, args=(daemon, n, round_, answers, sent)) for n in range(CALLERS)]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.05, 0.4))
            daemon.kill()
            for thread in threads:
                thread.join()
    view = LedgerView(tmp_path / "ledger")
    recorded = {record.response[1:] for _, record in view.completes}
    assert set(answers.values()) <= recorded
    words: dict[str, int] = {}
    with running_daemon(tmp_path, script=SCRIPT) as daemon, daemon.connect() as client:
        for frame in sent:
            answer = client.ask(frame)
            assert answers.get(frame, answer) == answer
            words[said(answer)] = words.get(said(answer), 0) + 1
    assert words.get("Indeterminate", 0) == len(view.open)
    print(f"{ROUNDS} kills, {len(sent)} sent, {len(answers)} answered, then {words}")
