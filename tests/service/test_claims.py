"""A cost that a backend claims: believed by nobody, and only the derived one lets an answer pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import records
from msgspec import structs

from sidecar.connectors.promise import Ended
from sidecar.contract import values as v
from sidecar.service.settlement import settle

USED = v.Usage(input_tokens=11, cache_read_tokens=5, cache_write_tokens=3, output_tokens=7)
EVENTS = (v.TransportEventPayload(text_delta=v.TextDelta(text="Hello")),)
ENDS = [
    Ended(stop_reason="end_turn", usage=USED),
    Ended(stop_reason="end_turn", usage=None),
    Ended(kind="rate_limited", message="slow down", usage=v.NOTHING_USED),
    Ended(kind="timeout", message="late", usage=USED),
    Ended(kind="unavailable", message="gone", usage=None),
]


@pytest.mark.parametrize("policy", ["required", "bound", "estimate"])
@pytest.mark.parametrize("ended", ENDS)
@given(claimed=st.integers(0, v.U64_MAX))
def test_a_claim_changes_nothing_or_fails_the_answer_at_its_whole_reservation(
    policy: str, ended: Ended, claimed: int
) -> None:
    begin = records.begin()
    derived = settle(begin, ended, EVENTS, (), policy)
    for said in (claimed, derived.charge_micro_usd):
        settled = settle(begin, structs.replace(ended, claimed_cost_micro_usd=said), EVENTS, (), policy)
        if said == derived.charge_micro_usd:
            assert settled == derived
            continue
        assert settled.outcome.failed
        assert (settled.outcome.failed.kind, settled.usage) == ("provider", None)
        assert settled.charge_micro_usd == begin.reservation_micro_usd
        assert settled.events == EVENTS
