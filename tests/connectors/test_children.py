"""Which child is asked, when another is started, and that each has its end: children in memory, a fake clock."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio.testing
from kit import build
from kit.fake_child import FakeChild, Nursery, answers
from kit.process_cases import process
from trio.testing import MockClock

from sidecar.connectors.process import Process
from sidecar.connectors.promise import Answer
from sidecar.contract.values import NOTHING_USED


@asynccontextmanager
async def served(nursery: Nursery, **changes: Any) -> AsyncIterator[Process]:
    """A connector whose first child, if any can be had, is there already."""
    async with process("text", start=nursery.start, **changes) as connector:
        await trio.testing.wait_all_tasks_blocked()
        yield connector


async def ask(connector: Process, answer: Answer | None = None) -> Answer:
    lowered = connector.lower(build.request(), "tiny")
    answer = answer or Answer(lowered.call_ids, 1000)
    await connector.exchange(lowered, answer)
    return answer


async def told(connector: Process) -> tuple[str | None, str]:
    """How an exchange ended, and the message of a failure."""
    ended = (await ask(connector)).ended
    assert ended is not None
    return ended.stop_reason or ended.kind, ended.message


def hangs(child: FakeChild, exchange: int) -> None:
    child.speak(exchange)


def dies(child: FakeChild, exchange: int) -> None:
    child.speak(exchange)
    child.die()


async def test_one_child_is_there_from_the_start_and_is_asked_again_and_again(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    async with served(nursery) as connector:
        assert nursery.living == [1]
        for _ in range(3):
            assert await told(connector) == ("end_turn", "")
        assert [asked["exchange"] for asked in nursery.started[0].asked] == [1, 2, 3]
        assert nursery.living == [1]
    assert nursery.living == []
    assert nursery.started[0].killed


async def test_each_exchange_has_a_child_of_its_own_and_none_beyond_the_bound_is_started(
    autojump_clock: MockClock,
) -> None:
    nursery = Nursery(hangs)
    async with served(nursery, children_max=3) as connector, trio.open_nursery() as asking:
        for _ in range(5):
            asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        assert [len(child.asked) for child in nursery.started] == [1, 1, 1]
        nursery.started[1].end(nursery.started[1].asked[0]["exchange"])
        await trio.testing.wait_all_tasks_blocked()
        assert [len(child.asked) for child in nursery.started] == [1, 2, 1], "one that waited has it now"
        asking.cancel_scope.cancel()


async def test_of_many_that_have_nothing_to_do_a_few_stay(autojump_clock: MockClock) -> None:
    nursery = Nursery(hangs)
    async with served(nursery, children_max=9) as connector, trio.open_nursery() as asking:
        for _ in range(9):
            asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        for child in nursery.started:
            child.end(child.asked[0]["exchange"])
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.started) == 9
        assert len(nursery.living) == 4


async def test_a_deadline_kills_the_child_of_that_exchange_and_no_other_and_is_no_fault(
    autojump_clock: MockClock,
) -> None:
    nursery = Nursery(hangs)
    async with served(nursery) as connector, trio.open_nursery() as asking:
        asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(5) as scope:
            await ask(connector)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.living == [1]
        nursery.behave = answers
        assert await told(connector) == ("end_turn", ""), "another is started at once"
        asking.cancel_scope.cancel()


async def test_the_deadline_that_a_child_is_told_is_what_is_left_or_the_limit(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    async with served(nursery, time_limit_seconds=60) as connector:
        with trio.fail_after(5.5):
            await ask(connector)
        await ask(connector)
    first, second = [asked["deadline_ms"] for asked in nursery.started[0].asked]
    assert first in (5499, 5500), "whole milliseconds, never more than there are"
    assert second == 60_000


async def test_a_deadline_that_strikes_while_a_child_is_started_sends_nothing(autojump_clock: MockClock) -> None:
    async def wait_uncancelled() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)

    nursery = Nursery(hangs)
    async with served(nursery) as connector, trio.open_nursery() as asking:
        asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        nursery.wait_start = wait_uncancelled
        answer = Answer(frozenset(), 1000)
        with trio.move_on_after(1):
            await ask(connector, answer)
        assert (len(nursery.started), nursery.started[1].asked, answer.sent) == (2, [], False)
        asking.cancel_scope.cancel()


async def test_with_room_for_one_a_request_waits_for_the_one_that_is_being_started(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    nursery.wait_start = partial(trio.sleep, 2)
    async with process("text", start=nursery.start, children_max=1) as connector:
        assert await told(connector) == ("end_turn", "")
    assert len(nursery.started) == 1


async def test_a_request_that_no_pipe_takes_at_once_is_sent_beside_the_reading(autojump_clock: MockClock) -> None:
    def talks_first(child: FakeChild, exchange: int) -> None:
        answers(child, exchange)

    nursery = Nursery(talks_first, takes_bytes=10)
    async with served(nursery) as connector:
        assert await told(connector) == ("end_turn", "")
        assert await told(connector) == ("end_turn", "")
    assert len(nursery.started) == 1


# --- faults -----------------------------------------------------------------------------------------------------


async def test_a_child_that_dies_at_once_is_started_again_after_a_delay_that_doubles_up_to_ten_seconds(
    autojump_clock: MockClock,
) -> None:
    nursery = Nursery()
    nursery.on_start = FakeChild.die
    async with served(nursery):
        await trio.sleep(60)
    steps = [round(after - before, 3) for before, after in zip(nursery.tried_at, nursery.tried_at[1:], strict=False)]
    assert steps[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]


async def test_while_none_may_be_started_a_request_fails_at_once_and_costs_nothing(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    nursery.fault = FileNotFoundError(2, "No such file or directory")
    async with served(nursery) as connector:
        before = trio.current_time()
        answer = await ask(connector)
        assert trio.current_time() == before
        assert not answer.sent
        assert answer.ended is not None
        assert (answer.ended.kind, answer.ended.usage) == ("unavailable", NOTHING_USED)
        assert answer.ended.message == (
            "the connector's process can't be started: No such file or directory; it is started again in 0.1 s"
        )
        nursery.fault = None
        await trio.sleep(0.2)
        assert await told(connector) == ("end_turn", "")


async def test_a_death_before_any_answer_begins_the_delay_and_one_after_an_answer_does_not(
    autojump_clock: MockClock,
) -> None:
    nursery = Nursery(dies)
    async with served(nursery) as connector:
        assert await told(connector) == ("unavailable", "the connector's process ended before its outcome")
        kind, message = await told(connector)
        assert kind == "unavailable"
        assert message.endswith("ended before its outcome; it is started again in 0.1 s")
        nursery.behave = answers
        await trio.sleep(0.2)
        for _ in range(3):
            assert await told(connector) == ("end_turn", "")
            nursery.started[-1].die()
            await trio.testing.wait_all_tasks_blocked()


async def test_a_child_that_answers_ends_the_delay_of_the_others(autojump_clock: MockClock) -> None:
    nursery = Nursery(hangs)
    async with served(nursery) as connector, trio.open_nursery() as asking:
        asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        nursery.behave = dies
        assert (await told(connector))[0] == "unavailable"
        assert "started again" in (await told(connector))[1]
        nursery.started[0].end(1)
        await trio.testing.wait_all_tasks_blocked()
        assert await ended_by_first(connector, nursery)


async def ended_by_first(connector: Process, nursery: Nursery) -> bool:
    """Whether the first child, idle again, is asked: it hangs, so the test ends it."""
    async with trio.open_nursery() as asking:
        asking.start_soon(ask, connector)
        await trio.testing.wait_all_tasks_blocked()
        asked = len(nursery.started[0].asked) == 2
        asking.cancel_scope.cancel()
    return asked


async def test_a_child_that_took_no_byte_cost_nothing(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    async with served(nursery) as connector:
        nursery.started[0].is_quiet = lambda: True  # it dies between look and write
        nursery.started[0]._ended.set()
        answer = await ask(connector)
        assert answer.ended is not None
        assert (answer.ended.kind, answer.ended.usage) == ("unavailable", NOTHING_USED)


async def test_one_that_speaks_unasked_or_answers_twice_is_killed_and_the_next_request_has_another(
    autojump_clock: MockClock,
) -> None:
    def twice(child: FakeChild, exchange: int) -> None:
        answers(child, exchange)
        child.end(exchange)

    nursery, log = Nursery(twice), io.StringIO()
    async with served(nursery, log=log) as connector:
        assert await told(connector) == ("end_turn", "")
        assert await told(connector) == ("end_turn", "")
        assert [len(child.asked) for child in nursery.started] == [1, 1]
        assert nursery.started[0].killed
    assert "child_dropped connector=parrots pid=1" in log.getvalue()


async def test_a_late_second_answer_fails_no_exchange_of_another_but_the_child_is_done_with(
    autojump_clock: MockClock,
) -> None:
    def late(child: FakeChild, exchange: int) -> None:
        child.speak(exchange)
        if exchange > 1:
            child.end(exchange - 1)
        child.end(exchange)

    nursery = Nursery(late)
    async with served(nursery) as connector:
        assert await told(connector) == ("end_turn", "")
        assert await told(connector) == ("end_turn", "")
        assert len(nursery.started[0].asked) == 2
        assert nursery.started[0].killed


async def test_what_a_dead_child_wrote_is_read_to_its_end(autojump_clock: MockClock) -> None:
    def last_word(child: FakeChild, exchange: int) -> None:
        answers(child, exchange)
        child.die()

    nursery = Nursery(last_word)
    async with served(nursery) as connector:
        for _ in range(3):
            assert await told(connector) == ("end_turn", "")
            await trio.testing.wait_all_tasks_blocked()


# --- the end ----------------------------------------------------------------------------------------------------


async def test_closed_it_has_no_child_and_asks_none(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    async with served(nursery) as connector:
        await connector.aclose()
        assert nursery.living == []
        assert await told(connector) == ("unavailable", "the connector is closed")
        await trio.sleep(30)
        assert len(nursery.started) == 1


async def test_cancelled_it_leaves_none_behind_also_one_that_was_just_being_started(autojump_clock: MockClock) -> None:
    nursery = Nursery()
    held = trio.Event()
    connector = Process(
        plan=None,  # a fake reads none
        name="parrots", secret=None, children_max=4, time_limit_seconds=60, response_bytes_max=1000,
        body_bytes_max=1000, start=nursery.start,
    )  # fmt: skip

    async def wait_uncancelled() -> None:
        with trio.CancelScope(shield=True):
            await held.wait()

    async with trio.open_nursery() as tasks:
        await tasks.start(connector.serve, _Silent())
        await trio.testing.wait_all_tasks_blocked()
        nursery.started[0].die()
        nursery.wait_start = wait_uncancelled
        await trio.sleep(1)
        tasks.cancel_scope.cancel()
        await trio.lowlevel.cancel_shielded_checkpoint()
        held.set()
    assert len(nursery.started) == 2
    assert nursery.living == []


class _Silent:
    """A log that says nothing."""

    def info(self, *_: object, **__: object) -> None: ...

    warning = info


async def test_lines_of_a_child_are_told_escaped_scrubbed_and_counted_when_there_are_too_many(
    autojump_clock: MockClock,
) -> None:
    class Talker(FakeChild):
        async def tell_lines(self, tell: Any) -> None:
            for number in range(60):
                tell(f"line {number} of sk-canary-0123456789\x1b[31m")
            await trio.sleep(11)
            tell("at last")
            await self.wait_ended()

    class Talkers(Nursery):
        async def start(self, _: Any) -> FakeChild:
            await trio.lowlevel.checkpoint()
            child = Talker(1, answers)
            self.started.append(child)
            return child

    log = io.StringIO()
    async with served(Talkers(), log=log, secret="sk-canary-0123456789"):
        await trio.sleep(12)
    said = log.getvalue()
    assert "canary" not in said
    assert "\x1b" not in said
    assert said.count("child_said") == 51
    assert "child_lines_dropped connector=parrots pid=1 count=10" in said
