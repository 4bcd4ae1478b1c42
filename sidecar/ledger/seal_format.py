"""The bytes of a seal: what is known of sealed segments, so that nobody need read them to open the ledger.

A seal is made from the records of one segment, or merged from seals of
neighbours, and can be made again from them at any time. Its name says which
segments it covers (`first-last.seal`). It is written whole under another name,
synced and renamed, so no crash leaves a broken one.

    blocks    each 30 entries, CRC-32 begun with the seal's own seed; behind the last entry zeros
    fences    the first 8 bytes of the first key of each block
    document  MessagePack: `SealDocument`
    trailer   magic, version, number of blocks, CRC-32 of the fences, length and CRC-32 of the document, CRC-32

    entry     key 16, segment 4 and offset 5 of the Begin, the same of the Completed or zeros: 34 bytes

Entries stand in the order of their keys, one for each request of which a
record stands in these segments. All numbers are big-endian. A key is the first
half of SHA-256 over the canonical array [caller, request_id]. The seed is CRC-32
of the ledger's id and the two segment numbers, so that a block of another seal is none of this.
Source: LEDGER section 5a.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from sys import byteorder
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from sidecar.ledger.format import FIRST_HEAD, FormatFault, OtherVersion

KEY_BYTES: Final = 16
ENTRY_BYTES: Final = 34
ENTRIES_IN_A_BLOCK: Final = 30
BLOCK_BYTES: Final = ENTRY_BYTES * ENTRIES_IN_A_BLOCK + 4

_MAGIC: Final = b"\x89SEAL\r\n\x1a"
_VERSION: Final = 1
_TRAILER: Final = struct.Struct(">8sIIIII")
_CRC: Final = struct.Struct(">I")
_SEED: Final = struct.Struct(">16sQQ")
_ENTRY: Final = struct.Struct(">16sIBIIBI")
_BEGUN_IN: Final = slice(16, 20)
_ENDED_IN: Final = slice(25, 29)
_NOWHERE: Final = bytes(4)
_NAME: Final = re.compile(r"(\d{16})-(\d{16})\.seal")

TRAILER_BYTES: Final = _TRAILER.size + _CRC.size


class End(Struct, frozen=True, kw_only=True):
    """Where the record ends: what the next segment's header must name, and what holds from here on.

    Of the first segment that is there nothing comes before but, where segments were dropped, a checkpoint:
    `checkpoint_segment` is the last that was dropped, 0 for none, and `checkpoint_sha256` says what its file holds.
    """

    ledger_id: bytes | None = None
    incarnation: int = 0
    segment: int = 0
    offset: int = 0
    head: bytes = FIRST_HEAD
    batch: int = 0
    closed: bool = True
    low_water_unix_ms: int = 0
    checkpoint_segment: int = 0
    checkpoint_sha256: bytes = FIRST_HEAD


class Entry(Struct, frozen=True, gc=False):
    """Where a request's records stand: (segment, offset) each, `completed` None while nothing ends it."""

    key: bytes
    begin: tuple[int, int]
    completed: tuple[int, int] | None


class SegmentRow(Struct, frozen=True, kw_only=True):
    """What one segment holds, and how it ends; instants are Unix ms.

    `end` is where its last batch ends, `head` and `batch` are of the chain there, `closed` is by a clean exit.
    `admitted_until` is the latest admission of a request that begins or ends here, `expires_until` the latest
    expires-at of one that begins here; 0 where there is none.
    """

    number: int
    segment_bytes: int
    incarnation: int
    end: int
    head: bytes
    batch: int
    closed: bool
    records: int
    begins: int
    completions: int
    charged_micro_usd: int
    admitted_until_unix_ms: int
    expires_until_unix_ms: int


class WindowSum(Struct, frozen=True, array_like=True):
    """What requests that ended in these segments were charged, by the caller's window of admission.

    A caller that the configuration did not name has no window: its length and start are 0.
    """

    caller: str
    window_seconds: int
    window_start_unix_ms: int
    charged_micro_usd: int


class SealDocument(Struct, frozen=True, kw_only=True):
    """All that a seal says but for the entries. `open` are the Begins (segment, offset) that no record up to its end
    has ended, also of segments before its first."""

    before_end: int
    before_head: bytes
    end: End
    entries: int
    open: tuple[tuple[int, ...], ...]
    segments: tuple[SegmentRow, ...]
    sums: tuple[WindowSum, ...]

    @property
    def first(self) -> int:
        return self.segments[0].number

    @property
    def last(self) -> int:
        return self.segments[-1].number


class Seal(Struct, frozen=True, kw_only=True):
    """A seal's document, with what finds a block: fence `n` is the first half of the first key of block `n`."""

    document: SealDocument
    fences: array[int]
    seed: int


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_documents: Final = msgspec.msgpack.Decoder(SealDocument)


def seal_name(first: int, last: int) -> str:
    return f"{first:016d}-{last:016d}.seal"


