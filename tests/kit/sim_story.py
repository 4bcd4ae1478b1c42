"""The story of what a ledger on a simulated disk was told, and all that a state of it is held to.

A story is the records in the order in which they were queued. The writer is
one and its batches are a chain, so what a disk holds after any crash must be a
front part of that order, and all that was acknowledged must be in it. Where
segments were dropped, what is there begins behind as many of these records as
the checkpoint says, and everything that it left out must have been old enough.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import trio
from kit.sim_disk import NONE_LANDED, SimDisk
from kit.sim_ledger import DIRECTORY, opened

from sidecar.audit.reading import Reading
from sidecar.contract.values import BeginRecord, CompletedRecord, RecordBody
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.landing import Landed, Landing, Place
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.opening import Listeners
from sidecar.ledger.retention import DAY_MS
from sidecar.ledger.seal_format import End
from sidecar.ledger.writer import Append
from sidecar.rules.windows import window_start

RETENTION_DAYS: Final = 1
FIRST_DAY_MS: Final = 20_000 * DAY_MS
_ANSWERS_READ: Final = 2  # of each state, so many are read back

Line = BeginRecord | tuple[BeginRecord, CompletedRecord]
Windows = dict[str, int]  # by caller, in seconds


class Heard:
    """The spend that an opening tells of: spent by caller and window, reserved by caller."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.spent: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.reserved: defaultdict[str, int] = defaultdict(int)

    def begun(self, record: BeginRecord) -> None:
        self.reserved[record.caller_runtime_id] += record.reservation_micro_usd

    def charged(self, caller: str, at_unix_ms: int, charged_micro_usd: int) -> None:
        seconds = self._windows.get(caller, 0)
        if seconds:
            self.spent[caller, window_start(at_unix_ms, seconds)] += charged_micro_usd

    @property
    def listeners(self) -> Listeners:
        return Listeners(on_open=self.begun, on_sum=self.charged)


class Found:
    """What is there before an open: every record behind what was dropped, also those in sealed segments, in order;
    `front` says how many begins and completions came before them."""

    def __init__(self, disk: SimDisk) -> None:
        self.lines: list[Line] = []
        self.front = 0
        self._open: dict[tuple[int, int], BeginRecord] = {}
        copy = disk.after_exit()
        if copy.exists(DIRECTORY):
            with suppress(LedgerDamaged):  # that is for the open to meet
                recovery.replay(copy, DIRECTORY, self._take_batch, cold=True, start=self._start(copy))

    def _start(self, copy: SimDisk) -> End | None:
        segments = [checkpoints.segment_of_name(name) for name in copy.names_in(DIRECTORY)]
        newest = max((segment for segment in segments if segment is not None), default=0)
        if not newest:
            return None
        checkpoint, _ = checkpoints.read(copy, DIRECTORY, newest)
        for kept in checkpoint.begins:
            begin = on_disk.decode_record(kept.framed).begin
            assert begin, "a checkpoint keeps Begins"
            self._open[kept.segment, kept.offset] = begin
        self.front = checkpoint.dropped.begins + checkpoint.dropped.completions
        return checkpoint.end

    def _take_batch(self, segment: int, batch: list[tuple[recovery.LeanRecord, int, int]]) -> None:
        for record, offset, length in batch:
            self._take(recovery.in_full(record), Place(segment, offset, length))

    def _take(self, body: RecordBody, place: Place) -> None:
        if body.begin:
            self._open[place.segment, place.offset] = body.begin
            self.lines.append(body.begin)
        elif body.completed:
            named = body.completed.begin_segment, body.completed.begin_offset
            assert named in self._open, f"what ends in {place} was not open"
            self.lines.append((self._open.pop(named), body.completed))


class Waiting:
    """For one record that was queued, or refused before it was."""

    def __init__(self) -> None:
        self._landed: Landed | None = None
        self._event = trio.Event()

    def land(self, landed: Landed) -> None:
        self._landed = landed
        self._event.set()

    async def landed(self) -> Landed:
        await self._event.wait()
        assert self._landed is not None
        return self._landed

    async def place(self) -> Place:
        """Raises LedgerUnavailable."""
        landed = await self.landed()
        if isinstance(landed, LedgerUnavailable):
            raise landed
        return landed


