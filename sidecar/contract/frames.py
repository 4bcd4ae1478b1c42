"""One frame's bytes to what it says: an invocation, one that breaks its schema, another frame, or a transport error.

Two ways to one truth. Most clients send canonical bytes: the typed decoder
reads them, the value is encoded again, and equal bytes prove that the frame
was canonical, hence strict, hence valid. Any other frame is scanned by the
strict profile first and then read by the same typed decoder, for the value or
the exact complaint. What the first way accepts the second accepts too, because
a canonical encoding has nothing that the profile forbids, but for its size:
a frame that could hold too many items always takes the second way, and so does
every frame that is no invocation. An invocation inside a quote is judged as one
outside is.

Source: CONTRACT sections 1 and 2, ECOSYSTEM section 0.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Raw, Struct

from sidecar.contract import canonical, strict
from sidecar.contract.client_frames import (
    BrokenClientFrame,
    ClientFrame,
    RawQuote,
    TransportCancel,
    TransportHello,
    TransportStatus,
    is_clients,
    parse_from_client,
)
from sidecar.contract.ids import is_id
from sidecar.contract.operator_frames import BrokenOperatorFrame, OperatorFrame, is_operators, parse_from_operator
from sidecar.contract.values import TRANSPORT_INVOCATION, TransportErrorCode, TransportInvocation

# An item or pair takes a byte at least, so a frame this small can't hold more than strict.ITEMS_MAX of them.
FIRST_WAY_BYTES_MAX: Final = strict.ITEMS_MAX


class Invocation(Struct, frozen=True):
    """A frame that is a valid TransportInvocation.

    `frame_bytes`: length as received. `request_bytes`: length of the canonical
    ProviderRequest (what the input bound counts). `identity` and
    `request_sha256`: raw 32-byte digests of the canonical values.
    """

    value: TransportInvocation
    frame_bytes: int
    request_bytes: int
    identity: bytes
    request_sha256: bytes


class BrokenInvocation(Struct, frozen=True):
    """A strict frame that says it is an invocation, with ids that can be read, and breaks its schema."""

    caller_runtime_id: str
    request_id: str
    frame_bytes: int
    complaint: str


class BadFrame(Struct, frozen=True):
    """A frame that only a transport error can answer; the connection stays in step."""

    code: TransportErrorCode
    message: str


class Quote(Struct, frozen=True):
    """A client asks what this invocation would be answered; its `frame_bytes` are those of the quote's own frame."""

    invocation: Invocation | BrokenInvocation


FromClient = TransportHello | Quote | TransportCancel | TransportStatus
Parsed = Invocation | BrokenInvocation | FromClient | OperatorFrame | BadFrame


class _Dispatch(Struct):
    schema_id: Raw = Raw()


class _Request(Struct):
    request: Raw


class _Ids(Struct):
    caller_runtime_id: Raw = Raw()
    request: Raw = Raw()


class _RequestIds(Struct):
    request_id: Raw = Raw()


