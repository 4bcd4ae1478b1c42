"""A second opinion on the bytes of a ledger: a decoder that shares no code with the one that the daemon writes by.

`verify` is worth something because it would not repeat a mistake of the
writer. So this is made from the description of the format alone, and of what
it says about each member. Layout (all numbers big-endian):

    segment header, one block of 4096 bytes
        0 magic 8 | 8 version 4 | 12 block size 4 | 16 salt 16 | 32 ledger id 16 | 48 incarnation 8 | 56 segment 8 |
        64 created at 8 | 72 segment size 8 | 80 end of the segment before 8 | 88 its chain head 32 | zeros |
        4092 CRC-32 of all before it
    batch, from a block's begin to a block's end
        0 magic 8 | 8 salt 16 | 24 segment 8 | 32 batch number 8 | 40 length 4 | 44 count 4 | 48 head 32 |
        80 CRC-32 of all else | 84 records | zeros
        head = SHA-256(head of the batch before, bytes 0 to 48, records)
    record
        0 length 4 | 4 kind 1 | 5 flags 1 | 6 zeros 2 | 8 CRC-32 of the body, begun with the kind | 12 body

Pure: no files, no clock. Source: LEDGER section 5a, CONTRACT sections 2 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final, get_args
from zlib import crc32

import msgspec
from msgspec import Struct

from sidecar.contract.values import REPLAY_RECORD, CacheRetention, FailureKind, Note

BLOCK: Final = 4096
NO_HEAD: Final = bytes(32)
_ZEROS: Final = bytes(BLOCK)
_VERSION: Final = 1
_SEGMENT_MAGIC: Final = bytes.fromhex("89 53 49 44 45 43 41 52")
_BATCH_MAGIC: Final = bytes.fromhex("89 42 41 54 43 48 0d 0a")
_BATCH_FIELDS: Final = 48
_BATCH_HEADER: Final = 84
RECORD_HEADER: Final = 12

_unpack: Final = msgspec.msgpack.Decoder().decode
_pack: Final = msgspec.msgpack.Encoder(order="sorted").encode

Members = dict[str, Any]


class Unexpected(ValueError):
    """What stands here is not what must; the message says what was expected. `place`: of a record in a batch."""

    def __init__(self, expected: str, *, place: int | None = None, other_version: bool = False) -> None:
        super().__init__(expected)
        self.place = place
        self.other_version = other_version


class Segment(Struct, frozen=True, kw_only=True):
    """A segment's header. `before_end` and `before_head` are of the segment before it."""

    salt: bytes
    ledger_id: bytes
    incarnation: int
    number: int
    segment_bytes: int
    before_end: int
    before_head: bytes


class Line(Struct, frozen=True, kw_only=True):
    """One record with its place. `members` are those of its kind, as plain values.

    `begun` is the Begin that a Completed names; whoever reads in order fills it in.
    """

    segment: int
    offset: int
    length: int
    kind: str
    members: Members
    begun: Line | None = None


