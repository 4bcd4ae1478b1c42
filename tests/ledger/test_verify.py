"""The second reading of a ledger: what it takes, what it refuses and where, and a ledger that grows under its eyes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
import trio
from kit import records
from kit.ledger_view import LedgerView
from kit.small_ledgers import (
    BLOCK,
    SEGMENT_BYTES,
    Contents,
    MemoryFiles,
    RecordedFiles,
    contents_of,
    open_small,
    segment_name,
    session,
    three_segments,
)

from sidecar.audit import begun_ids, seal_file, seal_proof
from sidecar.audit import decoder as second_decoder
from sidecar.audit import look as second_look
from sidecar.audit import reading as second_reading
from sidecar.audit import records_in_order as second_records
from sidecar.audit import seals as second_seals
from sidecar.audit.begun_ids import BegunIds
from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Batch, Reading
from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged
from sidecar.ledger.landing import Place

LEDGER = Path("ledger")
MODULES = [second_decoder, second_look, second_reading, second_records, second_seals, seal_file, seal_proof, begun_ids]
SALT, LEDGER_ID = b"s" * 16, b"i" * 16


def read(contents: Contents) -> tuple[Reading, list[Batch]]:
    reading = Reading(LEDGER, files=MemoryFiles(contents), every_id=True, prove_seals=True)
    return reading, list(reading.batches())


def damage_of(contents: Contents) -> LedgerDamaged:
    with pytest.raises(LedgerDamaged) as refused:
        read(contents)
    return refused.value


@pytest.fixture
async def contents(tmp_path: Path) -> Contents:
    await three_segments(tmp_path / "ledger")
    return contents_of(tmp_path / "ledger")


# --- what it takes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_it_shares_no_code_with_what_writes_and_opens_a_ledger(module: Any) -> None:
    names = {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    writing = ("format", "recovery", "ledger", "writer", "index", "landing")
    for writers in (*writing, "seal_format", "sealed", "checkpoint", "opening", "keeping", "read_back"):
        assert not [name for name in names if name.startswith(f"sidecar.ledger.{writers}")]


async def test_it_comes_to_what_opening_comes_to(tmp_path: Path) -> None:
    await three_segments(tmp_path)
    view = LedgerView(tmp_path)
    reading = Reading(tmp_path, cold=True, every_id=True)
    lines = [line for batch in reading.batches() for line in batch.lines]
    assert [line.members for line in lines if line.kind == "Begin"] == [plain(begin) for begin in view.begins]
    assert [line.members for line in lines if line.kind == "Completed"] == [plain(end) for _, end in view.completes]
    assert list(reading.open) == list(view.open)
    assert (reading.segment, reading.records, reading.requests, reading.batch) == (3, 14, 6, 14)
    assert (reading.charged_micro_usd, reading.held_micro_usd) == (300, 100)
    assert (reading.closed, reading.tails, reading.may_run) == (True, [], 0)


def plain(value: v.Value) -> Any:
    return msgpack.unpackb(msgspec.msgpack.encode(value))


async def test_what_is_open_in_the_run_that_has_not_ended_may_be_running(tmp_path: Path) -> None:
    await session(tmp_path, [1], unfinished=[2], clean=False)
    await session(tmp_path, [3], unfinished=[4], clean=False)
    reading = Reading(tmp_path)
    list(reading.batches())
    assert (len(reading.open), reading.may_run, reading.closed) == (2, 1, False)


async def test_an_empty_ledger_is_one_and_a_directory_without_a_ledger_is_none(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    assert list(Reading(tmp_path).batches()) == []
    (tmp_path / "lock").rename(tmp_path / "other")
    with pytest.raises(NoLedger, match="no segment is in it"):
        list(Reading(tmp_path).batches())
    for place in (tmp_path / "nowhere", tmp_path / "other"):
        with pytest.raises(NoLedger, match=str(place)):
            list(Reading(place).batches())


def test_ids_are_new_once_however_many_there_are() -> None:
    ids = BegunIds()
    names = [(f"c{at % 7}", f"r{at}") for at in range(5000)]
    assert all(ids.is_new(*name) for name in names)
    assert not any(ids.is_new(*name) for name in names)
    assert ids.is_new("ab", "c")
    assert ids.is_new("a", "bc")


# --- any byte ---------------------------------------------------------------------------------------------------


class Part:
    """A stretch of a segment that is checked as one: its header, a batch, or the zeros behind the last."""

    def __init__(self, begin: int, end: int, kind: str) -> None:
        self.begin, self.end, self.kind = begin, end, kind


def parts(batches: Sequence[Batch], segment: int) -> list[Part]:
    begins = [batch.offset for batch in batches if batch.segment == segment]
    last = begins[-1] + BLOCK  # each record of these ledgers has a batch of one block
    middles = [Part(begin, begin + BLOCK, "batch") for begin in begins[:-1]]
    return [Part(0, BLOCK, "header"), *middles, Part(begins[-1], last, "last"), Part(last, SEGMENT_BYTES, "zeros")]


def before(contents: Contents, segment: int) -> dict[str, Any]:
    """What a reading has come to where this segment begins, so that the ones before need not be read each time."""
    names = {segment_name(number) for number in range(1, segment)}
    reading, _ = read({**{name: contents[name] for name in names}, "lock": b""})
    return {
        name: copy(value) for name, value in vars(reading).items() if name not in ("_files", "_ids", "_look", "_seals")
    }


# What a changed byte of a part comes to: damage at the part's begin, or a tail that is reported from there on.
VERDICTS = {
    # ended by a rotation: the next header proves all of it, and behind its end a daemon that went on leaves zeros
    (1, "header"): "damaged", (1, "batch"): "damaged", (1, "last"): "damaged", (1, "zeros"): "damaged",
    # ended by a crash: what stands behind its end may be what the crash tore; there is no copy of it
    (2, "header"): "damaged", (2, "batch"): "damaged", (2, "last"): "damaged", (2, "zeros"): "copy_missing",
    # ended by a clean exit, whose own batch says so: without it, this is a tail that a crash left
    (3, "header"): "damaged", (3, "batch"): "damaged", (3, "last"): "last", (3, "zeros"): "damaged",
}  # fmt: skip


@pytest.mark.parametrize("segment", [1, 2, 3])
async def test_every_byte_that_is_changed_is_refused_with_its_place_or_reported_as_a_tail(
    contents: Contents, segment: int
) -> None:
    assert sum(len(content) for name, content in contents.items() if name.endswith(".segment")) == 96 * 1024
    known, name = before(contents, segment), segment_name(segment)
    content = contents[name]
    seen = set()
    for part in parts(read(contents)[1], segment):
        verdict = VERDICTS[segment, part.kind]
        for at in range(part.begin, part.end):
            changed = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
            reading = Reading(LEDGER, files=MemoryFiles({**contents, name: changed}))
            vars(reading).update({key: copy(value) for key, value in known.items()})
            assert verdict_of(reading, part, name) == verdict, f"byte {at} of {name}, in its {part.kind}"
            seen.add(at)
    assert len(seen) == SEGMENT_BYTES


def verdict_of(reading: Reading, part: Part, name: str) -> str:
    damage: LedgerDamaged | None = None
    try:
        for _ in reading.batches():
            pass
    except LedgerDamaged as fault:
        damage = fault
    if damage is not None:
        assert (damage.segment.name, damage.offset) == (name, part.begin)
        return "damaged"
    [tail] = reading.tails
    assert (tail.segment.name, tail.offset) == (name, part.begin)
    assert (reading.charged_micro_usd, reading.held_micro_usd) == (300, 100)
    return tail.state


async def test_a_file_of_another_length_or_one_that_is_missing_is_refused(contents: Contents) -> None:
    for number in (1, 2, 3):
        name = segment_name(number)
        for length in (0, 1, BLOCK - 1, BLOCK, SEGMENT_BYTES - 1):
            damage = damage_of({**contents, name: contents[name][:length]})
            assert (damage.segment.name, damage.offset) == (name, 0 if length < BLOCK else length)
        damage = damage_of({**contents, name: contents[name] + bytes(1)})
        assert (damage.segment.name, damage.offset) == (name, SEGMENT_BYTES)
    for number in (1, 2):
        rest = {name: content for name, content in contents.items() if name != segment_name(number)}
        damage = damage_of(rest)
        sealed = "this segment, which has a seal; it is missing"
        assert (damage.segment.name, damage.expected) == (segment_name(number), sealed)
        unsealed = {name: content for name, content in rest.items() if not name.endswith(".seal")}
        damage = damage_of(unsealed)
        unknown = f"segment {number}, or a checkpoint of segment {number}; both are missing"
        assert (damage.segment.name, damage.expected) == (segment_name(number), unknown)
    assert damage_of({**contents, segment_name(0): b""}).segment.name == segment_name(0)


async def test_segments_in_another_order_are_refused(contents: Contents) -> None:
    second, third = segment_name(2), segment_name(3)
    assert damage_of({**contents, second: contents[third], third: contents[second]}).segment.name == second
    assert damage_of({**contents, segment_name(4): contents[third]}).segment.name == segment_name(4)


async def test_a_cold_reading_forgets_the_cache_of_all_that_it_reads_through_the_port(contents: Contents) -> None:
    files = MemoryFiles(contents)
    list(Reading(LEDGER, files=files, cold=True, prove_seals=True).batches())
    assert sorted(files.forgotten) == [name for name in sorted(contents) if name != "lock"]
    files = MemoryFiles(contents)
    list(Reading(LEDGER, files=files, prove_seals=True).batches())
    assert files.forgotten == []


# --- tails ------------------------------------------------------------------------------------------------------


async def torn(directory: Path, *, opened_again: bool) -> None:
    """A crash tears the batch after the last one."""
    await session(directory, [1], clean=False)
    path = directory / segment_name(1)
    content = path.read_bytes()
    path.write_bytes(content[: 4 * BLOCK] + content[3 * BLOCK :][:100] + content[4 * BLOCK + 100 :])
    if opened_again:
        await session(directory, [])


async def test_a_torn_tail_is_reported_and_is_no_damage(tmp_path: Path) -> None:
    await torn(tmp_path, opened_again=False)
    reading, _ = read(contents_of(tmp_path))
    [tail] = reading.tails
    assert (tail.segment.name, tail.offset, tail.length, tail.state) == (segment_name(1), 4 * BLOCK, 100, "last")


async def test_a_tail_that_was_set_aside_is_compared_with_its_copy(tmp_path: Path) -> None:
    await torn(tmp_path, opened_again=True)
    contents = contents_of(tmp_path)
    assert read(contents)[0].tails[0].state == "copy_missing"
    [copy_path] = (tmp_path / "quarantine").iterdir()
    name, kept = f"quarantine/{copy_path.name}", copy_path.read_bytes()
    assert read({**contents, name: kept})[0].tails[0].state == "kept"
    for other in (kept[:-1], kept + b"x", b"", b"x" + kept[1:]):
        damage = damage_of({**contents, name: other})
        assert (damage.segment.name, damage.offset) == (segment_name(1), 4 * BLOCK)


def torn_ways(written: bytes) -> Iterator[bytes]:
    """What a power cut can leave of a write: sectors lost, or filled with something else."""
    sector = 512
    yield bytes(len(written))
    yield written[:sector] + bytes(len(written) - sector)
    yield bytes(sector) + written[sector:]
    yield written[: 2 * sector] + b"\xa5" * sector + written[3 * sector :]


async def test_no_state_that_a_crash_leaves_is_damage_before_or_after_it_is_opened_again(tmp_path: Path) -> None:
    files = RecordedFiles()
    await session(tmp_path / "made", [1, 2, 3, 4], unfinished=[5], files=files)
    contents: Contents = {"lock": b""}
    states = 0
    for name, offset, written in files.changes:
        old = contents.get(name, b"")
        for torn in torn_ways(written) if offset else ():  # a segment has its name only when its header is synced
            state = {**contents, name: old[:offset] + torn + old[offset + len(torn) :]}
            kept = read(state)[0]
            directory = tmp_path / f"state-{states}"
            directory.mkdir()
            for each, content in state.items():
                (directory / each).write_bytes(content)
            await session(directory, [9])
            again = Reading(directory, every_id=True)
            batches = list(again.batches())
            assert again.requests == kept.requests + 1
            assert batches[kept.batch - 1].head == kept.head or not kept.batch
            assert [tail.state for tail in again.tails] == ["kept"] * len(kept.tails)
            states += 1
        contents[name] = old[:offset] + written + old[offset + len(written) :]
    assert states == 44


# --- records that a sound chain holds and no daemon writes ---------------------------------------------------------


def forged(*batches: Sequence[bytes], ended_at: int = 0, head: bytes = bytes(32), **changes: Any) -> Contents:
    """One segment with these batches of framed records, and every sum over them right."""
    terms: dict[str, Any] = {
        "ledger_id": LEDGER_ID,
        "salt": SALT,
        "incarnation": 1,
        "segment": 1,
        "created_at_unix_ms": 1,
        "segment_bytes": SEGMENT_BYTES,
        "previous_end": ended_at,
        "previous_head": head,
    }
    header = on_disk.SegmentHeader(**{**terms, **changes})
    content, number = on_disk.encode_segment_header(header), 2 if ended_at else 1
    for framed in batches:
        batch = on_disk.encode_batch(framed, salt=SALT, segment=header.segment, number=number, previous_head=head)
        content, head, number = content + b"".join(batch.pieces), batch.head, number + 1
    return {segment_name(header.segment): content.ljust(SEGMENT_BYTES, b"\0")}


def followed(first: Sequence[bytes], second: Sequence[bytes], **changes: Any) -> Contents:
    """Two segments with a batch each; the second one's header is changed."""
    before = forged(first)
    head = before[segment_name(1)][BLOCK + 48 : BLOCK + 80]
    terms: dict[str, Any] = {"ended_at": 2 * BLOCK, "head": head, "segment": 2, **changes}
    return {**before, **forged(second, **terms)}


