"""What is put off to the end of the loop's turn."""

from __future__ import annotations

import io
from functools import partial
from itertools import permutations

import pytest
import trio
import trio.lowlevel
import trio.testing
from kit.road import Road

from sidecar.ops.log import Log
from sidecar.service.daemon import Daemon
from sidecar.service.tasks import Tasks
from sidecar.service.turn import EndOfTurn


async def test_what_many_tasks_put_off_in_one_turn_is_done_together_after_them() -> None:
    turn = EndOfTurn()
    happened: list[str] = []

    async def run(name: str) -> None:
        happened.append(f"{name} runs")
        turn.soon(lambda: happened.append(f"{name} is done"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await trio.testing.wait_all_tasks_blocked()
        for name in "abc":
            nursery.start_soon(run, name)
        await trio.testing.wait_all_tasks_blocked()
        await turn.over()
        nursery.cancel_scope.cancel()
    assert sorted(happened[:3]) == ["a runs", "b runs", "c runs"]
    assert sorted(happened[3:]) == ["a is done", "b is done", "c is done"]


async def test_before_it_is_served_and_after_its_end_everything_is_done_at_once() -> None:
    turn = EndOfTurn()
    happened: list[int] = []
    turn.soon(lambda: happened.append(1))
    assert happened == [1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await trio.testing.wait_all_tasks_blocked()
        turn.soon(lambda: happened.append(2))
        nursery.cancel_scope.cancel()
    assert happened == [1, 2], "what was put off is done where it is cancelled"
    turn.soon(lambda: happened.append(3))
    assert happened == [1, 2, 3]


async def test_what_an_act_puts_off_is_done_in_the_next_turn() -> None:
    turn = EndOfTurn()
    happened: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await trio.testing.wait_all_tasks_blocked()
        turn.soon(lambda: turn.soon(lambda: happened.append(1)))
        await turn.over()
        nursery.cancel_scope.cancel()
    assert happened == [1]


async def test_what_is_put_off_by_later_comes_behind_everything_by_soon_whatever_the_order_of_the_calls() -> None:
    turn = EndOfTurn()
    happened: list[str] = []
    put = {"soon": turn.soon, "later": turn.later}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await trio.testing.wait_all_tasks_blocked()
        for names in permutations(("soon", "soon", "later", "later")):
            for name in names:
                put[name](partial(happened.append, name))
            await turn.over()
            assert happened == ["soon", "soon", "later", "later"], names
            happened.clear()
        nursery.cancel_scope.cancel()


async def test_where_an_act_raises_the_others_of_its_turn_are_done_and_the_first_fault_is_raised() -> None:
    turn = EndOfTurn()
    happened: list[str] = []

    def fail(word: str) -> None:
        happened.append(word)
        raise ValueError(word)

    async def one_turn() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.serve)
            await trio.testing.wait_all_tasks_blocked()
            turn.soon(lambda: fail("first fault"))
            turn.soon(lambda: happened.append("soon"))
            turn.later(lambda: fail("second fault"))
            turn.later(lambda: happened.append("later"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    with pytest.raises(ExceptionGroup) as raised:
        await one_turn()
    assert happened == ["first fault", "soon", "second fault", "later"]
    assert [str(fault) for fault in raised.value.exceptions] == ["first fault"]


async def test_a_drain_waits_for_what_is_read_back_then_put_off_and_then_written() -> None:
    """Each step begins only when the one before has ended, in whatever order the tasks of a turn run."""
    road = Road()
    for _ in range(30):
        daemon = Daemon(road.config, {}, road.ledger, road.reservations, Log(io.StringIO(), "text"))
        sent: list[bytes] = []

        async def write(sent: list[bytes] = sent) -> None:
            await trio.testing.wait_all_tasks_blocked()
            sent.append(b"the rest")

        async def read_back(daemon: Daemon = daemon) -> None:
            await trio.lowlevel.checkpoint()
            daemon._turn.soon(lambda: daemon._writers.start_soon(write))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon._turn.serve)
            daemon._replays = Tasks(nursery, daemon._wake)
            daemon._writers = Tasks(nursery, daemon._wake)
            await trio.testing.wait_all_tasks_blocked()
            daemon._replays.start_soon(read_back)
            await daemon._flush()
            assert sent == [b"the rest"]
            nursery.cancel_scope.cancel()