class Story:
    """What was queued, in order, and how much of it was acknowledged.

    `clean` is what the next open must say of the exit before it; None where either is true. `now_unix_ms` is the
    clock, `windows` how long the callers' spend windows are, `front` and `low_water_unix_ms` what was dropped at least.
    """

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.acknowledged = 0
        self.clean: bool | None = True
        self.now_unix_ms = FIRST_DAY_MS
        self.windows: Windows = {"dungeon": 3600, "tavern": 86_400}
        self.front = 0
        self.low_water_unix_ms = 0

    def opening(self) -> None:
        self.clean = None if self.clean else self.clean

    def opened(self, found: Found) -> None:
        """What was found is for good."""
        del self.lines[found.front + len(found.lines) :]
        self.acknowledged, self.clean = len(self.lines), False
        self.front = found.front

    def heard(self, ledger: Ledger) -> None:
        """What a running ledger says that it has dropped."""
        dropped = ledger._keeping._retaining.dropped
        self.front = max(self.front, dropped.begins + dropped.completions)
        self.low_water_unix_ms = max(self.low_water_unix_ms, ledger.low_water_unix_ms)

    def begin(self, ledger: Ledger, record: BeginRecord) -> Waiting:
        return self._follow(record, ledger.begin(record))

    def complete(self, ledger: Ledger, begin: BeginRecord, record: CompletedRecord) -> Waiting:
        return self._follow((begin, record), ledger.complete(begin, record))

    def _follow(self, line: Line, landing: Landing) -> Waiting:
        waiting = Waiting()
        if isinstance(landing, Append):  # else it was refused at once
            self.lines.append(line)
            number = len(self.lines)
        else:
            number = 0

        def told(landed: Landed) -> None:
            if isinstance(landed, Place):
                assert number == self.acknowledged + 1, "records land in the order in which they were queued"
                self.acknowledged = number
            waiting.land(landed)

        landing.then(told)
        return waiting

    def hold_while_it_runs(self, ledger: Ledger, disk: SimDisk) -> None:
        """When all that was queued has landed."""
        dropped = ledger._keeping._retaining.dropped
        with disk.unobserved():
            Holding(ledger, self, dropped.begins + dropped.completions, self.acknowledged).hold_requests(disk)

    def so_far(self) -> Story:
        copy = Story()
        copy.__dict__.update(self.__dict__)
        copy.lines, copy.windows = list(self.lines), dict(self.windows)
        return copy


def continued(disk: SimDisk, story: Story, *, read_twice: bool = False) -> Story:
    """Opens what a crash left, and holds it to the story; that of what was found, all of which now is for good.

    `read_twice`: the second reading, which `verify` is, must come to the same before it is opened, and after.
    """
    before = segments_of(disk)
    found = Found(disk)
    if read_twice and found.lines:
        hold_the_second_reading(disk, story, found)
    heard = Heard(story.windows)
    ledger = opened_at(disk, story, heard, seed=len(before))
    count = found.front + len(found.lines)
    assert story.front <= found.front <= len(story.lines), f"{found.front} are gone, of which {story.front} were"
    assert found.lines == story.lines[found.front : count], "what is on record is not what was written, in its order"
    assert count >= story.acknowledged, f"of {story.acknowledged} records acknowledged {count} are there"
    Holding(ledger, story, found.front, count).hold(heard, disk)
    assert story.clean in (None, ledger.recovery.clean), f"the exit before is told as clean={ledger.recovery.clean}"
    _hold_the_order_of_a_dropping(ledger, disk, before)
    after = segments_of(disk)
    assert {name: after[name] for name in before} == before, "a segment that was there has changed"
    left_over = [name for name in disk.names_in(DIRECTORY) if name.endswith((".spare", ".tmp"))]
    assert not left_over, "what a process that is gone had not finished is removed"
    _hold_the_tail(disk, ledger)
    if read_twice:
        hold_the_second_reading(disk, story, found)
    went_on = story.so_far()
    went_on.opened(found)
    went_on.low_water_unix_ms = ledger.low_water_unix_ms
    return went_on


