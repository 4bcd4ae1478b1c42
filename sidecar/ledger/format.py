"""The bytes of a ledger, and nothing else: segments, batches and records, encoded and decoded.

A segment is a file of a fixed size, written out with zeros before it is used.
Its first block is its header. After that come batches, each beginning on a
block boundary, so that a write that is torn never touches a block that was
acknowledged, and bytes of a provider inside a record can't pose as a batch: the
salt, drawn for each segment, is in every batch header and its CRC. The header says
how long the file is, so that a file cut short is not taken for one that ended.

    segment  header block | batch | batch | ... | zeros
    header   magic, version, block size, salt, ledger id, incarnation, segment number, created at, segment size,
             end and chain head of the segment before it, zeros, CRC-32 of the block
    batch    magic, salt, segment, batch number, length, count, head, CRC-32 | records | zeros to the block's end
    record   length, kind, flags, zeros, CRC-32 of kind and body | body (a canonical ReplayRecord)

A batch is what one sync covers. `head` is SHA-256 over the head before it, the
batch's own header fields and its records: the chain. Batch numbers run through
the whole ledger. Source: LEDGER section 5a.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, get_args
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from sidecar.contract import canonical
from sidecar.contract.values import (
    REPLAY_RECORD,
    BeginRecord,
    CheckpointRecord,
    ClosedRecord,
    CompletedRecord,
    LowWaterRecord,
    OpenedRecord,
    RecordBody,
    ReplayRecord,
)

BLOCK_BYTES: Final = 4096
FORMAT_VERSION: Final = 1
SALT_BYTES: Final = 16
HEAD_BYTES: Final = 32
FIRST_HEAD: Final = bytes(HEAD_BYTES)

_SEGMENT_MAGIC: Final = b"\x89SIDECAR"
_BATCH_MAGIC: Final = b"\x89BATCH\r\n"
_SEGMENT: Final = struct.Struct(">8sII16s16sQQQQQ32s")
_BATCH: Final = struct.Struct(">8s16sQQII")
_BATCH_END: Final = struct.Struct(">32sI")
_RECORD: Final = struct.Struct(">IBBHI")
_CRC: Final = struct.Struct(">I")

BATCH_HEADER_BYTES: Final = _BATCH.size + _BATCH_END.size
RECORD_HEADER_BYTES: Final = _RECORD.size

# Numbers on disk; 4 is kept for Sealed.
KIND_OF: Final[Mapping[type[Any], int]] = {
    OpenedRecord: 1,
    BeginRecord: 2,
    CompletedRecord: 3,
    CheckpointRecord: 5,
    LowWaterRecord: 6,
    ClosedRecord: 7,
}
_KNOWN: Final = frozenset(KIND_OF.values())

AnyRecord = OpenedRecord | BeginRecord | CompletedRecord | CheckpointRecord | LowWaterRecord | ClosedRecord

_records: Final = msgspec.msgpack.Decoder(ReplayRecord)


def _around(kind: type[Any], number: int) -> tuple[int, bytes, bytes]:
    """What stands before and behind a record's own bytes in a canonical ReplayRecord."""
    name = next(field.encode_name for field in fields(RecordBody) if kind in get_args(field.type))
    whole = msgspec.msgpack.encode({"record": {name: None}, "schema_id": REPLAY_RECORD})
    before, behind = whole.split(msgspec.msgpack.encode(None))
    return number, before, behind


_AROUND: Final = {kind: _around(kind, number) for kind, number in KIND_OF.items()}


class FormatFault(ValueError):
    """These bytes are not what must stand here; the message says what was expected."""


class OtherVersion(FormatFault):
    """These bytes are sound, but another version of sidecar wrote them; the message names it."""


class SegmentHeader(Struct, frozen=True, kw_only=True):
    ledger_id: bytes
    salt: bytes
    incarnation: int
    segment: int
    created_at_unix_ms: int
    segment_bytes: int
    previous_end: int
    previous_head: bytes


class BatchHeader(Struct, frozen=True, kw_only=True):
    """`total_bytes` counts header, records and the zeros up to the next block."""

    number: int
    length: int
    count: int
    head: bytes
    crc: int
    total_bytes: int


class EncodedBatch(Struct, frozen=True):
    """A whole batch in pieces (nothing is copied together), its length with the padding, and its head."""

    pieces: tuple[bytes, ...]
    total_bytes: int
    head: bytes


