"""What the service manager hears, and when: under a virtual clock, with a manager that notes the second."""

from __future__ import annotations

import io
import itertools
import math
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from kit.memory_ledger import MemoryLedger

from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ops.log import Log
from sidecar.ops.notify import Notifier
from sidecar.service import supervision as supervised
from sidecar.service.supervision import EXTEND_EVERY_SECONDS, OPENING_SILENCE_SECONDS_MAX, Supervision


class Heard(Notifier):
    """What was said, each with its second; `full` is how many things more are not taken."""

    def __init__(self, is_heard: bool = True) -> None:
        super().__init__()
        self._is_heard = is_heard
        self.said: list[tuple[float, dict[str, str]]] = []
        self.full = 0

    @property
    def is_heard(self) -> bool:
        return self._is_heard

    def say(self, **states: str) -> bool:
        if self.full:
            self.full -= 1
            return False
        try:
            now = trio.current_time()
        except RuntimeError:
            now = math.nan
        self.said.append((now, states))
        return True

    def seconds(self, key: str) -> list[float]:
        """When this was said, from the first thing on."""
        return [at - self.began for at, states in self.said if key in states]

    def values(self, key: str) -> list[str]:
        return [states[key] for _, states in self.said if key in states]

    began = 0.0


class Clocked:
    """A supervision whose loop runs; `line` is what the status line says."""

    def __init__(self, watchdog_seconds: float | None = None) -> None:
        self.heard = Heard()
        self.heard.began = trio.current_time()
        self.supervision = Supervision(self.heard, watchdog_seconds, clock_usec=lambda: 1_234_567)
        self.line = "0 in flight"


async def run_for(seconds: float, clocked: Clocked, *tasks: Callable[[], Awaitable[None]]) -> None:
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clocked.supervision.serve, lambda: clocked.line)
            for task in tasks:
                nursery.start_soon(task)
            await trio.sleep_forever()


# --- status -----------------------------------------------------------------------------------------------------


