"""Whole file systems that fail for real under the daemon: read-only, a device that fails and heals.

python -m pytest -m campaign tests/campaigns -k faults -s
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit import disk_faults
from kit.counted_provider import CountedProvider, counted_provider
from kit.daemon_process import running_daemon, spawn
from kit.disk_faults import MEBIBYTE
from kit.disk_scenarios import FEW_AT_ONCE, SPARES, busy_callers
from kit.disk_trial import SEGMENT_BYTES, Trial, at_level, poisoned_once, refused_from_now_on

pytestmark = [pytest.mark.campaign, pytest.mark.faults]

HEALINGS = 5


@pytest.fixture
def provider() -> Iterator[CountedProvider]:
    with counted_provider() as provider:
        yield provider


@pytest.fixture
def trial(tmp_path: Path, provider: CountedProvider) -> Trial:
    return Trial(tmp_path, provider)


def test_erofs_after_an_error_of_the_file_system_poisons_and_replays_until_the_end(trial: Trial) -> None:
    """ext4 finds an inconsistency and lets nobody write any more, also not who has the segment open."""
    with disk_faults.ext4(trial.folder / "image", trial.ledger, 64 * MEBIBYTE, "errors=remount-ro") as disk:
        with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
            disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
            with daemon.connect() as client, daemon.connect() as other:
                warm = trial.warm_up(client, 4)
                trial.hold_at_the_provider(other, "running1")
                disk.find_an_error()
                assert trial.ask(client, "victim-1") == "ledger_unavailable"
                refused_from_now_on(trial, client, warm)
                assert trial.heard(other.receive() or b"") == "ledger_unavailable"
            assert daemon.process.wait(timeout=20) == 74
            poisoned_once(daemon, "Read-only file system")
        assert trial.provider.asked["victim-1"] == 0
        cant_start(trial, "Read-only file system")
        disk.repair_and_mount()
        trial.check(daemon=FEW_AT_ONCE)


def test_a_directory_that_is_read_only_from_now_on_presses_and_poisons_when_a_segment_is_put_to_use(
    trial: Trial,
) -> None:
    """The segment in use is open and goes on; a spare can't be made, and the next can't be given its name."""
    trial.provider.answer_characters = 150_000
    with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
        disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
        with daemon.connect() as client, daemon.connect() as other:
            warm = trial.warm_up(client, 2)
            trial.hold_at_the_provider(other, "running1")
            with disk_faults.read_only_bind(trial.ledger):
                trial.ask_until_refused(client)
                refused_from_now_on(trial, client, warm)
                assert trial.heard(other.receive() or b"") == "ledger_unavailable"
                client.close()
                other.close()
                assert daemon.process.wait(timeout=20) == 74
                poisoned_once(daemon, "Read-only file system")
                cant_start(trial, "Read-only file system")
    trial.check(daemon=FEW_AT_ONCE)


def cant_start(trial: Trial, text: str) -> None:
    """A daemon that can't write its ledger doesn't begin, says why in one line, and ends with 74."""
    refused = spawn(trial.folder)
    assert refused.process.wait(timeout=20) == 74
    (line,) = at_level(refused, "error")
    assert line.startswith("ledger_unusable ")
    assert text in line
    assert str(trial.ledger) in line


def test_a_device_that_fails_writes_and_heals_is_given_up_at_once_and_nothing_is_believed_that_it_lost(
    trial: Trial,
) -> None:
    """After the fault the page cache shows what the disk has not got, and a further sync would say that all is well.

    The next daemon begins on the healed device as it is, without a mount in between, wherever the file system allows.
    """
    remounts = 0
    with disk_faults.failing_device(trial.folder, trial.ledger, 64 * MEBIBYTE) as disk:
        for number in range(HEALINGS + 1):
            with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
                trial.check_ledger(
                    trial.view()
                )  # not sooner: it makes the page cache forget, which is the daemon's part
                if number == HEALINGS:
                    break
                with busy_callers(trial, daemon, f"{number:03}", 8):
                    disk.fail()
                    assert daemon.process.wait(timeout=20) == 74
                poisoned_once(daemon, "Input/output error", "Read-only file system")
            disk.heal()
            if not can_write(trial.ledger):
                disk.repair_and_mount()
                remounts += 1
        trial.check(daemon=FEW_AT_ONCE)
        disk.mount_again()
        trial.check_ledger(trial.view())
    print(f"{HEALINGS} times failed and healed, {remounts} of them with a new mount; {len(trial.answers)} answered")
    assert remounts < HEALINGS


def can_write(directory: Path) -> bool:
    """Whether the file system still takes a new file: after a failed write of its own journal it doesn't."""
    try:
        with (directory / "trial").open("wb") as file:
            file.write(b"trial")
            os.fsync(file)
        (directory / "trial").unlink()
    except OSError:
        return False
    return True


def test_a_thin_device_without_room_is_met_at_a_sync_and_loses_nothing(trial: Trial) -> None:
    """The file system has room, its device has none: writes succeed, and a sync says EIO instead of ENOSPC."""
    trial.provider.answer_characters = 150_000
    pool = trial.folder / "pool"
    options = "errors=remount-ro"
    with (
        disk_faults.small_tmpfs(pool, 12 * MEBIBYTE),
        disk_faults.ext4(pool / "image", trial.ledger, 64 * MEBIBYTE, options) as disk,
    ):
        with running_daemon(trial.folder, connector=trial.provider.connector, daemon=FEW_AT_ONCE) as daemon:
            disk_faults.wait_for_spares(trial.ledger, SPARES, SEGMENT_BYTES)
            with daemon.connect() as client, daemon.connect() as other:
                warm = trial.warm_up(client, 2)
                trial.hold_at_the_provider(other, "running1")
                trial.ask_until_refused(client, most=100)
                trial.provider.release()
                settled = trial.heard(other.receive() or b"") == "end_turn"
                refused_from_now_on(trial, client, warm)
            assert trial.view().open or settled
            if at_level(daemon, "critical"):
                assert daemon.process.wait(timeout=20) == 74
                poisoned_once(daemon, "Input/output error", "Read-only file system")
            else:
                daemon.kill()
        disk_faults.grow_tmpfs(pool, 64 * MEBIBYTE)
        disk.repair_and_mount()
        trial.check(daemon=FEW_AT_ONCE)
