"""The frames between the daemon and a connector that is a process of its own, as frozen values with one parse.

The daemon writes one request to its child's stdin and reads, from its stdout,
events and then exactly one outcome; each is a frame as on the socket: a 4-byte
big-endian length and one MessagePack map with a `schema_id`. What a child says
is held to the same strict profile as what a client says. `exchange` is the
number that the request carried; every frame that belongs to it says it again.

A child says what was used, never what it costs: `cost_micro_usd` is for a
backend that counts money of its own, and a number other than the derived
charge fails the request. Source: CONTRACT sections 1, 2 and 5.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from sidecar.contract import canonical, strict
from sidecar.contract.values import (
    U64,
    Failed,
    OneOf,
    ProviderRequest,
    StopReason,
    TransportEventPayload,
    Usage,
    Value,
)

CONNECTOR_REQUEST: Literal["gamecult.model.connector_request.v1"] = "gamecult.model.connector_request.v1"
CONNECTOR_EVENT: Literal["gamecult.model.connector_event.v1"] = "gamecult.model.connector_event.v1"
CONNECTOR_OUTCOME: Literal["gamecult.model.connector_outcome.v1"] = "gamecult.model.connector_outcome.v1"


class ConnectorRequest(Value, frozen=True):
    """One request to ask the provider once. `deadline_ms` is what is left: then the child is killed.

    Reasoning states in it are the child's own, as it emitted them, for this upstream model.
    """

    deadline_ms: U64
    exchange: U64
    request: ProviderRequest
    schema_id: Literal["gamecult.model.connector_request.v1"]
    upstream: str


class ConnectorEvent(Value, frozen=True):
    """One event, in its order: a piece of text, a whole tool call, or a whole reasoning state."""

    exchange: U64
    payload: TransportEventPayload
    schema_id: Literal["gamecult.model.connector_event.v1"]


class ConnectorCompleted(Value, frozen=True, kw_only=True):
    """The provider ended well. `usage` None: it reported none, and the configuration says what that means."""

    provider_response_id: str | None = None
    stop_reason: StopReason
    usage: Usage | None = None


class ConnectorEnd(OneOf, frozen=True):
    """`Failed` is the published one: its usage is zeros where nothing was billed, None where that is not known."""

    completed: ConnectorCompleted | UnsetType = field(default=UNSET, name="Completed")
    failed: Failed | UnsetType = field(default=UNSET, name="Failed")


class ConnectorOutcome(Value, frozen=True, kw_only=True):
    """How the exchange ended; nothing follows it."""

    cost_micro_usd: U64 | None = None
    exchange: U64
    outcome: ConnectorEnd
    schema_id: Literal["gamecult.model.connector_outcome.v1"]


class BrokenFrame(ValueError):
    """A frame that no child may write; the message says why."""


class _Dispatch(Struct):
    schema_id: str


_dispatches: Final = msgspec.msgpack.Decoder(_Dispatch)
_events: Final = msgspec.msgpack.Decoder(ConnectorEvent)
_outcomes: Final = msgspec.msgpack.Decoder(ConnectorOutcome)


def parse_from_child(frame: bytes) -> ConnectorEvent | ConnectorOutcome:
    """What a whole frame (without its length prefix) of a child says. Raises BrokenFrame.

    Equal canonical bytes prove a frame strict, and are had sooner than a scan.
    """
    try:
        said = _dispatches.decode(frame)
        value = _typed(said.schema_id, frame)
        if canonical.encode(value) != frame:
            strict.scan(frame)
    except (msgspec.MsgspecError, strict.NotStrict) as fault:
        raise BrokenFrame(str(fault)) from None
    return value


def _typed(schema_id: str, frame: bytes) -> ConnectorEvent | ConnectorOutcome:
    if schema_id == CONNECTOR_EVENT:
        return _events.decode(frame)
    if schema_id == CONNECTOR_OUTCOME:
        return _outcomes.decode(frame)
    raise BrokenFrame(f"{schema_id!r:.120} is no frame that a child writes")
