"""Lives of a ledger on a simulated disk, and a crash before each call of theirs that changes the disk.

Reading changes nothing, so a crash there is one before the next change. While
a write is under way its sectors land in any order: those states are among the
ones before the sync behind it, where each may have landed or not.

Days pass between lives and in them, so that segments are sealed, their seals
merged, and the old ones dropped, while some requests stay open through it all.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Final

import trio
from kit import records
from kit.sim_disk import NONE_LANDED, Fates, Fault, SimDisk
from kit.sim_ledger import DIRECTORY, IN_LINE, LATER, SLOWLY
from kit.sim_story import DAY_MS, Found, Heard, Story, Waiting, continued, id_of, opened_at

from sidecar.contract.operator_frames import OPERATOR_RESOLVE, OperatorResolve
from sidecar.contract.values import BeginRecord
from sidecar.ledger import checkpoint as checkpoints
from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Place
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.recovery import segment_path, segments_in
from sidecar.ledger.seal_format import segments_of_name
from sidecar.service.resolution import resolved_record

# Less than a block, over one, over several, and so much that a few fill a segment.
ANSWER_BYTES: Final = (10, 10, 3000, 5000, 9000, 60_000, 60_000)
HOUR_MS: Final = 3_600_000
_PASSES_BETWEEN: Final = (0, 0, 0, 0, HOUR_MS, HOUR_MS, 20 * HOUR_MS, DAY_MS + HOUR_MS, 3 * DAY_MS)
_PASSES_IN: Final = (60_000, HOUR_MS, 26 * HOUR_MS)
_EXPIRES_IN: Final = (60_000, 60_000, HOUR_MS, 12 * HOUR_MS)
# What upkeep may fail by here: a call that failed, of its own or the writer's, or no spare segment for a record.
_TROUBLES: Final = ("Input/output error", "there is no room for this record")
_MARK: Final = b"the answer begins here"
_EXITS: Final = 5  # one call in so many is tried as a process that ends while the power stays
_TWICE: Final = 6  # and of one image in so many it is seen that what was found stays found
_CUT: Final = 6  # and one in so many is opened by a process that doesn't come to the end of it
_READ_TWICE: Final = 12
_CALLS_OF_AN_OPEN: Final = 60


class Broken(AssertionError):
    """A state in which the ledger did not keep its promise, and how to come to it again."""


class Explorer:
    """Watches a disk, and opens what a crash would leave; the first promise that is broken is kept in `broken`.

    `seen` counts the states, and what had been done by then; `ledger` is the one that runs now.
    """

    def __init__(self, seed: int, samples: int) -> None:
        self.seen: Counter[str] = Counter()
        self.broken: Broken | None = None
        self.story = Story()
        self.ledger: Ledger | None = None
        self._seed = seed
        self._samples = samples
        self._chance = random.Random(seed)
        self._kept: tuple[SimDisk, Story] | None = None
        self._names: set[str] = set()

    @property
    def states(self) -> int:
        return self.seen["states"]

    def watch(self, disk: SimDisk) -> None:
        disk.about_to = lambda call: self._crash(disk, call)

    def left_by_a_cut(self) -> tuple[SimDisk, Story] | None:
        """One state of those that the last life could have been cut in, for the next life to go on from."""
        kept, self._kept = self._kept, None
        return kept

    def _crash(self, disk: SimDisk, call: str) -> None:
        """Never raises: what is raised inside a call would be taken for that call's own failure."""
        if self.broken is not None:
            return
        try:
            if self.ledger is not None:
                self.story.heard(self.ledger)
            self._look_at(disk)
            said: set[tuple[int, ...]] = set()
            for way in ("none", "all", *[None] * (self._samples - 2)):
                fates = Fates(self._chance, way=way)
                image = disk.after_power_cut(fates)
                if tuple(fates.said) not in said:
                    said.add(tuple(fates.said))
                    self._hold(image)
            if self._chance.randrange(_EXITS) == 0:
                self._hold(disk.after_exit(), twice=True)
        except Exception as fault:
            self.broken = Broken(
                f"seed {self._seed}, state {self.states}, before call {disk.calls + 1} ({call}): {fault}"
            )
            self.broken.__cause__ = fault

    def _look_at(self, disk: SimDisk) -> None:
        """What there is now that was not there before."""
        for name in disk.names_in(DIRECTORY):
            if name in self._names:
                continue
            self._names.add(name)
            if (covers := segments_of_name(name)) is not None:
                self.seen["seals" if covers[0] == covers[1] else "merges"] += 1
            self.seen["droppings"] += checkpoints.segment_of_name(name) is not None
            self.seen["segments"] += name.endswith(".segment")

    def _hold(self, image: SimDisk, *, twice: bool = False) -> None:
        self.seen["states"] += 1
        if self._kept is None or self._chance.randrange(40) == 0:
            self._kept = image.after_exit(), self.story.so_far()
        if self._chance.randrange(_CUT) == 0:
            image, story = self._cut_in_an_open(image)
        else:
            story = self.story
        read_twice = self._chance.randrange(_READ_TWICE) == 0
        self.seen["read twice"] += read_twice
        went_on = continued(image, story, read_twice=read_twice)
        self.seen["torn"] += bool(image.names_in(DIRECTORY / "quarantine"))
        self.seen["dropped"] += went_on.front > 0
        if went_on.front:
            newest = max(checkpoints.segment_of_name(name) or 0 for name in image.names_in(DIRECTORY))
            self.seen["dropping"] += min(segments_in(image, DIRECTORY)) <= newest
            ends = {id_of(line): number for number, line in enumerate(went_on.lines) if isinstance(line, tuple)}
            ended = [ends.get(id_of(line)) for line in went_on.lines[: went_on.front] if isinstance(line, BeginRecord)]
            self.seen["kept open"] += None in ended
            self.seen["ended late"] += any(number is not None and number >= went_on.front for number in ended)
        if twice or self._chance.randrange(_TWICE) == 0:
            self.seen["states"] += 1
            again = NONE_LANDED if twice else Fates(self._chance)
            continued(image.after_power_cut(again), went_on)

    def _cut_in_an_open(self, image: SimDisk) -> tuple[SimDisk, Story]:
        """What a process leaves that opens this and is gone before one of its calls."""
        self.seen["cut"] += 1
        story = self.story.so_far()
        story.opening()
        last = self._chance.randrange(_CALLS_OF_AN_OPEN)
        image.fault = lambda _, number: Fault() if number >= last else None
        with suppress(OSError):
            opened_at(image, story, Heard(story.windows))
        return image.after_power_cut(Fates(self._chance)), story


