"""How a person's decision about an Indeterminate request becomes its end. Pure.

The Completed record of CONTRACT section 4: a failure that says who decided and
why, at nothing or at the whole reservation, replayed like any other answer.
The running daemon and the command on a ledger at rest write the same record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sidecar.connectors.messages import clean_message
from sidecar.contract.operator_frames import Found, OperatorResolve
from sidecar.contract.values import NOTHING_USED, BeginRecord, CompletedRecord, Failed, TransportOutcome
from sidecar.ledger.landing import Place
from sidecar.service.settlement import Settled, completed_record, result_frame

WHY_NOT: Final[Mapping[Found, str]] = {  # what a request is that there is nothing to decide about
    "running": "it is running: it ends by itself, at its deadline at the latest",
    "unknown": "there is none on record under this id",
    "ended": "it is on record how it ended",
    "being_resolved": "another operator's decision is being recorded",
}

_NOTHING: Final = "nothing is charged"
_RESERVATION: Final = "the whole reservation is charged"
_RESOLVED: Final = re.compile(f"resolved by (.+?), (?:{_NOTHING}|{_RESERVATION}): ")


def who_resolved(message: str) -> str | None:
    """Who decided, of a failure's message that `settlement` made; None for any other."""
    found = _RESOLVED.match(message)
    return found[1] if found else None


def why_not(found: Found) -> str:
    """A sentence on a request that is not settled, the same from the daemon and from the command."""
    return f"{WHY_NOT[found]}; nothing was changed"


def settlement(begin: BeginRecord, asked: OperatorResolve) -> Settled:
    """A failure that tells who decided and why, at nothing or at the whole reservation."""
    is_free = asked.charge == "nothing"
    decided = _NOTHING if is_free else _RESERVATION
    message = clean_message(f"resolved by {asked.who}, {decided}: {asked.why}")
    usage = NOTHING_USED if is_free else None
    return Settled(
        outcome=TransportOutcome(failed=Failed(kind="unavailable", message=message, usage=usage)),
        events=(),
        charge_micro_usd=0 if is_free else begin.reservation_micro_usd,
        notes=(),
    )


def resolved_record(
    begin: BeginRecord, begin_place: Place, asked: OperatorResolve, completed_at_unix_ms: int
) -> CompletedRecord:
    """What is recorded, with the answer that every replay gets from now on."""
    settled = settlement(begin, asked)
    return completed_record(
        settled,
        result_frame(begin, settled),
        begin_segment=begin_place.segment,
        begin_offset=begin_place.offset,
        completed_at_unix_ms=completed_at_unix_ms,
        first_event_at_unix_ms=None,
    )
