"""A disk that fails under the real daemon, by system calls that strace makes fail and by a limit of the kernel.

The same faults on real file systems, and every error at every call, are the
campaign `tests/campaigns/test_faults*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from kit import disk_faults
from kit.counted_provider import CountedProvider, counted_provider
from kit.daemon_process import running_daemon
from kit.disk_scenarios import (
    WARM_UPS,
    a_failure_in_use_is_final,
    a_segment_is_synced_and_named_before_its_first_record,
    a_short_write_whose_rest_can_be_written_is_whole,
    a_traced_run,
    a_write_that_stays_short_is_final,
    nothing_precedes_its_sync,
    slow_syncs_hold_callers_back_and_nothing_grows,
    spares_that_fail_are_pressure,
)
from kit.disk_trial import Trial, poisoned_once


@pytest.fixture
def provider() -> Iterator[CountedProvider]:
    with counted_provider() as provider:
        yield provider


@pytest.fixture
def trial(tmp_path: Path, provider: CountedProvider) -> Trial:
    return Trial(tmp_path, provider)


@pytest.mark.parametrize(
    ("half", "call", "error", "text"),
    [
        ("begin", "pwritev2", "EROFS", "Read-only file system"),
        ("begin", "fdatasync", "EIO", "Input/output error"),
        ("complete", "pwritev2", "ENOSPC", "No space left on device"),
        ("complete", "fdatasync", "EDQUOT", "Disk quota exceeded"),
    ],
)
def test_c2_a_failure_in_the_segment_in_use_is_final_and_answers_nothing(
    trial: Trial, half: Literal["begin", "complete"], call: str, error: str, text: str
) -> None:
    a_failure_in_use_is_final(trial, call, error, text, half)


def test_a_goodbye_that_cant_be_written_is_a_failed_ledger_and_says_why(trial: Trial) -> None:
    """All requests are recorded; the record of the clean exit alone is not."""
    wrapper = disk_faults.failing("fdatasync", "EIO", str(2 * WARM_UPS + 1))
    with running_daemon(trial.folder, wrapper=wrapper, connector=trial.provider.connector) as daemon:
        with daemon.connect() as client:
            trial.warm_up(client, WARM_UPS)
        assert daemon.stop() == 74
        poisoned_once(daemon, "Input/output error")
    trial.check()


@pytest.mark.parametrize(("error", "text"), [("ENOSPC", "No space left on device"), ("EDQUOT", "Disk quota exceeded")])
def test_a_spare_that_cant_be_made_is_pressure_and_passes_without_a_restart(
    trial: Trial, error: str, text: str
) -> None:
    spares_that_fail_are_pressure(trial, "pwritev2", error, text)


@pytest.mark.parametrize("half", ["begin", "complete"])
def test_a_write_that_stays_short_is_final_and_its_torn_part_is_set_aside(
    trial: Trial, half: Literal["begin", "complete"]
) -> None:
    a_write_that_stays_short_is_final(trial, half)


def test_a_short_write_whose_rest_can_be_written_is_no_fault(trial: Trial) -> None:
    a_short_write_whose_rest_can_be_written_is_whole(trial)


def test_c4_a_connection_to_the_provider_never_precedes_the_sync_of_the_begin(trial: Trial) -> None:
    trace = a_traced_run(trial)
    nothing_precedes_its_sync(trial, trace)
    a_segment_is_synced_and_named_before_its_first_record(trial, trace)


def test_c3_a_slow_disk_slows_admission_and_neither_grows_memory_nor_loses_one(trial: Trial) -> None:
    slow_syncs_hold_callers_back_and_nothing_grows(trial, rounds=4)
