"""The daemon on a disk that fails: at every kind of call, in every way that this machine can bring about for real.

    python -m pytest -m campaign tests/campaigns -k faults -s

Each test ends with `Trial.check`: nothing acknowledged is lost, nothing was
answered that is not on record, nothing was sent upstream without a begin or
twice, what is open is indeterminate and holds its money, a restart serves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from kit import disk_faults
from kit.counted_provider import CountedProvider, counted_provider
from kit.daemon_process import running_daemon
from kit.disk_faults import MEBIBYTE
from kit.disk_scenarios import (
    FEW_AT_ONCE,
    SPARES,
    a_failure_in_use_is_final,
    a_write_that_stays_short_is_final,
    pressure_comes_and_goes_under_load,
    pressure_refuses_and_passes,
    slow_syncs_hold_callers_back_and_nothing_grows,
    spares_that_fail_are_pressure,
)
from kit.disk_trial import SEGMENT_BYTES, Trial, poisoned_once, refused_from_now_on

from sidecar.ledger.files import DiskFiles

pytestmark = pytest.mark.campaign
faults = pytest.mark.faults  # every error at every call is for a campaign; some of each are in every run

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


# --- no spare segment can be made -------------------------------------------------------------------------------


@faults
def test_enospc_for_a_spare_is_pressure_on_a_small_tmpfs(trial: Trial) -> None:
    with disk_faults.small_tmpfs(trial.ledger, 8 * MEBIBYTE):
        pressure_refuses_and_passes(trial, "No space left on device", lambda _: disk_faults.ballast(trial.ledger))


@faults
def test_enospc_for_a_spare_is_pressure_on_ext4(trial: Trial) -> None:
    with disk_faults.ext4(trial.folder / "image", trial.ledger, 16 * MEBIBYTE):
        pressure_refuses_and_passes(trial, "No space left on device", lambda _: disk_faults.ballast(trial.ledger))


@faults
def test_enospc_for_a_spare_is_pressure_on_btrfs_though_it_copies_on_write(trial: Trial) -> None:
    """The segment in use is written in place: where every write needed new room, the first one would poison."""
    with disk_faults.btrfs(trial.folder / "image", trial.ledger) as disk:
        pressure_refuses_and_passes(trial, "No space left on device", lambda _: disk_faults.ballast(disk))


@faults
def test_pressure_comes_and_goes_under_load_on_ext4(trial: Trial) -> None:
    with disk_faults.ext4(trial.folder / "image", trial.ledger, 64 * MEBIBYTE):
        pressure_comes_and_goes_under_load(trial, lambda: disk_faults.ballast(trial.ledger))


@faults
def test_pressure_comes_and_goes_under_load_on_a_small_tmpfs(trial: Trial) -> None:
    with disk_faults.small_tmpfs(trial.ledger, 64 * MEBIBYTE):
        pressure_comes_and_goes_under_load(trial, lambda: disk_faults.ballast(trial.ledger))


@faults
def test_edquot_for_a_spare_is_pressure_on_btrfs_with_a_quota(trial: Trial) -> None:
    """Segments of the daemon's own reach the quota, and somebody raises it."""

    @contextmanager
    def until_it_is_raised(directory: Path) -> Iterator[None]:
        yield
        disk_faults.set_btrfs_quota(directory.parent, directory, 32 * MEBIBYTE)

    with disk_faults.btrfs(trial.folder / "image", trial.folder / "disk") as disk:
        directory = disk / "ledger"
        disk_faults.set_btrfs_quota(disk, directory, 6_000_000)
        trial.ledger.symlink_to(directory)
        pressure_refuses_and_passes(trial, "Disk quota exceeded", lambda _: until_it_is_raised(directory))


@faults
def test_a_btrfs_quota_without_one_byte_left_poisons_and_loses_nothing(trial: Trial) -> None:
    """Under a quota a write in place still needs room for its bookkeeping; without it the segment in use fails."""
    with disk_faults.btrfs(trial.folder / "image", trial.folder / "disk") as disk:
        directory = disk / "ledger"
        disk_faults.set_btrfs_quota(disk, directory, 16 * MEBIBYTE)
        trial.ledger.symlink_to(directory)
        with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
            disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
            with daemon.connect() as client, daemon.connect() as other:
                warm = trial.warm_up(client, 2)
                trial.hold_at_the_provider(other, "running1")
                with disk_faults.ballast(directory):
                    trial.ask_until_refused(client)
                    refused_from_now_on(trial, client, warm)
                    assert trial.heard(other.receive() or b"") == "ledger_unavailable"
            assert daemon.process.wait(timeout=20) == 74
            poisoned_once(daemon, "Disk quota exceeded")
        trial.check(daemon=FEW_AT_ONCE)


@faults
def test_a_spare_that_finds_too_little_room_takes_none_of_it(tmp_path: Path) -> None:
    """What there is stays for the bookkeeping of the segment in use, also while making the spare is tried again."""
    files = DiskFiles()
    with disk_faults.btrfs(tmp_path / "image", tmp_path / "disk") as disk:
        disk_faults.set_btrfs_quota(disk, disk / "ledger", 2 * MEBIBYTE)
        descriptor = files.create(disk / "ledger" / "spare")
        try:
            with pytest.raises(OSError, match="Disk quota exceeded"):
                files.write_zeros(descriptor, 4 * MEBIBYTE, lambda: True)
            assert os.fstat(descriptor).st_blocks == 0
        finally:
            files.close(descriptor)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", ["pwritev2", "fdatasync"])
def test_any_error_for_a_spare_is_pressure(trial: Trial, call: str, error: str) -> None:
    spares_that_fail_are_pressure(trial, call, error, ERRORS[error])


@faults
@pytest.mark.parametrize("half", ["begin", "complete"])
def test_a_write_that_stays_short_is_final_on_ext4(trial: Trial, half: Literal["begin", "complete"]) -> None:
    with disk_faults.ext4(trial.folder / "image", trial.ledger, 64 * MEBIBYTE):
        a_write_that_stays_short_is_final(trial, half)


# --- a slow disk (short writes and the order of calls are in every run: tests/service/test_disk_faults.py) ----------


def test_c3_on_a_disk_that_takes_200_ms_a_sync_admission_slows_memory_is_flat_and_none_is_lost(trial: Trial) -> None:
    slow_syncs_hold_callers_back_and_nothing_grows(trial, rounds=12)
