"""What may happen between the steps of one request: the test takes each step itself."""

from __future__ import annotations

from typing import Any

import msgpack
import trio.testing
from kit import build
from kit.road import HeldConnector, Road, receipt, said

from sidecar.connectors.promise import Answer, Connector, Lowered
from sidecar.connectors.script import Rule
from sidecar.connectors.scripted import Scripted
from sidecar.ops.log import Log
from sidecar.service.decision import Admitted
from sidecar.service.exchange import Exchange
from sidecar.service.in_force import InForce
from sidecar.service.tasks import Work
from sidecar.service.turn import Act


class Steps:
    """One request whose begin has landed next. `put_off` and `started` hold what the carrier wants done then."""

    def __init__(self, connector: Connector, **changes: Any) -> None:
        self.put_off: list[Act] = []
        self.started: list[Work] = []
        self.answers: list[bytes] = []
        self.road = road = Road(connector=connector, concurrent=1, **changes)
        log = Log(road.log, "text")
        road.exchange = Exchange(
            InForce(road.config, {"echo": connector}),
            road.ledger,
            road.reservations,
            log,
            lambda: road.now,
            later=self.put_off.append,
        )

    async def begin(self) -> None:
        admitted = self.road.decide(build.frame())
        assert isinstance(admitted, Admitted)
        self.road.exchange.carry(admitted, self.started.append, self.answers.append)
        await trio.testing.wait_all_tasks_blocked()
        assert (len(self.road.ledger.begins), len(self.put_off)) == (1, 1)

    def ask(self) -> None:
        self.put_off.pop()()

    async def run(self) -> None:
        await self.started.pop()()

    async def answer(self) -> bytes:
        """The only one; nothing is left to do."""
        await trio.testing.wait_all_tasks_blocked()
        assert (self.put_off, self.started, len(self.answers)) == ([], [], 1)
        return self.answers[0]

    @property
    def reserved_micro_usd(self) -> int:
        held = self.road.accounts["dungeon"]
        return held.reserved(held.window_start(self.road.now))


class Willing(HeldConnector):
    """Waits, but for nothing; `looked` is how often it was asked for an answer at once."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        self.let_go.set()

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        self.looked += 1
        return False


async def test_a_ledger_poisoned_before_the_ask_leaves_the_connector_unasked_and_the_reservation_held() -> None:
    connector = Willing()
    steps = Steps(connector)
    await steps.begin()
    steps.road.ledger.poison("the disk is gone")
    steps.ask()
    assert said(await steps.answer()) == "ledger_unavailable"
    assert (connector.looked, connector.asked) == (0, [])
    assert steps.reserved_micro_usd == steps.road.ledger.begins[0].reservation_micro_usd
    assert len(steps.road.reservations) == 0, "the slot is free"


async def test_a_ledger_poisoned_before_the_task_runs_leaves_the_connector_unasked_and_the_reservation_held() -> None:
    connector = Willing()
    steps = Steps(connector)
    await steps.begin()
    steps.ask()
    steps.road.ledger.poison("the disk is gone")
    await steps.run()
    assert said(await steps.answer()) == "ledger_unavailable"
    assert connector.asked == []
    assert steps.reserved_micro_usd == steps.road.ledger.begins[0].reservation_micro_usd


async def test_a_stop_before_the_task_runs_sends_nothing_and_costs_nothing() -> None:
    connector = Willing()
    steps = Steps(connector)
    await steps.begin()
    steps.ask()
    steps.road.exchange.stop("the daemon is stopping")
    await steps.run()
    answer = await steps.answer()
    assert connector.asked == []
    assert (said(answer), receipt(answer)["cost_micro_usd"], steps.reserved_micro_usd) == ("unavailable", 0, 0)


async def test_a_deadline_that_passes_before_the_task_runs_sends_nothing_and_costs_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    connector = Willing()
    steps = Steps(connector, time_limit=5)
    await steps.begin()
    steps.ask()
    mock_clock.jump(5)
    await steps.run()
    answer = await steps.answer()
    assert connector.asked == []
    assert (said(answer), receipt(answer)["cost_micro_usd"], steps.reserved_micro_usd) == ("timeout", 0, 0)


async def test_a_bug_of_a_connector_that_answers_at_once_is_one_line_and_a_failure_of_its_request() -> None:
    class Broken(HeldConnector):
        def at_once(self, lowered: Lowered, answer: Answer) -> bool:
            raise ValueError("a bug")

    steps = Steps(Broken())
    await steps.begin()
    steps.ask()
    assert said(await steps.answer()) == "provider"
    assert steps.road.log.getvalue().count("connector_bug") == 1
    assert len(steps.road.reservations) == 0
    assert steps.road.refusal(build.frame(build.request(request_id="next"))) is None, "the only slot is free again"


async def test_an_answer_at_once_needs_no_task() -> None:
    steps = Steps(Scripted())
    await steps.begin()
    steps.ask()
    assert steps.started == []
    assert said(await steps.answer()) == "end_turn"


async def test_an_answer_that_grows_too_large_at_once_is_result_size_and_no_bug() -> None:
    steps = Steps(Scripted((Rule(deltas=("x" * 6000,)),)), response_bytes_max=5000)
    await steps.begin()
    steps.ask()
    assert steps.started == []
    answer = await steps.answer()
    assert said(answer) == "result_size"
    assert msgpack.unpackb(answer)["disposition"]["Transported"]["events"] == []
    assert "connector_bug" not in steps.road.log.getvalue()