def framed(record: Any) -> bytes:
    return on_disk.encode_record(record)


def framed_bytes(kind: int, body: bytes) -> bytes:
    crc = on_disk.crc32(body, kind)
    return len(body).to_bytes(4, "big") + bytes([kind, 0, 0, 0]) + crc.to_bytes(4, "big") + body


OPENED = framed(v.OpenedRecord(incarnation=1, opened_at_unix_ms=1, clean=True))
CLOSED = framed(v.ClosedRecord(closed_at_unix_ms=2))
BEGIN = framed(records.begin(1))
AT = BLOCK + on_disk.BATCH_HEADER_BYTES + len(OPENED)  # where a second record of the first batch stands
END = framed(records.completed(Place(1, AT, len(BEGIN))))
OVER = records.completed(Place(1, AT, len(BEGIN)), charge=101)


def test_a_forged_ledger_without_a_fault_is_sound() -> None:
    noted = framed(msgspec.structs.replace(OVER, notes=("over_run",)))
    for batches in ([[OPENED, BEGIN, END, CLOSED]], [[OPENED, BEGIN], [END], [CLOSED]], [[OPENED, BEGIN, noted]]):
        assert read(forged(*batches))[0].requests == 1


@pytest.mark.parametrize(
    ("batches", "at", "expected"),
    [
        ([[OPENED, END]], AT, "the end of a request that is open"),
        ([[OPENED, END, BEGIN]], AT, "the end of a request that is open"),
        ([[OPENED, BEGIN, END, END]], AT + len(BEGIN) + len(END), "the end of a request that is open"),
        ([[OPENED, BEGIN], [END], [END]], None, "the end of a request that is open"),
        ([[OPENED, BEGIN, BEGIN]], AT + len(BEGIN), "a request that had not begun before"),
        ([[OPENED, BEGIN], [BEGIN]], None, "a request that had not begun before"),
        ([[OPENED, BEGIN, framed(OVER)]], AT + len(BEGIN), "a charge of at most 100 micro-USD, or the note over_run"),
        ([[BEGIN]], AT - len(OPENED), "an Opened first"),
        ([[OPENED, OPENED]], AT, "no Opened here"),
        ([[OPENED, CLOSED, BEGIN]], AT + len(CLOSED), "nothing after a clean exit"),
        ([[OPENED, CLOSED], [BEGIN]], None, "nothing after a clean exit"),
        ([[framed(v.OpenedRecord(incarnation=2, opened_at_unix_ms=1, clean=True))]], AT - len(OPENED),
         "an Opened of incarnation 1, clean"),
        ([[framed(v.OpenedRecord(incarnation=1, opened_at_unix_ms=1, clean=False))]], AT - len(OPENED),
         "an Opened of incarnation 1, clean"),
    ],
)  # fmt: skip
def test_records_that_contradict_each_other_are_refused_with_their_place(
    batches: list[list[bytes]], at: int | None, expected: str
) -> None:
    damage = damage_of(forged(*batches))
    assert damage.expected == expected
    assert damage.advice == RESTORE
    if at is not None:
        assert damage.offset == at


