"""Records as opening reads them: many and fast, by the whole batch, each held to its schema but for what is not read.

Opening has checked a batch's CRC and its place in the chain over every byte
before it comes here. So a record's own CRC is not checked once more, and of a
Begin the three digests and the price rows, most of what decoding it costs, are
kept as their bytes: that they are digests and price rows is not known here. All
else is: kind, flags, lengths, every member's name, type and bounds, and that
no strange member is there. What stays open is checked where it is used: by
`whole`, by reading a record back (`format.decode_record`), and by `verify`.

Why a record is refused is left to `format.decode_record`, which refuses all that is refused here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
from msgspec import Raw, defstruct, field
from msgspec.structs import asdict, fields

from sidecar.contract.values import (
    U32,
    U64,
    BeginRecord,
    CacheRetention,
    CheckpointRecord,
    ClosedRecord,
    CompletedRecord,
    LowWaterRecord,
    OpenedRecord,
    RecordBody,
    ReplayRecord,
    Value,
)
from sidecar.ledger.format import (
    BATCH_HEADER_BYTES,
    KIND_OF,
    RECORD_HEADER_BYTES,
    AnyRecord,
    BatchHeader,
    FormatFault,
    decode_record,
)


class BeginAtOpen(Value, frozen=True, kw_only=True):
    """A BeginRecord with its digests and prices unread. Each `Raw` holds its whole batch's bytes: keep it briefly."""

    admitted_at_unix_ms: U64
    cache_retention: CacheRetention | None = None
    caller_runtime_id: str
    expires_at_unix_ms: U64
    foreign_reasoning_dropped: U32
    identity_sha256: Raw
    input_bound_tokens: U64
    max_output_tokens: U32
    model: str
    native_request_sha256: Raw
    prices: Raw
    provider: str
    provider_request_sha256: Raw
    request_id: str
    reservation_micro_usd: U64
    upstream: str


LeanRecord = OpenedRecord | BeginAtOpen | CompletedRecord | CheckpointRecord | LowWaterRecord | ClosedRecord

_LEAN: Final[dict[type[Any], type[Any]]] = {BeginRecord: BeginAtOpen}
# Length and kind, with the flags and zeros that a record must have: the kind's byte stands above them.
_START: Final = struct.Struct(">II")
_KIND_SHIFT: Final = 24


def _decoder(kind: type[AnyRecord]) -> Callable[[Any], Any]:
    """For a ReplayRecord of this one kind: a map of nothing else, under that kind's name."""
    name = next(member.encode_name for member in fields(RecordBody) if kind in get_args(member.type))
    schema_id = next(member.type for member in fields(ReplayRecord) if member.name == "schema_id")
    body = defstruct("Body", [("one", _LEAN.get(kind, kind), field(name=name))], bases=(Value,), frozen=True)
    replay = defstruct("Replay", [("record", body), ("schema_id", schema_id)], bases=(Value,), frozen=True)
    return msgspec.msgpack.Decoder(replay).decode


_MEMBER_OF: Final = {kind: member.name for member in fields(RecordBody) for kind in get_args(member.type)}
_DECODERS: Final = {number << _KIND_SHIFT: _decoder(kind) for kind, number in KIND_OF.items()}


def lean_records(header: BatchHeader, batch: bytes, batch_offset: int) -> list[tuple[LeanRecord, int, int]]:
    """Every record of a whole batch that begins at `batch_offset` in its file, with its own offset there and its
    length, both with its header; raises FormatFault. The batch's CRC and chain must have been checked."""
    seen = memoryview(batch)
    decoders, start = _DECODERS, _START.unpack_from
    found: list[tuple[LeanRecord, int, int]] = []
    at, end = BATCH_HEADER_BYTES, BATCH_HEADER_BYTES + header.length
    for _ in range(header.count):
        body = at + RECORD_HEADER_BYTES
        if body > end:
            raise FormatFault(f"{header.count} records in this batch")
        length, kind = start(batch, at)
        behind = body + length
        if behind > end or kind not in decoders:
            raise _why_refused(batch[at : min(behind, end)])
        try:
            record = decoders[kind](seen[body:behind]).record.one
        except msgspec.MsgspecError:
            raise _why_refused(batch[at:behind]) from None
        found.append((record, batch_offset + at, behind - at))
        at = behind
    if at != end:
        raise FormatFault("nothing behind the last record of this batch")
    return found


def _why_refused(framed: bytes) -> FormatFault:
    try:
        decode_record(framed)
    except FormatFault as fault:
        return fault
    raise AssertionError("a record that can be read in full can't be read in part")


def whole(begin: BeginAtOpen) -> BeginRecord:
    """The BeginRecord that these bytes are; raises FormatFault."""
    members = asdict(begin)
    for name, member in members.items():
        if isinstance(member, Raw):
            members[name] = msgspec.msgpack.decode(member)
    try:
        return msgspec.convert(members, BeginRecord)
    except msgspec.MsgspecError as error:
        raise FormatFault(f"a valid BeginRecord ({error})") from None


def in_full(record: LeanRecord) -> RecordBody:
    """As it would have been read in full; raises FormatFault."""
    chosen = whole(record) if isinstance(record, BeginAtOpen) else record
    member: dict[str, Any] = {_MEMBER_OF[type(chosen)]: chosen}
    return RecordBody(**member)
