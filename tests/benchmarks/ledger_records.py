"""Requests as a daemon records them, each known by its number, so that a second process can ask for any of them."""

from __future__ import annotations

import time
from hashlib import sha256
from uuid import UUID

from sidecar.contract import values as v
from sidecar.ledger.landing import Place

CALLER = "dungeon"
WINDOW_SECONDS = 86_400
ANSWER_BYTES = 600
BETWEEN_MS = 8_640  # ten thousand requests a day
_ANSWER = v.STORED_AS_IS + b"wording " * (ANSWER_BYTES // 8)
_USAGE = v.Usage(input_tokens=1_873, cache_read_tokens=1_024, cache_write_tokens=0, output_tokens=131)
_PRICES = (
    v.PriceRow(
        input=3_000_000, cache_read=300_000, cache_write_short=3_750_000, cache_write_long=6_000_000, output=7_000_000
    ),
)


def window_of(caller: str) -> int:
    return WINDOW_SECONDS if caller == CALLER else 0


def request_id(number: int) -> str:
    return str(UUID(bytes=_hashed("request", number)[:16], version=4))


def unknown_id(number: int) -> str:
    return str(UUID(bytes=_hashed("unknown", number)[:16], version=4))


def _hashed(what: str, number: int) -> bytes:
    return sha256(f"{what} {number}".encode()).digest()


class Requests:
    """As many as `count`, the last of them admitted a moment ago."""

    def __init__(self, count: int) -> None:
        self._first_unix_ms = int(time.time() * 1000) - count * BETWEEN_MS

    def begin(self, number: int) -> v.BeginRecord:
        admitted_at = self._first_unix_ms + number * BETWEEN_MS
        return v.BeginRecord(
            caller_runtime_id=CALLER,
            request_id=request_id(number),
            identity_sha256=tuple(_hashed("identity", number)),
            native_request_sha256=tuple(_hashed("native", number)),
            provider_request_sha256=tuple(_hashed("provider", number)),
            model="npc",
            upstream="large-2026-05-01",
            provider="provider",
            admitted_at_unix_ms=admitted_at,
            expires_at_unix_ms=admitted_at + 60_000,
            input_bound_tokens=4_096,
            max_output_tokens=1_024,
            reservation_micro_usd=39_936,
            foreign_reasoning_dropped=0,
            prices=_PRICES,
        )

    def completed(self, begin: v.BeginRecord, place: Place) -> v.CompletedRecord:
        return v.CompletedRecord(
            begin_segment=place.segment,
            begin_offset=place.offset,
            charge_micro_usd=7_891,
            completed_at_unix_ms=begin.admitted_at_unix_ms + 2_345,
            first_event_at_unix_ms=begin.admitted_at_unix_ms + 456,
            outcome="completed",
            notes=(),
            response=_ANSWER,
            usage=_USAGE,
        )