OPENED_AGAIN = framed(v.OpenedRecord(incarnation=2, opened_at_unix_ms=1, clean=True))
AFTER_A_CRASH = framed(v.OpenedRecord(incarnation=2, opened_at_unix_ms=1, clean=False))


def test_forged_segments_without_a_fault_are_sound() -> None:
    for contents in (
        followed([OPENED, BEGIN], [END]),
        followed([OPENED, CLOSED], [OPENED_AGAIN], incarnation=2),
        followed([OPENED], [AFTER_A_CRASH], incarnation=2),
    ):
        assert read(contents)[0].segment == 2


@pytest.mark.parametrize(
    ("contents", "segment", "at", "expected"),
    [
        (followed([OPENED, BEGIN], [END], ledger_id=b"o" * 16), 2, 0, "this ledger's id"),
        (followed([OPENED, BEGIN], [END], previous_head=b"o" * 32), 2, 0, "the chain head of the segment before"),
        (followed([OPENED, BEGIN], [END], previous_end=3 * BLOCK), 1, 2 * BLOCK, f"ends at {3 * BLOCK}"),
        (followed([OPENED, BEGIN], [END], previous_end=BLOCK), 1, BLOCK, f"ends at {BLOCK}"),
        (followed([OPENED, BEGIN], [END], incarnation=0), 2, 0, "incarnation 2"),
        (followed([OPENED, BEGIN], [OPENED_AGAIN], incarnation=3), 2, 0, "incarnation 2"),
        (followed([OPENED, CLOSED], [OPENED_AGAIN]), 2, 0, "incarnation 2, since the one before has ended"),
        (followed([OPENED, BEGIN], [END], incarnation=2), 2, BLOCK + 84, "an Opened first"),
        (followed([OPENED, BEGIN], [OPENED_AGAIN], incarnation=2), 2, BLOCK + 84, "an Opened of incarnation 2, not"),
        (
            followed([OPENED, CLOSED], [AFTER_A_CRASH], incarnation=2),
            2,
            BLOCK + 84,
            "an Opened of incarnation 2, clean",
        ),
        (followed([OPENED], [OPENED]), 2, BLOCK + 84, "no Opened here"),
        (followed([OPENED], [BEGIN], segment_bytes=BLOCK), 2, BLOCK, f"a file of {BLOCK} bytes"),
        (forged([OPENED], incarnation=0), 1, 0, "incarnation 1"),
        (forged([OPENED], previous_end=BLOCK), 1, 0, "that the segment before ended at 0"),
    ],
)
def test_segments_that_contradict_each_other_are_refused_with_their_place(
    contents: Contents, segment: int, at: int, expected: str
) -> None:
    damage = damage_of(contents)
    assert (damage.segment.name, damage.offset) == (segment_name(segment), at)
    assert expected in damage.expected


