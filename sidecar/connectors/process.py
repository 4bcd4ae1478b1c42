"""A connector in any language: a child process that is asked over its stdin and answers on its stdout.

`process_lower` makes the question, `process_lift` an answer of what is said;
which child is asked, and how children start and end, is `children`. A request
is written to one child once. At its deadline, or when the daemon drops it, that
child is killed with its group: nothing is asked to stop, so nothing can refuse
to, and an answer that comes late has nobody left to say it. `Answer.sent` turns
true just before the first byte may enter the child's pipe; from then on only
the child's own word (usage, or zeros) makes a failure cheaper than its reservation.
Source: CONTRACT sections 5 and 6.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final

import trio

from sidecar.connectors import child, process_lower
from sidecar.connectors.child import Plan
from sidecar.connectors.children import AnyChild, Children, Kept, NoChild
from sidecar.connectors.messages import clean_message
from sidecar.connectors.pace import Pace
from sidecar.connectors.process_lift import Lift
from sidecar.connectors.promise import NO_SETTINGS, Answer, Lowered
from sidecar.contract.values import NOTHING_USED, ProviderRequest
from sidecar.ops.log import Log
from sidecar.rules.framing import framed

_MS: Final = 1000


class Process:
    """One provider behind child processes of ours."""

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        secret: str | None,
        children_max: int,
        time_limit_seconds: float,
        response_bytes_max: int,
        body_bytes_max: int,
        start: Callable[[Plan], Awaitable[AnyChild]] = child.start,
    ) -> None:
        self._plan = plan
        self._secret = secret
        self._time_limit_seconds = time_limit_seconds
        self._response_bytes_max = response_bytes_max
        self._body_bytes_max = body_bytes_max
        self._children = Children(partial(start, plan), name=name, secret=secret, children_max=children_max)
        self._exchanges = count(1)

    def __repr__(self) -> str:
        return f"<Process {self._plan.argv[0]}>"

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        return process_lower.lower(request, upstream)

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            kept = await self._children.take()
        except NoChild as why:
            answer.fail("unavailable", clean_message(str(why), self._secret))
            return
        if self._secret is not None:
            answer.hide(self._secret)
        number = next(self._exchanges)
        lift = Lift(
            answer,
            exchange=number,
            upstream=lowered.upstream,
            secret=self._secret,
            response_bytes_max=self._response_bytes_max,
            body_bytes_max=self._body_bytes_max,
        )
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # to start it may have taken until the deadline
            await self._carry(kept, self._asked(lowered, number), answer, lift)
        finally:
            self._children.give_back(kept, answered=lift.has_answered, broke=lift.broke)

    async def serve(self, log: Log, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        await self._children.serve(log, task_status)

    async def aclose(self) -> None:
        await self._children.close()

    def kill(self) -> None:
        self._children.kill()

    def _asked(self, lowered: Lowered, number: int) -> bytes:
        """The request's frame, with the time that is left for it."""
        left_seconds = min(trio.current_effective_deadline() - trio.current_time(), self._time_limit_seconds)
        deadline_ms = max(int(left_seconds * _MS), 0)
        return framed(process_lower.encoded(lowered.body, lowered.upstream, exchange=number, deadline_ms=deadline_ms))

    async def _carry(self, kept: Kept, asked: bytes, answer: Answer, lift: Lift) -> None:
        answer.sent = True
        try:
            kept.send(asked)
        except BrokenPipeError:
            lift.broke = "the connector's process took no request"
            answer.fail("unavailable", f"{lift.broke}; nothing was sent", NOTHING_USED)
            return
        pace = Pace()
        while not lift.is_over:
            lift.feed(await kept.child.receive())
            while lift.step():
                await pace.rest()
