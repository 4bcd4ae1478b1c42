"""The requests that an earlier run left open and that nothing has settled since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sidecar.contract.values import BeginRecord
from sidecar.ledger.index import key_of


class LeftOpen:
    """Their begins by request, and how many each caller has."""

    def __init__(self, begins: Iterable[BeginRecord]) -> None:
        self._begins = {key_of(begin.caller_runtime_id, begin.request_id): begin for begin in begins}
        self._by_caller = Counter(begin.caller_runtime_id for begin in self._begins.values())

    def find(self, caller_runtime_id: str, request_id: str) -> BeginRecord | None:
        return self._begins.get(key_of(caller_runtime_id, request_id))

    def by(self, caller_runtime_id: str) -> int:
        return self._by_caller[caller_runtime_id]

    def settled(self, key: bytes) -> None:
        """The request of this key has ended; nothing happens where it was none of these."""
        if (begin := self._begins.pop(key, None)) is not None:
            self._by_caller[begin.caller_runtime_id] -= 1
