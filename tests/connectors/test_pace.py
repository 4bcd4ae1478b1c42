"""A provider that sends very many small things: others run in between, told by the steps of its task and no clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest
import trio
from kit import build

from sidecar.connectors import openai_chat
from sidecar.connectors.http_connector import Bounds, HttpConnector
from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.pace import TURN_SECONDS_MAX, Pace
from sidecar.connectors.promise import Answer


class Steps(trio.abc.Instrument):
    """Counts the steps of the task that it is made in."""

    def __init__(self) -> None:
        self.count = 0
        self._task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task is self._task


async def steps_of(work: Callable[[], Awaitable[object]]) -> int:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        await work()
    finally:
        trio.lowlevel.remove_instrument(steps)
    return steps.count


class Ticking:
    """A clock that goes on by so much whenever it is read."""

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self._tick_seconds
        return self._now


class AtOnce(httpx2.AsyncByteStream):
    """A body whose pieces are all there already: none of them waits."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class Buffered(httpx2.AsyncBaseTransport):
    def __init__(self, status: int, pieces: list[bytes]) -> None:
        self._status = status
        self._pieces = pieces

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(self._status, stream=AtOnce(self._pieces))


async def steps_of_exchange(pieces: list[bytes], tick_seconds: float, status: int = 200) -> int:
    connector = HttpConnector(
        Buffered(status, pieces),
        openai_chat.api(base_url="http://provider.test/v1", secret=None, dialect=Dialect()),
        Bounds(response_bytes_max=1_000_000, body_bytes_max=10_000_000),
        Ticking(tick_seconds),
    )
    answer = Answer(frozenset(), 1_000_000)
    lowered = connector.lower(build.request(), "tiny")
    steps = await steps_of(lambda: connector.exchange(lowered, answer))
    await connector.aclose()
    assert answer.ended is not None
    return steps


DONE = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
BODIES: dict[str, tuple[list[bytes], int, int]] = {  # the pieces, the status, and how many rests they are good for
    "pieces of a byte": ([b"\n"] * 5_000, 200, 5_000),
    "empty lines in one piece": ([b"\n" * 65_536], 200, 32),
    "tiny events in one piece": ([b"data:{}\n\n" * 7_000], 200, 30),
    "pieces of a byte of an error": ([b"x"] * 5_000, 500, 5_000),
    "pieces of a byte behind the end": ([DONE, *[b"\n"] * 5_000], 200, 5_000),
    "pieces of a byte behind a fault": ([b"data: 7\n\n", *[b"\n"] * 5_000], 200, 5_000),
}


@pytest.mark.parametrize(("pieces", "status", "rests"), BODIES.values(), ids=BODIES.keys())
async def test_others_run_between_the_small_things_of_one_read_where_they_take_long(
    pieces: list[bytes], status: int, rests: int
) -> None:
    idle = await steps_of_exchange(pieces, 0.0, status)
    assert idle < 20, "nothing of this waits"
    assert await steps_of_exchange(pieces, 2 * TURN_SECONDS_MAX, status) >= rests


async def test_rests_are_as_many_as_turns_have_gone_by_and_no_more() -> None:
    pace = Pace(Ticking(TURN_SECONDS_MAX / 10))

    async def work() -> None:
        for _ in range(1_000):
            await pace.rest()

    assert 80 <= await steps_of(work) <= 120


async def test_a_wait_between_two_steps_is_a_rest() -> None:
    pace = Pace(Ticking(2 * TURN_SECONDS_MAX))

    async def waiting_work() -> None:
        for _ in range(1_000):
            await trio.lowlevel.checkpoint()
            await pace.rest()

    assert await steps_of(waiting_work) == 1_000


async def test_a_rest_of_work_that_must_go_on_is_not_cut() -> None:
    pace = Pace(Ticking(2 * TURN_SECONDS_MAX))
    await pace.rest()  # its turn begins
    with trio.CancelScope() as scope:
        scope.cancel()
        await pace.rest_uncancelled()
        await pace.rest()
        raise AssertionError("a rest heeds the cancellation")
    assert scope.cancelled_caught