def padded(size_bytes: int) -> int:
    """The same, up to the end of its last block."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def encode_segment_header(header: SegmentHeader) -> bytes:
    fields = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        FORMAT_VERSION,
        BLOCK_BYTES,
        header.salt,
        header.ledger_id,
        header.incarnation,
        header.segment,
        header.created_at_unix_ms,
        header.segment_bytes,
        header.previous_end,
        header.previous_head,
    )
    block = fields.ljust(BLOCK_BYTES - _CRC.size, b"\0")
    return block + _CRC.pack(crc32(block))


def decode_segment_header(block: bytes) -> SegmentHeader:
    if len(block) != BLOCK_BYTES:
        raise FormatFault(f"a header block of {BLOCK_BYTES} bytes")
    magic, version, block_bytes, salt, ledger_id, *numbers, head = _SEGMENT.unpack_from(block)
    if magic != _SEGMENT_MAGIC:
        raise FormatFault("the magic of a segment")
    if crc32(block[: -_CRC.size]) != _CRC.unpack(block[-_CRC.size :])[0]:
        raise FormatFault("a header block whose CRC fits")
    if version != FORMAT_VERSION or block_bytes != BLOCK_BYTES:
        raise OtherVersion(
            f"format version {FORMAT_VERSION} with blocks of {BLOCK_BYTES};"
            f" a version of sidecar that writes format {version} (blocks of {block_bytes}) can open this"
        )
    incarnation, segment, created_at, segment_bytes, previous_end = numbers
    return SegmentHeader(
        ledger_id=ledger_id,
        salt=salt,
        incarnation=incarnation,
        segment=segment,
        created_at_unix_ms=created_at,
        segment_bytes=segment_bytes,
        previous_end=previous_end,
        previous_head=head,
    )


def encode_record(record: AnyRecord) -> bytes:
    """One record with its header, ready to stand in a batch."""
    kind, before, behind = _AROUND[type(record)]
    encoded = b"".join((before, canonical.encode(record), behind))
    return _RECORD.pack(len(encoded), kind, 0, 0, crc32(encoded, kind)) + encoded


def framed_length(framed: bytes) -> int:
    """How long the record that these bytes begin with says it is, with its header."""
    if len(framed) < _RECORD.size:
        raise FormatFault("a whole record header")
    return _RECORD.size + int(_RECORD.unpack_from(framed)[0])


def decode_record(framed: bytes) -> RecordBody:
    """The record that these bytes are, its CRC checked: for reading one back by its place."""
    if len(framed) < _RECORD.size:
        raise FormatFault("a whole record header")
    length, kind, flags, zero, crc = _RECORD.unpack_from(framed)
    encoded = framed[_RECORD.size :]
    if length != len(encoded) or flags or zero:
        raise FormatFault(f"a record of {len(encoded)} bytes without flags")
    if crc32(encoded, kind) != crc:
        raise FormatFault("a record whose CRC fits")
    if kind not in _KNOWN:
        raise OtherVersion(f"a known kind of record; a newer version of sidecar wrote kind {kind} and can open this")
    try:
        body = _records.decode(encoded).record
    except msgspec.MsgspecError as error:
        raise FormatFault(f"a valid {REPLAY_RECORD} ({error})") from None
    if KIND_OF[type(body.chosen)] != kind:
        raise FormatFault("a record of the kind that its header names")
    return body


def encode_batch(
    records: Sequence[bytes], *, salt: bytes, segment: int, number: int, previous_head: bytes
) -> EncodedBatch:
    payload = b"".join(records)
    fields = _BATCH.pack(_BATCH_MAGIC, salt, segment, number, len(payload), len(records))
    chained = sha256(previous_head + fields)
    chained.update(payload)
    head = chained.digest()
    size = BATCH_HEADER_BYTES + len(payload)
    zeros = bytes(padded(size) - size)
    crc = crc32(zeros, crc32(payload, crc32(fields + head)))
    return EncodedBatch((fields + _BATCH_END.pack(head, crc), payload, zeros), padded(size), head)


def decode_batch_header(block: bytes, *, salt: bytes, segment: int) -> BatchHeader | None:
    """The header that this block begins with, as far as it alone can tell; None if it is none of this segment's."""
    if len(block) < BATCH_HEADER_BYTES:
        return None
    magic, its_salt, its_segment, number, length, count = _BATCH.unpack_from(block)
    if magic != _BATCH_MAGIC or its_salt != salt or its_segment != segment:
        return None
    head, crc = _BATCH_END.unpack_from(block, _BATCH.size)
    total = padded(BATCH_HEADER_BYTES + length)
    return BatchHeader(number=number, length=length, count=count, head=head, crc=crc, total_bytes=total)


def batch_is_whole(header: BatchHeader, batch: bytes) -> bool:
    """Whether a whole batch's bytes are as they were written."""
    fields_and_head = batch[: BATCH_HEADER_BYTES - _CRC.size]
    behind = memoryview(batch)[BATCH_HEADER_BYTES:]
    return len(batch) == header.total_bytes and crc32(behind, crc32(fields_and_head)) == header.crc


def chained_head(header: BatchHeader, batch: bytes, previous_head: bytes) -> bytes:
    """What the head of this batch must be if it follows a batch with `previous_head`."""
    chained = sha256(previous_head + batch[: _BATCH.size])
    chained.update(memoryview(batch)[BATCH_HEADER_BYTES : BATCH_HEADER_BYTES + header.length])
    return chained.digest()