def hold_the_second_reading(disk: SimDisk, story: Story, found: Found) -> None:
    """It finds no damage, proves every seal, and comes to the same records."""
    reading = Reading(DIRECTORY, files=disk.after_exit(), every_id=True, prove_seals=True)
    reading.begin()
    lines = [line for batch in reading.batches() for line in batch.lines]
    there = story.lines[found.front :][: len(found.lines)]
    ended = [line[1].charge_micro_usd for line in there if isinstance(line, tuple)]
    assert [line.members["charge_micro_usd"] for line in lines if line.begun] == ended
    begun = [line.request_id for line in there if isinstance(line, BeginRecord)]
    assert [line.members["request_id"] for line in lines if line.kind == "Begin"] == begun
    ends = {id_of(line) for line in story.lines[: found.front + len(there)] if isinstance(line, tuple)}
    opened_and_not_ended = [
        id_of(line)
        for line in story.lines[: found.front + len(there)]
        if isinstance(line, BeginRecord) and id_of(line) not in ends
    ]
    said = [(line.members["caller_runtime_id"], line.members["request_id"]) for line in reading.open.values()]
    assert sorted(said) == sorted(opened_and_not_ended), "another reading finds other requests open"


def opened_at(disk: SimDisk, story: Story, heard: Heard, seed: int = 0, **changes: object) -> Ledger:
    """With the story's clock, callers and retention."""
    windows = dict(story.windows)
    return opened(
        disk,
        seed,
        listeners=heard.listeners,
        clock_unix_ms=lambda: story.now_unix_ms,
        window_of=lambda caller: windows.get(caller, 0),
        retention_days=RETENTION_DAYS,
        **changes,
    )


def id_of(line: Line) -> tuple[str, str]:
    begin = line if isinstance(line, BeginRecord) else line[0]
    return begin.caller_runtime_id, begin.request_id


