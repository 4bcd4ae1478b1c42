"""Every row of what can stand in a segment, in the last one and in an earlier one, and the decision for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from kit import records
from kit.sim_disk import Directory, File, SimDisk
from msgspec import structs

from sidecar.contract.values import ClosedRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.format import BLOCK_BYTES, FIRST_HEAD, SegmentHeader
from sidecar.ledger.opening import Listeners, Opening
from sidecar.ledger.recovery import DAMAGES, DECISIONS, Behind, Damage, Found, segment_path

FOLDER = Path("/")
SEGMENT_BYTES = 10 * BLOCK_BYTES
COUNT = 3
EARLIER, LAST = COUNT - 1, COUNT
CLOSED = on_disk.encode_record(ClosedRecord(closed_at_unix_ms=1))


class Segment:
    """One segment as its own writer could have made it: a batch with a begin, and what else is put behind."""

    def __init__(self, before: Segment | None) -> None:
        self.number = before.number + 1 if before else 1
        self.salt = bytes([self.number]) * on_disk.SALT_BYTES
        self.head = before.head if before else FIRST_HEAD
        self.batch = before.batch if before else 0
        self.end = BLOCK_BYTES
        self.header = SegmentHeader(
            ledger_id=b"L" * 16,
            salt=self.salt,
            incarnation=self.number,
            segment=self.number,
            created_at_unix_ms=1,
            segment_bytes=SEGMENT_BYTES,
            previous_end=before.end if before else 0,
            previous_head=self.head,
        )
        self.content = bytearray(SEGMENT_BYTES)
        self.change_header()
        self.write(on_disk.encode_record(records.begin(self.number)))

    def change_header(self, **changes: Any) -> None:
        self.header = structs.replace(self.header, **changes)
        self.content[:BLOCK_BYTES] = on_disk.encode_segment_header(self.header)

    def encoded(self, framed: bytes, head: bytes | None = None) -> on_disk.EncodedBatch:
        return on_disk.encode_batch(
            [framed], salt=self.salt, segment=self.number, number=self.batch + 1, previous_head=head or self.head
        )

    def write(self, framed: bytes, head: bytes | None = None) -> None:
        encoded = self.encoded(framed, head)
        self.put(self.end, b"".join(encoded.pieces))
        self.end, self.head, self.batch = self.end + encoded.total_bytes, encoded.head, self.batch + 1

    def put(self, at: int, content: bytes) -> None:
        self.content[at : at + len(content)] = content


def read(segments: Mapping[int, Segment]) -> Found:
    files = {segment_path(FOLDER, number).name: bytes(segment.content) for number, segment in segments.items()}
    disk = SimDisk(Directory({name: File(content, len(content)) for name, content in files.items()}))
    opening = Opening(disk, FOLDER, window_of=lambda caller: 0, now_unix_ms=0, listeners=Listeners())
    return recovery.replay(disk, FOLDER, opening.take, cold=True)


def ledger_with(change: Callable[[Segment], None], target: int) -> dict[int, Segment]:
    """Three segments, each with a header that names the end of the one before it, as changed."""
    segments: dict[int, Segment] = {}
    for number in range(1, COUNT + 1):
        segments[number] = Segment(segments.get(number - 1))
        if number == target:
            change(segments[number])
    return segments


def another_version(segment: Segment) -> None:
    segment.content[8:12] = (2).to_bytes(4, "big")
    segment.content[BLOCK_BYTES - 4 : BLOCK_BYTES] = crc32(segment.content[: BLOCK_BYTES - 4]).to_bytes(4, "big")


def closed_and_continued(segment: Segment) -> None:
    segment.write(CLOSED)
    segment.write(on_disk.encode_record(records.begin(100)))


def record_with(at: int, byte: int, *, crc_fits: bool) -> Callable[[Segment], None]:
    def change(segment: Segment) -> None:
        framed = bytearray(on_disk.encode_record(records.begin(100)))
        framed[at] = byte
        if crc_fits:
            framed[8:12] = crc32(framed[on_disk.RECORD_HEADER_BYTES :], framed[4]).to_bytes(4, "big")
        segment.write(bytes(framed))

    return change


# Damage that lies in front of what is behind the last batch: how it is made, where it is, what is said of it.
MADE: dict[Damage, tuple[Callable[[Segment], None], Callable[[Segment], int], str]] = {
    "no_header": (lambda segment: segment.put(0, bytes(BLOCK_BYTES)), lambda _: 0, "the magic of a segment"),
    "header_of_another_version": (another_version, lambda _: 0, "a version of sidecar that writes format 2"),
    "other_ledger": (lambda segment: segment.change_header(ledger_id=b"M" * 16), lambda _: 0, "this ledger's id"),
    "other_number": (lambda segment: segment.change_header(segment=9), lambda _: 0, "segment number "),
    "other_end": (
        lambda segment: segment.change_header(previous_end=4096),
        lambda _: 0,
        "segment before ended at 8192",
    ),
    "other_head": (lambda segment: segment.change_header(previous_head=b"h" * 32), lambda _: 0, "the chain head of"),
    "other_length": (
        lambda segment: segment.content.extend(bytes(BLOCK_BYTES)),
        lambda _: SEGMENT_BYTES + BLOCK_BYTES,
        f"a file of {SEGMENT_BYTES} bytes",
    ),
    "older_incarnation": (lambda segment: segment.change_header(incarnation=0), lambda _: 0, "an incarnation of at"),
    "batch_behind_exit": (
        closed_and_continued,
        lambda segment: segment.end - BLOCK_BYTES,
        "nothing after a clean exit",
    ),
    "off_the_chain": (
        lambda segment: segment.write(on_disk.encode_record(records.begin(100)), head=b"h" * 32),
        lambda segment: segment.end - BLOCK_BYTES,
        "a batch that continues the chain",
    ),
    "no_record": (
        record_with(60, 0xC1, crc_fits=False),
        lambda segment: segment.end - BLOCK_BYTES,
        "a record whose CRC fits",
    ),
    "record_of_another_version": (
        record_with(4, 8, crc_fits=True),
        lambda segment: segment.end - BLOCK_BYTES,
        "a newer version of sidecar wrote kind 8",
    ),
}
BY_WHAT_IS_BEHIND = {decision for decision in DECISIONS.values() if decision in DAMAGES}


def test_the_table_of_damages_is_whole() -> None:
    assert set(DAMAGES) == {
        *MADE,
        *BY_WHAT_IS_BEHIND,
        "missing",
        "sealed_missing",
        "named_by_a_seal",
        "other_end_than_sealed",
    }


@pytest.mark.parametrize("target", [EARLIER, LAST], ids=["earlier", "last"])
@pytest.mark.parametrize("damage", MADE)
def test_no_crash_leaves(damage: Damage, target: int) -> None:
    change, place, said = MADE[damage]
    segments = ledger_with(change, target)
    with pytest.raises(LedgerDamaged) as refused:
        read(segments)
    assert said in refused.value.expected
    assert (refused.value.segment, refused.value.offset) == (
        segment_path(FOLDER, target),
        place(segments[target]),
    )
    assert refused.value.advice == DAMAGES[damage][1]


@pytest.mark.parametrize("missing", [1, 2])
def test_a_segment_before_another_is_missing(missing: int) -> None:
    segments = ledger_with(lambda segment: None, LAST)
    del segments[missing]
    said = f"segment {missing}, or a checkpoint of segment {missing}; both are missing"
    with pytest.raises(LedgerDamaged, match=said) as refused:
        read(segments)
    assert refused.value.segment == segment_path(FOLDER, missing)
    assert refused.value.advice == DAMAGES["missing"][1]


def test_where_several_are_missing_at_the_front_a_checkpoint_of_the_last_of_them_would_do() -> None:
    segments = ledger_with(lambda segment: None, LAST)
    del segments[1], segments[2]
    with pytest.raises(LedgerDamaged, match="segment 1, or a checkpoint of segment 2; both are missing") as refused:
        read(segments)
    assert refused.value.segment == segment_path(FOLDER, 1)


# --- what is behind the last batch -------------------------------------------------------------------------------


def ended(*, closed: bool, behind: Behind) -> Callable[[Segment], None]:
    def change(segment: Segment) -> None:
        if closed:
            segment.write(CLOSED)
        if behind == "bytes":
            segment.put(segment.end + 700, b"torn")
        elif behind == "batch":
            later = b"".join(segment.encoded(on_disk.encode_record(records.begin(100))).pieces)
            segment.put(segment.end + BLOCK_BYTES, later)

    return change


def test_the_table_of_decisions_is_whole() -> None:
    assert set(DECISIONS) == set(product((True, False), (True, False), ("zeros", "bytes", "batch")))


@pytest.mark.parametrize(("is_last", "closed", "behind"), DECISIONS)
def test_what_is_behind_the_last_batch_decides(is_last: bool, closed: bool, behind: Behind) -> None:
    target = LAST if is_last else EARLIER
    segments = ledger_with(ended(closed=closed, behind=behind), target)
    decision = DECISIONS[is_last, closed, behind]
    end = segments[target].end
    if decision in DAMAGES:
        with pytest.raises(LedgerDamaged, match=re.escape(DAMAGES[decision][0])) as refused:
            read(segments)
        assert (refused.value.segment, refused.value.offset) == (segment_path(FOLDER, target), end)
        assert refused.value.advice == DAMAGES[decision][1]
        return
    found = read(segments)
    assert (found.segments, found.end.segment, found.end.closed) == (COUNT, LAST, is_last and closed)
    assert found.records == COUNT + closed
    if decision == "set_aside":
        assert found.tail == recovery.Tail(segment=target, offset=end, length=700 + len(b"torn"))
    else:
        assert found.tail is None


@pytest.mark.parametrize("change", [{"previous_end": 3 * BLOCK_BYTES + 4096}, {"previous_head": b"h" * 32}])
@pytest.mark.parametrize(
    ("closed", "behind"),
    [(closed, behind) for (is_last, closed, behind), chosen in DECISIONS.items() if not is_last and chosen == "go_on"],
)
def test_an_earlier_segment_goes_on_only_where_the_next_header_names_its_end(
    closed: bool, behind: Behind, change: dict[str, Any]
) -> None:
    segments = ledger_with(ended(closed=closed, behind=behind), EARLIER)
    segments[LAST].change_header(**change)
    with pytest.raises(LedgerDamaged) as refused:
        read(segments)
    assert refused.value.segment == segment_path(FOLDER, LAST)


@pytest.mark.parametrize("behind", ["zeros", "bytes", "batch"])
def test_a_segment_without_any_batch_is_decided_as_one_with_some(behind: Behind) -> None:
    """A cut between its name and its first batch leaves it; then the record ends where its header does."""

    def emptied(segment: Segment) -> None:
        segment.content[BLOCK_BYTES:] = bytes(SEGMENT_BYTES - BLOCK_BYTES)
        segment.end, segment.head, segment.batch = BLOCK_BYTES, segment.header.previous_head, segment.batch - 1
        ended(closed=False, behind=behind)(segment)

    segments = ledger_with(emptied, LAST)
    if behind == "batch":
        with pytest.raises(LedgerDamaged, match="a whole batch, since one behind it is whole"):
            read(segments)
        return
    found = read(segments)
    assert (found.end.segment, found.end.offset, found.end.closed) == (LAST, BLOCK_BYTES, False)
    assert (found.tail is not None) == (behind == "bytes")


def test_the_table_that_is_read_is_the_one_that_decides() -> None:
    """The docstring's rows, each `any` taken for both."""
    words = {"yes": [True], "no": [False], "any": [True, False], "last": [True], "not last": [False]}
    things: dict[str, list[Behind]] = {
        "a valid batch": ["batch"],
        "anything but zeros": ["bytes"],
        "zeros": ["zeros"],
    }
    row = re.compile(r"^    (any|last|not last) +(any|yes|no) +(a valid batch|anything but zeros|zeros) +(\S.*)$", re.M)
    told: dict[tuple[bool, bool, Behind], str] = {}
    for last, closed, behind, decision in row.findall(recovery.__doc__ or ""):
        for combination in product(words[last], words[closed], things[behind]):
            assert combination not in told
            told[combination] = decision
    assert set(told) == set(DECISIONS)
    for combination, chosen in DECISIONS.items():
        first_word = {"go_on": ("goes on", "the same"), "set_aside": ("set aside",)}.get(chosen, ("damaged",))
        assert told[combination].startswith(first_word), combination