def segments_of_name(name: str) -> tuple[int, int] | None:
    """The first and last segment that a seal of this name covers; None for another file."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None


def seed_of(ledger_id: bytes, first: int, last: int) -> int:
    """What the CRC of each block of this seal begins with."""
    return crc32(_SEED.pack(ledger_id, first, last))


def encode_entry(key: bytes, begin: tuple[int, ...], completed: tuple[int, ...] | None) -> bytes:
    """34 bytes; the places are (segment, offset), below 2**32 and 2**40."""
    segment, offset = completed or (0, 0)
    return _ENTRY.pack(key, begin[0], begin[1] >> 32, begin[1] & 0xFFFFFFFF, segment, offset >> 32, offset & 0xFFFFFFFF)


def decode_entry(entry: bytes) -> Entry:
    key, begun_in, begun_high, begun_low, ended_in, ended_high, ended_low = _ENTRY.unpack(entry)
    return Entry(
        key=key,
        begin=(begun_in, begun_high << 32 | begun_low),
        completed=(ended_in, ended_high << 32 | ended_low) if ended_in else None,
    )


def begins_until(entry: bytes, segment: int) -> bool:
    """Whether the Begin of an encoded entry stands in this segment or before it."""
    return entry[_BEGUN_IN] <= segment.to_bytes(4, "big")


def ends_until(entry: bytes, segment: int) -> bool:
    """Whether the Completed of an encoded entry stands in this segment or before it."""
    return _NOWHERE < entry[_ENDED_IN] <= segment.to_bytes(4, "big")


def blocks_of(entries: Iterable[bytes], seed: int) -> Iterator[bytes]:
    """Encoded entries, in the order of their keys, as blocks."""
    gathered: list[bytes] = []
    for entry in entries:
        gathered.append(entry)
        if len(gathered) == ENTRIES_IN_A_BLOCK:
            yield _block(gathered, seed)
            gathered.clear()
    if gathered:
        yield _block(gathered, seed)


def _block(entries: Sequence[bytes], seed: int) -> bytes:
    filled = b"".join(entries).ljust(BLOCK_BYTES - _CRC.size, b"\0")
    return filled + _CRC.pack(crc32(filled, seed))


def block_is_whole(block: bytes, seed: int) -> bool:
    return len(block) == BLOCK_BYTES and crc32(block[: -_CRC.size], seed) == int.from_bytes(block[-_CRC.size :], "big")


def entries_of(block: bytes) -> Iterator[bytes]:
    """The encoded entries of a whole block."""
    for at in range(0, BLOCK_BYTES - _CRC.size, ENTRY_BYTES):
        entry = block[at : at + ENTRY_BYTES]
        if not any(entry):
            return
        yield entry


def find_in(block: bytes, key: bytes) -> Entry | None:
    """The entry of this key in a whole block."""
    at = block.find(key)
    while at >= 0:
        if at % ENTRY_BYTES == 0 and at < BLOCK_BYTES - _CRC.size:
            return decode_entry(block[at : at + ENTRY_BYTES])
        at = block.find(key, at + 1)  # these bytes belong to two neighbours
    return None


def fence_of(block: bytes) -> bytes:
    """The first half of the first key in a block."""
    return block[:8]


def encode_end(fences: bytes, document: SealDocument) -> bytes:
    """What stands behind the blocks; `fences` are of all of them, in order."""
    encoded = _encode(document)
    fields = _TRAILER.pack(_MAGIC, _VERSION, len(fences) // 8, crc32(fences), len(encoded), crc32(encoded))
    return b"".join((fences, encoded, fields, _CRC.pack(crc32(fields))))


class Trailer(Struct, frozen=True):
    """What a trailer says of the parts before it; sizes in bytes."""

    blocks: int
    fences_crc: int
    document_bytes: int
    document_crc: int

    @property
    def fences_begin(self) -> int:
        return self.blocks * BLOCK_BYTES

    @property
    def document_begin(self) -> int:
        return self.fences_begin + 8 * self.blocks


def decode_trailer(trailer: bytes, size: int) -> Trailer:
    """Of a file of `size` bytes. Raises FormatFault."""
    if len(trailer) != TRAILER_BYTES or trailer[:8] != _MAGIC:
        raise FormatFault("the trailer of a seal")
    magic_and_fields, crc = trailer[: _TRAILER.size], trailer[_TRAILER.size :]
    if crc32(magic_and_fields) != int.from_bytes(crc, "big"):
        raise FormatFault("a trailer whose CRC fits")
    _, version, *fields = _TRAILER.unpack(magic_and_fields)
    if version != _VERSION:
        raise OtherVersion(f"a seal of version {_VERSION}; a version of sidecar that writes version {version} reads it")
    said = Trailer(*fields)
    if said.document_begin + said.document_bytes + TRAILER_BYTES != size:
        raise FormatFault(f"a seal of {size} bytes")
    return said


def decode_seal(trailer: Trailer, fences: bytes, document: bytes, name: str) -> Seal:
    """Raises FormatFault."""
    if crc32(fences) != trailer.fences_crc:
        raise FormatFault("fences whose CRC fits")
    if crc32(document) != trailer.document_crc:
        raise FormatFault("a document whose CRC fits")
    try:
        said = _documents.decode(document)
    except msgspec.MsgspecError as error:
        raise FormatFault(f"the document of a seal ({error})") from None
    numbers = [row.number for row in said.segments]
    if not numbers or numbers != list(range(numbers[0], numbers[-1] + 1)) or said.end.segment != numbers[-1]:
        raise FormatFault("segments that follow each other up to the seal's end")
    if segments_of_name(name) != (said.first, said.last):
        raise FormatFault(f"a seal of segments {said.first} to {said.last}, by its name")
    if -(-said.entries // ENTRIES_IN_A_BLOCK) != trailer.blocks or said.end.ledger_id is None:
        raise FormatFault(f"{trailer.blocks} blocks of entries and the ledger's id")
    numbered = array("Q", fences)
    if byteorder == "little":
        numbered.byteswap()
    return Seal(document=said, fences=numbered, seed=seed_of(said.end.ledger_id, said.first, said.last))
