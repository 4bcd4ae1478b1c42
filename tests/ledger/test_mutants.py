"""A ledger with one promise broken by hand is caught, each time: what catches it is the crash states and the calls
that fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.crash_explorer import explored
from kit.failing_calls import left_cleanly, left_torn, whichever_call_fails
from kit.sim_disk import SimDisk
from kit.sim_ledger import DIRECTORY

from sidecar.contract.values import OpenedRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger import ledger as ledger_module
from sidecar.ledger import recovery, spares
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.index import Book
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.room import Room, Slot
from sidecar.ledger.seal_format import End
from sidecar.ledger.writer import Append, Batch, Writer

SEEDS_MAX = 12
Mutant = Callable[[pytest.MonkeyPatch], None]


def left_out(call: str, where: str, patch: pytest.MonkeyPatch) -> None:
    """The function of this name doesn't make this call, and goes on as if it had."""
    made = getattr(SimDisk, call)

    def perhaps(self: SimDisk, *arguments: Any) -> Any:
        return None if sys._getframe(1).f_code.co_name == where else made(self, *arguments)

    patch.setattr(SimDisk, call, perhaps)


def acknowledged_before_its_sync(patch: pytest.MonkeyPatch) -> None:
    """Each batch is synced when the next one comes."""
    write = Writer._write

    def write_behind_the_one_before(self: Any, appends: list[Append]) -> Batch:
        if self._slot is not None:
            self._files.sync(self._slot.descriptor)
        return write(self, appends)

    patch.setattr(Writer, "_write", write_behind_the_one_before)
    not_synced_from("_write", patch)


def not_synced_from(where: str, patch: pytest.MonkeyPatch) -> None:
    sync = Writer._sync

    def perhaps(self: Writer, slot: Slot) -> None:
        if sys._getframe(1).f_code.co_name != where:
            sync(self, slot)

    patch.setattr(Writer, "_sync", perhaps)


def synced_again_when_that_failed(patch: pytest.MonkeyPatch) -> None:
    def twice(self: Writer, slot: Slot) -> None:
        try:
            self._files.sync(slot.descriptor)
        except OSError:
            self._files.sync(slot.descriptor)

    patch.setattr(Writer, "_sync", twice)


def written_again_when_that_failed(patch: pytest.MonkeyPatch) -> None:
    once = Writer._write

    def twice(self: Writer, appends: list[Append]) -> Batch:
        try:
            return once(self, appends)
        except OSError:
            return once(self, appends)

    patch.setattr(Writer, "_write", twice)


def appended_to_the_segment_that_a_crash_left(patch: pytest.MonkeyPatch) -> None:
    """Behind its last whole batch, over what is torn there."""
    begin_in = Ledger._begin_in

    def go_on(self: Ledger, slot: Slot, end: End) -> None:
        terms = self._terms
        segment_bytes, clock = terms.segment_bytes, terms.clock_unix_ms
        if end.closed or not end.segment:
            begin_in(self, slot, end)
            return
        path = recovery.segment_path(self._directory, end.segment)
        descriptor = self._files.open_to_read(path)
        header = on_disk.decode_segment_header(self._files.read(descriptor, on_disk.BLOCK_BYTES, 0))
        last = Slot(path, descriptor, header.salt)
        last.number = end.segment
        if not self._index.book.number:  # it has a seal
            self._index.book = Book(end.segment, segment_bytes, end, terms.window_of)
        self._landed = end
        self._room = Room(segment_bytes, last, end.offset, lambda: self._spare_maker.want(1))
        self._writer = Writer(
            self._files,
            self._directory,
            end,
            end.incarnation,
            segment_bytes,
            clock,
            self._batch_landed,
            terms.threads.commit,
        )
        self._writer._slot = last
        opened = OpenedRecord(incarnation=end.incarnation, opened_at_unix_ms=clock(), clean=False)
        framed = on_disk.encode_record(opened)
        self._writer.write_first(Append(framed, self._room.place_closed(len(framed)), lambda _: None))

    patch.setattr(Ledger, "_begin_in", go_on)


