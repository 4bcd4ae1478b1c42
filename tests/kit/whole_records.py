"""The records of a batch, each decoded in full and by itself: what reading by the batch is held against."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from sidecar.contract.values import RecordBody
from sidecar.ledger.format import (
    BATCH_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    BatchHeader,
    FormatFault,
    decode_record,
    framed_length,
)


class Record(Struct, frozen=True):
    """One record with its place in its segment's file: `offset` and `length` cover its own header too."""

    offset: int
    length: int
    body: RecordBody


def records_of(header: BatchHeader, batch: bytes, batch_offset: int) -> Iterator[Record]:
    """The records of a whole batch that begins at `batch_offset` in its file; raises FormatFault."""
    at, end = BATCH_HEADER_BYTES, BATCH_HEADER_BYTES + header.length
    for _ in range(header.count):
        if at + RECORD_HEADER_BYTES > end:
            raise FormatFault(f"{header.count} records in this batch")
        length = framed_length(batch[at:])
        yield Record(batch_offset + at, length, decode_record(batch[at : min(at + length, end)]))
        at += length
    if at != end:
        raise FormatFault("nothing behind the last record of this batch")
