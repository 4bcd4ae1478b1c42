"""The log's line about a request that has ended: what happened, how long it took, and what it cost."""

from __future__ import annotations

from sidecar.contract.values import CompletedRecord, StopReason
from sidecar.ledger.landing import Place
from sidecar.ops.log import Log
from sidecar.service.decision import Admitted


def tell_end(
    log: Log,
    admitted: Admitted,
    record: CompletedRecord,
    place: Place,
    stop_reason: StopReason | None,
    took_seconds: float,
    first_event_seconds: float | None,
) -> None:
    """A warning where a person must look. What is as it mostly is, or none, is left out: one line is one request."""
    begin, usage = admitted.begin, record.usage
    values: dict[str, object] = {
        "caller": begin.caller_runtime_id,
        "request": begin.request_id,
        "model": begin.model,
        "connector": begin.provider,
        "outcome": record.outcome,
        "charge_micro_usd": record.charge_micro_usd,
        "reserved_micro_usd": begin.reservation_micro_usd,
        "connection": admitted.connection,
        "took_ms": int(took_seconds * 1000),
        "record": f"{place.segment}:{place.offset}",
    }
    if first_event_seconds is not None:
        values["first_event_ms"] = int(first_event_seconds * 1000)
    if usage is not None:
        values["input_tokens"] = usage.input_tokens
        values["output_tokens"] = usage.output_tokens
        if usage.cache_read_tokens:
            values["cache_read_tokens"] = usage.cache_read_tokens
        if usage.cache_write_tokens:
            values["cache_write_tokens"] = usage.cache_write_tokens
        if usage.reasoning_tokens:
            values["reasoning_tokens"] = usage.reasoning_tokens
    if stop_reason is not None and stop_reason != "end_turn":
        values["stop_reason"] = stop_reason
    if record.notes:
        values["notes"] = ",".join(record.notes)
    if "over_run" in record.notes or record.outcome == "authentication":
        log.warning("completed", **values)
    else:
        log.info("completed", **values)