def _number(encoded: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(encoded[at : at + size], "big")


def _end_of_block(size: int) -> int:
    return size + -size % BLOCK


# --- segments and batches ---------------------------------------------------------------------------------------


def segment_header(block: bytes) -> Segment:
    """Raises Unexpected."""
    if len(block) != BLOCK or block[:8] != _SEGMENT_MAGIC:
        raise Unexpected("the header block of a segment")
    if crc32(block[:-4]) != _number(block, BLOCK - 4, 4):
        raise Unexpected("a header block whose CRC fits")
    version, block_bytes = _number(block, 8, 4), _number(block, 12, 4)
    if (version, block_bytes) != (_VERSION, BLOCK):
        raise Unexpected(
            f"format {_VERSION} with blocks of {BLOCK} bytes; this is format {version} with blocks of {block_bytes}",
            other_version=True,
        )
    if block[120:-4] != _ZEROS[: BLOCK - 124]:
        raise Unexpected("zeros between the header's fields and its CRC")
    return Segment(
        salt=block[16:32],
        ledger_id=block[32:48],
        incarnation=_number(block, 48),
        number=_number(block, 56),
        segment_bytes=_number(block, 72),
        before_end=_number(block, 80),
        before_head=block[88:120],
    )


def batch_size(block: bytes, segment: Segment) -> int:
    """How many bytes the batch that begins with this block says it takes; raises Unexpected if it is none of this
    segment's."""
    if len(block) < _BATCH_HEADER or block[:8] != _BATCH_MAGIC:
        raise Unexpected("the begin of a batch")
    if block[8:24] != segment.salt or _number(block, 24) != segment.number:
        raise Unexpected("a batch of this segment")
    return _end_of_block(_BATCH_HEADER + _number(block, 40, 4))


def segment_named(block: bytes) -> tuple[bytes, int]:
    """The salt and the segment that a batch which begins with this block says it is of; raises Unexpected."""
    if len(block) < _BATCH_HEADER or block[:8] != _BATCH_MAGIC:
        raise Unexpected("the begin of a batch")
    return block[8:24], _number(block, 24)


def batch_number(batch: bytes) -> int:
    return _number(batch, 32)


def batch_head(batch: bytes) -> bytes:
    """The chain's head that the batch names for itself."""
    return batch[48:80]


def check_sum(batch: bytes) -> None:
    """Raises Unexpected unless a whole batch's bytes are as they were written."""
    if crc32(batch[_BATCH_HEADER:], crc32(batch[:80])) != _number(batch, 80, 4):
        raise Unexpected("a batch whose CRC fits")
    padding = batch[_BATCH_HEADER + _number(batch, 40, 4) :]
    if padding != _ZEROS[: len(padding)]:
        raise Unexpected("zeros between a batch's records and its last block's end")


def head_of(batch: bytes, head_before: bytes) -> bytes:
    """The chain's head after this batch; raises Unexpected if the batch names another."""
    records = batch[_BATCH_HEADER : _BATCH_HEADER + _number(batch, 40, 4)]
    head = sha256(head_before + batch[:_BATCH_FIELDS] + records).digest()
    if head != batch[48:80]:
        raise Unexpected("a batch that continues the chain")
    return head


def lines_of(batch: bytes, segment: int, offset: int) -> Iterator[Line]:
    """The records of a whole batch that begins at `offset` in its file. Raises Unexpected."""
    at, end = _BATCH_HEADER, _BATCH_HEADER + _number(batch, 40, 4)
    count = _number(batch, 44, 4)
    for _ in range(count):
        length = RECORD_HEADER + _number(batch, at, 4)
        if at + length > end:
            raise Unexpected(f"{count} whole records in this batch", place=offset + at)
        try:
            kind, members = _record(batch[at : at + length])
        except Unexpected as fault:
            fault.place = offset + at
            raise
        yield Line(segment=segment, offset=offset + at, length=length, kind=kind, members=members)
        at += length
    if at != end:
        raise Unexpected(f"nothing behind the {count} records of this batch", place=offset + at)


def first_record(offset: int) -> int:
    """Where the first record of a batch stands that begins at `offset`."""
    return offset + _BATCH_HEADER


def record_size(header: bytes) -> int:
    """How many bytes the record with this header says it takes; raises Unexpected where the header is not whole."""
    if len(header) < RECORD_HEADER:
        raise Unexpected("the header of a record")
    return RECORD_HEADER + _number(header, 0, 4)


def line_of(framed: bytes, segment: int, offset: int) -> Line:
    """One record that stands at `offset`, by itself, its CRC checked. Raises Unexpected."""
    if record_size(framed) != len(framed):
        raise Unexpected("a whole record")
    kind, members = _record(framed)
    return Line(segment=segment, offset=offset, length=len(framed), kind=kind, members=members)


# --- records ----------------------------------------------------------------------------------------------------

Check = Callable[[Any], bool]


def whole(bits: int) -> Check:
    bound = 1 << bits
    return lambda value: type(value) is int and 0 <= value < bound


def of_type(kind: type) -> Check:
    return lambda value: type(value) is kind


def _word(words: tuple[str, ...]) -> Check:
    return lambda value: type(value) is str and value in words


def _is_digest(value: Any) -> bool:
    try:
        return type(value) is list and len(bytes(value)) == 32 and set(map(type, value)) == {int}
    except (ValueError, TypeError):
        return False


def each(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


class Shape(Struct, frozen=True):
    """The members that a map must have, and those that it may have."""

    needed: Mapping[str, Check]
    optional: Mapping[str, Check] = {}

    def fault(self, value: Any) -> str | None:
        """Why a value is no such map."""
        if type(value) is not dict:
            return "a map"
        for name, check in self.needed.items():
            if name not in value or not check(value[name]):
                return f"a fit {name}"
        if len(value) > len(self.needed):
            for name in value.keys() - self.needed.keys():
                check_optional = self.optional.get(name)
                if check_optional is None:
                    return f"no such {name}"
                if not check_optional(value[name]):
                    return f"a fit {name}"
        return None

    def fits(self, value: Any) -> bool:
        return self.fault(value) is None


U32, U64, TEXT = whole(32), whole(64), of_type(str)
_PRICES: Final = Shape(
    dict.fromkeys(("cache_read", "cache_write_long", "cache_write_short", "input", "output"), U64),
    {"above_input_tokens": U64},
)
_USAGE: Final = Shape(
    dict.fromkeys(("cache_read_tokens", "cache_write_tokens", "input_tokens", "output_tokens"), U64),
    {"reasoning_tokens": U64},
)
# Number on disk -> the kind's name and its members. 4 is kept for Sealed.
_KINDS: Final[Mapping[int, tuple[str, Shape]]] = {
    1: ("Opened", Shape({"clean": of_type(bool), "incarnation": U64, "opened_at_unix_ms": U64})),
    2: (
        "Begin",
        Shape(
            {
                **dict.fromkeys(("caller_runtime_id", "request_id", "model", "upstream", "provider"), TEXT),
                **dict.fromkeys(("admitted_at_unix_ms", "expires_at_unix_ms"), U64),
                **dict.fromkeys(("input_bound_tokens", "reservation_micro_usd"), U64),
                **dict.fromkeys(("foreign_reasoning_dropped", "max_output_tokens"), U32),
                **dict.fromkeys(("identity_sha256", "native_request_sha256", "provider_request_sha256"), _is_digest),
                "prices": each(_PRICES.fits),
            },
            {"cache_retention": _word(get_args(CacheRetention))},
        ),
    ),
    3: (
        "Completed",
        Shape(
            {
                **dict.fromkeys(("begin_segment", "begin_offset", "charge_micro_usd", "completed_at_unix_ms"), U64),
                "notes": each(_word(get_args(Note))),
                "outcome": _word(("completed", *get_args(FailureKind))),
                "response": of_type(bytes),
            },
            {"first_event_at_unix_ms": U64, "usage": _USAGE.fits},
        ),
    ),
    5: ("Checkpoint", Shape({"file_sha256": _is_digest, "segment": U64})),
    6: ("LowWater", Shape({"expires_at_unix_ms": U64})),
    7: ("Closed", Shape({"closed_at_unix_ms": U64})),
}


def _record(framed: bytes) -> tuple[str, Members]:
    kind, body = framed[4], framed[RECORD_HEADER:]
    if framed[5:8] != _ZEROS[:3]:
        raise Unexpected("a record without flags")
    if crc32(body, kind) != _number(framed, 8, 4):
        raise Unexpected("a record whose CRC fits")
    if kind not in _KINDS:
        raise Unexpected(f"a known kind of record; a newer version of sidecar wrote kind {kind}", other_version=True)
    name, shape = _KINDS[kind]
    try:
        value = _unpack(body)
    except (msgspec.MsgspecError, ValueError) as error:  # the second: text that is no UTF-8
        raise Unexpected(f"a record in MessagePack ({error})") from None
    inner = value.get("record") if type(value) is dict else None
    if type(inner) is not dict or set(inner) != {name} or value != {"record": inner, "schema_id": REPLAY_RECORD}:
        raise Unexpected(f"{name} in a {REPLAY_RECORD}")
    if fault := shape.fault(inner[name]):
        raise Unexpected(f"{fault} in {name}")
    if _pack(value) != body:
        raise Unexpected(f"{name} in canonical bytes")
    return name, inner[name]
