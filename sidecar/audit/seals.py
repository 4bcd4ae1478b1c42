"""A second opinion on the bytes of seals and checkpoints, made from the description of their formats alone.

All numbers are big-endian; both are written whole under another name first, so no crash leaves a part of one.

    seal        blocks of 1024 bytes | fences | document | trailer of 32 bytes
    block       30 entries of 34 bytes, behind the last entry zeros | CRC-32 begun with the seal's seed
    entry       key 16 | Begin: segment 4, offset 5 | Completed: segment 4, offset 5, or zeros
    fences      the first 8 bytes of each block
    trailer     magic 8 | version 4 | blocks 4 | CRC-32 of the fences 4 | length 4 and CRC-32 4 of the document |
                CRC-32 of the trailer before it 4
    seed        CRC-32 of ledger id 16, first segment 8, last segment 8
    checkpoint  magic 8 | version 4 | length 4 and CRC-32 4 of the document | document

Documents are MessagePack, with their members in the order of `_SEAL` and `_CHECKPOINT`, each value in its shortest
form. Keys rise strictly over a whole seal, and every byte of both files is looked at.

Pure: whoever calls reads the files. Source: LEDGER section 5a.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import msgspec
from msgspec import Struct

from sidecar.audit.decoder import TEXT, U64, Check, Line, Members, Shape, Unexpected, each, line_of, of_type

BLOCK_BYTES: Final = 1024
TRAILER_BYTES: Final = 32
ENTRY_BYTES: Final = 34
NO_PLACE: Final = (0, 0)
_ENTRIES: Final = 30
_NO_ENTRY: Final = bytes(ENTRY_BYTES)
_SEAL_MAGIC: Final = bytes.fromhex("89 53 45 41 4c 0d 0a 1a")
_CHECKPOINT_MAGIC: Final = bytes.fromhex("89 43 48 45 43 4b 0d 0a")
_CHECKPOINT_HEADER: Final = 20
_VERSION: Final = 1
_SEAL_NAME: Final = re.compile(r"(\d{16})-(\d{16})\.seal")
_CHECKPOINT_NAME: Final = re.compile(r"(\d{16})\.checkpoint")

_unpack: Final = msgspec.msgpack.Decoder().decode
_pack: Final = msgspec.msgpack.Encoder().encode

Place = tuple[int, int]  # segment and offset


def _bytes_of(length: int) -> Check:
    return lambda value: type(value) is bytes and len(value) == length


def _row(*checks: Check) -> Check:
    def fits(value: Any) -> bool:
        return (
            type(value) is list
            and len(value) == len(checks)
            and all(check(member) for check, member in zip(checks, value, strict=True))
        )

    return fits


_END: Final = Shape(
    {
        "ledger_id": _bytes_of(16),
        "incarnation": U64,
        "segment": U64,
        "offset": U64,
        "head": _bytes_of(32),
        "batch": U64,
        "closed": of_type(bool),
        "low_water_unix_ms": U64,
        "checkpoint_segment": U64,
        "checkpoint_sha256": _bytes_of(32),
    }
)
_SEGMENT: Final = Shape(
    {
        "number": U64,
        "segment_bytes": U64,
        "incarnation": U64,
        "end": U64,
        "head": _bytes_of(32),
        "batch": U64,
        "closed": of_type(bool),
        "records": U64,
        "begins": U64,
        "completions": U64,
        "charged_micro_usd": U64,
        "admitted_until_unix_ms": U64,
        "expires_until_unix_ms": U64,
    }
)
_SEAL: Final = Shape(
    {
        "before_end": U64,
        "before_head": _bytes_of(32),
        "end": _END.fits,
        "entries": U64,
        "open": each(_row(U64, U64)),
        "segments": each(_SEGMENT.fits),
        "sums": each(_row(TEXT, U64, U64, U64)),
    }
)
_DROPPED: Final = Shape(dict.fromkeys(("records", "begins", "completions", "charged_micro_usd"), U64))
_CHECKPOINT: Final = Shape(
    {
        "begins": each(_row(U64, U64, of_type(bytes))),
        "dropped": _DROPPED.fits,
        "end": _END.fits,
    }
)


class Entry(Struct, frozen=True):
    """Where a request's records stand; `completed` is NO_PLACE where none stands in the seal's segments."""

    key: bytes
    begin: Place
    completed: Place


class Trailer(Struct, frozen=True, kw_only=True):
    """Where a seal's parts begin, and what sums they must have."""

    fences_begin: int
    fences_crc: int
    document_begin: int
    document_end: int
    document_crc: int


