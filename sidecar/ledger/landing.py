"""A record on its way to the disk, and where it stands when it has landed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import trio
from msgspec import Struct
from outcome import Error, Outcome

from sidecar.ledger.faults import LedgerUnavailable


class Place(Struct, frozen=True, gc=False):
    """Where a record stands: the segment's number, and its first byte and length in that file."""

    segment: int
    offset: int
    length: int


class Landing:
    """A record on its way to the disk: await its place, or name by `then` what is to be called with the outcome.

    Nothing takes the record back: the wait can't be cancelled, and what is
    called runs on the Trio side in the turn in which the batch has landed. The
    outcome is a Place, or LedgerUnavailable.
    """

    __slots__ = ("_outcome", "_then")

    def __init__(self) -> None:
        self._outcome: Outcome[Place] | None = None
        self._then: Callable[[Outcome[Place]], None] | None = None

    @classmethod
    def failed(cls, fault: LedgerUnavailable) -> Landing:
        landing = cls()
        landing.land(Error(fault))
        return landing

    def then(self, call: Callable[[Outcome[Place]], None]) -> None:
        assert self._then is None, "two wait for one record"
        if self._outcome is None:
            self._then = call
        else:
            call(self._outcome)

    def land(self, outcome: Outcome[Place]) -> None:
        """Once."""
        assert self._outcome is None, "a record lands twice"
        self._outcome = outcome
        if self._then is not None:
            self._then(outcome)

    def __await__(self) -> Generator[Any, Any, Place]:
        return self._landed().__await__()

    async def _landed(self) -> Place:
        if self._outcome is None:
            task = trio.lowlevel.current_task()
            self.then(lambda _: trio.lowlevel.reschedule(task))
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        assert self._outcome is not None
        return self._outcome.unwrap()
