"""What a client says to the daemon besides its invocations, and what the daemon says to that, as frozen values.

A client's frame is held to the same strict profile as every frame; one that
breaks its table is the transport error `malformed_frame`. A live event is
provisional until the result, which carries them all; `sequence` counts from 0,
and the pieces of one text share one. Source: CONTRACT section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw

from sidecar.contract.values import (
    U32,
    U64,
    PriceRow,
    Refusal,
    TransportEvent,
    TransportInvocation,
    Value,
)

TRANSPORT_HELLO: Literal["gamecult.model.transport_hello.v1"] = "gamecult.model.transport_hello.v1"
TRANSPORT_WELCOME: Literal["gamecult.model.transport_welcome.v1"] = "gamecult.model.transport_welcome.v1"
TRANSPORT_QUOTE: Literal["gamecult.model.transport_quote.v1"] = "gamecult.model.transport_quote.v1"
TRANSPORT_QUOTED: Literal["gamecult.model.transport_quoted.v1"] = "gamecult.model.transport_quoted.v1"
TRANSPORT_CANCEL: Literal["gamecult.model.transport_cancel.v1"] = "gamecult.model.transport_cancel.v1"
TRANSPORT_STATUS: Literal["gamecult.model.transport_status.v1"] = "gamecult.model.transport_status.v1"
TRANSPORT_STATUS_REPORT: Literal["gamecult.model.transport_status_report.v1"] = (
    "gamecult.model.transport_status_report.v1"
)
TRANSPORT_EVENT: Literal["gamecult.model.transport_event.v1"] = "gamecult.model.transport_event.v1"

PROTOCOL: Final = 1  # the one that this contract is
CANCELLED: Final = "its caller cancelled it"  # how the message of a failure begins that a cancel has brought about

LedgerState = Literal[
    "ready",  # begins are taken
    "pressure",  # no spare segment can be made: begins are refused until one can
    "failed",  # nothing will be written any more: the daemon is about to exit
]


# --- what a client says -----------------------------------------------------------------------------------------


class TransportHello(Value, frozen=True, kw_only=True):
    """Optional: which protocol this connection speaks, who is there, and what it wants. A second one replaces it."""

    client: str
    join: bool
    protocol: U32
    schema_id: Literal["gamecult.model.transport_hello.v1"]
    stream_events: bool


class TransportQuote(Value, frozen=True, kw_only=True):
    """What would this very invocation be answered now, and what could it cost? Nothing is written, sent or held."""

    invocation: TransportInvocation
    schema_id: Literal["gamecult.model.transport_quote.v1"]


class TransportCancel(Value, frozen=True, kw_only=True):
    """The deadline of this running request is now. It has no answer of its own."""

    caller_runtime_id: str
    request_id: str
    schema_id: Literal["gamecult.model.transport_cancel.v1"]


class TransportStatus(Value, frozen=True, kw_only=True):
    """What does the daemon hold?"""

    schema_id: Literal["gamecult.model.transport_status.v1"]


# --- what the daemon says ---------------------------------------------------------------------------------------


class TransportWelcome(Value, frozen=True, kw_only=True):
    """What this connection speaks from here on, and whom its peer may call as."""

    callers: tuple[str, ...]
    frame_bytes_max: U32
    join: bool
    protocol: U32
    schema_id: Literal["gamecult.model.transport_welcome.v1"]
    server: str
    stream_events: bool


class TransportQuoted(Value, frozen=True, kw_only=True):
    """What an invocation would be answered. Without a refusal it would be admitted, joined or replayed.

    `worst_case_micro_usd` is nil where a rule before the cost applies; for a request on record it is its reservation.
    """

    caller_runtime_id: str
    refusal: Refusal | None = None
    request_id: str
    schema_id: Literal["gamecult.model.transport_quoted.v1"]
    worst_case_micro_usd: U64 | None = None


class LiveEvent(Value, frozen=True, kw_only=True):
    """One event as the provider produces it, before the result."""

    caller_runtime_id: str
    event: TransportEvent
    request_id: str
    schema_id: Literal["gamecult.model.transport_event.v1"]


class DaemonStatus(Value, frozen=True, kw_only=True):
    """The daemon as a whole; `live_requests` are those of all its callers."""

    connections: U32
    connections_max: U32
    draining: bool
    ledger: LedgerState
    live_requests: U32
    now_unix_ms: U64
    requests_in_flight_max: U32
    server: str
    started_at_unix_ms: U64


class CallerStatus(Value, frozen=True, kw_only=True):
    """One caller in the spend window of now.

    `over_runs` counts the charges above their reservation since the daemon
    started; `indeterminate` counts requests of any window that a person must decide.
    """

    caller_runtime_id: str
    ceiling_micro_usd: U64
    indeterminate: U64
    live_requests: U32
    over_runs: U64
    reserved_micro_usd: U64
    spent_micro_usd: U64
    window_seconds: U64
    window_start_unix_ms: U64


class ModelStatus(Value, frozen=True, kw_only=True):
    """One model that the peer may ask for, with the price rows in force now: zeros are written, absent is absent."""

    connector: str
    name: str
    output_tokens_max: U32
    prices: tuple[PriceRow, ...]
    upstream: str


class ConnectorStatus(Value, frozen=True, kw_only=True):
    """One connector behind these models; `live_requests` are those of all callers."""

    concurrent_requests_max: U32
    kind: str
    live_requests: U32
    name: str


class TransportStatusReport(Value, frozen=True, kw_only=True):
    """What the daemon holds, as far as this peer may see it: the callers that it may be, an operator all."""

    callers: tuple[CallerStatus, ...]
    connectors: tuple[ConnectorStatus, ...]
    daemon: DaemonStatus
    models: tuple[ModelStatus, ...]
    schema_id: Literal["gamecult.model.transport_status_report.v1"]


# --- reading ----------------------------------------------------------------------------------------------------


class RawQuote(Value, frozen=True, kw_only=True):
    """A quote whose invocation is not looked at yet."""

    invocation: Raw
    schema_id: Literal["gamecult.model.transport_quote.v1"]


ClientFrame = TransportHello | TransportCancel | TransportStatus | RawQuote

_decoders: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    TRANSPORT_HELLO: msgspec.msgpack.Decoder(TransportHello),
    TRANSPORT_QUOTE: msgspec.msgpack.Decoder(RawQuote),
    TRANSPORT_CANCEL: msgspec.msgpack.Decoder(TransportCancel),
    TRANSPORT_STATUS: msgspec.msgpack.Decoder(TransportStatus),
}


class BrokenClientFrame(ValueError):
    """A frame that breaks its table; the message says how."""


def is_clients(schema_id: str) -> bool:
    """Whether a frame of this schema_id is a client's, other than an invocation."""
    return schema_id in _decoders


def parse_from_client(schema_id: str, frame: bytes) -> ClientFrame:
    """What a strict frame of this schema_id says. Raises BrokenClientFrame."""
    try:
        value: ClientFrame = _decoders[schema_id].decode(frame)
    except msgspec.MsgspecError as error:
        raise BrokenClientFrame(str(error)) from None
    return value
