"""The bytes of a ledger, both ways; one changed bit is always seen."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import records
from kit.whole_records import records_of

from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger.format import BLOCK_BYTES, FormatFault, SegmentHeader
from sidecar.ledger.landing import Place

HEADER = SegmentHeader(
    ledger_id=b"i" * 16, salt=b"s" * 16, incarnation=3, segment=2, created_at_unix_ms=5, segment_bytes=65536,
    previous_end=8192, previous_head=b"h" * 32,
)  # fmt: skip
BODIES = [
    v.RecordBody(opened=v.OpenedRecord(incarnation=1, opened_at_unix_ms=2, clean=True)),
    v.RecordBody(begin=records.begin()),
    v.RecordBody(completed=records.completed(Place(1, 4096, 7))),
    v.RecordBody(low_water=v.LowWaterRecord(expires_at_unix_ms=9)),
    v.RecordBody(closed=v.ClosedRecord(closed_at_unix_ms=9)),
]


def batch_of(bodies: list[v.RecordBody]) -> bytes:
    framed = [on_disk.encode_record(body.chosen) for body in bodies]
    return b"".join(on_disk.encode_batch(framed, salt=b"s" * 16, segment=2, number=7, previous_head=b"h" * 32).pieces)


def test_a_segment_header_comes_back_and_fills_its_block() -> None:
    block = on_disk.encode_segment_header(HEADER)
    assert len(block) == BLOCK_BYTES
    assert on_disk.decode_segment_header(block) == HEADER


def test_every_bit_of_a_segment_header_counts() -> None:
    block = on_disk.encode_segment_header(HEADER)
    for at in range(BLOCK_BYTES):
        with pytest.raises(FormatFault):
            on_disk.decode_segment_header(block[:at] + bytes([block[at] ^ 1]) + block[at + 1 :])


def test_another_format_version_is_named() -> None:
    block = bytearray(on_disk.encode_segment_header(HEADER))
    block[8:12] = (2).to_bytes(4, "big")
    block[-4:] = crc32(bytes(block[:-4])).to_bytes(4, "big")
    with pytest.raises(FormatFault, match="format 2"):
        on_disk.decode_segment_header(bytes(block))


@pytest.mark.parametrize("body", BODIES, ids=["opened", "begin", "completed", "low_water", "closed"])
def test_a_record_comes_back_and_every_byte_of_it_counts(body: v.RecordBody) -> None:
    framed = on_disk.encode_record(body.chosen)
    assert on_disk.decode_record(framed) == body
    record = v.ReplayRecord(schema_id=v.REPLAY_RECORD, record=body)
    assert framed[on_disk.RECORD_HEADER_BYTES :] == canonical.encode(record)
    for at in range(len(framed)):
        with pytest.raises(FormatFault):
            on_disk.decode_record(framed[:at] + bytes([framed[at] ^ 0x10]) + framed[at + 1 :])
    with pytest.raises(FormatFault):
        on_disk.decode_record(framed[:-1])


def test_a_kind_of_a_newer_version_is_named() -> None:
    framed = bytearray(on_disk.encode_record(BODIES[0].chosen))
    encoded = bytes(framed[on_disk.RECORD_HEADER_BYTES :])
    framed[4] = 4
    framed[8:12] = crc32(encoded, 4).to_bytes(4, "big")
    with pytest.raises(FormatFault, match="newer version of sidecar wrote kind 4"):
        on_disk.decode_record(bytes(framed))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(BODIES), min_size=1, max_size=40))
def test_a_batch_gives_its_records_back_in_order(bodies: list[v.RecordBody]) -> None:
    batch = batch_of(bodies)
    assert len(batch) % BLOCK_BYTES == 0
    header = on_disk.decode_batch_header(batch[:BLOCK_BYTES], salt=b"s" * 16, segment=2)
    assert header is not None
    assert on_disk.batch_is_whole(header, batch)
    assert on_disk.chained_head(header, batch, b"h" * 32) == header.head
    found = list(records_of(header, batch, 8192))
    assert [record.body for record in found] == bodies
    for record in found:
        at = record.offset - 8192
        assert on_disk.decode_record(batch[at : at + record.length]) == record.body


def test_every_byte_of_a_batch_counts() -> None:
    batch = batch_of(BODIES)
    for at in range(len(batch)):
        changed = batch[:at] + bytes([batch[at] ^ 0x40]) + batch[at + 1 :]
        header = on_disk.decode_batch_header(changed[:BLOCK_BYTES], salt=b"s" * 16, segment=2)
        assert header is None or not on_disk.batch_is_whole(header, changed)


def test_a_batch_of_another_segment_or_salt_is_no_batch_here() -> None:
    batch = batch_of(BODIES)
    assert on_disk.decode_batch_header(batch[:BLOCK_BYTES], salt=b"S" * 16, segment=2) is None
    assert on_disk.decode_batch_header(batch[:BLOCK_BYTES], salt=b"s" * 16, segment=3) is None
