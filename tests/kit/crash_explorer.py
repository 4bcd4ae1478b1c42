"""Lives of a ledger on a simulated disk, and a crash before each call of theirs that changes the disk.

Reading changes nothing, so a crash there is one before the next change. While
a write is under way its sectors land in any order: those states are among the
ones before the sync behind it, where each may have landed or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count, islice
from typing import Final

import trio
from kit import records
from kit.sim_disk import NONE_LANDED, Fates, Fault, SimDisk
from kit.sim_ledger import DIRECTORY, IN_LINE, LATER, Found, Story, Waiting, continued, opened

from sidecar.contract.values import BeginRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Place
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.recovery import segment_path

# Less than a block, over one, over several, and so much that a few fill a segment.
ANSWER_BYTES: Final = (10, 10, 3000, 5000, 9000, 60_000, 60_000)
_MARK: Final = b"the answer begins here"
_EXITS: Final = 5  # one call in so many is tried as a process that ends while the power stays
_TWICE: Final = 6  # and of one image in so many it is seen that what was found stays found


class Broken(AssertionError):
    """A state in which the ledger did not keep its promise, and how to come to it again."""


class Explorer:
    """Watches a disk, and opens what a crash would leave; the first promise that is broken is kept in `broken`."""

    def __init__(self, seed: int, samples: int) -> None:
        self.states = 0
        self.set_aside = 0
        self.broken: Broken | None = None
        self.story = Story()
        self._seed = seed
        self._samples = samples
        self._chance = random.Random(seed)
        self._kept: tuple[SimDisk, Story] | None = None

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
            seen: set[tuple[int, ...]] = set()
            for way in ("none", "all", *[None] * (self._samples - 2)):
                fates = Fates(self._chance, way=way)
                image = disk.after_power_cut(fates)
                if tuple(fates.said) not in seen:
                    seen.add(tuple(fates.said))
                    self._hold(image)
            if self._chance.randrange(_EXITS) == 0:
                self._hold(disk.after_exit(), twice=True)
        except Exception as fault:
            self.broken = Broken(
                f"seed {self._seed}, state {self.states}, before call {disk.calls + 1} ({call}): {fault}"
            )
            self.broken.__cause__ = fault

    def _hold(self, image: SimDisk, *, twice: bool = False) -> None:
        self.states += 1
        if self._kept is None or self._chance.randrange(40) == 0:
            self._kept = image.after_exit(), self.story.so_far()
        went_on = continued(image, self.story)
        self.set_aside += bool(image.names_in(DIRECTORY / "quarantine"))
        if twice or self._chance.randrange(_TWICE) == 0:
            self.states += 1
            continued(image.after_power_cut(NONE_LANDED), went_on)


class Life:
    """What one process does with the ledger: begins and completes, alone and several at once."""

    def __init__(
        self, ledger: Ledger, disk: SimDisk, story: Story, chance: random.Random, numbers: Iterator[int]
    ) -> None:
        self._ledger = ledger
        self._disk = disk
        self._numbers = numbers
        self._story = story
        self._chance = chance
        self._open = list(ledger.recovery.indeterminate)

    async def step(self) -> None:
        while self._ledger.statistics().spares_ready < self._ledger._spares_wanted and not self._ledger.poisoned:
            self._ledger._spare_maker.want(0)  # one that couldn't be made is tried again
            await trio.lowlevel.checkpoint()
        if self._open and self._chance.random() < 0.55:
            await self._complete(self._chance.choice((1, 1, 1, 3)))
        else:
            await self._begin(self._chance.choice((1, 1, 2, 3)))

    async def _begin(self, count: int) -> None:
        numbers = islice(self._numbers, count)
        begins = [records.begin(number, reservation=self._chance.randrange(1000)) for number in numbers]
        waiting = [self._story.begin(self._ledger, begin) for begin in begins]
        for begin, wait in zip(begins, waiting, strict=True):
            await wait.place()
            self._open.append(begin)

    async def _complete(self, count: int) -> None:
        waiting = []
        for _ in range(min(count, len(self._open))):
            begin = self._open.pop(self._chance.randrange(len(self._open)))
            waiting.append(self._completed(begin))
        for wait in waiting:
            await wait.place()

    def _completed(self, begin: BeginRecord) -> Waiting:
        recorded = self._ledger.find("dungeon", begin.request_id)
        assert recorded is not None
        size = self._chance.choice(ANSWER_BYTES)
        answer = self._chance.randbytes(size) if self._chance.randrange(4) else self._posing(recorded.begin)
        end = records.completed(recorded.begin, self._chance.randrange(1000), answer)
        if not self._ledger.room_for(end):
            end = records.completed(recorded.begin, outcome="result_size")
        return self._story.complete(self._ledger, begin, end)

    def _posing(self, place: Place) -> bytes:
        """An answer whose blocks look like batches of this segment, if it had the salt of the first one."""
        first, _ = self._disk.file(segment_path(DIRECTORY, 1)).shown()
        segment = self._ledger._room.current.number
        salt = on_disk.decode_segment_header(first[: on_disk.BLOCK_BYTES]).salt
        batch = on_disk.encode_batch(
            [on_disk.encode_record(records.begin(0))],
            salt=salt if segment > 1 else bytes(on_disk.SALT_BYTES),  # nobody knows it before it is of the past
            segment=segment,
            number=1000,
            previous_head=on_disk.FIRST_HEAD,
        )
        before = on_disk.encode_record(records.completed(place, 1000, _MARK * 50)).index(_MARK)
        padding = bytes(-(on_disk.BATCH_HEADER_BYTES + before) % on_disk.BLOCK_BYTES)
        return padding + b"".join(batch.pieces) * 3


class ProcessGone(Exception):
    """How a life ends that is not ended cleanly."""


async def lived(disk: SimDisk, story: Story, chance: random.Random, numbers: Iterator[int]) -> None:
    """One process: opens, works, and ends cleanly or not; sometimes a call of its fails."""
    disk.write_bytes_max = chance.choice((None, None, 40_000))
    if chance.random() < 0.25:
        failing, fault = disk.calls + chance.randrange(250), Fault(done=chance.random() < 0.5)
        disk.fault = lambda _, number: fault if number == failing else None
    story.opening()
    found = Found(disk)
    try:
        ledger = opened(
            disk,
            chance.randrange(1 << 30),
            chance.choice((IN_LINE, LATER)),
            told=found.totals.told,
        )
    except OSError:
        return
    story.opened(found)
    cleanly = chance.random() < 0.6
    life = Life(ledger, disk, story, chance, numbers)
    try:
        async with ledger.running():
            for _ in range(chance.choice((0, 3, 6, 9))):
                await life.step()
            if not cleanly:
                raise ProcessGone
            story.clean = None
        story.clean = None if ledger.poisoned else True
    except* (ProcessGone, LedgerUnavailable):
        pass


def explored(seed: int, *, samples: int, lives: int = 3) -> Explorer:
    """Some lives one after the other, each on what was left by the one before or by a cut in the midst of it."""
    explorer = Explorer(seed, samples)
    chance = random.Random(seed + 1)
    numbers = count(1)

    async def all_lives() -> None:
        disk = SimDisk(chance=random.Random(seed))
        for _ in range(lives):
            explorer.watch(disk)
            await lived(disk, explorer.story, chance, numbers)
            if explorer.broken:
                return
            left = explorer.left_by_a_cut()
            if left is not None and chance.random() < 0.5:
                disk, explorer.story = left
            else:
                disk = disk.after_exit()

    trio.run(all_lives)
    return explorer