def _number(encoded: bytes, at: int, size: int) -> int:
    return int.from_bytes(encoded[at : at + size], "big")


def seal_range(name: str) -> tuple[int, int] | None:
    """The first and last segment that a seal of this name is of; None for the name of another file."""
    found = _SEAL_NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def checkpoint_segment(name: str) -> int | None:
    """The last segment that a checkpoint of this name stands for; None for the name of another file."""
    found = _CHECKPOINT_NAME.fullmatch(name)
    return int(found[1]) if found else None


# --- seals ------------------------------------------------------------------------------------------------------


def seal_trailer(trailer: bytes, size: int) -> Trailer:
    """Of a seal of `size` bytes. Raises Unexpected."""
    if len(trailer) != TRAILER_BYTES or trailer[:8] != _SEAL_MAGIC:
        raise Unexpected("the trailer of a seal")
    if crc32(trailer[:-4]) != _number(trailer, 28, 4):
        raise Unexpected("a trailer whose CRC fits")
    if (version := _number(trailer, 8, 4)) != _VERSION:
        raise Unexpected(f"a seal of version {_VERSION}; this is version {version}", other_version=True)
    blocks, length = _number(trailer, 12, 4), _number(trailer, 20, 4)
    fences_begin = blocks * BLOCK_BYTES
    document_begin = fences_begin + 8 * blocks
    if document_begin + length + TRAILER_BYTES != size:
        raise Unexpected(f"a seal of {document_begin + length + TRAILER_BYTES} bytes")
    return Trailer(
        fences_begin=fences_begin,
        fences_crc=_number(trailer, 16, 4),
        document_begin=document_begin,
        document_end=document_begin + length,
        document_crc=_number(trailer, 24, 4),
    )


