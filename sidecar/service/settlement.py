"""From what a connector lifted to what is answered, charged and recorded. Pure.

The rules of CONTRACT sections 5 and 6 that turn an ended answer into a
receipt: the connector's usage policy, the charge under the rows of admission,
an answer that is too large to carry, an over-run. A failure with usage is
charged by it; anything whose usage is not known costs the whole reservation.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, structs

from sidecar.connectors.messages import clean_message
from sidecar.connectors.promise import Ended
from sidecar.contract import canonical
from sidecar.contract.values import (
    NOTHING_USED,
    STORED_AS_IS,
    TRANSPORT_RECEIPT,
    TRANSPORT_RESULT,
    U64_MAX,
    BeginRecord,
    Completed,
    CompletedRecord,
    Failed,
    FailureKind,
    Note,
    TransportDisposition,
    Transported,
    TransportEvent,
    TransportEventPayload,
    TransportOutcome,
    TransportReceipt,
    TransportResult,
    Usage,
)
from sidecar.rules.pricing import charge_micro_usd

_NO_USAGE: Final = (
    'the provider reported no usage that is money (of the connector, usage = "bound" takes such answers,'
    ' "estimate" what a server guesses)'
)
UsagePolicy = Literal["required", "bound", "estimate"]


class Settled(Struct, frozen=True, kw_only=True):
    """One request's end: the outcome that its caller reads, what it costs, and what the record notes."""

    outcome: TransportOutcome
    events: tuple[TransportEventPayload, ...]
    charge_micro_usd: int
    notes: tuple[Note, ...]

    @property
    def usage(self) -> Usage | None:
        ended = self.outcome.completed or self.outcome.failed
        assert ended, "an outcome has one of the two"
        return ended.usage


def settle(
    begin: BeginRecord,
    ended: Ended,
    events: tuple[TransportEventPayload, ...],
    notes: tuple[Note, ...],
    policy: UsagePolicy,
) -> Settled:
    """What an ended answer comes to under the terms of its begin record.

    A backend that claims another cost than the one derived is not believed in anything that is money.
    """
    if policy == "estimate" and ended.usage not in (None, NOTHING_USED):
        notes = (*notes, "usage_estimated")
    settled = _settle(begin, ended, events, notes, policy)
    claimed = ended.claimed_cost_micro_usd
    if claimed is None or claimed == settled.charge_micro_usd:
        return settled
    why = f"the backend claims a cost of {claimed} micro-USD; by its usage it is {settled.charge_micro_usd}"
    return _failed(begin, "provider", why, None, settled.events, notes)


def _settle(
    begin: BeginRecord,
    ended: Ended,
    events: tuple[TransportEventPayload, ...],
    notes: tuple[Note, ...],
    policy: UsagePolicy,
) -> Settled:
    if ended.stop_reason is None:
        assert ended.kind is not None, "an answer has ended neither well nor badly"
        kept = () if ended.kind == "result_size" else events
        return _failed(begin, ended.kind, ended.message, ended.usage, kept, notes)
    usage = ended.usage
    if usage is None and policy != "bound":
        return _failed(begin, "provider", _NO_USAGE, None, events, notes)
    if usage is None:
        usage = Usage(
            input_tokens=begin.input_bound_tokens,
            cache_read_tokens=0,
            cache_write_tokens=0,
            output_tokens=begin.max_output_tokens,
        )
        charge, notes = begin.reservation_micro_usd, (*notes, "usage_bound")
    else:
        charge = _charge(begin, usage, notes)
        if charge > U64_MAX:
            return _failed(begin, "provider", "the reported usage is no money", None, events, notes)
    completed = Completed(stop_reason=ended.stop_reason, usage=usage, provider_response_id=ended.provider_response_id)
    return Settled(
        outcome=TransportOutcome(completed=completed),
        events=events,
        charge_micro_usd=charge,
        notes=_with_over_run(begin, charge, notes),
    )


def too_large(begin: BeginRecord, settled: Settled, why: str) -> Settled:
    """The same end without its events, for an answer that can't be carried or recorded whole; its usage is kept."""
    degraded = _failed(begin, "result_size", why, settled.usage, (), (*settled.notes, "result_degraded"))
    return structs.replace(degraded, charge_micro_usd=settled.charge_micro_usd)  # the bound is charged as a reservation


def _failed(
    begin: BeginRecord,
    kind: FailureKind,
    message: str,
    usage: Usage | None,
    events: tuple[TransportEventPayload, ...],
    notes: tuple[Note, ...],
) -> Settled:
    charge = begin.reservation_micro_usd
    if usage is not None:
        charge = _charge(begin, usage, notes)
        if charge > U64_MAX:
            kind, message, usage, charge = (
                "provider",
                "the reported usage is no money",
                None,
                begin.reservation_micro_usd,
            )
    return Settled(
        outcome=TransportOutcome(failed=Failed(kind=kind, message=clean_message(message), usage=usage)),
        events=events,
        charge_micro_usd=charge,
        notes=_with_over_run(begin, charge, notes),
    )


def _charge(begin: BeginRecord, usage: Usage, notes: tuple[Note, ...]) -> int:
    """By the rows of admission; the reservation at least where some of it was made at prices not known here."""
    retention = "long" if "cache_kept_longer" in notes else begin.cache_retention
    charge = charge_micro_usd(begin.prices, usage, retention)
    return max(charge, begin.reservation_micro_usd) if "provider_fallback" in notes else charge


def _with_over_run(begin: BeginRecord, charge: int, notes: tuple[Note, ...]) -> tuple[Note, ...]:
    if charge > begin.reservation_micro_usd and "over_run" not in notes:
        return (*notes, "over_run")
    return notes


def result_frame(begin: BeginRecord, settled: Settled) -> bytes:
    """The canonical TransportResult that the caller gets, and gets again on a replay; without its length prefix."""
    receipt = TransportReceipt(
        schema_id=TRANSPORT_RECEIPT,
        request_id=begin.request_id,
        caller_runtime_id=begin.caller_runtime_id,
        native_request_sha256=begin.native_request_sha256,
        provider_request_sha256=begin.provider_request_sha256,
        model=begin.model,
        provider=begin.provider,
        foreign_reasoning_dropped=begin.foreign_reasoning_dropped,
        cost_micro_usd=settled.charge_micro_usd,
        outcome=settled.outcome,
    )
    events = tuple([TransportEvent(sequence=at, payload=payload) for at, payload in enumerate(settled.events)])
    result = TransportResult(
        schema_id=TRANSPORT_RESULT,
        request_id=begin.request_id,
        caller_runtime_id=begin.caller_runtime_id,
        disposition=TransportDisposition(transported=Transported(events=events, receipt=receipt)),
    )
    return canonical.encode(result)


def completed_record(
    settled: Settled,
    frame: bytes,
    *,
    begin_segment: int,
    begin_offset: int,
    completed_at_unix_ms: int,
    first_event_at_unix_ms: int | None,
) -> CompletedRecord:
    """The record that settles a request with the frame as it will be sent."""
    failed = settled.outcome.failed
    return CompletedRecord(
        begin_segment=begin_segment,
        begin_offset=begin_offset,
        charge_micro_usd=settled.charge_micro_usd,
        completed_at_unix_ms=completed_at_unix_ms,
        first_event_at_unix_ms=first_event_at_unix_ms,
        outcome=failed.kind if failed else "completed",
        notes=settled.notes,
        response=STORED_AS_IS + frame,
        usage=settled.usage,
    )
