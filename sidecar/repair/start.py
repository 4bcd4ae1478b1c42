"""Where the segments of a damaged ledger begin: at the first one, or behind a checkpoint that can still be read whole.

The newest whole checkpoint counts. Its length, its CRC and its one form tell
whether it is whole; there is nothing to be had of a part of one. Where a newer
one is damaged, an older one may still stand, and segments behind it that were
to be dropped: whatever is missing between them is a gap like any other.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

from msgspec import Struct

from sidecar.audit import seals as second_seals
from sidecar.audit.decoder import NO_HEAD, Line, Unexpected
from sidecar.audit.seals import Dropped
from sidecar.ledger.faults import CHANGE_VERSION, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.repair.blocks import DISK_FAULTS, opened

_VERSION: Final = b"\0\0\0\1"
_HEADER_BYTES: Final = 20


class Start(Struct, frozen=True, kw_only=True):
    """What stands before the first segment: nothing, or a checkpoint (of this `name`) that stands for the segments up
    to `segment`, which ended at `offset`. `begins` are the requests open there, in the order of their places."""

    name: str = ""
    sha256: bytes = b""
    ledger_id: bytes = b""
    segment: int = 0
    offset: int = 0
    head: bytes = NO_HEAD
    batch: int = 0
    low_water_unix_ms: int = 0
    dropped: Dropped = Dropped()
    begins: tuple[Line, ...] = ()


class Checkpoints(Struct, frozen=True, kw_only=True):
    """Those that can be read, the newest first, and of each other one why not; `newest_named` 0 for none."""

    whole: tuple[Start, ...]
    damaged: tuple[tuple[str, str], ...]
    newest_named: int

    @property
    def segment_behind(self) -> int:
        """One that is there, or was: segments are dropped once others have come after them. 0 without a checkpoint."""
        return self.newest_named + 1 if self.newest_named else 0

    def of_ledger(self, ledger_id: bytes | None) -> tuple[Start, list[tuple[str, str]], list[str]]:
        """The one to begin behind, newer ones that can't serve, with why, and older ones, which are not needed."""
        ours = [start for start in self.whole if start.ledger_id == ledger_id]
        chosen = ours[0] if ours else Start()
        others = [(start.name, "it is of another ledger") for start in self.whole if start.ledger_id != ledger_id]
        unfit = sorted([*others, *((name, f"expected {fault}") for name, fault in self.damaged)])
        older = [name for name in (*(name for name, _ in unfit), *(start.name for start in ours)) if name < chosen.name]
        return chosen, [one for one in unfit if one[0] > chosen.name], older


def checkpoints_in(files: DiskFiles, directory: Path, names: Iterable[str]) -> Checkpoints:
    """Raises OSError; LedgerDamaged for one of another version."""
    whole: list[Start] = []
    damaged: list[tuple[str, str]] = []
    named = sorted((found, name) for name in names if (found := second_seals.checkpoint_segment(name)))
    for segment, name in reversed(named):
        try:
            written = _written(files, directory / name)
            whole.append(_start(name, segment, written))
        except Unexpected as fault:
            if fault.other_version:
                raise LedgerDamaged(directory / name, 0, str(fault), CHANGE_VERSION) from None
            damaged.append((name, str(fault)))
    return Checkpoints(whole=tuple(whole), damaged=tuple(damaged), newest_named=named[-1][0] if named else 0)


def _written(files: DiskFiles, path: Path) -> bytes:
    try:
        with opened(files, path) as blocks:
            return blocks.read(0, blocks.size)
    except OSError as error:
        if error.errno not in (*DISK_FAULTS, errno.ENOENT):  # the last one of a link to nothing
            raise
        raise Unexpected(f"a file that can be opened ({error.strerror})") from None


def _start(name: str, segment: int, written: bytes) -> Start:
    """Raises Unexpected."""
    said, as_written = _decoded(segment, written)
    end = said.end
    return Start(
        name=name,
        sha256=sha256(as_written).digest(),
        ledger_id=end["ledger_id"],
        segment=segment,
        offset=end["offset"],
        head=end["head"],
        batch=end["batch"],
        low_water_unix_ms=end["low_water_unix_ms"],
        dropped=said.dropped,
        begins=said.begins,
    )


def _decoded(segment: int, written: bytes) -> tuple[second_seals.Start, bytes]:
    """With the bytes as they must have been. No CRC covers the version that the file names: what is of this version in
    everything else is of this version, and what is not even whole says nothing of another one. Raises Unexpected."""
    ours = written[:8] + _VERSION + written[12:]
    try:
        return second_seals.checkpoint(ours, segment), ours
    except Unexpected:
        if ours != written and _is_whole(written):
            second_seals.checkpoint(written, segment)  # raises: of another version
        raise


def _is_whole(written: bytes) -> bool:
    document = written[_HEADER_BYTES:]
    length, crc = int.from_bytes(written[12:16]), int.from_bytes(written[16:_HEADER_BYTES])
    return (length, crc) == (len(document), crc32(document))
