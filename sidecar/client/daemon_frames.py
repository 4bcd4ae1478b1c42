"""One frame of the daemon's to what it says. Pure; anything that no daemon says is NotADaemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from sidecar.client.errors import NotADaemon
from sidecar.contract.client_frames import (
    PROTOCOL,
    TRANSPORT_EVENT,
    TRANSPORT_QUOTED,
    TRANSPORT_STATUS_REPORT,
    TRANSPORT_WELCOME,
    LiveEvent,
    TransportQuoted,
    TransportStatusReport,
    TransportWelcome,
)
from sidecar.contract.values import TRANSPORT_ERROR, TRANSPORT_RESULT, TransportError, TransportResult

DaemonFrame = TransportResult | LiveEvent | TransportQuoted | TransportStatusReport | TransportWelcome | TransportError


class _Dispatch(Struct):
    schema_id: str


_dispatches: Final = msgspec.msgpack.Decoder(_Dispatch)
_decoders: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    TRANSPORT_RESULT: msgspec.msgpack.Decoder(TransportResult),
    TRANSPORT_EVENT: msgspec.msgpack.Decoder(LiveEvent),
    TRANSPORT_QUOTED: msgspec.msgpack.Decoder(TransportQuoted),
    TRANSPORT_STATUS_REPORT: msgspec.msgpack.Decoder(TransportStatusReport),
    TRANSPORT_WELCOME: msgspec.msgpack.Decoder(TransportWelcome),
    TRANSPORT_ERROR: msgspec.msgpack.Decoder(TransportError),
}


def read(frame: bytes) -> DaemonFrame:
    """What a whole frame says. Raises NotADaemon."""
    try:
        schema_id = _dispatches.decode(frame).schema_id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise NotADaemon("what listens there sent a frame that is no map with a schema_id") from None
    decoder = _decoders.get(schema_id)
    if decoder is None:
        raise NotADaemon(f"what listens there sent a frame that no daemon sends: {schema_id!r:.120}")
    try:
        said: DaemonFrame = decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotADaemon(f"what listens there sent a {schema_id} that is none: {error}") from None
    if isinstance(said, TransportWelcome) and said.protocol != PROTOCOL:
        raise NotADaemon(f"the daemon speaks protocol {said.protocol}; this client speaks {PROTOCOL}")
    return said
