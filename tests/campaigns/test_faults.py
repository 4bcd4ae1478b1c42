"""The daemon on a disk that fails: at every kind of call, in every way that this machine can bring about for real.

    python -m pytest -m campaign tests/campaigns -k faults -s

Each test ends with `Trial.check`: nothing acknowledged is lost, nothing was
answered that is not on record, nothing was sent upstream without a begin or
twice, what is open is indeterminate and holds its money, a restart serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import disk_faults
from kit.counted_provider import CountedProvider, counted_provider
from kit.disk_trial import Trial, a_failure_in_use_is_final

pytestmark = pytest.mark.campaign

ERRORS = {
    "ENOSPC": "No space left on device",
    "EDQUOT": "Disk quota exceeded",
    "EIO": "Input/output error",
    "EROFS": "Read-only file system",
}


@pytest.fixture
def provider() -> Iterator[CountedProvider]:
    with counted_provider() as provider:
        yield provider


@pytest.fixture
def trial(tmp_path: Path, provider: CountedProvider) -> Trial:
    return Trial(tmp_path, provider)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["pwritev2", "fdatasync"])
def test_a_failed_begin_in_the_segment_in_use_poisons_and_sends_nothing(trial: Trial, call: str, error: str) -> None:
    a_failure_in_use_is_final(trial, call, error, ERRORS[error], half="begin")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["pwritev2", "fdatasync"])
def test_c2_a_failed_complete_in_the_segment_in_use_poisons_and_answers_nothing(
    trial: Trial, call: str, error: str
) -> None:
    a_failure_in_use_is_final(trial, call, error, ERRORS[error], half="complete")
