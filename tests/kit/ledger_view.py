"""What a ledger directory holds, for tests that look from outside."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sidecar.contract.values import BeginRecord, CompletedRecord, RecordBody
from sidecar.ledger import recovery
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Place


class LedgerView:
    """Begins and completes in record order; `open` are the begins without a complete."""

    def __init__(self, directory: Path) -> None:
        self.begins: list[BeginRecord] = []
        self.completes: list[tuple[BeginRecord, CompletedRecord]] = []
        self.order: list[BeginRecord | tuple[BeginRecord, CompletedRecord]] = []
        self.open: dict[tuple[int, int], BeginRecord] = {}
        recovery.read(DiskFiles(), directory, self._take, cold=False)

    def _take(self, body: RecordBody, place: Place) -> None:
        if body.begin:
            self.begins.append(body.begin)
            self.order.append(body.begin)
            self.open[place.segment, place.offset] = body.begin
        elif body.completed:
            begun = self.open.pop((body.completed.begin_segment, body.completed.begin_offset))
            self.completes.append((begun, body.completed))
            self.order.append((begun, body.completed))


def view_of_live(directory: Path) -> LedgerView:
    """Of a ledger that is being written: between two looks at one reading, a batch can come and another behind it."""
    for _ in range(100):
        with suppress(LedgerDamaged):
            return LedgerView(directory)
    return LedgerView(directory)
