"""Records as opening reads them: the same as in full, and refused for the same reasons, but for what is left unread."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import records
from kit.whole_records import records_of

from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger.format import AnyRecord, BatchHeader, FormatFault, OtherVersion
from sidecar.ledger.index import key_of, key_of_new
from sidecar.ledger.landing import Place
from sidecar.ledger.lean_records import BeginAtOpen, in_full, lean_records, whole

SALT = b"s" * on_disk.SALT_BYTES
RECORDS: list[AnyRecord] = [
    v.OpenedRecord(incarnation=1, opened_at_unix_ms=2, clean=True),
    records.begin(7),
    records.begin(8, cache_retention="long", prices=(), native_request_sha256=(204,) * 32),
    records.completed(Place(1, 4096, 7)),
    records.completed(Place(1, 4096, 7), usage=None, outcome="timeout", notes=("over_run",), first_event_at_unix_ms=3),
    v.LowWaterRecord(expires_at_unix_ms=9),
    v.ClosedRecord(closed_at_unix_ms=9),
]
UNREAD = {"identity_sha256", "native_request_sha256", "provider_request_sha256", "prices"}


def batch_of(framed: list[bytes]) -> tuple[BatchHeader, bytes]:
    batch = b"".join(on_disk.encode_batch(framed, salt=SALT, segment=2, number=7, previous_head=b"h" * 32).pieces)
    header = on_disk.decode_batch_header(batch[: on_disk.BLOCK_BYTES], salt=SALT, segment=2)
    assert header is not None
    return header, batch


def framed_document(document: Any, kind: int, flags: int = 0) -> bytes:
    """A record of these members, whatever they are, with a CRC that fits."""
    encoded = msgspec.msgpack.encode(document)
    head = len(encoded).to_bytes(4, "big") + bytes([kind, flags, 0, 0])
    return head + crc32(encoded, kind).to_bytes(4, "big") + encoded


def document_of(record: AnyRecord) -> Any:
    return msgspec.msgpack.decode(on_disk.encode_record(record)[on_disk.RECORD_HEADER_BYTES :])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(RECORDS), min_size=1, max_size=40))
def test_every_record_is_the_one_that_is_read_in_full_and_has_its_place(chosen: list[AnyRecord]) -> None:
    header, batch = batch_of([on_disk.encode_record(record) for record in chosen])
    in_part = lean_records(header, batch, 8192)
    in_whole = list(records_of(header, batch, 8192))
    assert [in_full(record) for record, _, _ in in_part] == [record.body for record in in_whole]
    assert [place[1:] for place in in_part] == [(record.offset, record.length) for record in in_whole]


def test_a_begin_has_all_its_members_and_four_of_them_unread() -> None:
    assert BeginAtOpen.__struct_fields__ == v.BeginRecord.__struct_fields__
    theirs, ours = (
        {member.name: (member.type, member.default) for member in msgspec.structs.fields(kind)}
        for kind in (v.BeginRecord, BeginAtOpen)
    )
    assert {name for name in theirs if theirs[name] != ours[name]} == UNREAD


BEGIN, COMPLETED = 2, 3
REFUSED = {
    "a kind of a newer version": (framed_document({}, 8), OtherVersion),
    "a flag": (framed_document(document_of(RECORDS[1]), BEGIN, flags=1), FormatFault),
    "another kind than its header says": (framed_document(document_of(RECORDS[1]), COMPLETED), FormatFault),
    "another schema": (framed_document({**document_of(RECORDS[1]), "schema_id": "another"}, BEGIN), FormatFault),
    "no schema": (framed_document({"record": document_of(RECORDS[1])["record"]}, BEGIN), FormatFault),
    "two kinds at once": (
        framed_document(
            {
                **document_of(RECORDS[1]),
                "record": {**document_of(RECORDS[1])["record"], **document_of(RECORDS[3])["record"]},
            },
            BEGIN,
        ),
        FormatFault,
    ),
    "no MessagePack": (on_disk.encode_record(RECORDS[1])[:-1] + b"\xc1", FormatFault),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_batch_is_refused_with_a_record_that_has(why: str) -> None:
    framed, fault = REFUSED[why]
    header, batch = batch_of([on_disk.encode_record(RECORDS[0]), framed])
    with pytest.raises(fault) as lean:
        lean_records(header, batch, 0)
    with pytest.raises(fault) as full:
        list(records_of(header, batch, 0))
    assert str(lean.value) == str(full.value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_each_member_that_is_read_is_held_to_the_schema(record: AnyRecord) -> None:
    document = document_of(record)
    [(name, members)] = document["record"].items()
    kind = on_disk.KIND_OF[type(record)]

    def refused(changed: dict[str, Any]) -> bool:
        header, batch = batch_of([framed_document({**document, "record": {name: changed}}, kind)])
        try:
            lean_records(header, batch, 0)
        except FormatFault:
            return True
        return False

    assert not refused(members)
    assert refused({**members, "strange": 1})
    optional = {"cache_retention", "usage", "first_event_at_unix_ms"}
    for member in members:
        assert refused({**members, member: 1.5}) != (member in UNREAD), member
        assert refused({key: value for key, value in members.items() if key != member}) != (member in optional), member


@pytest.mark.parametrize("member", sorted(UNREAD))
def test_what_is_left_unread_is_refused_where_the_record_is_wanted_whole(member: str) -> None:
    document = document_of(RECORDS[1])
    document["record"]["Begin"][member] = [1, 2, 3]
    framed = framed_document(document, BEGIN)
    header, batch = batch_of([framed])
    [(begin, _, _)] = lean_records(header, batch, 0)
    assert isinstance(begin, BeginAtOpen)
    with pytest.raises(FormatFault, match="a valid BeginRecord"):
        whole(begin)
    with pytest.raises(FormatFault):
        on_disk.decode_record(framed)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_batch_of_more_or_fewer_records_than_it_says_is_refused(change: int) -> None:
    header, batch = batch_of([on_disk.encode_record(record) for record in RECORDS])
    with pytest.raises(FormatFault):
        lean_records(msgspec.structs.replace(header, count=header.count + change), batch, 0)


def test_a_record_longer_than_its_batch_is_refused() -> None:
    framed = on_disk.encode_record(RECORDS[1])
    header, batch = batch_of([(len(framed)).to_bytes(4, "big") + framed[4:]])
    with pytest.raises(FormatFault, match="without flags"):
        lean_records(header, batch, 0)


def test_a_records_own_crc_is_left_to_the_batch_around_it_and_to_reading_it_back() -> None:
    framed = bytearray(on_disk.encode_record(RECORDS[1]))
    framed[8] ^= 1
    header, batch = batch_of([bytes(framed)])
    assert len(lean_records(header, batch, 0)) == 1
    with pytest.raises(FormatFault, match="a record whose CRC fits"):
        on_disk.decode_record(bytes(framed))


@given(st.text(), st.text())
def test_a_key_that_is_wanted_once_is_the_same_key(caller: str, request: str) -> None:
    assert key_of_new(caller, request) == key_of(caller, request)
