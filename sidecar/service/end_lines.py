"""The log's line about a request that has ended: what happened, how long it took, and what it cost."""

from __future__ import annotations

from sidecar.contract.values import CompletedRecord
from sidecar.ledger.landing import Place
from sidecar.ops.log import Log
from sidecar.service.decision import Admitted


def tell_end(
    log: Log,
    admitted: Admitted,
    record: CompletedRecord,
    place: Place,
    outcome: str,
    took_seconds: float,
    first_event_seconds: float | None,
) -> None:
    """A warning where a person must look. What there is none of is left out, but for what it cost."""
    begin, usage = admitted.begin, record.usage
    values: dict[str, object] = {
        "connection": admitted.connection,
        "caller": begin.caller_runtime_id,
        "request": begin.request_id,
        "model": begin.model,
        "connector": begin.provider,
        "outcome": outcome,
        "charge_micro_usd": record.charge_micro_usd,
        "reserved_micro_usd": begin.reservation_micro_usd,
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
    if record.notes:
        values["notes"] = ",".join(record.notes)
    is_for_a_person = "over_run" in record.notes or outcome == "authentication"
    (log.warning if is_for_a_person else log.info)("completed", **values)
