"""One request to what a child will be asked, and the reasoning states on both ways. Pure.

A child's reasoning state is any bytes. What leaves the daemon is an envelope
around them that names the kind and the upstream model, and only an envelope
that is byte for byte what this module makes of its own content is opened
again, so that the child gets back what it gave and nothing that it can't use.
Source: CONTRACT sections 3 (rules 10, 11) and 6, WIRE section 1.3.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import Struct, structs

from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract import canonical
from sidecar.contract.connector_frames import CONNECTOR_REQUEST, ConnectorRequest
from sidecar.contract.values import U64_MAX, InputItem, ProviderRequest
from sidecar.rules.framing import FRAME_BYTES_LIMIT


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    k: Literal["process"]
    m: str
    s: bytes  # base64 in JSON
    v: Literal[1]


_write: Final = msgspec.json.Encoder().encode
_envelopes: Final = msgspec.json.Decoder(_Envelope)


def lower(request: ProviderRequest, upstream: str) -> Lowered:
    """The request as the child gets it. Raises Rejected where nothing is left of it, or no frame can carry it."""
    kept = tuple([item for item in (_usable(item, upstream) for item in request.input) if item is not None])
    if not kept:
        raise Rejected("nothing is left of the input without reasoning states that this model can't use")
    dropped = len(request.input) - len(kept)
    usable = structs.replace(request, input=kept)
    if len(encoded(usable, upstream, exchange=U64_MAX, deadline_ms=U64_MAX)) > FRAME_BYTES_LIMIT:
        raise Rejected(f"the request takes more than the {FRAME_BYTES_LIMIT} bytes of a frame")
    return Lowered(
        request=usable,
        upstream=upstream,
        body=usable,
        states_dropped=dropped,
        call_ids=frozenset([item.tool_call.call_id for item in kept if item.tool_call]),
    )


def encoded(request: ProviderRequest, upstream: str, *, exchange: int, deadline_ms: int) -> bytes:
    """The frame that asks a child, without its length prefix."""
    return canonical.encode(
        ConnectorRequest(
            schema_id=CONNECTOR_REQUEST, exchange=exchange, deadline_ms=deadline_ms, request=request, upstream=upstream
        )
    )


def wrapped(state: bytes, upstream: str) -> bytes:
    """A child's state as it leaves the daemon."""
    return _write(_Envelope(k="process", m=upstream, s=state, v=1))


def _usable(item: InputItem, upstream: str) -> InputItem | None:
    """The item as the child gets it; None for a state that this connector, for this model, did not emit."""
    if not item.reasoning_state:
        return item
    try:
        envelope = _envelopes.decode(item.reasoning_state.state)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if envelope.m != upstream or wrapped(envelope.s, upstream) != item.reasoning_state.state:
        return None
    return InputItem(reasoning_state=structs.replace(item.reasoning_state, state=envelope.s))
