"""A reload that meets a bug: it is told, and the daemon goes on as it was."""

from __future__ import annotations

import io
import threading

import pytest
import trio
from kit import road

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.connectors.promise import Connector
from sidecar.ops.log import Log
from sidecar.service import reloading
from sidecar.service.reloading import Load, Loaded, Reloading, Stopping


def failing(fault: BaseException) -> Load:
    def load(built: object) -> Loaded:
        raise fault

    return load


async def nothing_starts(connector: Connector) -> None:
    raise AssertionError("nothing is started")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (KeyError("canary"), "a bug met while it was read: KeyError"),
        (AssertionError("canary"), "a bug met while it was read: AssertionError"),
        (RuntimeError("no thread"), "can't be read now: no thread"),
        (ConfigFaults([Complaint("caller", "there is none")]), "caller: there is none"),
    ],
)
async def test_whatever_loading_raises_is_a_complaint_and_changes_nothing(fault: BaseException, words: str) -> None:
    of_one = road.Road()
    log = io.StringIO()
    ended: list[str] = []
    before = of_one.in_force.config
    failing_one = Reloading(
        of_one.in_force,
        of_one.ledger,
        of_one.reservations,
        Log(log, "text"),
        failing(fault),
        start=nothing_starts,
        on_swap=lambda config, connectors: ended.append("swapped"),
        on_end=ended.append,
    )
    told = await failing_one.reload("a test")
    assert not told.reloaded
    assert words in told.complaints[0]
    assert of_one.in_force.config is before
    assert ended == ["reload refused, complaints: 1; the configuration is as before"]
    assert "canary" not in log.getvalue()


async def test_a_file_that_can_not_be_read_in_time_is_given_up_and_takes_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_one, never, loads = road.Road(), threading.Event(), 0
    monkeypatch.setattr(reloading, "LOAD_SECONDS_MAX", 0.01)

    def load(built: object) -> Loaded:
        nonlocal loads
        loads += 1
        never.wait()
        raise AssertionError("it is over")

    log = Log(io.StringIO(), "text")
    slow = Reloading(
        of_one.in_force,
        of_one.ledger,
        of_one.reservations,
        log,
        load,
        start=nothing_starts,
        on_swap=lambda config, connectors: None,
    )
    told = await slow.reload("a test")
    assert "could not be read within 0.01 s" in told.complaints[0]
    for _ in range(50):
        again = await slow.reload("a test")
        assert "has not come back yet" in again.complaints[0]
    assert loads == 1
    assert await trio.to_thread.run_sync(lambda: "others have threads all the same")
    never.set()


async def test_what_is_asked_for_once_the_daemon_ends_is_given_up_at_once() -> None:
    of_one = road.Road()
    late = Reloading(
        of_one.in_force,
        of_one.ledger,
        of_one.reservations,
        Log(io.StringIO(), "text"),
        failing(AssertionError("nothing is read")),
        start=nothing_starts,
        on_swap=lambda config, connectors: None,
    )
    late.stop()
    with pytest.raises(Stopping):
        await late.reload("a test")
    await late.on_signal()
