"""The real file system, with a sign of life: how many calls have come back."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.ledger.files import DiskFiles


class CountedFiles(DiskFiles):
    """`calls` rises with each piece that was read or written, and with each sync: an opening that goes on moves it."""

    def __init__(self) -> None:
        self.calls = 0

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        piece = super().read(descriptor, length, offset)
        self.calls += 1
        return piece

    def write_some(self, descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        taken = super().write_some(descriptor, pieces, offset)
        self.calls += 1
        return taken

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.calls += 1

    def forget_cache(self, descriptor: int) -> None:
        super().forget_cache(descriptor)
        self.calls += 1
