"""The files of a ledger as whoever reads from outside sees them: which are there now, and those that are held open."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from sidecar.audit import seals as decoder
from sidecar.audit.decoder import Unexpected
from sidecar.audit.seals import Start
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged
from sidecar.ledger.files import DiskFiles

HELD_MAX: Final = 256
_NAME: Final = re.compile(r"(\d{16})\.segment")


class NoLedger(Exception):
    """There is no ledger in this place."""


def damaged(path: Path, offset: int, fault: Unexpected) -> LedgerDamaged:
    place = offset if fault.place is None else fault.place
    return LedgerDamaged(path, place, str(fault), CHANGE_VERSION if fault.other_version else RESTORE)


class Look:
    """`names` as they were at the last look; every method raises OSError, and LedgerDamaged where that is said."""

    def __init__(self, files: DiskFiles, directory: Path, *, cold: bool) -> None:
        self._files = files
        self._directory = directory
        self._cold = cold
        self._held: dict[int, int] = {}
        self.names: list[str] = []

    def again(self) -> None:
        """Raises NoLedger."""
        try:
            self.names = self._files.names(self._directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoLedger(f"{self._directory}: {error.strerror}") from None
        if "lock" not in self.names and not (self.segments() or self._seals() or self.newest_checkpoint()):
            raise NoLedger(f"{self._directory} holds no ledger: no segment is in it")

    def segments(self) -> list[int]:
        """Raises LedgerDamaged."""
        numbers = [int(found[1]) for name in self.names if (found := _NAME.fullmatch(name))]
        if 0 in numbers:
            raise LedgerDamaged(self.segment_path(0), 0, "segments that are numbered from 1 on")
        return sorted(numbers)

    def _seals(self) -> list[tuple[int, int, str]]:
        """The first and last segment of each, and its name."""
        return [(*found, name) for name in self.names if (found := decoder.seal_range(name))]

    def _sealed_until(self) -> int:
        """The last segment of the seals that follow each other from the first segment, or the checkpoint, on."""
        until = self.newest_checkpoint()
        for first, last, _ in sorted(self._seals()):
            if first <= until + 1:
                until = max(until, last)
        return until

    def why_expected(self, number: int) -> str | None:
        """What is to be said where this segment is not there; None where no name tells that it ever was.

        A seal is made, and a segment behind it, only after the segment itself: so one that can't be opened after this
        look is gone.
        """
        behind = [one for one in self.segments() if one > number]
        if number <= self._sealed_until():
            return "this segment, which has a seal; it is missing"
        if behind:
            return f"segment {number}, or a checkpoint of segment {behind[0] - 1}; both are missing"
        for _, last, name in self._seals():
            if last >= number:
                return f"this segment, since {name} is there"
        if self.newest_checkpoint() == number - 1 > 0:
            return f"this segment, since there is a checkpoint of segment {number - 1}"
        return None

    def newest_checkpoint(self) -> int:
        """The last segment that it stands for; 0 for none."""
        return max(self.checkpoints(), default=0)

    def checkpoints(self) -> list[int]:
        """The last segment that each stands for."""
        return sorted(found for name in self.names if (found := decoder.checkpoint_segment(name)))

    def left_behind(self, checkpoint: int) -> tuple[str, ...]:
        """Segments in whose place a checkpoint stands, and checkpoints before it."""
        segments = (self.segment_path(number).name for number in self.segments() if number <= checkpoint)
        return (*segments, *(self.checkpoint_path(one).name for one in self.checkpoints() if one < checkpoint))

    def segment_path(self, number: int) -> Path:
        return self._directory / f"{number:016d}.segment"

    def checkpoint_path(self, segment: int) -> Path:
        return self._directory / f"{segment:016d}.checkpoint"

    def opened(self, number: int) -> int:
        held = self._held.pop(number, None)
        return self._files.open_to_read(self.segment_path(number)) if held is None else held

    def begin(self) -> tuple[int, Start | None, bytes]:
        """The newest checkpoint (its segment, what it says, its SHA-256), and the segments behind it held open, the
        first ones. Raises NoLedger, LedgerDamaged."""
        self.again()
        while True:
            dropped_until = self.newest_checkpoint()
            path = self.checkpoint_path(dropped_until)
            try:
                start, digest = self.checkpoint(dropped_until) if dropped_until else (None, bytes(32))
                for number in [one for one in self.segments() if one > dropped_until][:HELD_MAX]:
                    path = self.segment_path(number)
                    self._held[number] = self._files.open_to_read(path)
            except FileNotFoundError:
                self.let_go()
                before = self.names
                self.again()
                if self.names == before:  # a name that leads nowhere
                    raise LedgerDamaged(path, 0, "this file, since its name is there") from None
            else:
                return dropped_until, start, digest

    def let_go(self) -> None:
        for descriptor in self._held.values():
            self._files.close(descriptor)
        self._held.clear()

    def checkpoint(self, segment: int) -> tuple[Start, bytes]:
        """What it says, and its SHA-256. Raises LedgerDamaged."""
        path = self.checkpoint_path(segment)
        descriptor = self._files.open_to_read(path)
        try:
            self.chill(descriptor)
            written = self._files.read(descriptor, self._files.size(descriptor), 0)
        finally:
            self._files.close(descriptor)
        try:
            return decoder.checkpoint(written, segment), sha256(written).digest()
        except Unexpected as fault:
            fault.place = None
            raise damaged(path, 0, fault) from None

    def chill(self, descriptor: int) -> None:
        if self._cold:
            self._files.forget_if_it_can(descriptor)
