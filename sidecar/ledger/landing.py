"""A record on its way to the disk, and where it stands when it has landed."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import trio
from msgspec import Struct

from sidecar.ledger.faults import LedgerUnavailable


class Place(Struct, frozen=True, gc=False):
    """Where a record stands: the segment's number, and its first byte and length in that file."""

    segment: int
    offset: int
    length: int


Landed = Place | LedgerUnavailable


class Landing:
    """A record on its way to the disk: await its place, or name by `then` what is to be called when it has landed.

    Nothing takes the record back: the wait can't be cancelled, and what is
    called runs on the Trio side in the turn in which the batch has landed.
    """

    __slots__ = ("_landed", "_then")

    def __init__(self) -> None:
        self._landed: Landed | None = None
        self._then: Callable[[Landed], None] | None = None

    @classmethod
    def failed(cls, fault: LedgerUnavailable) -> Landing:
        landing = cls()
        landing.land(fault)
        return landing

    def then(self, call: Callable[[Landed], None]) -> None:
        assert self._then is None, "two wait for one record"
        if self._landed is None:
            self._then = call
        else:
            call(self._landed)

    def land(self, landed: Landed) -> None:
        """Once."""
        assert self._landed is None, "a record lands twice"
        self._landed = landed
        if self._then is not None:
            self._then(landed)

    def __await__(self) -> Generator[Any, Any, Place]:
        return self._place().__await__()

    async def _place(self) -> Place:
        if self._landed is None:
            task = trio.lowlevel.current_task()
            self.then(lambda _: trio.lowlevel.reschedule(task))
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        assert self._landed is not None
        if isinstance(self._landed, LedgerUnavailable):
            raise self._landed
        return self._landed