class Life:
    """What one process does with the ledger: begins and completes, alone and several at once, resolves, and waits."""

    def __init__(
        self, ledger: Ledger, disk: SimDisk, explorer: Explorer, chance: random.Random, numbers: Iterator[int]
    ) -> None:
        self._ledger = ledger
        self._disk = disk
        self._numbers = numbers
        self._story = explorer.story
        self._seen = explorer.seen
        self._chance = chance
        self._open: list[BeginRecord] = []
        self._left = list(ledger.recovery.indeterminate)

    async def step(self) -> None:
        while self._ledger.statistics().spares_ready < self._ledger._spares_wanted and not self._ledger.poisoned:
            self._ledger._spare_maker.want(0)  # one that couldn't be made is tried again
            await trio.lowlevel.checkpoint()
        does = self._chance.choices(
            (self._begin, self._complete, self._fill, self._resolve, self._wait), (8, 8, 2, 3, 4)
        )
        await does[0](self._chance.choice((1, 1, 2, 3)))
        self._story.hold_while_it_runs(self._ledger, self._disk)

    async def _begin(self, many: int) -> None:
        begins = [self._new(number) for number in islice(self._numbers, many)]
        waiting = [self._story.begin(self._ledger, begin) for begin in begins]
        for begin, wait in zip(begins, waiting, strict=True):
            await wait.place()
            if self._chance.randrange(8):  # else nobody will ever complete it, but perhaps resolve
                self._open.append(begin)

    def _new(self, number: int) -> BeginRecord:
        now = self._story.now_unix_ms
        return records.begin(
            number,
            self._chance.choice(("dungeon", "dungeon", "tavern", "nobody")),
            self._chance.randrange(1000),
            admitted_at_unix_ms=now,
            expires_at_unix_ms=now + self._chance.choice(_EXPIRES_IN),
        )

    async def _complete(self, many: int, sizes: tuple[int, ...] = ANSWER_BYTES) -> None:
        waiting = []
        for _ in range(min(many, len(self._open))):
            begin = self._open.pop(self._chance.randrange(len(self._open)))
            waiting.append(self._completed(begin, self._chance.choice(sizes)))
        for wait in waiting:
            await wait.place()

    async def _fill(self, many: int) -> None:
        """Most of a segment at once."""
        await self._begin(4)
        await self._complete(4, (60_000,))

    async def _resolve(self, many: int) -> None:
        if not self._left:
            return
        begin = self._left.pop(self._chance.randrange(len(self._left)))
        recorded = self._ledger.find(begin.caller_runtime_id, begin.request_id)
        assert recorded is not None
        asked = OperatorResolve(
            caller_runtime_id=begin.caller_runtime_id,
            charge=self._chance.choice(("nothing", "reservation")),
            request_id=begin.request_id,
            schema_id=OPERATOR_RESOLVE,
            who="who decides",
            why="because",
        )
        end = resolved_record(begin, recorded.begin, asked, self._story.now_unix_ms)
        await self._story.complete(self._ledger, begin, end).place()
        self._seen["resolves"] += 1

    async def _wait(self, many: int) -> None:
        """Time passes, and upkeep looks whether there is something to do."""
        self._story.now_unix_ms += self._chance.choice(_PASSES_IN)
        self._ledger._keeping.try_again()
        for _ in range(20 * many):
            await trio.lowlevel.checkpoint()

    def _completed(self, begin: BeginRecord, size: int) -> Waiting:
        recorded = self._ledger.find(begin.caller_runtime_id, begin.request_id)
        assert recorded is not None
        answer = self._chance.randbytes(size) if self._chance.randrange(4) else self._posing(recorded.begin)
        end = records.completed(recorded.begin, self._chance.randrange(begin.reservation_micro_usd + 1), answer)
        if not self._ledger.room_for(end):
            end = records.completed(recorded.begin, 0, outcome="result_size")
        return self._story.complete(self._ledger, begin, end)

    def _posing(self, place: Place) -> bytes:
        """An answer whose blocks look like batches of this segment, if it had the salt of the oldest one."""
        # By a look that is no call of the ledger's: those can be made to fail.
        oldest = min(int(name[:16]) for name in self._disk.names_in(DIRECTORY) if name.endswith(".segment"))
        first, _ = self._disk.file(segment_path(DIRECTORY, oldest)).shown()
        segment = self._ledger._room.current.number
        salt = on_disk.decode_segment_header(first[: on_disk.BLOCK_BYTES]).salt
        batch = on_disk.encode_batch(
            [on_disk.encode_record(records.begin(0))],
            salt=salt if segment > oldest else bytes(on_disk.SALT_BYTES),  # nobody knows it before it is of the past
            segment=segment,
            number=1000,
            previous_head=on_disk.FIRST_HEAD,
        )
        before = on_disk.encode_record(records.completed(place, 1000, _MARK * 50)).index(_MARK)
        padding = bytes(-(on_disk.BATCH_HEADER_BYTES + before) % on_disk.BLOCK_BYTES)
        return padding + b"".join(batch.pieces) * 3


