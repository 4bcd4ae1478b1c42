"""What no refusal can say, as a frame; and what is on record and can't be read, for the log as well."""

from __future__ import annotations

from pathlib import Path

from sidecar.connectors.messages import clean_message
from sidecar.contract import canonical
from sidecar.contract.values import TRANSPORT_ERROR, TransportError, TransportErrorCode
from sidecar.ledger.faults import LedgerUnavailable, RecordDamaged
from sidecar.ops.log import Log
from sidecar.service.metrics import Meter


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


def unreadable(
    log: Log,
    meter: Meter,
    fault: LedgerUnavailable,
    caller: str,
    request_id: str,
    file: Path | None = None,
    offset: int | None = None,
) -> bytes:
    """What is on record about this request can't be read: told in the log, and as a frame.

    Where it is damaged, that won't pass by itself: `internal`. `file` and
    `offset` are where it stands, for a fault that doesn't say so itself.
    """
    damage = fault if isinstance(fault, RecordDamaged) else None
    if damage is not None and damage.file is not None:
        file, offset = damage.file, damage.offset
    place = {} if file is None else {"file": file, "offset": offset}
    helps = {} if damage is None else {"advice": damage.advice}
    log.error("record_unreadable", caller=caller, request=request_id, why=str(fault), **place, **helps)
    code: TransportErrorCode = "ledger_unavailable" if damage is None else "internal"
    meter.told_error(code)
    return error_frame(code, str(fault), caller, request_id)
