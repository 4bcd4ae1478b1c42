"""A ledger with one promise broken by hand is caught, each time: what catches it is the crash states, the calls that
fail, and bytes of seals that are changed.

One omission no state can tell, and so it isn't here: the directory's sync behind a seal's rename. A seal whose name
is lost, also one that was merged of two that are gone, is made again from its segments, which are all there; and the
syncs of the directory behind a checkpoint's rename, and behind the unlinking, take its name along.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.crash_explorer import explored
from kit.failing_calls import left_cleanly, left_torn, left_with_seals, lived_through, whichever_call_fails
from kit.sim_disk import SimDisk
from kit.sim_ledger import DIRECTORY
from kit.sim_story import Story, continued
from msgspec import structs

from sidecar.contract.values import LowWaterRecord, OpenedRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger import ledger as ledger_module
from sidecar.ledger import recovery, retaining, retention, seal_format, sealed, spares
from sidecar.ledger.checkpoint import Checkpoint
from sidecar.ledger.faults import LedgerDamaged, RecordDamaged
from sidecar.ledger.index import Book, Index
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.retaining import Retaining, ToRecord
from sidecar.ledger.retention import checkpoint_of, remove_gone
from sidecar.ledger.room import Room, Slot
from sidecar.ledger.seal_format import End
from sidecar.ledger.writer import Append, Batch, Writer

SEEDS_MAX = 12
Mutant = Callable[[pytest.MonkeyPatch], None]


def left_out(call: str, where: str, patch: pytest.MonkeyPatch) -> None:
    """The function of this name doesn't make this call, itself or through what it calls for that, and goes on as if it
    had been made."""
    made = getattr(SimDisk, call)

    def perhaps(self: SimDisk, *arguments: Any) -> Any:
        callers = sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name
        return None if where in callers else made(self, *arguments)

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
        self._segment_began_unix_ms, self._upkeep_due_unix_ms = clock(), 1 << 62
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


# --- upkeep ------------------------------------------------------------------------------------------------------


def unlinked_before_the_record_has_landed(patch: pytest.MonkeyPatch) -> None:
    write = Retaining._write

    def and_remove(self: Retaining, *arguments: Any) -> Any:
        told = write(self, *arguments)
        remove_gone(self._files, self._directory, arguments[0].last.number)
        return told

    patch.setattr(Retaining, "_write", and_remove)


def written_before_low_water_has_landed(patch: pytest.MonkeyPatch) -> None:
    """The LowWater record comes behind."""
    following = Retaining.next

    def other_way_round(self: Retaining, end: End, breathe: Callable[[], None]) -> Any:
        work = following(self, end, breathe)
        if isinstance(work, ToRecord) and isinstance(work.record, LowWaterRecord):
            return following(self, structs.replace(end, low_water_unix_ms=1 << 62), breathe)
        return work

    def its_own_mark(going: Any, *rest: Any) -> Checkpoint:
        *before, end, breathe = rest
        return checkpoint_of(going, *before, structs.replace(end, low_water_unix_ms=0), breathe)

    patch.setattr(Retaining, "next", other_way_round)
    patch.setattr(retaining, "checkpoint_of", its_own_mark)


def forgets_an_open_request(patch: pytest.MonkeyPatch) -> None:
    def all_but_one(*arguments: Any) -> Checkpoint:
        checkpoint = checkpoint_of(*arguments)
        return structs.replace(checkpoint, begins=checkpoint.begins[1:])

    patch.setattr(retaining, "checkpoint_of", all_but_one)


def forgets_what_an_earlier_one_kept(patch: pytest.MonkeyPatch) -> None:
    open_after = retention._open_after
    patch.setattr(retention, "_open_after", lambda segment, kept, *rest: open_after(segment, {}, *rest))


def drops_a_day_too_early(patch: pytest.MonkeyPatch) -> None:
    def too_early(rows: Any, *, now_unix_ms: int, retention_days: int) -> Any:
        return retention.going(rows, now_unix_ms=now_unix_ms, retention_days=retention_days - 1)

    patch.setattr(retaining, "going", too_early)


def open_list_is_that_before_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    landed, ended = Ledger._batch_landed, Index.ended

    def remember(self: Ledger, batch: Batch, framed_bytes: list[int]) -> None:
        landed(self, batch, framed_bytes)
        index: Any = self._index  # a member of the mutant's own
        index.before_it = [(one.begin.segment, one.begin.offset) for one in self._index.open.values()]

    def too_early(self: Index, end: End, still_open: Any = None) -> None:
        ended(self, end, getattr(self, "before_it", None) if still_open is None else still_open)

    patch.setattr(Ledger, "_batch_landed", remember)
    patch.setattr(Index, "ended", too_early)


def keeps_the_older_of_two(patch: pytest.MonkeyPatch) -> None:
    of_both = sealed._merged
    patch.setattr(sealed, "_merged", lambda older, newer, path: of_both(newer, older, path))


def gives_a_torn_tail_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Book, "is_of_this_run", property(lambda book: True, lambda book, said: None), raising=False)


def believes_a_seal_whose_crc_does_not_fit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal_format, "crc32", lambda content, begin=0: 0)


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
    "a seal is not synced before it gets its name": partial(left_out, "sync", "write_seal"),
    "a checkpoint is not synced before it gets its name": partial(left_out, "sync", "write"),
    "the directory is not synced when a checkpoint gets its name": partial(left_out, "sync_directory", "write"),
    "segments are unlinked before the Checkpoint record has landed": unlinked_before_the_record_has_landed,
    "a checkpoint is written before the LowWater record has landed": written_before_low_water_has_landed,
    "a checkpoint forgets an open request": forgets_an_open_request,
    "a checkpoint forgets what an earlier one kept": forgets_what_an_earlier_one_kept,
    "a torn tail is taken for zeros when its segment is sealed": gives_a_torn_tail_back,
    "retention drops a day too early": drops_a_day_too_early,
    "a seal's open requests are those before its segment's last batch": open_list_is_that_before_the_last_batch,
}
BY_A_STORY: dict[str, Mutant] = {
    "merging keeps the older of two entries": keeps_the_older_of_two,
}
SOONER: dict[str, int] = {  # the first seed that catches it, where earlier ones would only take their time
    "a segment is reused with its salt": 4,
    "a segment is reused as it stands": 4,
    "a seal's open requests are those before its segment's last batch": 7,
}
BY_CALLS: dict[str, Mutant] = {
    "a sync that failed is tried again": synced_again_when_that_failed,
    "a write that failed is tried again": written_again_when_that_failed,
    "what the page cache shows is believed": page_cache_is_believed,
}


def caught_by_states(first_seed: int) -> str | None:
    for seed in (first_seed, *range(1, SEEDS_MAX)):
        try:
            explorer = explored(seed, samples=4)
        except (AssertionError, LedgerDamaged) as damage:  # met by a life itself
            return f"seed {seed}: {damage}"
        if explorer.broken:
            return str(explorer.broken)
    return None


def caught_by_a_story() -> str | None:
    """No crash is needed: what is written is wrong."""
    disk, story = SimDisk(), Story()
    try:
        lived_through(disk, story, 7)
        continued(disk, story)
    except (AssertionError, LedgerDamaged) as damage:
        return str(damage)
    return None


def caught_by_changed_seals() -> str | None:
    """An open that takes a changed seal must come to the same."""
    disk, story = left_with_seals()
    for name in [name for name in disk.names_in(DIRECTORY) if name.endswith(".seal")]:
        content, _ = disk.file(DIRECTORY / name).shown()
        for at in range(0, len(content), 3):
            changed = disk.after_exit()
            changed.file(DIRECTORY / name).durable = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            try:
                continued(changed, story.so_far())
            except (LedgerDamaged, RecordDamaged):
                continue
            except Exception as fault:
                return f"byte {at} of {name}: {type(fault).__name__} {fault}"
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
    at = caught_by_states(SOONER.get(name, 1))
    print(f"{name}: {at}")
    assert at


@pytest.mark.parametrize("name", BY_A_STORY)
def test_a_quiet_story_catches_a_ledger_in_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caught_by_a_story() is None
    BY_A_STORY[name](monkeypatch)
    at = caught_by_a_story()
    print(f"{name}: {at}")
    assert at


@pytest.mark.parametrize("name", BY_CALLS)
def test_the_failing_calls_catch_a_ledger_in_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BY_CALLS[name](monkeypatch)
    at = caught_by_calls()
    print(f"{name}: {at}")
    assert at


def test_changed_seals_catch_an_open_that_believes_one_whose_crc_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert caught_by_changed_seals() is None
    believes_a_seal_whose_crc_does_not_fit(monkeypatch)
    at = caught_by_changed_seals()
    print(at)
    assert at
