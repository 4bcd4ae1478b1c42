"""Which whole batches of a segment stand where they were written, for a disk that has put some elsewhere.

Numbers rise through a segment by one, and each batch takes a block or more. So
where two are in their places, there are at least as many blocks between them
as numbers: number and `offset in blocks - number` both rise. Where they don't,
the most batches for which they do are taken to stand in their places. This
matters, since a Completed names its Begin by its place.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise

from msgspec import Struct

from sidecar.audit import decoder
from sidecar.audit.decoder import BLOCK, Segment, Unexpected
from sidecar.repair.blocks import Blocks


class Standing(Struct, frozen=True, gc=False):
    """A whole batch as it was found; `head` tells it from any other."""

    offset: int
    size: int
    number: int
    head: bytes

    @property
    def slack(self) -> int:
        """How many blocks more than one each the batches before it have taken, from some fixed number on."""
        return self.offset // BLOCK - self.number


class Order:
    """The whole batches of a segment, by where they begin."""

    def __init__(self, segment: Segment | None, blocks: Blocks, end: int) -> None:
        self.standing = {one.offset: one for one in _whole(segment, blocks, end)} if segment is not None else {}
        found = list(self.standing.values())
        kept = found if all(_fit(*two) for two in pairwise(found)) else _most_that_fit(found)
        self.in_place = frozenset(one.offset for one in kept)
        self.numbers_in_place = frozenset(one.number for one in kept)
        taken = {one.head: one.offset for one in kept}
        self.repeated = {one.offset for one in found if taken.setdefault(one.head, one.offset) != one.offset}


def _whole(segment: Segment, blocks: Blocks, end: int) -> list[Standing]:
    found = []
    at = blocks.next_used(BLOCK, end)
    while at is not None:
        behind = at + BLOCK
        with suppress(Unexpected):
            batch = blocks.batch(segment, at)
            found.append(Standing(at, len(batch), decoder.batch_number(batch), decoder.batch_head(batch)))
            behind = at + len(batch)
        at = blocks.next_used(behind, end)
    return found


def _fit(one: Standing, other: Standing) -> bool:
    return one.number < other.number and one.slack <= other.slack


def _most_that_fit(found: list[Standing]) -> list[Standing]:
    """A longest run that fits, not necessarily of neighbours: by rising numbers, a longest run of slacks that don't
    fall."""
    found = sorted(found, key=lambda one: (one.number, -one.slack))
    ends: list[int] = []  # of the runs of each length, the lowest slack at the end ...
    last: list[int] = []  # ... and which batch that is
    before: list[int | None] = []
    for index, one in enumerate(found):
        length = bisect_right(ends, one.slack)
        before.append(last[length - 1] if length else None)
        ends[length : length + 1], last[length : length + 1] = [one.slack], [index]
    kept: list[Standing] = []
    at: int | None = last[-1] if last else None
    while at is not None:
        kept.append(found[at])
        at = before[at]
    return kept[::-1]
