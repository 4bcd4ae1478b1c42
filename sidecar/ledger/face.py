"""The ledger as the service sees it: what the one on disk and the one in memory for tests both are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import trio
from msgspec import Struct
from outcome import Error, Outcome

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.faults import LedgerUnavailable


class Place(Struct, frozen=True, gc=False):
    """Where a record stands: the segment's number, and its first byte and length in that file."""

    segment: int
    offset: int
    length: int


class Recorded(Struct, frozen=True, kw_only=True, gc=False):
    """A request on record; `completed` None while nothing says how it ended. `identity` is 32 bytes."""

    identity: bytes
    reservation_micro_usd: int
    admitted_at_unix_ms: int
    begin: Place
    completed: Place | None = None


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


class LedgerFace(Protocol):
    """Begins and completes, durably; finds what was recorded."""

    @property
    def low_water_unix_ms(self) -> int:
        """Records of invocations that expire at or before this instant may have been dropped."""
        ...

    @property
    def poisoned(self) -> str | None:
        """Why nothing will ever be written again in this process; None while all is well."""
        ...

    async def wait_poisoned(self) -> None: ...

    @property
    def pressure(self) -> str | None:
        """Why begins are refused for now (no spare segment can be made); None when there is none."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """While this is entered, records can be written; leaving it closes the ledger."""
        ...

    def find(self, caller_runtime_id: str, request_id: str) -> Recorded | None:
        """What is on record under this id; memory only."""
        ...

    def begin(self, record: BeginRecord) -> Landing:
        """Queued at once, durable when it lands."""
        ...

    def room_for(self, record: CompletedRecord) -> bool:
        """Whether an answer of this size can be recorded now and every other live request still be settled."""
        ...

    def complete(self, begin: BeginRecord, record: CompletedRecord) -> Landing:
        """As `begin`. The request must be begun and not completed."""
        ...

    async def read_response(self, recorded: Recorded) -> bytes:
        """The frame as it was sent, without its length prefix. Raises LedgerUnavailable if it can't be read back."""
        ...
