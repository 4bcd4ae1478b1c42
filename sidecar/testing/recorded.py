"""What the ledger of a daemon under test holds, by the second reading: also beside the daemon, and after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from sidecar.audit.reading import Reading
from sidecar.audit.requests import State, requests_of
from sidecar.contract.values import FailureKind, Note, Usage


class RecordedRequest(Struct, frozen=True, kw_only=True):
    """One request that was admitted. `state` is indeterminate while it runs, and where a crash left it open.

    `outcome` is "completed" or a failure's kind. Until it has ended, `outcome` and `charge_micro_usd` are None and its
    reservation is held.
    """

    caller_runtime_id: str
    request_id: str
    model: str
    provider: str
    state: State
    outcome: str | FailureKind | None
    reservation_micro_usd: int
    charge_micro_usd: int | None
    usage: Usage | None
    notes: tuple[Note, ...]
    admitted_at_unix_ms: int
    completed_at_unix_ms: int | None
    begin_segment: int
    begin_offset: int

    @property
    def begin(self) -> tuple[int, int]:
        """Where its Begin stands in the ledger, which no other request shares."""
        return self.begin_segment, self.begin_offset


def requests_in(directory: Path) -> list[RecordedRequest]:
    """In the order of their admission. Raises LedgerDamaged, NoLedger, OSError."""
    found = [convert(_members(request.document()), RecordedRequest) for request in requests_of(Reading(directory))]
    return sorted(found, key=lambda request: request.begin)


def _members(document: dict[str, Any]) -> dict[str, Any]:
    return {name: document[name] for name in RecordedRequest.__struct_fields__}
