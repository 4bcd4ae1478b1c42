"""Any interleaving of frames, partial writes, cancels, hang-ups and slow reads from many peers ends well.

    SIDECAR_INTERLEAVINGS=20000 python -m pytest -m campaign tests/service/test_any_interleaving.py

The same for fewer stories is in every run. What is asked of each is in `kit.crowd_verdict`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from kit import crowd, crowd_verdict
from kit.crowd_story import STORIES, Story

STORIES_ALWAYS = 200
STORIES_CAMPAIGN = int(os.environ.get("SIDECAR_INTERLEAVINGS", "20000"))


@given(STORIES)
@settings(deadline=None, max_examples=STORIES_ALWAYS, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving_ends_with_one_answer_for_each_invocation_and_with_nothing_left(story: Story) -> None:
    crowd_verdict.check(crowd.play(story))


@pytest.mark.campaign
@pytest.mark.timeout(36_000)
@given(STORIES)
@settings(deadline=None, max_examples=STORIES_CAMPAIGN, suppress_health_check=[HealthCheck.too_slow])
def test_ever_more_interleavings_end_well(story: Story) -> None:
    crowd_verdict.check(crowd.play(story))