async def test_the_status_line_is_sent_once_a_second_at_most_and_the_last_change_arrives(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked = Clocked()

    async def work() -> None:
        for number in range(35):
            clocked.line = f"{number} in flight"
            clocked.supervision.changed()
            await trio.sleep(0.1)

    await run_for(1000, clocked, work)
    seconds = clocked.heard.seconds("STATUS")
    assert [later - sooner for sooner, later in itertools.pairwise(seconds)] == pytest.approx([1] * 4)
    assert clocked.heard.values("STATUS")[-1] == "34 in flight"


async def test_nothing_is_sent_and_no_timer_runs_while_nothing_happens(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked = Clocked()
    with trio.move_on_after(10_000):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clocked.supervision.serve, lambda: clocked.line)
            clocked.supervision.ready()
            await trio.sleep(10)
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 9000
            nursery.cancel_scope.cancel()
    assert [states for _, states in clocked.heard.said] == [{"READY": "1"}, {"STATUS": "0 in flight"}]


async def test_a_line_that_is_the_same_is_not_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    clocked = Clocked()

    async def work() -> None:
        for _ in range(10):
            clocked.supervision.changed()
            await trio.sleep(5)

    await run_for(100, clocked, work)
    assert clocked.heard.values("STATUS") == ["0 in flight"]


async def test_what_the_manager_waits_for_is_said_again_where_it_had_no_room_and_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked = Clocked()

    async def work() -> None:
        clocked.heard.full = 4
        clocked.supervision.ready()
        clocked.supervision.stopping(1)

    await run_for(100, clocked, work)
    told = [next(iter(states)) for _, states in clocked.heard.said if "EXTEND_TIMEOUT_USEC" not in list(states)[:1]]
    assert told == ["READY", "STOPPING", "STATUS"]


# --- reloading and stopping -------------------------------------------------------------------------------------


async def test_a_reload_says_when_it_began_and_that_it_is_over_and_its_outcome_stays_in_the_line(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked = Clocked()

    async def work() -> None:
        clocked.supervision.reloading()
        clocked.supervision.reloaded("the old configuration stays: 2 complaints")
        await trio.sleep(10)
        clocked.line = "1 in flight"
        clocked.supervision.changed()

    await run_for(100, clocked, work)
    assert [states for _, states in clocked.heard.said] == [
        {"RELOADING": "1", "MONOTONIC_USEC": "1234567"},
        {"READY": "1", "STATUS": "the old configuration stays: 2 complaints"},
        {"STATUS": "0 in flight; the old configuration stays: 2 complaints"},
        {"STATUS": "1 in flight; the old configuration stays: 2 complaints"},
    ]


def test_the_instant_of_a_reload_is_of_the_clock_that_the_manager_compares_it_with() -> None:
    heard = Heard()
    before = supervised.monotonic_usec()
    Supervision(heard).reloading()
    assert before <= int(heard.values("MONOTONIC_USEC")[0]) <= supervised.monotonic_usec()


async def test_while_it_stops_more_time_is_asked_for_every_five_seconds_up_to_the_limit_of_the_stop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked = Clocked()

    async def work() -> None:
        await trio.sleep(7)
        clocked.supervision.stopping(31)
        clocked.supervision.stopping(500)
        clocked.supervision.reloading()
        clocked.supervision.reloaded("too late")

    await run_for(1000, clocked, work)
    heard = clocked.heard
    assert heard.values("STOPPING") == ["1"]
    assert heard.seconds("EXTEND_TIMEOUT_USEC") == pytest.approx([7 + 5 * number for number in range(8)])
    assert all(int(value) >= 2_000_000 * EXTEND_EVERY_SECONDS for value in heard.values("EXTEND_TIMEOUT_USEC"))
    assert heard.values("READY") == heard.values("RELOADING") == []


# --- the watchdog -----------------------------------------------------------------------------------------------


async def test_pings_come_at_half_the_interval_as_long_as_the_ledger_answers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked, ledger = Clocked(30), MemoryLedger()
    await run_for(61, clocked, lambda: clocked.supervision.watch(ledger.answers))
    assert clocked.heard.seconds("WATCHDOG") == pytest.approx([0, 15, 30, 45, 60])


@pytest.mark.parametrize("delay_seconds", [3, 14, 20])
async def test_a_slow_disk_is_pinged_for_as_soon_as_it_has_answered(
    autojump_clock: trio.testing.MockClock, delay_seconds: float
) -> None:
    """As long as it answers within half of the interval, or always takes less than all of it."""
    clocked, ledger = Clocked(30), MemoryLedger()
    ledger.delay_seconds = delay_seconds
    await run_for(200, clocked, lambda: clocked.supervision.watch(ledger.answers))
    seconds = clocked.heard.seconds("WATCHDOG")
    assert max(later - sooner for sooner, later in zip([0.0, *seconds], seconds, strict=False)) < 30
    assert len(seconds) >= 9


async def test_a_ledger_that_stops_answering_ends_the_pings_while_the_loop_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked, ledger = Clocked(30), MemoryLedger()

    async def hang_later() -> None:
        await trio.sleep(40)
        ledger.delay_seconds = math.inf
        while True:
            await trio.sleep(1)
            clocked.supervision.changed()

    await run_for(500, clocked, lambda: clocked.supervision.watch(ledger.answers), hang_later)
    assert clocked.heard.seconds("WATCHDOG") == pytest.approx([0, 15, 30])


async def test_a_poisoned_ledger_ends_the_pings_for_good(autojump_clock: trio.testing.MockClock) -> None:
    clocked, ledger = Clocked(30), MemoryLedger()

    async def poison_later() -> None:
        await trio.sleep(20)
        ledger.poison("the disk is gone")

    await run_for(500, clocked, lambda: clocked.supervision.watch(ledger.answers), poison_later)
    assert clocked.heard.seconds("WATCHDOG") == pytest.approx([0, 15])


async def test_while_it_drains_the_pings_go_on_on_the_same_terms(autojump_clock: trio.testing.MockClock) -> None:
    clocked, ledger = Clocked(30), MemoryLedger()
    clocked.supervision.stopping(300)
    await run_for(40, clocked, lambda: clocked.supervision.watch(ledger.answers))
    assert clocked.heard.seconds("WATCHDOG") == pytest.approx([0, 15, 30])


async def test_a_bug_in_the_ledger_is_not_taken_for_its_end() -> None:
    async def broken() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await Supervision(Heard(), 30).watch(broken)


async def test_a_window_that_ends_while_nothing_happens_is_told_with_the_next_ping(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clocked, ledger = Clocked(30), MemoryLedger()

    async def midnight() -> None:
        await trio.sleep(20)
        clocked.line = "spent 0.00 of 5.00 USD today"

    await run_for(100, clocked, lambda: clocked.supervision.watch(ledger.answers), midnight)
    assert clocked.heard.values("STATUS") == ["0 in flight", "spent 0.00 of 5.00 USD today"]
    assert clocked.heard.seconds("STATUS")[1] == pytest.approx(30)


async def test_a_watchdog_of_no_time_does_not_keep_the_disk_busy(autojump_clock: trio.testing.MockClock) -> None:
    clocked, ledger = Clocked(1e-6), MemoryLedger()
    await run_for(10, clocked, lambda: clocked.supervision.watch(ledger.answers))
    assert len(clocked.heard.seconds("WATCHDOG")) <= 201


async def test_where_nobody_listens_nothing_is_said_asked_or_waited_for() -> None:
    deaf = Heard(is_heard=False)

    async def asked() -> None:
        raise LedgerUnavailable("nobody is to ask")

    supervision = Supervision(deaf, 30)
    supervision.ready()
    supervision.reloading()
    supervision.reloaded("anything")
    supervision.changed()
    supervision.stopping(1)
    await supervision.serve(lambda: "a line")
    await supervision.watch(asked)
    with supervision.opening(Log(io.StringIO(), "text"), lambda: 0):
        assert not [one for one in threading.enumerate() if one.name == "more-time"]
    assert deaf.said == []


# --- opening ----------------------------------------------------------------------------------------------------


class Turns(threading.Event):
    """Waits for nobody: each wait is one turn, of which there are so many."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return len(self.waits) > self.count


def asked_while(moves: Callable[[int], int], turns: int) -> tuple[int, str]:
    """How often more time was asked for in so many turns, when this is how far the opening is at each look."""
    heard, text, looks = Heard(), io.StringIO(), iter(range(turns + 1))
    waiting = Turns(turns)
    Supervision(heard)._ask_while_it_moves(Log(text, "text"), lambda: moves(next(looks)), waiting, EXTEND_EVERY_SECONDS)
    assert set(waiting.waits) == {EXTEND_EVERY_SECONDS}
    return len(heard.values("EXTEND_TIMEOUT_USEC")), text.getvalue()


def test_an_opening_that_goes_on_gets_more_time_however_long_it_takes() -> None:
    assert asked_while(lambda look: look, 5000) == (5000, "")


@pytest.mark.parametrize("slow", [2, 6, 11])
def test_an_opening_whose_calls_are_slow_goes_on_too(slow: int) -> None:
    assert asked_while(lambda look: look // slow, 500) == (500, "")


def test_an_opening_that_hangs_gets_no_more_time_and_the_log_says_so() -> None:
    times, said = asked_while(lambda look: min(look, 3), 1000)
    assert times == 3 + OPENING_SILENCE_SECONDS_MAX / EXTEND_EVERY_SECONDS - 1
    assert "opening_silent seconds=60" in said


def test_the_first_word_of_an_opening_comes_before_anything_is_opened_and_the_last_before_it_is_left() -> None:
    heard = Heard()
    with Supervision(heard).opening(Log(io.StringIO(), "text"), lambda: 0):
        assert heard.values("STATUS") == ["opening the ledger"]
        assert len(heard.values("EXTEND_TIMEOUT_USEC")) == 1
        assert [one for one in threading.enumerate() if one.name == "more-time"]
    assert not [one for one in threading.enumerate() if one.name == "more-time"]


def test_an_opening_that_fails_is_told_as_it_is_and_leaves_no_thread() -> None:
    with pytest.raises(OSError, match="gone"), Supervision(Heard()).opening(Log(io.StringIO(), "text"), lambda: 0):
        raise OSError("gone")
    assert not [one for one in threading.enumerate() if one.name == "more-time"]