_UNKNOWN_FIELD: Final = re.compile(r"unknown field `(.*?)`(?=$| - at `)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_invocations = msgspec.msgpack.Decoder(TransportInvocation)
_requests = msgspec.msgpack.Decoder(_Request)
_dispatches = msgspec.msgpack.Decoder(_Dispatch)
_ids = msgspec.msgpack.Decoder(_Ids)
_request_ids = msgspec.msgpack.Decoder(_RequestIds)
_strings = msgspec.msgpack.Decoder(str)


def parse(frame: bytes) -> Parsed:
    """What a whole frame (without its length prefix) says. Never raises for what a client can send."""
    if len(frame) <= FIRST_WAY_BYTES_MAX:
        try:
            value = _invocations.decode(frame)
        except msgspec.MsgspecError:
            return _second_way(frame)
        if canonical.encode(value) == frame and _ids_are_readable(value):
            return _invocation(value, len(frame), frame)
    return _second_way(frame)


def _second_way(frame: bytes) -> Parsed:
    try:
        strict.scan(frame)
        dispatch = _dispatches.decode(frame)
    except strict.NotStrict as fault:
        return BadFrame("malformed_frame", str(fault))
    except msgspec.MsgspecError:
        return BadFrame("malformed_frame", f"a frame is one map: {strict.SWITCH_HINT}")
    schema_id = _string(dispatch.schema_id)
    if schema_id is None:
        return BadFrame("malformed_frame", "the map has no string member schema_id")
    if schema_id == TRANSPORT_INVOCATION:
        return _judged(frame, len(frame))
    if not is_clients(schema_id) and not is_operators(schema_id):
        return BadFrame("unknown_schema", f"{schema_id!r:.120} is no frame that this daemon takes")
    try:
        if is_operators(schema_id):
            return parse_from_operator(schema_id, frame)
        return _from_client(parse_from_client(schema_id, frame), frame)
    except (BrokenClientFrame, BrokenOperatorFrame) as broken:
        return BadFrame("malformed_frame", f"{schema_id}: {broken}")


def _from_client(value: ClientFrame, frame: bytes) -> FromClient | BadFrame:
    if not isinstance(value, RawQuote):
        return value
    invocation = _judged(value.invocation, len(frame))
    return invocation if isinstance(invocation, BadFrame) else Quote(invocation)


def _judged(strict_bytes: bytes | Raw, frame_bytes: int) -> Invocation | BrokenInvocation | BadFrame:
    """An invocation whose bytes keep to the strict profile; `frame_bytes` is the length of the frame they came in."""
    try:
        value = _invocations.decode(strict_bytes)
    except msgspec.MsgspecError as error:
        return _broken(strict_bytes, frame_bytes, str(error))
    if not _ids_are_readable(value):
        return _broken(strict_bytes, frame_bytes, "")
    return _invocation(value, frame_bytes, canonical.encode(value))


def _invocation(value: TransportInvocation, frame_bytes: int, encoded: bytes) -> Invocation:
    """`encoded` is the canonical form, and what stands in it under a key is the canonical form of that."""
    request = memoryview(_requests.decode(encoded).request)
    return Invocation(
        value=value,
        frame_bytes=frame_bytes,
        request_bytes=request.nbytes,
        identity=sha256(encoded).digest(),
        request_sha256=sha256(request).digest(),
    )


def _ids_are_readable(value: TransportInvocation) -> bool:
    return bool(is_id(value.caller_runtime_id) and is_id(value.request.request_id))


def _broken(strict_bytes: bytes | Raw, frame_bytes: int, complaint: str) -> BrokenInvocation | BadFrame:
    """Refused(Malformed) where the ids can be read, so that the caller can match the answer; else malformed_frame."""
    try:
        ids = _ids.decode(strict_bytes)
        caller, request = _string(ids.caller_runtime_id), _request_ids.decode(ids.request)
    except msgspec.MsgspecError:
        return BadFrame("malformed_frame", f"an invocation whose ids can't be read ({complaint})")
    request_id = _string(request.request_id)
    if caller is None or request_id is None or not is_id(caller) or not is_id(request_id):
        return BadFrame(
            "malformed_frame",
            "an invocation whose caller_runtime_id or request.request_id is no id (1 to 256 bytes of 0x21 to 0x7e)",
        )
    return BrokenInvocation(caller, request_id, frame_bytes, _UNKNOWN_FIELD.sub(_without_words, complaint))


def _without_words(unknown: re.Match[str]) -> str:
    """What is complained of may be logged: a name that was meant as one stays, anything else could be content."""
    name = unknown[1]
    return unknown[0] if _NAME.fullmatch(name) else f"unknown field of {len(name)} characters"


def _string(encoded: Raw) -> str | None:
    try:
        return _strings.decode(encoded)
    except msgspec.MsgspecError:
        return None
