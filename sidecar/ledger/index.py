"""What is on record, by request: a lean map in memory from a 16-byte key to a `Recorded`.

The key is the first half of SHA-256 over the canonical array [caller,
request_id], the form that the sealed indexes of later will keep on disk.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.face import Recorded
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import BeginAtOpen, digest_of

KEY_BYTES: Final = 16


_encode: Final = msgspec.msgpack.Encoder().encode
_hash: Final = sha256()  # a copy of one is made in half the time of a new one


def key_of_new(caller_runtime_id: str, request_id: str) -> bytes:
    """The same, where it is wanted once."""
    hashed = _hash.copy()
    hashed.update(_encode((caller_runtime_id, request_id)))
    return hashed.digest()[:KEY_BYTES]


# A request's key is wanted when it is decided, begun and completed.
key_of: Final = lru_cache(maxsize=1024)(key_of_new)


class _AtOpen(Struct, gc=False):
    """What opening read of a request; `identity` is as it stands in the record, for few are ever asked for."""

    identity: bytes
    reservation_micro_usd: int
    admitted_at_unix_ms: int
    begin: Place
    completed: Place | None = None


class Index:
    """Every begin and complete that is durable."""

    def __init__(self) -> None:
        self._recorded: dict[bytes, Recorded] = {}
        self._at_open: dict[bytes, _AtOpen] = {}

    def __len__(self) -> int:
        return len(self._recorded) + len(self._at_open)

    def find(self, key: bytes) -> Recorded | None:
        return self._recorded.get(key) or self._found_at_open(key)

    def _found_at_open(self, key: bytes) -> Recorded | None:
        there = self._at_open.get(key)
        if there is None:
            return None
        return Recorded(
            identity=digest_of(there.identity),
            reservation_micro_usd=there.reservation_micro_usd,
            admitted_at_unix_ms=there.admitted_at_unix_ms,
            begin=there.begin,
            completed=there.completed,
        )

    def begun_at_open(self, key: bytes, record: BeginAtOpen, place: Place) -> bool:
        """False if it had begun before."""
        begun = _AtOpen(bytes(record.identity_sha256), record.reservation_micro_usd, record.admitted_at_unix_ms, place)
        return self._at_open.setdefault(key, begun) is begun

    def completed_at_open(self, key: bytes, place: Place) -> None:
        self._at_open[key].completed = place

    def begun(self, key: bytes, record: BeginRecord, place: Place) -> None:
        assert self.find(key) is None, "a request begins twice"
        self._recorded[key] = Recorded(
            identity=bytes(record.identity_sha256),
            reservation_micro_usd=record.reservation_micro_usd,
            admitted_at_unix_ms=record.admitted_at_unix_ms,
            begin=place,
        )

    def completed(self, key: bytes, record: CompletedRecord, place: Place) -> None:
        recorded = self.find(key)
        assert recorded is not None, "a request completes that has not begun"
        assert recorded.completed is None, "a request completes twice"
        assert (recorded.begin.segment, recorded.begin.offset) == (record.begin_segment, record.begin_offset)
        self._recorded[key] = msgspec.structs.replace(recorded, completed=place)
        self._at_open.pop(key, None)
