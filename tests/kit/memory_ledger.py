"""A ledger in memory with the face of the one on disk: for roads under a virtual clock, which sees no threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
from msgspec import structs

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Landing, Place
from sidecar.ledger.report import Statistics


class MemoryLedger:
    """Keeps records in lists. `delay_seconds` is how long an append takes; `fail_with` refuses every append."""

    def __init__(self) -> None:
        self.begins: list[BeginRecord] = []
        self.completes: list[tuple[BeginRecord, CompletedRecord]] = []
        self.low_water_unix_ms = 0
        self.poisoned: str | None = None
        self.pressure: str | None = None
        self.delay_seconds = 0.0
        self.fail_begin_with: str | None = None
        self.fail_complete_with: str | None = None
        self.fail_find_with: LedgerUnavailable | None = None
        self.room_bytes = 1 << 30
        self.bounds: tuple[int, int] | None = None
        self._recorded: dict[tuple[str, str], Recorded] = {}
        self._left_open: dict[tuple[str, str], BeginRecord] = {}
        self._frames: dict[int, bytes] = {}
        self._offset = 0
        self._poison = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    def poison(self, why: str) -> None:
        self.poisoned = why
        self._poison.set()

    async def wait_poisoned(self) -> None:
        await self._poison.wait()

    async def answers(self) -> None:
        await trio.sleep(self.delay_seconds)
        if self.poisoned:
            raise LedgerUnavailable(self.poisoned)

    def statistics(self) -> Statistics:
        counted = dict.fromkeys(("records", "batches", "syncs"), len(self.begins) + len(self.completes))
        nothing = dict.fromkeys(("written_bytes", "queued", "live", "settlements", "spares_ready"), 0)
        return Statistics(**counted, **nothing)

    def find(self, caller_runtime_id: str, request_id: str) -> Recorded | None:
        if self.fail_find_with is not None:
            raise self.fail_find_with
        return self._recorded.get((caller_runtime_id, request_id))

    @property
    def landed_batch(self) -> int:
        """Each record is a batch of its own."""
        return self._offset

    def reopen(self) -> None:
        """As after a crash: what has begun and not ended is left open."""
        begins = {(begin.caller_runtime_id, begin.request_id): begin for begin in self.begins}
        self._left_open = {key: begin for key, begin in begins.items() if self._recorded[key].completed is None}

    def indeterminate(self, caller_runtime_id: str, request_id: str) -> BeginRecord | None:
        return self._left_open.get((caller_runtime_id, request_id))

    def left_open_by(self, caller_runtime_id: str) -> int:
        return sum(caller == caller_runtime_id for caller, _ in self._left_open)

    def knows_caller(self, caller_runtime_id: str) -> bool:
        return any(begin.caller_runtime_id == caller_runtime_id for begin in self.begins)

    def change_bounds(self, *, requests_in_flight_max: int, retention_days: int) -> None:
        self.bounds = requests_in_flight_max, retention_days

    def begin(self, record: BeginRecord) -> Landing:
        return self._append(lambda: self.pressure or self.fail_begin_with, lambda: self._begin(record))

    def complete(self, begin: BeginRecord, record: CompletedRecord) -> Landing:
        return self._append(lambda: self.fail_complete_with, lambda: self._complete(begin, record))

    def _begin(self, record: BeginRecord) -> Place:
        place = self._next_place()
        key = (record.caller_runtime_id, record.request_id)
        assert key not in self._recorded
        self.begins.append(record)
        self._recorded[key] = Recorded(
            identity=bytes(record.identity_sha256),
            reservation_micro_usd=record.reservation_micro_usd,
            admitted_at_unix_ms=record.admitted_at_unix_ms,
            begin=place,
        )
        return place

    def room_for(self, record: CompletedRecord) -> bool:
        return len(record.response) <= self.room_bytes

    def _complete(self, begin: BeginRecord, record: CompletedRecord) -> Place:
        key = (begin.caller_runtime_id, begin.request_id)
        assert self._recorded[key].completed is None
        place = self._next_place()
        self.completes.append((begin, record))
        self._left_open.pop(key, None)
        self._frames[place.offset] = record.response[1:]
        self._recorded[key] = structs.replace(self._recorded[key], completed=place)
        return place

    async def read_response(self, recorded: Recorded) -> bytes:
        await trio.lowlevel.cancel_shielded_checkpoint()
        assert recorded.completed is not None
        return bytes(bytearray(self._frames[recorded.completed.offset]))  # read back each time

    def _append(self, fault: Callable[[], str | None], record: Callable[[], Place]) -> Landing:
        if why_at_once := self.poisoned or fault():
            return Landing.failed(LedgerUnavailable(why_at_once))
        landing = Landing()

        async def land() -> None:
            await trio.sleep(self.delay_seconds)
            if self.poisoned:
                landing.land(LedgerUnavailable(self.poisoned))
            else:
                landing.land(record())

        trio.lowlevel.spawn_system_task(land)
        return landing

    def _next_place(self) -> Place:
        self._offset += 1
        return Place(1, self._offset, 1)