class ProcessGone(Exception):
    """How a life ends that is not ended cleanly."""


async def lived(disk: SimDisk, explorer: Explorer, chance: random.Random, numbers: Iterator[int]) -> None:
    """One process: opens, works, and ends cleanly or not; sometimes a call of its fails."""
    story = explorer.story
    disk.write_bytes_max = chance.choice((None, None, 40_000))
    if chance.random() < 0.25:
        failing, fault = disk.calls + chance.randrange(250), Fault(done=chance.random() < 0.5)
        disk.fault = lambda _, number: fault if number == failing else None
    story.now_unix_ms += chance.choice(_PASSES_BETWEEN)
    if chance.random() < 0.15:
        story.windows = {"dungeon": chance.choice((3600, 86_400)), "tavern": chance.choice((600, 86_400))}
    story.opening()
    found = Found(disk)
    troubles: list[str] = []
    try:
        threads = chance.choice((IN_LINE, LATER, SLOWLY))
        ledger = opened_at(
            disk, story, Heard(story.windows), chance.randrange(1 << 30), threads=threads, on_trouble=troubles.append
        )
    except OSError:
        return
    story.opened(found)
    explorer.ledger = ledger
    cleanly = chance.random() < 0.6
    life = Life(ledger, disk, explorer, chance, numbers)
    try:
        async with ledger.running():
            for _ in range(chance.choice((0, 1, 3, 5))):
                await life.step()
            if not cleanly:
                raise ProcessGone
            story.clean = None
        story.clean = None if ledger.poisoned else True
    except* (ProcessGone, LedgerUnavailable):
        pass
    explorer.ledger = None
    bugs = [why for why in troubles if not any(known in why for known in _TROUBLES)]
    assert not bugs, f"upkeep fails by itself: {bugs}"


def explored(seed: int, *, samples: int, lives: int = 14) -> Explorer:
    """Some lives one after the other, each on what was left by the one before or by a cut in the midst of it."""
    explorer = Explorer(seed, samples)
    chance = random.Random(seed + 1)
    numbers = count(1)

    async def all_lives() -> None:
        disk = SimDisk(chance=random.Random(seed))
        for _ in range(lives):
            explorer.watch(disk)
            await lived(disk, explorer, chance, numbers)
            if explorer.broken:
                return
            left = explorer.left_by_a_cut()
            if left is not None and chance.random() < 0.4:
                disk, explorer.story = left
            else:
                disk = disk.after_exit()

    trio.run(all_lives)
    return explorer
