"""What can be wrong with a ledger, as its users must tell it apart."""

from __future__ import annotations

from pathlib import Path


class LedgerUnavailable(Exception):
    """Nothing can be recorded, or read back, now. The message says why, for a person."""


class LedgerHeld(Exception):
    """Another process has this ledger open."""

    def __init__(self, directory: Path, holder: str) -> None:
        super().__init__(f"the ledger {directory} is held by {holder}")
        self.holder = holder


class LedgerDamaged(Exception):
    """What is on disk can't have been left by a crash alone: the daemon must not go on from it.

    `segment` is the file, `offset` the byte in it, `expected` what should have stood there.
    """

    def __init__(self, segment: Path, offset: int, expected: str) -> None:
        self.segment = segment
        self.offset = offset
        self.expected = expected
        self.advice = "keep the directory as it is, restore it from a copy, or start a new ledger elsewhere"
        super().__init__(f"{segment} is damaged at byte {offset}: expected {expected}; {self.advice}")