def seal_document(document: bytes, trailer: Trailer, first: int, last: int) -> Members:
    """What a seal of segments `first` to `last` says but for its entries. Raises Unexpected."""
    if crc32(document) != trailer.document_crc:
        raise Unexpected("a document whose CRC fits")
    said = _document(document, _SEAL, {"end": _END, "segments": _SEGMENT})
    if [row["number"] for row in said["segments"]] != list(range(max(first, 1), last + 1)) or not first:
        raise Unexpected(f"segments {first} to {last} in the document, as the name says")
    if said["end"]["segment"] != last or said["end"]["offset"] != said["segments"][-1]["end"]:
        raise Unexpected(f"the end of segment {last}")
    blocks = trailer.fences_begin // BLOCK_BYTES
    if -(-said["entries"] // _ENTRIES) != blocks:
        raise Unexpected(f"a number of entries that {blocks} blocks hold")
    if not _rises(said["open"]) or not _rises([row[:3] for row in said["sums"]]):
        raise Unexpected("open requests and sums in their order, each once")
    return said


def seal_seed(ledger_id: bytes, first: int, last: int) -> int:
    return crc32(ledger_id + first.to_bytes(8, "big") + last.to_bytes(8, "big"))


def check_fences(fences: bytes, trailer: Trailer) -> None:
    """Raises Unexpected."""
    if crc32(fences) != trailer.fences_crc:
        raise Unexpected("fences whose CRC fits")


def entries_of(block: bytes, seed: int, *, is_last: bool) -> Iterator[Entry]:
    """Raises Unexpected; `place` is then of the fault in the block."""
    if len(block) != BLOCK_BYTES or crc32(block[:-4], seed) != _number(block, BLOCK_BYTES - 4, 4):
        raise Unexpected("a block whose CRC fits")
    end = BLOCK_BYTES - 4
    for at in range(0, end, ENTRY_BYTES):
        if block[at : at + ENTRY_BYTES] == _NO_ENTRY:
            end = at
            break
        yield _entry(block, at)
    if any(block[end:-4]) or not end or (end < BLOCK_BYTES - 4 and not is_last):
        raise Unexpected("entries, and zeros behind the last one of all", place=end)


def _entry(block: bytes, at: int) -> Entry:
    begin = _number(block, at + 16, 4), _number(block, at + 20, 5)
    completed = _number(block, at + 25, 4), _number(block, at + 29, 5)
    if not all(begin) or (completed != NO_PLACE and not all(completed)):
        raise Unexpected("an entry with the places of records", place=at)
    return Entry(block[at : at + 16], begin, completed)


def found_in(block: bytes, key: bytes) -> Entry | None:
    """The entry of this key in a block that has been checked."""
    for at in range(0, BLOCK_BYTES - 4, ENTRY_BYTES):
        if block[at : at + 16] == key:
            return _entry(block, at)
    return None


# --- checkpoints ------------------------------------------------------------------------------------------------


class Dropped(Struct, frozen=True, kw_only=True):
    """What stood in all segments that were ever dropped."""

    records: int = 0
    begins: int = 0
    completions: int = 0
    charged_micro_usd: int = 0


class Start(Struct, frozen=True, kw_only=True):
    """What a checkpoint says: where the last dropped segment ended, what was dropped, and the requests open there."""

    end: Members
    dropped: Dropped
    begins: tuple[Line, ...]


def checkpoint(written: bytes, segment: int) -> Start:
    """What the file of the checkpoint of this segment says. Raises Unexpected."""
    if len(written) < _CHECKPOINT_HEADER or written[:8] != _CHECKPOINT_MAGIC:
        raise Unexpected("the begin of a checkpoint")
    document = written[_CHECKPOINT_HEADER:]
    if (version := _number(written, 8, 4)) != _VERSION:
        raise Unexpected(f"a checkpoint of version {_VERSION}; this is version {version}", other_version=True)
    if _number(written, 12, 4) != len(document):
        raise Unexpected(f"a checkpoint of {_CHECKPOINT_HEADER + _number(written, 12, 4)} bytes")
    if _number(written, 16, 4) != crc32(document):
        raise Unexpected("a checkpoint whose CRC fits")
    said = _document(document, _CHECKPOINT, {"dropped": _DROPPED, "end": _END})
    end, dropped = said["end"], Dropped(**said["dropped"])
    if end["segment"] != segment:
        raise Unexpected(f"a checkpoint of segment {segment}, as its name says")
    begins = [line_of(framed, in_segment, offset) for in_segment, offset, framed in said["begins"]]
    places = {(line.segment, line.offset) for line in begins}
    if any(line.kind != "Begin" or not 1 <= line.segment <= segment for line in begins) or len(places) < len(begins):
        raise Unexpected(f"Begins of segments up to {segment}, each once")
    if dropped.begins - dropped.completions != len(begins) or dropped.records < dropped.begins + dropped.completions:
        raise Unexpected("as many Begins as were dropped and not ended")
    begins.sort(key=lambda line: (line.segment, line.offset))
    return Start(end=end, dropped=dropped, begins=tuple(begins))


# --- both -------------------------------------------------------------------------------------------------------


def _document(document: bytes, shape: Shape, inner: Mapping[str, Shape]) -> Members:
    try:
        value = _unpack(document)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unexpected(f"a document in MessagePack ({error})") from None
    if fault := shape.fault(value):
        raise Unexpected(f"{fault} in the document")
    in_order = list(value) == list(shape.needed)
    for name, of_member in inner.items():
        members = value[name] if type(value[name]) is list else [value[name]]
        in_order = in_order and all(list(member) == list(of_member.needed) for member in members)
    if not in_order or _pack(value) != document:
        raise Unexpected("a document in its one form")
    return dict(value)


def _rises(rows: list[Any]) -> bool:
    return all(one < other for one, other in pairwise(rows))
