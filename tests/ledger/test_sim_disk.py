"""The simulated disk does what the real one does while nothing fails, and forgets what it should with the power."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.sim_disk import ALL_LANDED, NONE_LANDED, SECTOR_BYTES, Fates, Fault, SimDisk

from sidecar.ledger.files import DiskFiles

HERE = Path("/here")
# What is made of the other calls alone.
COMPOSED = {"write", "make_directory"}
OLD, NEW = b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES


def test_no_call_reaches_the_real_disk() -> None:
    calls = {name for name, _ in inspect.getmembers(DiskFiles, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in calls if name not in vars(SimDisk)} == COMPOSED


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[DiskFiles, Path]]:
    if request.param == "real":
        yield DiskFiles(), tmp_path
        return
    disk = SimDisk()
    disk.make_directory(HERE)
    yield disk, HERE
    assert not disk.descriptors


def test_the_disk_and_its_fake_pass_the_same_checks(place: tuple[DiskFiles, Path]) -> None:
    files, here = place
    directory = here / "a" / "b"
    files.make_directory(directory)
    files.make_directory(directory)
    assert files.exists(directory)
    assert not files.exists(directory / "x")
    files.keep_directory(directory)
    one = files.create(directory / "one")
    with pytest.raises(FileExistsError):
        files.create(directory / "one")
    files.write_in_place(one)
    files.write_zeros(one, 10_000, lambda: True)
    assert (files.size(one), files.read(one, 20_000, 0)) == (10_000, bytes(10_000))
    files.write(one, [b"abc", b"", memoryview(b"def")], 510)
    files.write(one, [b"end"], 9_999)
    assert (files.size(one), files.read(one, 8, 509), files.read(one, 9, 9_998)) == (10_002, b"\0abcdef\0", b"\0end")
    assert files.read(one, 5, 10_002) == b""
    files.sync(one)
    files.forget_cache(one)
    assert files.read(one, 6, 510) == b"abcdef"
    files.close(one)
    two = files.create(directory / "two")
    files.write(two, [b"two"], 0)
    files.rename(directory / "two", directory / "one")
    files.sync_directory(directory)
    assert files.names(directory) == ["one"]
    assert files.read(two, 9, 0) == b"two"
    files.give_back_zeros(directory / "one", 3)
    files.truncate(two)
    assert files.size(two) == 0
    files.close(two)
    files.unlink(directory / "one")
    for absent in (files.unlink, files.open_to_read, files.names):
        with pytest.raises(FileNotFoundError):
            absent(directory / "one")
    assert files.free_bytes(directory) > 0
    files.let_directory_go()


def test_a_lock_is_held_by_one_until_it_is_closed(place: tuple[DiskFiles, Path]) -> None:
    files, here = place
    held = files.lock(here / "lock")
    assert held is not None
    assert files.lock(here / "lock") is None
    files.close(held)
    again = files.lock(here / "lock")
    assert again is not None
    files.close(again)


# --- when the power goes ------------------------------------------------------------------------------------------


def with_a_file(content: bytes = OLD * 4) -> tuple[SimDisk, int]:
    disk = SimDisk(chance=random.Random(3))
    disk.make_directory(HERE)
    descriptor = disk.create(HERE / "file")
    disk.write(descriptor, [content], 0)
    disk.sync(descriptor)
    disk.sync_directory(HERE)
    return disk, descriptor


def left(disk: SimDisk, fates: Fates) -> bytes:
    image = disk.after_power_cut(fates)
    descriptor = image.open_to_read(HERE / "file")
    return image.read(descriptor, 1 << 20, 0)


def test_what_was_synced_is_there_and_what_was_not_is_in_any_subset_of_its_sectors() -> None:
    disk, descriptor = with_a_file()
    disk.write(descriptor, [NEW * 4], 0)
    assert left(disk, NONE_LANDED) == OLD * 4
    assert left(disk, ALL_LANDED) == NEW * 4
    chance = random.Random(7)
    seen = {left(disk, Fates(chance)) for _ in range(3000)}
    for number in range(16):
        assert b"".join(NEW if number >> at & 1 else OLD for at in range(4)) in seen
    assert any(part not in (OLD, NEW) for image in seen for part in (image[:SECTOR_BYTES],)), "rubbish too"
    disk.sync(descriptor)
    assert left(disk, NONE_LANDED) == NEW * 4


def test_a_file_that_grew_has_any_length_that_it_had_and_zeros_where_nothing_landed() -> None:
    disk, descriptor = with_a_file(OLD)
    disk.write(descriptor, [NEW], SECTOR_BYTES)
    disk.write(descriptor, [NEW], 2 * SECTOR_BYTES)
    chance = random.Random(7)
    seen = {left(disk, Fates(chance)) for _ in range(2000)}
    assert {len(image) // SECTOR_BYTES for image in seen} == {1, 2, 3}
    assert OLD + bytes(SECTOR_BYTES) + NEW in seen


def test_a_name_is_for_good_once_its_directory_is_synced_and_a_rename_is_whole() -> None:
    disk, descriptor = with_a_file()
    disk.close(descriptor)
    made = disk.create(HERE / "new")
    disk.write(made, [NEW], 0)
    disk.sync(made)
    disk.rename(HERE / "new", HERE / "file")
    chance = random.Random(7)
    images = [disk.after_power_cut(Fates(chance)) for _ in range(200)]
    assert {tuple(image.names_in(HERE)) for image in images} == {("file",), ("file", "new")}
    assert {image.file(HERE / "file").shown()[0] for image in images} == {OLD * 4, NEW}
    disk.sync_directory(HERE)
    assert left(disk, NONE_LANDED) == NEW


def test_after_a_sync_that_failed_the_cache_shows_what_the_disk_has_not() -> None:
    disk, descriptor = with_a_file()
    disk.write(descriptor, [NEW * 4], 0)
    disk.fault = lambda call, _: Fault() if call == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(descriptor)
    disk.fault = lambda call, _: None
    disk.sync(descriptor)
    assert disk.read(descriptor, 1 << 20, 0) == NEW * 4
    held = left(disk, ALL_LANDED)
    assert held != NEW * 4
    disk.write(descriptor, [OLD], 0)
    disk.sync(descriptor)
    assert disk.read(descriptor, 1 << 20, 0) == OLD + NEW * 3
    disk.forget_cache(descriptor)
    assert disk.read(descriptor, 1 << 20, 0) == OLD + held[SECTOR_BYTES:]


def test_another_process_sees_the_cache_and_holds_nothing() -> None:
    disk, descriptor = with_a_file()
    disk.write(descriptor, [NEW], 0)
    other = disk.after_exit()
    assert not other.descriptors
    assert other.file(HERE / "file").shown()[0] == NEW + OLD * 3
    other.sync(other.open_to_read(HERE / "file"))
    assert left(other, NONE_LANDED) == NEW + OLD * 3
    assert left(disk, NONE_LANDED) == OLD * 4, "the one does nothing to the other"


def test_a_write_is_taken_in_parts_and_a_part_is_there_when_the_rest_fails() -> None:
    disk, descriptor = with_a_file()
    disk.write_bytes_max = SECTOR_BYTES
    before = disk.calls
    disk.write(descriptor, [NEW * 3], 0)
    assert disk.calls == before + 3
    third = disk.calls + 3
    disk.fault = lambda _, number: Fault() if number == third else None
    with pytest.raises(OSError, match="Input/output"):
        disk.write(descriptor, [OLD * 3], 0)
    assert disk.read(descriptor, 1 << 20, 0) == OLD * 2 + NEW + OLD
