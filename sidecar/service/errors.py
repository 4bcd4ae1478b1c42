"""What no refusal can say, as a frame."""

from __future__ import annotations

from sidecar.connectors.messages import clean_message
from sidecar.contract import canonical
from sidecar.contract.values import TRANSPORT_ERROR, TransportError, TransportErrorCode


def error_frame(
    code: TransportErrorCode, message: str, caller: str | None = None, request_id: str | None = None
) -> bytes:
    """The canonical transport error, without its length prefix."""
    return canonical.encode(
        TransportError(
            schema_id=TRANSPORT_ERROR,
            code=code,
            message=clean_message(message),
            caller_runtime_id=caller,
            request_id=request_id,
        )
    )
