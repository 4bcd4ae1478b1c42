"""Frames as a daemon writes them, for tests that play its part; values of the project's own types."""

from __future__ import annotations

from typing import Any

from sidecar.contract import canonical
from sidecar.contract.client_frames import (
    TRANSPORT_EVENT,
    TRANSPORT_QUOTED,
    TRANSPORT_STATUS_REPORT,
    TRANSPORT_WELCOME,
    DaemonStatus,
    LiveEvent,
    TransportQuoted,
    TransportStatusReport,
    TransportWelcome,
)
from sidecar.contract.values import (
    TRANSPORT_ERROR,
    TRANSPORT_RECEIPT,
    TRANSPORT_RESULT,
    Completed,
    Failed,
    TextDelta,
    ToolCall,
    TransportDisposition,
    Transported,
    TransportError,
    TransportErrorCode,
    TransportEvent,
    TransportEventPayload,
    TransportOutcome,
    TransportReceipt,
    TransportResult,
    Usage,
    refused,
)

CALLER = "dungeon"
_DIGEST = (7,) * 32


def welcome(**changes: Any) -> bytes:
    members = {
        "schema_id": TRANSPORT_WELCOME,
        "protocol": 1,
        "server": "fake",
        "callers": (CALLER,),
        "frame_bytes_max": 4_194_304,
        "stream_events": False,
        "join": True,
    }
    return canonical.encode(TransportWelcome(**{**members, **changes}))


def text_event(text: str, sequence: int = 0) -> TransportEvent:
    return TransportEvent(sequence=sequence, payload=TransportEventPayload(text_delta=TextDelta(text=text)))


def call_event(name: str, sequence: int) -> TransportEvent:
    call = ToolCall(call_id=f"call-{sequence}", name=name, arguments="{}")
    return TransportEvent(sequence=sequence, payload=TransportEventPayload(tool_call=call))


def live(request_id: str, event: TransportEvent, caller: str = CALLER) -> bytes:
    return canonical.encode(
        LiveEvent(schema_id=TRANSPORT_EVENT, caller_runtime_id=caller, request_id=request_id, event=event)
    )


def result(request_id: str, *events: TransportEvent | str, failed: Failed | None = None, caller: str = CALLER) -> bytes:
    """A result with these events; a text alone is one event."""
    whole = tuple(text_event(event, place) if isinstance(event, str) else event for place, event in enumerate(events))
    usage = Usage(input_tokens=3, output_tokens=2, cache_read_tokens=0, cache_write_tokens=0)
    outcome = (
        TransportOutcome(failed=failed)
        if failed is not None
        else TransportOutcome(completed=Completed(stop_reason="end_turn", usage=usage))
    )
    receipt = TransportReceipt(
        schema_id=TRANSPORT_RECEIPT,
        caller_runtime_id=caller,
        request_id=request_id,
        provider="fake",
        model="npc",
        cost_micro_usd=12,
        foreign_reasoning_dropped=0,
        native_request_sha256=_DIGEST,
        provider_request_sha256=_DIGEST,
        outcome=outcome,
    )
    return canonical.encode(
        TransportResult(
            schema_id=TRANSPORT_RESULT,
            request_id=request_id,
            caller_runtime_id=caller,
            disposition=TransportDisposition(transported=Transported(events=whole, receipt=receipt)),
        )
    )


def refusal(request_id: str, why: Any, caller: str = CALLER) -> bytes:
    return canonical.encode(refused(caller, request_id, why))


def error(code: TransportErrorCode, request_id: str | None = None, caller: str | None = None) -> bytes:
    return canonical.encode(
        TransportError(
            schema_id=TRANSPORT_ERROR,
            code=code,
            message="says the fake",
            request_id=request_id,
            caller_runtime_id=caller or (CALLER if request_id else None),
        )
    )


def quoted(request_id: str, worst_case_micro_usd: int | None = 5, refusal: Any = None, caller: str = CALLER) -> bytes:
    return canonical.encode(
        TransportQuoted(
            schema_id=TRANSPORT_QUOTED,
            caller_runtime_id=caller,
            request_id=request_id,
            worst_case_micro_usd=worst_case_micro_usd,
            refusal=refusal,
        )
    )


def status_report(live_requests: int = 0) -> bytes:
    daemon = DaemonStatus(
        connections=1,
        connections_max=256,
        draining=False,
        ledger="ready",
        live_requests=live_requests,
        now_unix_ms=2,
        requests_in_flight_max=256,
        server="fake",
        started_at_unix_ms=1,
    )
    return canonical.encode(
        TransportStatusReport(schema_id=TRANSPORT_STATUS_REPORT, callers=(), connectors=(), models=(), daemon=daemon)
    )