def reused_with_its_salt(patch: pytest.MonkeyPatch) -> None:
    """Every segment has the salt of the first."""
    make = spares.make_spare

    def with_an_old_salt(files: SimDisk, directory: Path, *rest: Any) -> Slot:
        slot = make(files, directory, *rest)
        if files.names_in(DIRECTORY).count(recovery.segment_path(DIRECTORY, 1).name):
            first, _ = files.file(recovery.segment_path(DIRECTORY, 1)).shown()
            slot.salt = on_disk.decode_segment_header(first[: on_disk.BLOCK_BYTES]).salt
        return slot

    patch.setattr(ledger_module.spares, "make_spare", with_an_old_salt)


def reused_as_it_stands(patch: pytest.MonkeyPatch) -> None:
    """A spare still holds the batches of the first segment."""
    make = spares.make_spare

    def over_old_batches(files: SimDisk, directory: Path, *rest: Any) -> Slot:
        slot = make(files, directory, *rest)
        if files.names_in(DIRECTORY).count(recovery.segment_path(DIRECTORY, 1).name):
            first, _ = files.file(recovery.segment_path(DIRECTORY, 1)).shown()
            files.write(slot.descriptor, [first], 0)
            files.sync(slot.descriptor)
        return slot

    patch.setattr(ledger_module.spares, "make_spare", over_old_batches)


def page_cache_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Synced it is: after a sync that failed, that says nothing (LEDGER section 0, finding 2)."""
    patch.setattr(SimDisk, "forget_cache", SimDisk.sync)


BY_STATES: dict[str, Mutant] = {
    "a batch is acknowledged before its sync": acknowledged_before_its_sync,
    "a batch is never synced": partial(not_synced_from, "_write"),
    "a header is not synced before it gets its name": partial(not_synced_from, "_put_to_use"),
    "the directory is not synced when a segment gets its name": partial(left_out, "sync_directory", "_put_to_use"),
    "what is read at an open is not synced": partial(left_out, "forget_cache", "replay"),
    "the names above the directory are not synced": partial(left_out, "sync_directory", "make_directory"),
    "the tail that is set aside is not synced": partial(left_out, "sync", "set_aside"),
    "its directory is not synced": partial(left_out, "sync_directory", "set_aside"),
    "spares that a crash left stay": partial(left_out, "unlink", "remove_leftovers"),
    "the segment that a crash left is appended to": appended_to_the_segment_that_a_crash_left,
    "a segment is reused with its salt": reused_with_its_salt,
    "a segment is reused as it stands": reused_as_it_stands,
}
BY_CALLS: dict[str, Mutant] = {
    "a sync that failed is tried again": synced_again_when_that_failed,
    "a write that failed is tried again": written_again_when_that_failed,
    "what the page cache shows is believed": page_cache_is_believed,
}


def caught_by_states() -> str | None:
    for seed in range(1, SEEDS_MAX):
        try:
            explorer = explored(seed, samples=6)
        except LedgerDamaged as damage:  # met by a life itself
            return str(damage)
        if explorer.broken:
            return str(explorer.broken)
    return None


def caught_by_calls() -> str | None:
    """A broken promise, as a story tells of it; not just any exception."""
    said = None
    try:
        for left in (left_cleanly, left_torn):
            whichever_call_fails(left, done=False, for_good=False)
    except* (AssertionError, LedgerDamaged) as several:
        said = str(several.exceptions)
    return said


@pytest.mark.parametrize("name", BY_STATES)
def test_the_crash_states_catch_a_ledger_in_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BY_STATES[name](monkeypatch)
    at = caught_by_states()
    print(f"{name}: {at}")
    assert at


@pytest.mark.parametrize("name", BY_CALLS)
def test_the_failing_calls_catch_a_ledger_in_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BY_CALLS[name](monkeypatch)
    at = caught_by_calls()
    print(f"{name}: {at}")
    assert at
