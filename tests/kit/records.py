"""Ledger records for tests, and file calls that count or fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sidecar.contract import values as v
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Place
from sidecar.ledger.opening import Listeners

FRAME_BYTES_MAX = 4096
SEGMENT_BYTES = 4 * (FRAME_BYTES_MAX + 65_536) + 4096 - (4 * (FRAME_BYTES_MAX + 65_536)) % 4096
PRICE = v.PriceRow(input=2, cache_read=3, cache_write_short=5, cache_write_long=7, output=11)


def begin(number: int = 1, caller: str = "dungeon", reservation: int = 100, **changes: Any) -> v.BeginRecord:
    members: dict[str, Any] = {
        "caller_runtime_id": caller,
        "request_id": f"request-{number}",
        "identity_sha256": tuple(number.to_bytes(32, "big")),
        "native_request_sha256": (7,) * 32,
        "provider_request_sha256": (9,) * 32,
        "model": "npc",
        "upstream": "echo-1",
        "provider": "echo",
        "admitted_at_unix_ms": 1000 + number,
        "expires_at_unix_ms": 61_000,
        "input_bound_tokens": 1500,
        "max_output_tokens": 100,
        "reservation_micro_usd": reservation,
        "foreign_reasoning_dropped": 0,
        "prices": (PRICE,),
    }
    return v.BeginRecord(**{**members, **changes})


def completed(place: Place, charge: int = 60, response: bytes = b"the answer", **changes: Any) -> v.CompletedRecord:
    members: dict[str, Any] = {
        "begin_segment": place.segment,
        "begin_offset": place.offset,
        "charge_micro_usd": charge,
        "completed_at_unix_ms": 2000,
        "outcome": "completed",
        "notes": (),
        "response": b"\x00" + response,
        "usage": v.NOTHING_USED,
    }
    return v.CompletedRecord(**{**members, **changes})


class Totals:
    """Spend derived from records, as the daemon derives it at open."""

    def __init__(self) -> None:
        self.spent = 0
        self.reserved = 0

    def on_begin(self, record: v.BeginRecord) -> None:
        self.reserved += record.reservation_micro_usd

    def on_completed(self, record: v.BeginRecord, end: v.CompletedRecord) -> None:
        self.reserved -= record.reservation_micro_usd
        self.spent += end.charge_micro_usd

    def on_sum(self, caller: str, at_unix_ms: int, charged_micro_usd: int) -> None:
        self.spent += charged_micro_usd

    @property
    def listeners(self) -> Listeners:
        return Listeners(on_open=self.on_begin, on_sum=self.on_sum)


class WatchedFiles(DiskFiles):
    """The real calls, counted, in order; `fault` may raise OSError in place of one."""

    def __init__(self, fault: Callable[[str], None] = lambda call: None) -> None:
        self.calls: list[str] = []
        self._fault = fault

    def _seen(self, call: str) -> None:
        self.calls.append(call)
        self._fault(call)

    def write(self, descriptor: int, pieces: Sequence[bytes], offset: int) -> None:
        self._seen("write")
        super().write(descriptor, pieces, offset)

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        self._seen("write_zeros")
        self._written_quietly(descriptor, size)

    def _written_quietly(self, descriptor: int, size: int) -> None:
        for at in range(0, size, 1 << 20):
            super().write(descriptor, [bytes(min(1 << 20, size - at))], at)

    def sync(self, descriptor: int) -> None:
        self._seen("sync")
        super().sync(descriptor)

    def sync_directory(self, path: Any) -> None:
        self._seen("sync_directory")
        super().sync_directory(path)

    def rename(self, old: Any, new: Any) -> None:
        self._seen("rename")
        super().rename(old, new)
