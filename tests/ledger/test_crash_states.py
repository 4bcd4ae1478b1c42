"""A crash at any call, with any of what was not synced: nothing acknowledged is lost, nothing invented."""

from __future__ import annotations

import time

import pytest
from kit.crash_explorer import explored

STATES_MIN = 3000
CAMPAIGN_STATES_MIN = 100_000


def states_held(at_least: int, samples: int) -> tuple[int, int]:
    """How many states there were, and in how many of them a torn tail."""
    states = set_aside = seed = 0
    while states < at_least:
        seed += 1
        explorer = explored(seed, samples=samples)
        if explorer.broken:
            raise explorer.broken
        states += explorer.states
        set_aside += explorer.set_aside
    return states, set_aside


def test_no_crash_loses_what_was_acknowledged_or_invents_what_was_not() -> None:
    states, set_aside = states_held(STATES_MIN, samples=6)
    assert set_aside > states // 50, "torn tails are among them"


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_crash_states_keep_every_promise() -> None:
    began = time.perf_counter()
    states, set_aside = states_held(CAMPAIGN_STATES_MIN, samples=12)
    took = time.perf_counter() - began
    print(f"{states} states, {set_aside} with a torn tail, {states / took:.0f} states/s")
