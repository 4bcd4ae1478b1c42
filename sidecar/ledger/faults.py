"""What can be wrong with a ledger, as its users must tell it apart."""

from __future__ import annotations

from pathlib import Path
from typing import Final


class LedgerUnavailable(Exception):
    """Nothing can be recorded, or read back, now. The message says why, for a person."""


class LedgerHeld(Exception):
    """Another process has this ledger open."""

    def __init__(self, directory: Path, holder: str) -> None:
        super().__init__(f"the ledger {directory} is held by {holder}")
        self.holder = holder


RESTORE: Final = (
    "keep the directory as it is; sidecar ledger verify says more, and sidecar ledger repair writes what can be read"
    " into a new directory"
)
SEAL_AGAIN: Final = "nothing is lost: with the daemon stopped remove this file, and the next start makes it again"
CHANGE_VERSION: Final = "nothing is lost: open it with the version of sidecar that wrote it"

VERIFY: Final = "sidecar ledger verify says whether more is damaged; then stop the daemon and sidecar ledger repair it"


class RecordDamaged(LedgerUnavailable):
    """What is on record about this request can't be read back as it was written. The rest of the ledger can.

    `file` and `offset` are where other bytes stand, as far as whoever raises it knows; `advice` is what to do.
    """

    def __init__(
        self, message: str, *, file: Path | None = None, offset: int | None = None, advice: str = VERIFY
    ) -> None:
        super().__init__(message)
        self.file = file
        self.offset = offset
        self.advice = advice


class LedgerDamaged(Exception):
    """What is on disk can't have been left by a crash alone: the daemon must not go on from it.

    `segment` is the file, `offset` the byte in it, `expected` what should have
    stood there, `advice` what to do.
    """

    def __init__(self, segment: Path, offset: int, expected: str, advice: str = RESTORE) -> None:
        self.segment = segment
        self.offset = offset
        self.expected = expected
        self.advice = advice
        found = "can't be read" if advice == CHANGE_VERSION else "is damaged"
        super().__init__(f"{segment} {found} at byte {offset}: expected {expected}; {advice}")
