"""Every byte of a small ledger, changed, cut off or doubled: refused, or the very same totals; read in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from kit import records
from kit.records import Totals

from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery
from sidecar.ledger.faults import CHANGE_VERSION, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BLOCK_BYTES
from sidecar.ledger.landing import Place
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.opening import Opening
from sidecar.ledger.recovery import Found

OpenLedger = Callable[..., Ledger]
Contents = dict[str, bytes]
FIRST, SECOND = f"{1:016d}.segment", f"{2:016d}.segment"
# Zeros between records are all alike to the reader; one in so many of them is changed.
PADDING_STEP = 512


class MemoryFiles(DiskFiles):
    """Only what reading a ledger needs."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._names = sorted(contents)

    def names(self, directory: Path) -> list[str]:
        return self._names

    def open_to_read(self, path: Path) -> int:
        return self._names.index(path.name)

    def size(self, descriptor: int) -> int:
        return len(self._contents[self._names[descriptor]])

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return self._contents[self._names[descriptor]][offset : offset + length]

    def close(self, descriptor: int) -> None:
        return


def read(contents: Contents) -> tuple[Totals, Found]:
    totals = Totals()
    files = MemoryFiles(contents)
    opening = Opening(files, Path("ledger"), window_of=lambda caller: 1, now_unix_ms=0, listeners=totals.listeners)
    found = recovery.replay(files, Path("ledger"), opening.take, cold=False)
    opening.tell()
    return totals, found


async def session(open_ledger: OpenLedger, numbers: list[int], *, clean: bool) -> None:
    ledger = open_ledger()
    try:
        async with ledger.running():
            for number in numbers:
                begin = records.begin(number)
                await ledger.complete(begin, records.completed(await ledger.begin(begin)))
            if not clean:
                raise KeyError("the process is gone")
    except* KeyError:
        pass


def contents_of(directory: Path) -> Contents:
    return {path.name: path.read_bytes() for path in directory.glob("*.segment")}


def used_by(content: bytes) -> int:
    return on_disk.padded(len(content.rstrip(b"\0")))


def places(content: bytes) -> Iterator[int]:
    """Every byte that says something, some of the padding between, and some of the spare space behind."""
    for at in range(used_by(content)):
        if content[at] or at % PADDING_STEP == 0:
            yield at


def changed(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]


async def test_no_changed_byte_of_a_continued_ledger_is_taken(open_ledger: OpenLedger, directory: Path) -> None:
    """The next segment's header, or the clean exit, proves all of it: there is nothing that could be a torn tail."""
    await session(open_ledger, [0, 1], clean=False)
    await session(open_ledger, [2], clean=True)
    contents = contents_of(directory)
    assert read(contents)[0].spent == 180
    for name, content in contents.items():
        # The very last batch says that it is the last: without it the end is that of a crash.
        last = used_by(content) - BLOCK_BYTES if name == SECOND else used_by(content)
        for at in places(content):
            try:
                totals, found = read({**contents, name: changed(content, at)})
            except LedgerDamaged:
                continue
            assert at >= last, f"byte {at} of {name}"
            assert (totals.spent, totals.reserved) == (180, 0)
            assert found.tail is not None
            assert not found.end.closed


async def test_a_changed_byte_after_a_crash_loses_at_most_the_last_batch(
    open_ledger: OpenLedger, directory: Path
) -> None:
    await session(open_ledger, [0, 1], clean=False)
    contents = contents_of(directory)
    content = contents[FIRST]
    last = used_by(content) - BLOCK_BYTES
    for at in places(content):
        try:
            totals, found = read({FIRST: changed(content, at)})
        except LedgerDamaged:
            continue
        assert at >= last, f"byte {at}"
        assert (totals.spent, totals.reserved) == (60, 100)
        assert found.tail is not None
        assert found.tail.offset == last


async def test_a_file_of_any_other_length_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await session(open_ledger, [0, 1], clean=False)
    await session(open_ledger, [2], clean=True)
    contents = contents_of(directory)
    for name, content in contents.items():
        lengths = {*range(0, used_by(content) + 2 * BLOCK_BYTES, BLOCK_BYTES), len(content) - 1}
        for length in lengths:
            with pytest.raises(LedgerDamaged):
                read({**contents, name: content[:length]})
        with pytest.raises(LedgerDamaged, match=f"expected a file of {len(content)} bytes"):
            read({**contents, name: content + bytes(BLOCK_BYTES)})


