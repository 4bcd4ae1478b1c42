"""The ledger as the service sees it: what the one on disk and the one in memory for tests both are."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.landing import Landing, Place
from sidecar.ledger.report import Statistics


class Recorded(Struct, frozen=True, kw_only=True, gc=False):
    """A request on record; `completed` None while nothing says how it ended. `identity` is 32 bytes."""

    identity: bytes
    reservation_micro_usd: int
    admitted_at_unix_ms: int
    begin: Place
    completed: Place | None = None


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

    @property
    def landed_batch(self) -> int:
        """The number of the last batch that is on disk and of whose records everybody has heard."""
        ...

    async def wait_poisoned(self) -> None: ...

    async def answers(self) -> None:
        """Returns once whoever writes records has shown that they still can. Raises LedgerUnavailable."""
        ...

    def statistics(self) -> Statistics: ...

    @property
    def pressure(self) -> str | None:
        """Why begins are refused for now (no spare segment can be made); None when there is none."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """While this is entered, records can be written; leaving it closes the ledger."""
        ...

    def find(self, caller_runtime_id: str, request_id: str) -> Recorded | None:
        """What is on record under this id: from memory or by short reads. Raises LedgerUnavailable, RecordDamaged."""
        ...

    def indeterminate(self, caller_runtime_id: str, request_id: str) -> BeginRecord | None:
        """The begin of a request that an earlier run left open and that nothing has settled since."""
        ...

    def left_open_by(self, caller_runtime_id: str) -> int:
        """How many requests of this caller an earlier run left open that nothing has settled since."""
        ...

    def knows_caller(self, caller_runtime_id: str) -> bool:
        """Whether any record on disk may be of this caller; False only where none is."""
        ...

    def change_bounds(self, *, requests_in_flight_max: int, retention_days: int) -> None:
        """From now on so much room is made ahead, and records are kept so long."""
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
        """The frame as it was sent, without its length prefix. Raises LedgerUnavailable if it can't be read back, and
        RecordDamaged where other bytes stand in its place."""
        ...