@pytest.mark.parametrize("kind", [0, 4, 8, 255])
def test_a_kind_of_record_that_it_does_not_know_is_of_a_newer_version(kind: int) -> None:
    damage = damage_of(forged([OPENED, framed_bytes(kind, b"\x80")]))
    assert (damage.offset, damage.advice) == (AT, CHANGE_VERSION)
    assert f"kind {kind}" in damage.expected


def changed_bodies() -> Iterator[tuple[int, bytes]]:
    """Bodies that are no canonical record of their kind, with their CRC right."""
    for kind, record in ((1, OPENED), (2, BEGIN), (3, END), (7, CLOSED)):
        body = record[on_disk.RECORD_HEADER_BYTES :]
        whole = msgpack.unpackb(body)
        [(name, members)] = whole["record"].items()
        yield kind, body + b"\x00"
        yield kind, body[:-1]
        yield kind, msgpack.packb({"schema_id": whole["schema_id"], "record": whole["record"]})
        yield kind, msgpack.packb({"record": whole["record"], "schema_id": "gamecult.model.replay_record.v1"})
        yield kind, msgpack.packb({"record": {**whole["record"], "More": {}}, "schema_id": whole["schema_id"]})
        yield kind, msgpack.packb({"record": {"Other": members}, "schema_id": whole["schema_id"]})
        yield kind, msgpack.packb([whole])
        for member in members:
            without = {key: value for key, value in members.items() if key != member}
            wrong: list[Any] = [-1, 1.5, {}, "x" * 3 if not isinstance(members[member], str) else 7]
            if member != "usage":
                wrong.append(None)
                yield kind, packed(whole, name, without)
            for value in wrong:
                yield kind, packed(whole, name, {**members, member: value})
        yield kind, packed(whole, name, {**members, "zzz": 1})
        yield kind, packed(whole, name, dict(reversed(members.items()))) if len(members) > 1 else b"\x80"