class Holding:
    """Holds a ledger that was opened to the first `count` lines of a story, of which `front` are dropped."""

    def __init__(self, ledger: Ledger, story: Story, front: int, count: int) -> None:
        self._ledger = ledger
        self._story = story
        there = story.lines[:count]
        self._begun = {id_of(line): line for line in there if isinstance(line, BeginRecord)}
        self._ends = {id_of(line): line for line in there if isinstance(line, tuple)}
        self._dropped = {id_of(line): line[0] for line in there[:front] if isinstance(line, tuple)}
        self._never = {id_of(line) for line in story.lines[count:]} - set(self._begun)

    def hold(self, heard: Heard, disk: SimDisk) -> None:
        """What an open has come to."""
        still_open = [record for key, record in self._begun.items() if key not in self._ends]
        assert list(self._ledger.recovery.indeterminate) == still_open, (
            "Indeterminate is what was begun and not completed"
        )
        self._hold_totals(heard, still_open)
        self.hold_requests(disk)

    def hold_requests(self, disk: SimDisk) -> None:
        """What is known and what is not, also while the ledger runs and nothing is on its way."""
        self._hold_dropped(disk)
        for key, begin in self._begun.items():
            if key not in self._dropped:
                self._hold_found(key, begin)
        for key in self._never:
            assert self._ledger.find(*key) is None, "a request is found that has not begun"
        self._hold_answers()

    def _hold_totals(self, heard: Heard, still_open: list[BeginRecord]) -> None:
        spent, reserved = Heard(self._story.windows), Heard(self._story.windows)
        for begin, end in self._ends.values():
            spent.charged(begin.caller_runtime_id, begin.admitted_at_unix_ms, end.charge_micro_usd)
        for begin in still_open:
            reserved.begun(begin)
        assert heard.reserved == reserved.reserved, "what is reserved is what is open"
        assert dict(self._lasting(heard)) == dict(self._lasting(spent)), "what is spent in windows that have not ended"
        for window, charged in heard.spent.items():
            assert charged <= spent.spent[window], f"more is told than was spent in {window}"

    def _lasting(self, heard: Heard) -> Iterator[tuple[tuple[str, int], int]]:
        for (caller, start), charged in heard.spent.items():
            if start + 1000 * self._story.windows[caller] > self._story.now_unix_ms:
                yield (caller, start), charged

    def _hold_dropped(self, disk: SimDisk) -> None:
        low_water, now = self._ledger.low_water_unix_ms, self._story.now_unix_ms
        assert low_water >= self._story.low_water_unix_ms, "the low-water mark goes back"
        assert not low_water or low_water + RETENTION_DAYS * DAY_MS <= now, "nothing is refused that need not be"
        for key, begin in self._dropped.items():
            assert begin.expires_at_unix_ms + RETENTION_DAYS * DAY_MS <= now, f"{key} is dropped too early"
            assert begin.expires_at_unix_ms <= low_water, f"{key} is dropped, and would run again"
        if self._dropped:
            first = min(int(name[:16]) for name in disk.names_in(DIRECTORY) if name.endswith(".segment"))
            gone_until = self._ledger._keeping._retaining.base.segment
            for key in self._dropped if first > gone_until else ():
                assert self._ledger.find(*key) is None, f"{key} is dropped, and found"

    def _hold_found(self, key: tuple[str, str], begin: BeginRecord) -> None:
        recorded = self._ledger.find(*key)
        assert recorded is not None, f"{key} is not found"
        assert (recorded.completed is not None) == (key in self._ends), f"{key} is found in another state"
        assert recorded.identity == bytes(begin.identity_sha256)
        assert recorded.admitted_at_unix_ms == begin.admitted_at_unix_ms
        assert recorded.reservation_micro_usd == begin.reservation_micro_usd
        left_open = begin in self._ledger.recovery.indeterminate and key not in self._ends
        assert self._ledger.indeterminate(*key) == (begin if left_open else None)

    def _hold_answers(self) -> None:
        known = [key for key in self._ends if key not in self._dropped]
        for key in random.Random(len(known)).sample(known, min(_ANSWERS_READ, len(known))):
            recorded = self._ledger.find(*key)
            assert recorded is not None
            assert recorded.completed is not None
            read_back = self._ledger._read_back.record(recorded.completed).completed
            assert read_back == self._ends[key][1], f"another answer of {key} is read back"


def _hold_the_order_of_a_dropping(ledger: Ledger, disk: SimDisk, segments: Iterable[str]) -> None:
    """A checkpoint that the chain does not name yet stands beside all segments that it is to stand for."""
    if ledger._keeping._retaining._unsaid is None:
        return
    named = (checkpoints.segment_of_name(name) for name in disk.names_in(DIRECTORY))
    before, newest = sorted([0, *[number for number in named if number is not None]])[-2:]
    there = {int(name[:16]) for name in segments}
    assert not set(range(before + 1, newest + 1)) - there, "segments are gone before the record says what was in them"


def _hold_the_tail(disk: SimDisk, ledger: Ledger) -> None:
    quarantine = DIRECTORY / "quarantine"
    for name in disk.names_in(quarantine):
        segment, offset = name.removesuffix(".tail").split("-")
        if f"{segment}.segment" in disk.names_in(DIRECTORY):
            torn = disk.file(DIRECTORY / f"{segment}.segment")
            kept, _ = disk.file(quarantine / name).shown()
            assert torn.shows_what_is_lost() or torn.shown()[0][int(offset) :] == kept, "the tail is kept as it was"
    if ledger.recovery.set_aside is None:
        return
    kept, _ = disk.file(ledger.recovery.set_aside).shown()
    assert len(kept) == ledger.recovery.set_aside_bytes > 0
    durable = disk.after_power_cut(NONE_LANDED)
    assert durable.file(ledger.recovery.set_aside).shown()[0] == kept, "the tail that was set aside is synced"


def segments_of(disk: SimDisk) -> dict[str, tuple[bytes, int]]:
    """What is read of each now and will be read from now on."""
    files = {name: disk.file(DIRECTORY / name) for name in disk.names_in(DIRECTORY) if name.endswith(".segment")}
    return {name: file.shown() for name, file in files.items() if not file.shows_what_is_lost()}
