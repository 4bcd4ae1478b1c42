"""Seals against the records: what a seal says must be what they say, exactly, and every byte of it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit import records
from kit.dropped_segments import drop_from
from kit.small_ledgers import Contents, MemoryFiles, contents_of, segment_name, session, three_segments
from msgspec import structs

from sidecar.audit import seals as second_seals
from sidecar.audit.reading import Reading
from sidecar.audit.seal_file import SealFile
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import seal_format, sealed
from sidecar.ledger.faults import CHANGE_VERSION, SEAL_AGAIN, LedgerDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.seal_format import End, SealDocument, WindowSum
from sidecar.ledger.sealed import Sealed

LEDGER = Path("ledger")
FIRST, SECOND = seal_format.seal_name(1, 1), seal_format.seal_name(2, 2)
Entry = tuple[bytes, tuple[int, int], tuple[int, int] | None]


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


def seals_of(contents: Contents) -> list[str]:
    return sorted(name for name in contents if name.endswith(".seal"))


@pytest.fixture
async def contents(tmp_path: Path) -> Contents:
    await three_segments(tmp_path / "ledger")
    return contents_of(tmp_path / "ledger")


# --- the bytes of a seal ------------------------------------------------------------------------------------------


async def test_any_byte_of_a_seal_that_is_changed_is_refused_with_its_part_and_nothing_is_lost(
    contents: Contents,
) -> None:
    assert read(contents).seals == 2
    for name in (FIRST, SECOND):
        content = contents[name]
        parts = (0, 1024, 1032, len(content) - 32)  # block, fences, document, trailer
        for at in range(len(content)):
            changed = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
            with pytest.raises(LedgerDamaged) as refused:
                list(SealFile(MemoryFiles({name: changed}), LEDGER / name, cold=False).entries())
            damage = refused.value
            assert (damage.segment.name, damage.advice) == (name, SEAL_AGAIN), at
            assert damage.offset == max(part for part in parts if part <= at), at
            if at % 97 == 0:
                assert damage_of({**contents, name: changed}).offset == damage.offset
        for length in (0, 31, 32, 1024, len(content) - 1):
            assert damage_of({**contents, name: content[:length]}).segment.name == name
        assert damage_of({**contents, name: content + b"\0"}).segment.name == name


async def test_a_seal_of_another_version_says_so(contents: Contents) -> None:
    content = contents[FIRST]
    trailer = content[-32:-24] + (2).to_bytes(4, "big") + content[-20:-4]
    changed = content[:-32] + trailer + seal_format.crc32(trailer).to_bytes(4, "big")
    assert damage_of({**contents, FIRST: changed}).advice == CHANGE_VERSION


def parsed(content: bytes) -> tuple[list[Entry], SealDocument]:
    trailer = seal_format.decode_trailer(content[-32:], len(content))
    document = content[trailer.document_begin :][: trailer.document_bytes]
    entries = [
        seal_format.decode_entry(entry)
        for at in range(0, trailer.fences_begin, seal_format.BLOCK_BYTES)
        for entry in seal_format.entries_of(content[at : at + seal_format.BLOCK_BYTES])
    ]
    said = msgspec.msgpack.decode(document, type=SealDocument)
    return [(entry.key, entry.begin, entry.completed) for entry in entries], said


def encoded(entries: list[Entry], document: SealDocument) -> bytes:
    assert document.end.ledger_id
    seed = seal_format.seed_of(document.end.ledger_id, document.first, document.last)
    blocks = list(seal_format.blocks_of((seal_format.encode_entry(*entry) for entry in entries), seed))
    fences = b"".join(map(seal_format.fence_of, blocks))
    return b"".join(blocks) + seal_format.encode_end(fences, structs.replace(document, entries=len(entries)))


async def test_a_seal_that_is_made_again_is_the_same(contents: Contents) -> None:
    for name in (FIRST, SECOND):
        assert encoded(*parsed(contents[name])) == contents[name]


def changed_values(value: Any) -> Iterator[Any]:
    """Others that the document's form can hold."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
        if value:
            yield value - 1
    elif isinstance(value, bytes):
        yield bytes([value[0] ^ 1]) + value[1:]
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            for other in changed_values(getattr(value, name)):
                yield structs.replace(value, **{name: other})
    elif isinstance(value, tuple):
        if value:
            yield value + value[-1:]
            yield value[1:]
            for at, one in enumerate(value):
                for other in changed_values(one):
                    yield (*value[:at], other, *value[at + 1 :])
    elif isinstance(value, str):
        yield value + "x"
    elif value is None:
        yield bytes(16)


