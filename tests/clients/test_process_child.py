"""The example of a connector in any language, behind the real daemon: it answers, and it never outlives it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import msgpack
import pytest
from kit.daemon_process import Process, invocation, running_daemon, wait_until
from kit.process_cases import ODD_CHILD
from kit.road import receipt, said

PARROT = Path(__file__).with_name("process_child.py")


def connector(*argv: str, **more: str) -> str:
    lines = {"kind": '"process"', "argv": json.dumps([sys.executable, *argv]), **more}
    return "\n".join(f"{name} = {value}" for name, value in lines.items())


def text_of(answer: bytes) -> str:
    events = msgpack.unpackb(answer)["disposition"]["Transported"]["events"]
    return "".join(event["payload"]["TextDelta"]["text"] for event in events)


def children(daemon: Process) -> list[int]:
    return [int(pid) for pid in re.findall(r"child_started .*pid=(\d+)", daemon.log())]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_example_is_about_sixty_lines() -> None:
    assert len(PARROT.read_text().splitlines()) <= 66


def test_it_answers_is_charged_by_its_usage_and_replayed(tmp_path: Path) -> None:
    with running_daemon(tmp_path, connector=connector(str(PARROT))) as daemon, daemon.connect() as client:
        wait_until(lambda: bool(children(daemon)))
        frame = invocation("turn-1", "who goes there", max_output_tokens=2)
        answer = client.ask(frame)
        assert (said(answer), text_of(answer)) == ("max_output_tokens", "who goes")
        assert receipt(answer)["cost_micro_usd"] == -(-(3 * 2_000_003 + 2 * 11_000_027) // 1_000_000)
        assert client.ask(frame) == answer
        for number in range(5):
            assert text_of(client.ask(invocation(f"more-{number}", "again"))) == "again"
        assert len(children(daemon)) == 1, "one child, asked again and again"


def test_a_stop_ends_the_child_that_waits_and_the_exit_is_clean(tmp_path: Path) -> None:
    with running_daemon(tmp_path, connector=connector(str(PARROT))) as daemon:
        wait_until(lambda: bool(children(daemon)))
        assert daemon.stop() == 0
        assert not any(map(runs, children(daemon)))
        assert "child_ended" in daemon.log()


def test_a_stop_that_drops_a_request_kills_its_child_with_its_group_and_records_the_end(tmp_path: Path) -> None:
    hanging = connector(str(ODD_CHILD), "hangs")
    with running_daemon(tmp_path, connector=hanging) as daemon, daemon.connect() as client:
        client.send(invocation("turn-1"))
        wait_until(lambda: hangs(daemon))
        os.kill(daemon.pid, signal.SIGTERM)
        wait_until(lambda: "draining" in daemon.log())
        os.kill(daemon.pid, signal.SIGTERM)
        answer = client.receive()
        assert answer is not None
        assert said(answer) == "unavailable"
        assert daemon.process.wait(timeout=30) == 0
        assert not any(map(runs, children(daemon)))


def hangs(daemon: Process) -> bool:
    """Whether a request has reached a child that hangs."""
    return "it hangs" in daemon.log()


def test_a_deadline_is_a_timeout_at_the_whole_reservation_and_the_next_request_has_another_child(
    tmp_path: Path,
) -> None:
    hanging = connector(str(ODD_CHILD), "hangs", time_limit_seconds="1", concurrent_requests_max="1")
    with running_daemon(tmp_path, connector=hanging) as daemon, daemon.connect() as client:
        for number in range(2):
            answer = client.ask(invocation(f"turn-{number}"))
            assert said(answer) == "timeout"
            assert "usage" not in receipt(answer)["outcome"]["Failed"]
            assert receipt(answer)["cost_micro_usd"] > 1000
        wait_until(lambda: len(children(daemon)) == 3 and sum(map(runs, children(daemon))) == 1)


@pytest.mark.parametrize("child", [[str(PARROT)], [str(ODD_CHILD), "hangs"]], ids=["waiting", "asked"])
def test_the_child_of_a_daemon_that_was_killed_sees_the_end_of_its_stdin_and_ends(
    tmp_path: Path, child: list[str]
) -> None:
    with running_daemon(tmp_path, connector=connector(*child)) as daemon, daemon.connect() as client:
        wait_until(lambda: bool(children(daemon)))
        if "hangs" in child:
            client.send(invocation("turn-1"))
            wait_until(lambda: hangs(daemon))
        daemon.kill()
        wait_until(lambda: not any(map(runs, children(daemon))))


def test_a_program_that_ends_at_once_keeps_no_daemon_from_serving(tmp_path: Path) -> None:
    ending = connector("-c", "import sys; print('no key', file=sys.stderr); sys.exit(2)")
    with running_daemon(tmp_path, connector=ending) as daemon, daemon.connect() as client:
        wait_until(lambda: daemon.log().count("child_faulty") >= 3)
        answer = client.ask(invocation("turn-1"))
        assert said(answer) == "unavailable"
        assert 'line="no key"' in daemon.log()
        assert 'how="exit code 2"' in daemon.log()
        assert daemon.stop() == 0
