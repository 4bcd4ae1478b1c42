"""A segment's book is the same, whether its records landed one by one or were read by the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import records

from sidecar.ledger import format as on_disk
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.index import Book, StillOpen, key_of
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import BeginAtOpen, LeanRecord, lean_records
from sidecar.ledger.seal_format import End

SEGMENT = 3
SALT = b"s" * on_disk.SALT_BYTES
CALLERS = ("dungeon", "tavern", "nobody")
Records = list[tuple[LeanRecord, int, int]]
END = End(ledger_id=b"i" * 16, segment=SEGMENT, offset=65_536, head=b"h" * 32, batch=9, incarnation=2)


def window_of(caller: str) -> int:
    return {"dungeon": 1, "tavern": 60}.get(caller, 0)


def a_book() -> Book:
    return Book(SEGMENT, 1 << 20, End(), window_of)


def read(*framed: bytes) -> Records:
    batch = b"".join(on_disk.encode_batch(framed, salt=SALT, segment=SEGMENT, number=7, previous_head=b"h" * 32).pieces)
    header = on_disk.decode_batch_header(batch[: on_disk.BLOCK_BYTES], salt=SALT, segment=SEGMENT)
    assert header is not None
    return lean_records(header, batch, 8192)


def test_its_seal_is_the_same(tmp_path: Path) -> None:
    begins = [records.begin(number, CALLERS[number % 3], admitted_at_unix_ms=700 * number) for number in range(12)]
    begun = read(*map(on_disk.encode_record, begins))
    places = [Place(SEGMENT, offset, length) for _, offset, length in begun]
    ends = [records.completed(place, charge=10 + number) for number, place in enumerate(places[:9])]
    ended = [(end, 50_000 + number, 100) for number, end in enumerate(ends)]
    landed, was_read = a_book(), a_book()
    for begin, place in zip(begins, places, strict=True):
        landed.begun(key_of(begin.caller_runtime_id, begin.request_id), begin, place)
    for begin, (end, offset, length) in zip(begins, ended, strict=False):
        key = key_of(begin.caller_runtime_id, begin.request_id)
        landed.completed(key, landed.recorded[key], begin.caller_runtime_id, end, Place(SEGMENT, offset, length))
    landed.records = 21
    still_open: dict[tuple[int, int], StillOpen] = {}
    was_read.take(SEGMENT, begun, still_open, ())
    was_read.take(SEGMENT, [*ended], still_open, ())
    seals = []
    for name, book in {"landed": landed, "read": was_read}.items():
        folder = tmp_path / name
        folder.mkdir()
        book.ended(END, [(place.segment, place.offset) for place in places[9:]])
        seals.append(book.write_seal(DiskFiles(), folder).read_bytes())
    assert seals[0] == seals[1]
    assert sorted(still_open) == [(SEGMENT, place.offset) for place in places[9:]]
    assert [one.length for one in still_open.values()] == [place.length for place in places[9:]]


def test_a_request_that_began_in_another_segment_ends_where_it_is_read() -> None:
    begin = records.begin(1, admitted_at_unix_ms=5_300)
    key = key_of(begin.caller_runtime_id, begin.request_id)
    still_open = {(1, 4096): StillOpen(key, begin, 700)}
    book = a_book()
    book.take(SEGMENT, [(records.completed(Place(1, 4096, 700), charge=7), 8192, 300)], still_open, {key})
    assert book.read == {key: ((1, 4096), (SEGMENT, 8192))}
    assert book.sums == {("dungeon", 1, 5000): 7}
    assert not still_open


@pytest.mark.parametrize("carried", [True, False], ids=["in another segment", "in this one"])
def test_a_request_that_has_begun_does_not_begin_again(carried: bool) -> None:
    begin = records.begin(1)
    framed = on_disk.encode_record(begin)
    key = key_of(begin.caller_runtime_id, begin.request_id)
    with pytest.raises(FormatFault, match="had not begun before"):
        a_book().take(SEGMENT, read(*[framed] * (1 if carried else 2)), {}, {key} if carried else ())


def test_what_is_not_open_does_not_end() -> None:
    begun = read(on_disk.encode_record(records.begin(1)))
    [(begin, offset, length)] = begun
    assert isinstance(begin, BeginAtOpen)
    end = (records.completed(Place(SEGMENT, offset, length)), 50_000, 100)
    with pytest.raises(FormatFault, match="the completion of a request that is open"):
        a_book().take(SEGMENT, [*begun, end, end], {}, ())