async def test_any_value_of_the_document_that_is_another_than_the_records_have_is_refused(contents: Contents) -> None:
    tried = 0
    for name in (FIRST, SECOND):
        entries, document = parsed(contents[name])
        for changed in changed_values(document):
            if changed.entries != document.entries or not changed.segments:
                continue
            if [row.window_seconds for row in changed.sums] not in ([3600], [], [3600, 3600]):
                continue  # a length that as well fits: the records don't say
            if seal_format.seal_name(changed.first, changed.last) != name:
                continue
            damage = damage_of({**contents, name: encoded(entries, changed)}, changed)
            assert (damage.segment.name, damage.advice) == (name, SEAL_AGAIN), changed
            tried += 1
    assert tried > 70


async def test_any_entry_that_is_another_than_the_records_have_is_refused(contents: Contents) -> None:
    tried = 0
    for name in (FIRST, SECOND):
        entries, document = parsed(contents[name])
        some = entries[0]
        changes: list[list[Entry]] = [
            entries[::-1],
            [*entries, entries[-1]],
            [(bytes(15) + b"\1", *some[1:]), *entries],
        ]
        for at, (key, begin, completed) in enumerate(entries):
            others: list[Entry] = [
                (key, begin, None if completed else (begin[0], begin[1] + 4096)),
                (key, (begin[0], begin[1] + 4096), completed),
                (key, (begin[0] + 1, begin[1]), completed),
                (key[:-1] + bytes([key[-1] ^ 1]), begin, completed),
            ]
            if completed:
                others += [
                    (key, begin, (completed[0], completed[1] + 1)),
                    (key, begin, (completed[0] + 1, completed[1])),
                ]
            changes += [[*entries[:at], other, *entries[at + 1 :]] for other in others]
            changes.append(entries[:at] + entries[at + 1 :])
        for changed in changes:
            damage = damage_of({**contents, name: encoded(changed, document)}, changed)
            assert (damage.segment.name, damage.advice) == (name, SEAL_AGAIN), changed
            tried += 1
    assert tried > 30


async def test_a_document_in_any_other_form_is_refused(contents: Contents) -> None:
    content = contents[FIRST]
    whole = msgspec.msgpack.decode(content[1032:-32])
    others = [
        dict(reversed(whole.items())),
        {**whole, "more": 1},
        {name: value for name, value in whole.items() if name != "sums"},
        {**whole, "end": dict(reversed(whole["end"].items()))},
        {**whole, "segments": []},
        {**whole, "entries": -1},
        [whole],
    ]
    documents = [*map(msgspec.msgpack.encode, others), msgspec.msgpack.encode(whole) + b"\xc0", b"\xc1", b""]
    documents.append(msgspec.msgpack.encode(whole).replace(b"\xa7entries\x03", b"\xa7entries\xcc\x03"))
    for document in documents:
        fields = content[-32:-12] + len(document).to_bytes(4, "big") + seal_format.crc32(document).to_bytes(4, "big")
        trailer = fields + seal_format.crc32(fields).to_bytes(4, "big")
        damage = damage_of({**contents, FIRST: content[:1032] + document + trailer}, document)
        assert (damage.segment.name, damage.offset) == (FIRST, 1032), document


def test_its_own_decoder_agrees_with_the_format_on_blocks() -> None:
    entries = [(bytes([number]) * 16, (1, 4096 + number), (2, 1 << 33)) for number in range(1, 32)]
    blocks = list(seal_format.blocks_of((seal_format.encode_entry(*entry) for entry in entries), 7))
    told = [
        (one.key, one.begin, one.completed)
        for block in blocks
        for one in second_seals.entries_of(block, 7, is_last=block is blocks[-1])
    ]
    assert told == entries
    for one, other in ((blocks[0], 8), (blocks[1], 7)):
        with pytest.raises(second_seals.Unexpected):
            list(second_seals.entries_of(one, other, is_last=False))


# --- many segments ------------------------------------------------------------------------------------------------


def opened(directory: Path, window_of: Callable[[str], int]) -> Ledger:
    return Ledger.open(
        directory,
        segment_bytes=records.SEGMENT_BYTES,
        frame_bytes_max=records.FRAME_BYTES_MAX,
        requests_in_flight_max=1,
        window_of=window_of,
    )


async def run(directory: Path, numbers: range, window_of: Callable[[str], int]) -> None:
    """One run, admissions a second apart; each one is a segment, and the seals are merged as they become many."""
    ledger = opened(directory, window_of)
    async with ledger.running():
        for number in numbers:
            begin = records.begin(number, caller=f"caller-{number % 2}", admitted_at_unix_ms=1000 * number)
            place = await ledger.begin(begin)
            if number % 5:
                await ledger.complete(begin, records.completed(place, charge=number))