def packed(whole: Any, name: str, members: Any) -> bytes:
    return bytes(msgpack.packb({"record": {name: members}, "schema_id": whole["schema_id"]}))


def test_a_record_in_any_other_form_than_the_canonical_one_is_refused() -> None:
    tried = 0
    for kind, body in changed_bodies():
        damage = damage_of(forged([OPENED if kind != 1 else framed_bytes(1, body), framed_bytes(kind, body)]))
        assert damage.offset == (AT if kind != 1 else AT - len(OPENED)), body
        tried += 1
    assert tried > 100


# --- beside a live daemon -----------------------------------------------------------------------------------------


class Growing(MemoryFiles):
    """Files into which a writer's changes come while they are read: one before every few looks.

    A change comes in two halves, so that half a batch is seen too.
    """

    def __init__(
        self, contents: Contents, changes: Sequence[tuple[str, int, bytes]], *, at_once: int, pace: int, burst: int
    ) -> None:
        super().__init__(dict(contents))
        halves = []
        for name, offset, written in changes:
            middle = len(written) // 2 if offset else len(written)  # a segment gets its name when it is whole
            halves += [(name, offset, written[:middle]), (name, offset + middle, written[middle:])]
        self._coming = iter(halves)
        self._pace = pace
        self._burst = burst
        self._looks = 0
        for _ in range(at_once):
            self._grow()

    def _grow(self) -> None:
        if change := next(self._coming, None):
            name, offset, written = change
            old = self.contents.get(name, b"")
            self.contents[name] = old[:offset] + written + old[offset + len(written) :]

    def _look(self) -> None:
        self._looks += 1
        if self._looks % self._pace == 0:
            for _ in range(self._burst):
                self._grow()

    def names(self, directory: Path) -> list[str]:
        self._look()
        return super().names(directory)

    def open_to_read(self, path: Path) -> int:
        self._look()
        return super().open_to_read(path)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        self._look()
        return super().read(descriptor, length, offset)


