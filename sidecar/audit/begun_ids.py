"""Which requests have begun, in little memory: whether an id of a caller is new.

Keys of 16 bytes of SHA-256 in an open hash table, 24 to 48 bytes a request: a
set of ids would take ten times that. Nobody can choose ids whose keys are equal.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

_KEY_BYTES: Final = 16
_SLOTS_AT_FIRST: Final = 1 << 10


class BegunIds:
    """Grows with what it has noted, and forgets nothing."""

    def __init__(self) -> None:
        self._slots = bytearray(_KEY_BYTES * _SLOTS_AT_FIRST)
        self._mask = _SLOTS_AT_FIRST - 1
        self._count = 0

    def is_new(self, caller: str, request: str) -> bool:
        """Notes it; False if it was noted before."""
        key = sha256(f"{len(caller)} {caller}{request}".encode()).digest()[:_KEY_BYTES]
        at = self._slot(key)
        if self._slots[at : at + _KEY_BYTES] == key:
            return False
        self._slots[at : at + _KEY_BYTES] = key
        self._count += 1
        if 3 * self._count > 2 * (self._mask + 1):
            self._grow()
        return True

    def _slot(self, key: bytes) -> int:
        """Where this key is, or would be put."""
        number = int.from_bytes(key[:8], "big") & self._mask
        while True:
            at = number * _KEY_BYTES
            there = self._slots[at : at + _KEY_BYTES]
            if there == key or not any(there):
                return at
            number = (number + 1) & self._mask

    def _grow(self) -> None:
        smaller = self._slots
        self._mask = 2 * self._mask + 1
        self._slots = bytearray(_KEY_BYTES * (self._mask + 1))
        for at in range(0, len(smaller), _KEY_BYTES):
            key = bytes(smaller[at : at + _KEY_BYTES])
            if any(key):
                there = self._slot(key)
                self._slots[there : there + _KEY_BYTES] = key