@pytest.fixture
async def merged(tmp_path: Path) -> Contents:
    """Callers whose windows have changed their length, once and twice; the first has none at first."""
    lengths = {"caller-0": (0, 3, 3, 3, 7, 7), "caller-1": (4, 4, 4, 4, 4, 4)}
    directory, files = tmp_path / "merged", DiskFiles()
    for at in range(6):
        await run(directory, range(9 * at, 9 * at + 9), lambda caller: 1)
    kept = {name: content for name, content in contents_of(directory).items() if not name.endswith(".seal")}
    singles = []
    for at in range(5):
        copy = tmp_path / f"copy-{at}"
        copy.mkdir()
        for name, content in kept.items():
            (copy / name).write_bytes(content)
        opened(copy, lambda caller, at=at: lengths[caller][at])._let_go()
        singles.append(Sealed.open(files, copy / seal_format.seal_name(at + 1, at + 1)))
    first = sealed.merged(files, tmp_path, singles[0], singles[1], End())
    second = sealed.merged(files, tmp_path, singles[2], singles[3], End())
    merged_once = Sealed.open(files, second)
    third = sealed.merged(files, tmp_path, merged_once, singles[4], End())
    for seal in (*singles, merged_once):
        seal.close()
    return {**kept, first.name: first.read_bytes(), third.name: third.read_bytes()}


async def test_merged_seals_are_proved_too_and_a_wrong_sum_is_found(merged: Contents) -> None:
    names = seals_of(merged)
    assert names == [seal_format.seal_name(1, 2), seal_format.seal_name(3, 5)]
    assert read(merged).seals == len(names)
    longest = max(names, key=lambda name: len(merged[name]))
    entries, document = parsed(merged[longest])
    assert len({row.window_seconds for row in document.sums if row.caller == "caller-0"}) > 1
    for at, row in enumerate(document.sums):
        more = WindowSum(*key_of(row), row.charged_micro_usd + 1)
        changed = structs.replace(document, sums=(*document.sums[:at], more, *document.sums[at + 1 :]))
        damage = damage_of({**merged, longest: encoded(entries, changed)})
        assert (damage.segment.name, damage.expected) == (
            longest,
            f"sums of caller {row.caller} as the records have them",
        )


async def test_sums_of_a_seal_behind_a_checkpoint_may_hold_what_was_dropped_and_miss_windows_that_are_over(
    tmp_path: Path,
) -> None:
    """A request that was dropped in an open window is in a merged sum still; a window below the mark is in none."""
    directory, files, low_water = tmp_path / "ledger", DiskFiles(), 25_000
    lengths = {"caller-0": 1, "caller-1": 1_000_000}
    for at in range(4):
        await run(directory, range(9 * at, 9 * at + 9), lengths.__getitem__)
    older, newer, newest = (Sealed.open(files, directory / seal_format.seal_name(at, at)) for at in (1, 2, 3))
    both = Sealed.open(files, sealed.merged(files, tmp_path, older, newer, End()))
    ledger = opened(directory, lengths.__getitem__)
    async with ledger.running():
        await drop_from(ledger, directory, 2, low_water=low_water)
    base = checkpoints.decode((directory / f"{2:016d}.checkpoint").read_bytes()).end
    path = sealed.merged(files, tmp_path, both, newest, base)
    for seal in (older, newer, newest, both):
        seal.close()
    kept = {name: content for name, content in contents_of(directory).items() if not name.endswith(".seal")}
    content = path.read_bytes()
    reading = read({**kept, path.name: content})
    assert (path.name, reading.seals, reading.dropped_until) == (seal_format.seal_name(3, 3), 1, 2)
    entries, document = parsed(content)
    [long_row] = [row for row in document.sums if row.caller == "caller-1"]
    short_rows = [row for row in document.sums if row != long_row]
    assert all(row.window_start_unix_ms >= low_water for row in short_rows)
    assert long_row.charged_micro_usd > 19 + 21 + 23  # what it was charged in segment 3
    dropped = reading.dropped.charged_micro_usd
    for wrong in (0, long_row.charged_micro_usd - dropped, long_row.charged_micro_usd + dropped):
        sums = (*short_rows, WindowSum(*key_of(long_row), wrong))
        damage_of({**kept, path.name: encoded(entries, structs.replace(document, sums=sums))}, wrong)
    damage_of({**kept, path.name: encoded(entries, structs.replace(document, sums=document.sums[1:]))}, "one less")
    for at, (key, begin, completed) in enumerate(entries):
        for other in ((key, (begin[0], begin[1] + 4096), completed), (key, begin, None)):
            if completed is None or completed[0] > 2:
                changed = [*entries[:at], other, *entries[at + 1 :]]
                if changed != entries:
                    damage_of({**kept, path.name: encoded(changed, document)}, other)


