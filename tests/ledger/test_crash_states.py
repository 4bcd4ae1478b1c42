"""A crash at any call, with any of what was not synced: nothing acknowledged is lost, nothing invented, and nothing
dropped that may not be."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from itertools import count
from typing import Final

import pytest
from kit.crash_explorer import explored

SEEDS: Final = (6, 7)  # of the shorter ones that come to all that is looked for
CAMPAIGN_STATES_MIN: Final = 100_000
PROCESSES: Final = 2
# What states are to be among them: after a dropping, in the midst of one, with requests that stayed open through it,
# with some of those ended since.
KINDS: Final = ("dropped", "dropping", "kept open", "ended late", "torn", "cut", "read twice")
DONE: Final = ("segments", "seals", "merges", "droppings", "resolves")


def seen_by(seed: int, samples: int = 5, lives: int = 14) -> Counter[str]:
    explorer = explored(seed, samples=samples, lives=lives)
    if explorer.broken:
        raise AssertionError(str(explorer.broken)) from explorer.broken  # one that can be sent to another process
    return explorer.seen


def test_no_crash_loses_what_was_acknowledged_or_invents_what_was_not() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += seen_by(seed, samples=3, lives=12)
    assert not [kind for kind in (*KINDS, *DONE) if not seen[kind]], f"not looked at: {seen}"


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_crash_states_keep_every_promise() -> None:
    began = time.perf_counter()
    seen: Counter[str] = Counter()
    seeds = count(1)
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as processes:
        under_way = deque(processes.submit(seen_by, next(seeds)) for _ in range(PROCESSES + 1))
        while seen["states"] < CAMPAIGN_STATES_MIN:
            seen += under_way.popleft().result()
            under_way.append(processes.submit(seen_by, next(seeds)))
        for one in under_way:
            one.cancel()
    took = time.perf_counter() - began
    print(f"\n{seen['states']} states in {took:.0f} s, by {next(seeds) - 1} seeds")
    print("  what had been done:", ", ".join(f"{seen[name]} {name}" for name in DONE))
    print("  states:", ", ".join(f"{seen[name]} {name}" for name in KINDS))
    assert not [kind for kind in (*KINDS, *DONE) if seen[kind] < 50]
