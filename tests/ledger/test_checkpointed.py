"""The second reading of a ledger whose first segments were dropped: totals stay, and what a checkpoint says is held
against the records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path

import msgspec
import pytest
import trio
from kit import records
from kit.dropped_segments import LOW_WATER, drop, drop_from
from kit.small_ledgers import (
    DAY_MS,
    SEGMENT_BYTES,
    Contents,
    MemoryFiles,
    contents_of,
    open_small,
    segment_name,
    session,
    three_segments,
)
from msgspec import structs

from sidecar.audit import look as second_look
from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading
from sidecar.audit.requests import requests_of
from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.contract import values as v
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import format as on_disk
from sidecar.ledger.checkpoint import Checkpoint
from sidecar.ledger.faults import CHANGE_VERSION, RESTORE, LedgerDamaged, LedgerUnavailable
from sidecar.ledger.ledger import Ledger

LEDGER = Path("ledger")
CHECKPOINT = f"{1:016d}.checkpoint"


def read(contents: Contents) -> Reading:
    reading = Reading(LEDGER, files=MemoryFiles(contents), every_id=True, prove_seals=True)
    list(reading.batches())
    return reading


def damage_of(contents: Contents, changed: object = "") -> LedgerDamaged:
    try:
        read(contents)
    except LedgerDamaged as refused:
        return refused
    raise AssertionError(f"not refused: {changed}")


def totals(reading: Reading) -> tuple[int, int, int, list[tuple[int, int]]]:
    return reading.requests, reading.charged_micro_usd, reading.held_micro_usd, list(reading.open)


@pytest.fixture
async def dropped(tmp_path: Path) -> Contents:
    """Segment 1 of three was dropped in a fourth one; a request of the second is open."""
    await three_segments(tmp_path / "ledger")
    await drop(tmp_path / "ledger", 1)
    return contents_of(tmp_path / "ledger")


# --- what it takes ------------------------------------------------------------------------------------------------


async def test_totals_stay_however_far_a_ledger_is_dropped_and_open_requests_with_them(tmp_path: Path) -> None:
    """Dropped up to each of its segments, at once or one after the other."""
    for steps in ((1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)):
        directory = tmp_path / "-".join(map(str, steps))
        await three_segments(directory)
        before = totals(read(contents_of(directory)))
        for until in steps:
            await drop(directory, until)
            await session(directory, [])
        reading = read(contents_of(directory))
        assert totals(reading) == before
        assert (reading.dropped_until, reading.segments) == (steps[-1], 3 + 2 * len(steps) - steps[-1])
        assert (reading.closed, reading.is_on_record, reading.leftovers) == (True, True, ())
        assert reading.seals
        states = [request.state for request in requests_of(Reading(directory))]
        assert states.count("indeterminate") == 1
        assert reading.dropped.completions + states.count("completed") == 5


async def test_what_opening_has_learned_behind_a_checkpoint_is_proved_too(tmp_path: Path) -> None:
    """Seals made by an opening that begins with a checkpoint, and merged ones of which a part was dropped."""
    await three_segments(tmp_path)
    await drop(tmp_path, 2)
    for path in tmp_path.glob("*.seal"):
        path.unlink()
    for number in range(10, 19):
        await session(tmp_path, [number])
        read(contents_of(tmp_path))
    await drop(tmp_path, 6)
    for number in range(20, 26):
        await session(tmp_path, [number], unfinished=[number + 100], clean=False)
        reading = read(contents_of(tmp_path))
    assert (reading.requests, reading.charged_micro_usd, len(reading.open)) == (27, 1200, 7)
    assert (reading.dropped_until, reading.may_run) == (6, 1)


async def test_a_request_of_a_dropped_segment_can_end_later(tmp_path: Path, dropped: Contents) -> None:
    directory = tmp_path / "ledger"
    await drop(directory, 2)
    reading = read(contents_of(directory))
    [(place, begun)] = reading.open.items()
    ledger = open_small(directory)
    [begin] = ledger.recovery.indeterminate
    assert (place, begun.members["request_id"]) == ((2, begun.offset), begin.request_id)
    async with ledger.running():
        completed = v.CompletedRecord(
            begin_segment=place[0],
            begin_offset=place[1],
            charge_micro_usd=7,
            completed_at_unix_ms=1,
            notes=(),
            outcome="unavailable",
            response=b"\0x",
        )
        await ledger.complete(begin, completed)
    await session(directory, [])
    again = read(contents_of(directory))
    assert (again.charged_micro_usd, again.open) == (reading.charged_micro_usd + 7, {})


async def test_what_an_interrupted_dropping_left_is_ignored_and_named(tmp_path: Path) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    await three_segments(once)
    before = totals(read(contents_of(once)))
    await drop(once, 1, steps=("low_water", "file"))
    reading = read(contents_of(once))
    assert (totals(reading), reading.is_on_record, reading.leftovers) == (before, False, (segment_name(1),))
    await three_segments(twice)
    await drop(twice, 1)
    await drop(twice, 2, steps=("low_water", "file", "record"))
    reading = read({**contents_of(twice), segment_name(1): b"", CHECKPOINT: b""})
    assert (totals(reading), reading.is_on_record) == (before, True)
    assert reading.leftovers == (segment_name(1), segment_name(2), CHECKPOINT)


async def test_a_mark_that_was_high_enough_before_need_not_be_on_record_again(tmp_path: Path) -> None:
    """Its record may stand in what is dropped, which is there until the new checkpoint is on record."""
    await three_segments(tmp_path)
    await drop(tmp_path, 1)
    await session(tmp_path, [])
    await drop(tmp_path, 4, steps=("file",))
    reading = read(contents_of(tmp_path))
    assert (reading.is_on_record, reading.low_water_unix_ms, reading.low_water_at_begin) == (False, 0, LOW_WATER)
    rest = without(contents_of(tmp_path), [CHECKPOINT, *map(segment_name, range(1, 5))])
    assert damage_of(rest).segment.name == f"{4:016d}.checkpoint"


# --- what it refuses ----------------------------------------------------------------------------------------------


async def test_any_byte_of_a_checkpoint_that_is_changed_is_refused(dropped: Contents) -> None:
    content = dropped[CHECKPOINT]
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
        damage = damage_of({**dropped, CHECKPOINT: changed}, at)
        advice = CHANGE_VERSION if 8 <= at < 12 else RESTORE
        assert (damage.segment.name, damage.offset, damage.advice) == (CHECKPOINT, 0, advice)
    for length in (0, 7, 19, 20, len(content) - 1):
        assert damage_of({**dropped, CHECKPOINT: content[:length]}).segment.name == CHECKPOINT
    assert damage_of({**dropped, CHECKPOINT: content + b"\0"}).segment.name == CHECKPOINT


async def test_a_checkpoint_that_is_whole_but_not_the_one_on_record_is_refused(dropped: Contents) -> None:
    checkpoint = checkpoints.decode(dropped[CHECKPOINT])
    more = structs.replace(checkpoint.dropped, records=checkpoint.dropped.records + 1)
    changed = checkpoints.encode(structs.replace(checkpoint, dropped=more))
    damage = damage_of({**dropped, CHECKPOINT: changed})
    digest = sha256(dropped[CHECKPOINT]).hexdigest()
    assert (damage.segment.name, damage.expected) == (CHECKPOINT, f"a checkpoint of SHA-256 {digest}")


def changed_checkpoints(checkpoint: Checkpoint) -> Iterator[tuple[str, Checkpoint]]:
    """Which file is blamed, and why: they are whole, and say other things than the records."""
    end = checkpoint.end
    for name, value in (
        ("ledger_id", b"o" * 16),
        ("incarnation", end.incarnation + 5),
        ("offset", end.offset - 4096),
        ("head", b"o" * 32),
        ("batch", end.batch + 1),
        ("closed", not end.closed),
    ):
        yield segment_name(2), structs.replace(checkpoint, end=structs.replace(end, **{name: value}))
    for segment in (0, 2):
        yield CHECKPOINT, structs.replace(checkpoint, end=structs.replace(end, segment=segment))
    yield CHECKPOINT, structs.replace(checkpoint, end=structs.replace(end, low_water_unix_ms=LOW_WATER + 1))
    fewer = structs.replace(checkpoint.dropped, completions=checkpoint.dropped.completions - 1)
    yield CHECKPOINT, structs.replace(checkpoint, dropped=fewer)


async def test_a_checkpoint_that_contradicts_the_records_is_refused_also_before_a_record_speaks_of_it(
    tmp_path: Path,
) -> None:
    await three_segments(tmp_path)
    await drop(tmp_path, 1, steps=("low_water", "file", "unlink"))
    contents = contents_of(tmp_path)
    assert not read(contents).is_on_record
    for name, changed in changed_checkpoints(checkpoints.decode(contents[CHECKPOINT])):
        damage = damage_of({**contents, CHECKPOINT: checkpoints.encode(changed)}, changed)
        assert damage.segment.name == name, changed


async def test_begins_that_a_checkpoint_kept_are_whole_and_each_once(tmp_path: Path) -> None:
    await three_segments(tmp_path)
    await drop(tmp_path, 2, steps=("low_water", "file", "unlink"))
    contents, name = contents_of(tmp_path), f"{2:016d}.checkpoint"
    checkpoint = checkpoints.decode(contents[name])
    [kept] = checkpoint.begins
    opened = on_disk.encode_record(v.OpenedRecord(incarnation=1, opened_at_unix_ms=1, clean=True))
    others = [structs.replace(kept, framed=kept.framed[:at] + b"\xff" + kept.framed[at + 1 :]) for at in range(40)]
    others += [structs.replace(kept, framed=framed) for framed in (b"", kept.framed[:-1], kept.framed + b"\0", opened)]
    others += [structs.replace(kept, segment=segment) for segment in (0, 3)]
    for begins in ([], [kept, kept], *([other] for other in others)):
        changed = checkpoints.encode(structs.replace(checkpoint, begins=tuple(begins)))
        assert damage_of({**contents, name: changed}, begins).segment.name == name


async def test_a_checkpoint_in_any_other_form_is_refused(dropped: Contents) -> None:
    whole = msgspec.msgpack.decode(dropped[CHECKPOINT][20:])
    others = [
        dict(reversed(whole.items())),
        {**whole, "more": 1},
        {**whole, "begins": None},
        {**whole, "dropped": dict(reversed(whole["dropped"].items()))},
        [whole],
    ]
    for document in (*map(msgspec.msgpack.encode, others), msgspec.msgpack.encode(whole) + b"\xc0", b"\xc1", b""):
        sums = len(document).to_bytes(4, "big") + on_disk.crc32(document).to_bytes(4, "big")
        changed = dropped[CHECKPOINT][:12] + sums + document
        damage = damage_of({**dropped, CHECKPOINT: changed}, document)
        assert (damage.segment.name, "document" in damage.expected) == (CHECKPOINT, True)


async def test_a_low_water_mark_stands_on_record_before_what_is_below_it_is_dropped(tmp_path: Path) -> None:
    await three_segments(tmp_path)
    await drop(tmp_path, 1, steps=("file", "unlink"))
    damage = damage_of(contents_of(tmp_path))
    assert (damage.segment.name, damage.expected) == (
        CHECKPOINT,
        f"a checkpoint behind a LowWater record of at least {LOW_WATER}",
    )


async def test_a_missing_checkpoint_or_a_missing_segment_behind_it_is_refused(dropped: Contents) -> None:
    without = {name: content for name, content in dropped.items() if name != CHECKPOINT}
    assert damage_of(without).segment.name == segment_name(1)
    for gone in (2, 3):
        rest = {name: content for name, content in dropped.items() if name != segment_name(gone)}
        assert damage_of(rest).segment.name == segment_name(gone)
    alone = {CHECKPOINT: dropped[CHECKPOINT]}
    assert damage_of(alone).segment.name == segment_name(2)
    with pytest.raises(NoLedger):
        read({})
    last = {name: content for name, content in dropped.items() if name != segment_name(4)}
    assert damage_of(last).segment.name == CHECKPOINT


async def test_an_older_checkpoint_than_the_one_on_record_is_refused(tmp_path: Path, dropped: Contents) -> None:
    directory = tmp_path / "ledger"
    second = segment_name(2)
    await drop(directory, 2)
    now = contents_of(directory)
    older = {name: content for name, content in now.items() if name != f"{2:016d}.checkpoint"}
    damage = damage_of({**older, CHECKPOINT: dropped[CHECKPOINT], second: dropped[second]})
    assert damage.segment.name == f"{2:016d}.checkpoint"


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([v.LowWaterRecord(expires_at_unix_ms=9), v.LowWaterRecord(expires_at_unix_ms=8)], "a low-water mark of at "),
        ([v.CheckpointRecord(file_sha256=(1,) * 32, segment=2)], "a checkpoint of a segment from 1 on and before"),
        ([v.CheckpointRecord(file_sha256=(1,) * 32, segment=0)], "a checkpoint of a segment from 1 on and before"),
    ],
)
def test_records_of_a_dropping_never_go_back(records: list[v.LowWaterRecord], expected: str) -> None:
    opened = v.OpenedRecord(incarnation=1, opened_at_unix_ms=1, clean=True)
    header = on_disk.SegmentHeader(
        ledger_id=b"i" * 16,
        salt=b"s" * 16,
        incarnation=1,
        segment=1,
        created_at_unix_ms=1,
        segment_bytes=32_768,
        previous_end=0,
        previous_head=bytes(32),
    )
    framed = [on_disk.encode_record(record) for record in (opened, *records)]
    batch = on_disk.encode_batch(framed, salt=b"s" * 16, segment=1, number=1, previous_head=bytes(32))
    content = (on_disk.encode_segment_header(header) + b"".join(batch.pieces)).ljust(32_768, b"\0")
    damage = damage_of({segment_name(1): content})
    assert damage.expected.startswith(expected)
    assert damage.offset == 4096 + on_disk.BATCH_HEADER_BYTES + sum(map(len, framed[:-1]))


# --- beside a live daemon -----------------------------------------------------------------------------------------


class Dropping(MemoryFiles):
    """After each of so many looks the next state of the directory stands; what is held open stays when it is gone."""

    def __init__(self, states: list[Contents], looks: int) -> None:
        super().__init__(states[0])
        self._states = iter(states[1:])
        self._looks = looks
        self._left = looks
        self._kept: dict[int, bytes] = {}

    def _look(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.contents = next(self._states, self.contents)
            self._left = self._looks

    def names(self, directory: Path) -> list[str]:
        self._look()
        return super().names(directory)

    def open_to_read(self, path: Path) -> int:
        self._look()
        descriptor = super().open_to_read(path)
        self._kept[descriptor] = self.contents[path.name]
        return descriptor

    def _content(self, descriptor: int) -> bytes:
        return self.contents.get(self._opened[descriptor], self._kept[descriptor])

    def size(self, descriptor: int) -> int:
        return len(self._content(descriptor))

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return self._content(descriptor)[offset : offset + length]


def without(contents: Contents, names: list[str]) -> Contents:
    return {name: content for name, content in contents.items() if name not in names}


async def states_of_a_dropping(directory: Path) -> list[Contents]:
    """Seen from outside: before, after each file that appears or goes, twice, and behind it."""
    states = []
    ledger = open_small(directory)
    async with ledger.running():
        for until in (1, 2):
            for steps in (("low_water", "file", "record"), ("unlink",)):
                before = contents_of(directory)
                await drop_from(ledger, directory, until, steps=steps)
                after = contents_of(directory)
                states.append(before)
                gone = sorted(set(before) - set(after))
                states += [without(before, gone[:at]) for at in range(1, len(gone))]
        states.append(contents_of(directory))
    for _ in range(6):
        await session(directory, [])
        states.append(contents_of(directory))
    return states


async def test_a_front_that_is_dropped_while_it_is_read_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three_segments(tmp_path)
    before = totals(read(contents_of(tmp_path)))
    states = await states_of_a_dropping(tmp_path)
    ways = [states[at:] for at in range(len(states))] + [[states[0], states[-1]]]
    seen = set()
    for held in (256, 1):
        monkeypatch.setattr(second_look, "HELD_MAX", held)
        for way, looks in product(ways, range(1, 20)):
            reading = Reading(LEDGER, files=Dropping(way, looks), every_id=True, prove_seals=True)
            try:
                list(reading.batches())
            except OSError as overtaken:
                seen.add((held, str(overtaken)[-10:]))
            else:
                assert totals(reading) == before, looks
                seen.add((256, reading.dropped_until))
    assert seen == {(1, "read again"), (256, 0), (256, 1), (256, 2)}


async def test_it_reads_beside_a_daemon_that_drops_what_is_old(tmp_path: Path) -> None:
    """The real retention, in its thread, through restarts; each reading comes to no less than the one before."""
    last = (0, 0)
    dropped, never_ended = set(), set()
    for at in range(4):
        ledger = Ledger.open(
            tmp_path,
            segment_bytes=SEGMENT_BYTES,
            frame_bytes_max=SEGMENT_BYTES // 4 - RECORD_MARGIN_BYTES,
            requests_in_flight_max=1,
            window_of=lambda caller: 60,
            clock_unix_ms=lambda: 2 * DAY_MS,
            retention_days=1,
        )
        async with ledger.running(), trio.open_nursery() as nursery:
            is_reading = True

            async def write(ledger: Ledger, number: int) -> None:
                while is_reading:
                    if ledger.statistics().spares_ready == 2:
                        number += 1
                        with suppress(LedgerUnavailable):  # upkeep may have taken the room
                            place = await ledger.begin(begin := records.begin(number))
                            never_ended.add(begin.request_id)
                            if number % 7:
                                await ledger.complete(begin, records.completed(place))
                                never_ended.remove(begin.request_id)
                    else:
                        await trio.lowlevel.checkpoint()

            nursery.start_soon(write, ledger, 10_000 * at)
            for _ in range(10):
                reading = Reading(tmp_path, every_id=True, prove_seals=True)
                await trio.to_thread.run_sync(lambda reading=reading: list(reading.batches()))
                assert (reading.requests, reading.charged_micro_usd) >= last
                last = reading.requests, reading.charged_micro_usd
                dropped.add(reading.dropped_until)
            is_reading = False
        reading = Reading(tmp_path, every_id=True, prove_seals=True)
        list(reading.batches())
        assert reading.closed
        assert reading.charged_micro_usd == 60 * (reading.requests - len(reading.open))
        assert {line.members["request_id"] for line in reading.open.values()} == never_ended
    assert len(dropped) > 1
