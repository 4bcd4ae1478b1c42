"""Which files of a damaged directory are segments of its ledger, and of each its number and its salt.

A header whose CRC fits says both. Where it is lost, the batches do, each in
its own header: the first one, which stands where only a batch can, is believed
alone; else the most of the whole ones are, since a provider's bytes can pose
as a batch only where the salt is not known. What is not even that is looked
into at one place: where its first batch must begin.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from sidecar.audit import decoder
from sidecar.audit.decoder import BLOCK, Segment, Unexpected
from sidecar.audit.look import NoLedger
from sidecar.ledger.faults import CHANGE_VERSION, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.repair.blocks import DISK_FAULTS, Blocks, opened
from sidecar.repair.start import Checkpoints, Start, checkpoints_in

_NAME: Final = re.compile(r"(\d{16})\.segment")
# Names that tell of segments which may be gone: an index over some, a tail that was set aside.
_TELLING: Final = re.compile(r"(?:\d{16}-)?(\d{16})\.seal|(\d{16})-\d+\.tail")

Identity = Literal["header", "first_batch", "most_batches", "name"]
_TRUST: Final[tuple[Identity, ...]] = ("header", "first_batch", "most_batches", "name")


class Source(Struct, frozen=True, kw_only=True):
    """A file that is read as a segment. `header` None where it is lost, and then `fault` is what should have stood
    there; `segment` is what its batches must name, with an unknown salt as None."""

    path: Path
    named: int
    size: int
    identity: Identity
    header: Segment | None
    fault: str | None
    segment: Segment | None

    @property
    def number(self) -> int:
        return self.named if self.segment is None else self.segment.number


class Sources(Struct, frozen=True, kw_only=True):
    """The segments in order, what stands before them, and what else the directory holds.

    `left_behind` are files in whose place a checkpoint stands, `newest_named` is the highest number that a name
    tells of, `dropped_until` the highest that a checkpoint stands for, whole or not.
    """

    start: Start
    segments: tuple[Source, ...]
    strange: tuple[tuple[str, str], ...]
    left_behind: tuple[str, ...]
    newest_named: int
    dropped_until: int
    segment_bytes: int


def sources_in(files: DiskFiles, directory: Path) -> Sources:
    """Raises NoLedger, OSError; LedgerDamaged for a ledger of another version, which no damage has made unreadable."""
    try:
        names = files.names(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoLedger(f"{directory}: {error.strerror}") from None
    named = [name for name in names if _NAME.fullmatch(name)]
    checkpoints = checkpoints_in(files, directory, names)
    if not named and not checkpoints.newest_named and "lock" not in names:
        raise NoLedger(f"{directory} holds no ledger: no segment is in it")
    strange: list[tuple[str, str]] = []
    found = []
    for name in named:
        try:
            found.append(_source(files, directory / name, int(name[:16])))
        except OSError as error:
            if error.errno not in (*DISK_FAULTS, errno.ENOENT):  # the last one of a link to nothing
                raise
            strange.append((name, f"it can't be opened: {error.strerror}"))
    ours = _most_named(found, checkpoints)
    kept = _one_for_each_number(_of_ledger(ours, found, strange), strange)
    unread = [int(name[:16]) for name, _ in strange]
    start, unfit, older = checkpoints.of_ledger(ours)
    left_behind = [source.path.name for source in kept if source.number <= start.segment]
    quarantined = files.names(directory / "quarantine") if "quarantine" in names else []
    return Sources(
        start=start,
        segments=tuple(source for source in kept if source.number > start.segment),
        strange=tuple(sorted([*strange, *unfit])),
        left_behind=tuple(sorted([*left_behind, *older])),
        newest_named=max(_newest_named([*names, *quarantined], unread), checkpoints.segment_behind),
        dropped_until=checkpoints.newest_named,
        segment_bytes=_segment_bytes(kept),
    )


def _source(files: DiskFiles, path: Path, named: int) -> Source:
    with opened(files, path) as blocks:
        header: Segment | None = None
        fault: str | None = None
        try:
            header = decoder.segment_header(blocks.read(0, BLOCK))
        except Unexpected as unexpected:
            if unexpected.other_version:
                raise LedgerDamaged(path, 0, str(unexpected), CHANGE_VERSION) from None
            fault = str(unexpected)
        identity: Identity = "header"
        segment = header
        if segment is None:
            identity, segment = _by_batches(blocks, named)
    return Source(
        path=path, named=named, size=blocks.size, identity=identity, header=header, fault=fault, segment=segment
    )


def _by_batches(blocks: Blocks, named: int) -> tuple[Identity, Segment | None]:
    votes: Counter[tuple[bytes, int]] = Counter()
    at = blocks.next_used(BLOCK, blocks.size)
    while at is not None:
        behind = at + BLOCK
        try:
            claim = decoder.segment_named(blocks.read(at, BLOCK))
            behind = at + len(blocks.batch(_segment_of(*claim), at))
        except Unexpected:
            pass
        else:
            if at == BLOCK:
                return "first_batch", _segment_of(*claim)
            votes[claim] += 1
        at = blocks.next_used(behind, blocks.size)
    if not votes:
        return "name", None
    most = max(votes, key=lambda claim: (claim[1] == named, votes[claim]))
    return "most_batches", _segment_of(*most)


def _segment_of(salt: bytes, number: int) -> Segment:
    """As far as a batch tells of it."""
    return Segment(
        salt=salt,
        ledger_id=b"",
        incarnation=0,
        number=number,
        segment_bytes=0,
        before_end=0,
        before_head=decoder.NO_HEAD,
    )


def _most_named(found: Iterable[Source], checkpoints: Checkpoints) -> bytes | None:
    """The id of the ledger that most files say they are of."""
    ids = Counter(source.header.ledger_id for source in found if source.header is not None)
    ids.update(start.ledger_id for start in checkpoints.whole)
    return ids.most_common(1)[0][0] if ids else None


def _of_ledger(ours: bytes | None, found: Iterable[Source], strange: list[tuple[str, str]]) -> list[Source]:
    """Those that do not say that they are of another one."""
    kept = []
    for source in found:
        if source.header is not None and source.header.ledger_id != ours:
            strange.append((source.path.name, "it is of another ledger"))
        else:
            kept.append(source)
    return kept


def _one_for_each_number(found: Iterable[Source], strange: list[tuple[str, str]]) -> list[Source]:
    kept: list[Source] = []
    for source in sorted(found, key=lambda one: (one.number, _TRUST.index(one.identity), one.number != one.named)):
        if source.number == 0:
            strange.append((source.path.name, "segments are numbered from 1 on"))
        elif kept and kept[-1].number == source.number:
            why = f"it is segment {source.number}, as {kept[-1].path.name} is, which is taken"
            strange.append((source.path.name, why))
        else:
            kept.append(source)
    return kept


def _newest_named(names: Iterable[str], unread: Iterable[int]) -> int:
    told = [int(number) for name in names if (found := _TELLING.fullmatch(name)) for number in found.groups() if number]
    return max([*told, *unread], default=0)


def _segment_bytes(kept: Iterable[Source]) -> int:
    """The largest that a header names; where all are lost, the largest file."""
    kept = list(kept)
    said = [source.header.segment_bytes for source in kept if source.header is not None]
    return max(said) if said else max((source.size for source in kept), default=0)
