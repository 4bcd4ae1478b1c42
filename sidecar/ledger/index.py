"""What is on record, by request: a lean map in memory from a 16-byte key to a `Recorded`.

The key is the first half of SHA-256 over the canonical array [caller,
request_id], the form that the sealed indexes of later will keep on disk.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.face import Recorded
from sidecar.ledger.landing import Place

KEY_BYTES: Final = 16


_encode: Final = msgspec.msgpack.Encoder().encode


@lru_cache(maxsize=1024)  # a request's key is wanted when it is decided, begun and completed
def key_of(caller_runtime_id: str, request_id: str) -> bytes:
    return sha256(_encode([caller_runtime_id, request_id])).digest()[:KEY_BYTES]


class Index:
    """Every begin and complete that is durable."""

    def __init__(self) -> None:
        self._recorded: dict[bytes, Recorded] = {}

    def __len__(self) -> int:
        return len(self._recorded)

    def find(self, key: bytes) -> Recorded | None:
        return self._recorded.get(key)

    def begun(self, key: bytes, record: BeginRecord, place: Place) -> None:
        assert key not in self._recorded, "a request begins twice"
        self._recorded[key] = Recorded(
            identity=bytes(record.identity_sha256),
            reservation_micro_usd=record.reservation_micro_usd,
            admitted_at_unix_ms=record.admitted_at_unix_ms,
            begin=place,
        )

    def completed(self, key: bytes, record: CompletedRecord, place: Place) -> None:
        recorded = self._recorded[key]
        assert recorded.completed is None, "a request completes twice"
        assert (recorded.begin.segment, recorded.begin.offset) == (record.begin_segment, record.begin_offset)
        self._recorded[key] = msgspec.structs.replace(recorded, completed=place)