async def test_a_ledger_that_grows_while_it_is_read_is_never_damaged_and_never_other_records(tmp_path: Path) -> None:
    await session(tmp_path, [1])
    start = contents_of(tmp_path)
    files = RecordedFiles()
    await session(tmp_path, [2, 3, 4, 5, 6, 7, 8], clean=False, files=files)
    await session(tmp_path, [9], files=files)
    _, whole = read(contents_of(tmp_path))
    assert len({name for name, _, _ in files.changes if name.endswith(".segment")}) == 4
    ends, tails = set(), 0
    ways = product(range(1, 9), (1, 3, 5), range(2 * len(files.changes) + 1))
    for pace, burst, at_once in ways:
        growing = Growing(start, files.changes, at_once=at_once, pace=pace, burst=burst)
        reading = Reading(LEDGER, files=growing, every_id=True, prove_seals=True)
        seen = list(reading.batches())
        assert seen == whole[: len(seen)]
        assert all(tail.state == "last" for tail in reading.tails)
        ends.add(len(seen))
        tails += len(reading.tails)
    assert len(ends) > 15
    assert tails


async def test_it_reads_beside_a_daemon_that_writes(tmp_path: Path) -> None:
    """The real files and the real writer, in its thread, while this reads in another."""
    ledger = open_small(tmp_path)
    readings = 0
    async with ledger.running(), trio.open_nursery() as nursery:
        reading_on = True

        async def write() -> None:
            number = 0
            while reading_on:
                number += 1
                if ledger.statistics().spares_ready == 2:
                    begin = records.begin(number)
                    await ledger.complete(begin, records.completed(await ledger.begin(begin)))
                else:
                    await trio.lowlevel.checkpoint()

        nursery.start_soon(write)
        last = -1
        while readings < 20:
            reading = Reading(tmp_path, every_id=True, prove_seals=True)
            await trio.to_thread.run_sync(lambda reading=reading: list(reading.batches()))
            assert reading.records >= last
            last = reading.records
            readings += 1
        reading_on = False
    assert last > 1