def key_of(row: WindowSum) -> tuple[str, int, int]:
    return row.caller, row.window_seconds, row.window_start_unix_ms


async def test_a_seal_that_another_covers_is_proved_as_well_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    old: Contents = {}
    contents: Contents = {}
    for number in range(1, 30):
        await session(tmp_path, [number])
        contents = contents_of(tmp_path)
        old.update({name: contents[name] for name in seals_of(contents)})
        if set(old) - set(contents):
            break  # some were merged
    both = {**contents, **old}
    assert len(seals_of(both)) > len(seals_of(contents))
    assert read(both).seals == len(seals_of(both))
    [gone, *_] = set(old) - set(contents)
    assert damage_of({**both, gone: bytes(len(old[gone]))}).segment.name == gone


async def test_a_seal_tells_of_each_segment_that_it_is_of_and_of_those_before(merged: Contents) -> None:
    [(first, last), (behind_first, _)] = [second_seals.seal_range(name) or (0, 0) for name in seals_of(merged)]
    across, behind = seals_of(merged)
    assert (first, last, behind_first) == (1, 2, 3)
    one = {segment_name(1): merged[segment_name(1)]}
    damage = damage_of({**one, behind: merged[behind]})
    assert (damage.segment.name, damage.expected) == (segment_name(2), f"this segment, since {behind} is there")
    damage = damage_of({**one, across: merged[across]})
    assert (damage.segment.name, damage.expected) == (segment_name(2), "this segment, which has a seal; it is missing")


async def test_a_damaged_seal_takes_nothing_from_the_records_and_is_said_at_their_end(contents: Contents) -> None:
    """Wherever the damage is found: when the seal is opened, by a record, behind its segment or its last one."""
    whole = read(contents)
    entries, document = parsed(contents[FIRST])
    (key, begin, completed), *rest = entries
    other_row = structs.replace(document.segments[0], records=1)
    for changed in (
        contents[FIRST][:-1],
        encoded([(key, (begin[0], begin[1] + 1), completed), *rest], document),
        encoded(entries, structs.replace(document, before_end=1)),
        encoded(entries, structs.replace(document, segments=(other_row,))),
        encoded(entries, structs.replace(document, open=((1, 1),))),
    ):
        reading = Reading(LEDGER, files=MemoryFiles({**contents, FIRST: changed}), prove_seals=True)
        with pytest.raises(LedgerDamaged) as refused:
            list(reading.batches())
        assert (refused.value.segment.name, reading.seal_damages) == (FIRST, (refused.value,))
        assert (reading.records, reading.head, reading.held_micro_usd) == (
            whole.records,
            whole.head,
            whole.held_micro_usd,
        )
        assert (reading.seals, reading.closed) == (1, True)


# --- beside a live daemon -----------------------------------------------------------------------------------------


class Merging(MemoryFiles):
    """After so many looks the seals are others; what is held open stays."""

    def __init__(self, before: Contents, after: Contents, looks: int) -> None:
        super().__init__(before)
        self._after = after
        self._left = looks
        self._kept: dict[int, bytes] = {}

    def _look(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.contents = self._after

    def names(self, directory: Path) -> list[str]:
        self._look()
        return super().names(directory)

    def open_to_read(self, path: Path) -> int:
        self._look()
        descriptor = super().open_to_read(path)
        self._kept[descriptor] = self.contents[path.name]
        return descriptor

    def size(self, descriptor: int) -> int:
        return len(self._kept[descriptor])

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return self._kept[descriptor][offset : offset + length]


async def test_a_seal_that_vanishes_is_looked_for_in_the_present_names_and_is_no_damage(tmp_path: Path) -> None:
    old: Contents = {}
    for number in range(1, 6):
        await session(tmp_path, [number])
        now = contents_of(tmp_path)
        old.update({name: now[name] for name in seals_of(now) if name[:16] == name[17:33]})
    after = contents_of(tmp_path)
    before = {name: content for name, content in after.items() if name not in seals_of(after)} | old
    counts = set()
    for looks in range(1, 60):
        reading = Reading(LEDGER, files=Merging(before, after, looks), prove_seals=True)
        list(reading.batches())
        counts.add(reading.seals)
    assert {len(old), len(seals_of(after))} <= counts