async def test_a_whole_batch_that_stands_twice_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    await session(open_ledger, [0], clean=False)
    content = contents_of(directory)[FIRST]
    end = used_by(content)
    for behind in (end, end + 3 * BLOCK_BYTES):
        doubled = bytearray(content)
        doubled[behind : behind + BLOCK_BYTES] = content[end - BLOCK_BYTES : end]
        with pytest.raises(LedgerDamaged, match="a whole batch, since one behind it is whole"):
            read({FIRST: bytes(doubled)})


async def test_bytes_of_a_provider_that_look_like_a_batch_are_none(open_ledger: OpenLedger, directory: Path) -> None:
    """A torn answer that holds whole batches of another ledger, block by block, is one torn tail."""
    await session(open_ledger, [0], clean=False)
    content = contents_of(directory)[FIRST]
    framed = on_disk.encode_record(records.begin(7))
    posing = b"".join(
        on_disk.encode_batch([framed], salt=b"S" * 16, segment=1, number=4, previous_head=bytes(32)).pieces
    )
    torn = bytearray(content)
    end = used_by(content)
    torn[end : end + 3 * BLOCK_BYTES] = posing * 3
    totals, found = read({FIRST: bytes(torn)})
    assert totals.spent == 60
    assert found.tail is not None
    assert found.tail.offset == end


# --- whole and chained, and still no record of this version, or of this ledger's past -----------------------------


def continued(content: bytes, framed: list[bytes], previous_head: bytes | None = None) -> bytes:
    """The segment with one more batch, as only its own writer could have made it."""
    found = read({FIRST: content})[1]
    header = on_disk.decode_segment_header(content[:BLOCK_BYTES])
    encoded = on_disk.encode_batch(
        framed,
        salt=header.salt,
        segment=1,
        number=found.end.batch + 1,
        previous_head=previous_head or found.end.head,
    )
    batch = b"".join(encoded.pieces)
    return content[: found.end.offset] + batch + content[found.end.offset + len(batch) :]


async def test_a_batch_with_another_past_is_damage(open_ledger: OpenLedger, directory: Path) -> None:
    """Whoever edits a record and mends its CRCs breaks the chain behind it."""
    await session(open_ledger, [0], clean=False)
    content = contents_of(directory)[FIRST]
    framed = [on_disk.encode_record(records.begin(1))]
    assert read({FIRST: continued(content, framed)})[0].reserved == 100
    with pytest.raises(LedgerDamaged, match="a batch that continues the chain"):
        read({FIRST: continued(content, framed, previous_head=b"h" * 32)})


async def test_a_kind_of_another_version_is_refused_and_named_as_no_loss(
    open_ledger: OpenLedger, directory: Path
) -> None:
    await session(open_ledger, [0], clean=False)
    content = contents_of(directory)[FIRST]
    framed = bytearray(on_disk.encode_record(records.begin(8)))
    framed[4] = 8
    framed[8:12] = crc32(framed[on_disk.RECORD_HEADER_BYTES :], 8).to_bytes(4, "big")
    with pytest.raises(LedgerDamaged, match="newer version of sidecar wrote kind 8") as refused:
        read({FIRST: continued(content, [bytes(framed)])})
    assert refused.value.advice == CHANGE_VERSION
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        ([v.RecordBody(begin=records.begin(0))], "a request that had not begun before"),
        (
            [v.RecordBody(completed=records.completed(Place(1, 4097, 1)))],
            "the completion of a request that is open",
        ),
        (
            [
                v.RecordBody(closed=v.ClosedRecord(closed_at_unix_ms=1)),
                v.RecordBody(low_water=v.LowWaterRecord(expires_at_unix_ms=1)),
            ],
            "nothing after a clean exit",
        ),
    ],
    ids=["begun twice", "completed and not begun", "after the end"],
)
async def test_records_that_contradict_each_other_are_damage(
    bodies: list[v.RecordBody], expected: str, open_ledger: OpenLedger, directory: Path
) -> None:
    await session(open_ledger, [0], clean=False)
    content = contents_of(directory)[FIRST]
    with pytest.raises(LedgerDamaged, match=expected) as refused:
        read({FIRST: continued(content, [on_disk.encode_record(body.chosen) for body in bodies])})
    assert refused.value.offset == used_by(content)
