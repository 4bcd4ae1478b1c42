"""A new ledger out of what can still be read of a damaged one; the damaged one is only read.

The new ledger is written by the ordinary ledger code, as a daemon would have
written the same records: begins keep their members, completions their charge
and their response, and name the begin's new place. What is not known is never
taken to be good:

    begin     completion                        in the new ledger
    kept      kept                              as they were: a replay answers the same bytes
    kept      lost, or of a changed batch       the begin alone: Indeterminate, its reservation held
    lost      kept                              nothing; its charge is reported as one that nobody is charged with
    lost      lost                              nothing; a low water keeps its id from running again
    dropped   dropped                           nothing, and nothing is lost; the low water of the old ledger stands

The new ledger begins at its first segment. What a checkpoint kept of dropped ones, requests that were still open, is
begun first; Checkpoint records are not copied, since nothing was ever dropped from this one.

A low water is written wherever a record may be lost. A request that was lost
between others expired at the latest as long after the newest instant of any
record as any request that is known was given. Where the end is open, records
may be younger than all that are left, up to now: so from now on, and as much
more as two clocks may differ by.

It is written beside its final name, read again as `verify` does, and renamed
last. Source: CONTRACT section 4, LEDGER section 5.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import trio
from msgspec import Struct

from sidecar.audit.begun_ids import BegunIds
from sidecar.audit.decoder import BLOCK, Line
from sidecar.audit.reading import Reading
from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.contract.values import STORED_AS_IS, BeginRecord, CompletedRecord, LowWaterRecord, TransportResult
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.landing import Landed, Landing, Place
from sidecar.ledger.ledger import Ledger
from sidecar.ops.clock import unix_ms
from sidecar.repair.blocks import DISK_FAULTS
from sidecar.repair.salvage import Kind, Salvage, begin_named

LIFETIME_MS_LEAST: Final = 300_000  # what a request may be given unless the configuration says otherwise
CLOCK_SKEW_MS: Final = 300_000
_SEGMENT_BYTES_LEAST: Final = 8 * BLOCK
_WINDOW_RECORDS_LEAST: Final = 16
_WINDOW_RECORDS_MAX: Final = 512  # as many as a batch takes
_WINDOW_BYTES_MAX: Final = 4 << 20
_SPARE_SECONDS: Final = 0.002  # between two looks whether a spare segment is ready: nothing tells of it


_answer: Final = msgspec.msgpack.Decoder(TransportResult).decode


class FirstLook(Struct, frozen=True, kw_only=True):
    """How far a reading from front to back came, as `verify` does it, and what stopped it."""

    head: bytes
    batch: int
    requests: int
    charged_micro_usd: int
    held_micro_usd: int
    damage: LedgerDamaged | None
    unreadable: str | None

    @property
    def is_sound(self) -> bool:
        return self.damage is None and self.unreadable is None


class Remark(Struct, frozen=True, kw_only=True):
    """What is to be known of a record that could not simply be taken as it was."""

    line: Line
    why: str


class Copied(Struct, kw_only=True):
    """What the new ledger holds, and what it could not take."""

    begun: int = 0
    completed: int = 0
    charged_micro_usd: int = 0
    low_water_unix_ms: int = 0
    low_water_why: str | None = None
    open: dict[tuple[int, int], BeginRecord]
    unattributed: list[Remark]
    remarks: list[Remark]

    @property
    def held_micro_usd(self) -> int:
        return sum(begin.reservation_micro_usd for begin in self.open.values())


def first_look(directory: Path, files: DiskFiles) -> FirstLook:
    """Raises NoLedger, and OSError for what is no fault of the disk."""
    reading = Reading(directory, files=files, cold=True, every_id=True)
    damage: LedgerDamaged | None = None
    unreadable: str | None = None
    try:
        for _ in reading.batches():
            pass
    except LedgerDamaged as fault:
        damage = fault
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        where = f"segment {reading.segment} or the next one" if reading.segment else "the first segment or a checkpoint"
        unreadable = f"{error.strerror}, in {where}"
    return FirstLook(
        head=reading.head,
        batch=reading.batch,
        requests=reading.requests,
        charged_micro_usd=reading.charged_micro_usd,
        held_micro_usd=reading.held_micro_usd,
        damage=damage,
        unreadable=unreadable,
    )


def low_water(salvage: Salvage, now_unix_ms: int, lifetime_ms_least: int) -> tuple[int, str] | None:
    """The latest instant at which a lost request can have been going to expire, and how that is known.

    `lifetime_ms_least`: so long a lost request may have been given, whatever those on record were.
    """
    if not salvage.may_have_lost:
        return None
    seen = salvage.seen
    lifetime = max(lifetime_ms_least, seen.longest_lifetime_ms)
    given = f"plus {lifetime} ms, the longest that a request was given and at least {lifetime_ms_least}"
    bounds = [
        (seen.newest_instant_unix_ms + lifetime, f"the newest instant on record, {given}"),
        (seen.newest_expiry_unix_ms, "the newest expiry on record"),
    ]
    if salvage.end_is_open:
        why = f"records may be lost up to now: now, plus {CLOCK_SKEW_MS} ms between clocks, {given}"
        bounds.insert(0, (now_unix_ms + CLOCK_SKEW_MS + lifetime, why))
    return max(bounds, key=lambda bound: bound[0])


def segment_bytes_for(salvage: Salvage) -> int:
    """As the damaged ledger had it, and never too small for its largest record."""
    wanted = max(salvage.sources.segment_bytes, 4 * salvage.seen.record_bytes_max, _SEGMENT_BYTES_LEAST)
    return wanted + -wanted % BLOCK


async def copied(
    salvage: Salvage,
    directory: Path,
    *,
    lifetime_ms_least: int = LIFETIME_MS_LEAST,
    files: DiskFiles | None = None,
    clock_unix_ms: Callable[[], int] = unix_ms,
    randbytes: Callable[[int], bytes] = secrets.token_bytes,
    between: Callable[[], None] = lambda: None,
) -> Copied:
    """Writes the new ledger, closed cleanly; raises OSError or LedgerUnavailable where its disk refuses, LedgerDamaged
    where the old one can't be read again as it was. `between`: called from time to time, may raise."""
    segment_bytes = segment_bytes_for(salvage)
    # Each keeps room to be settled in spare segments, which should be few.
    window_records = min(_WINDOW_RECORDS_MAX, max(_WINDOW_RECORDS_LEAST, segment_bytes // (2 * BLOCK)))
    ledger = Ledger.open(
        directory,
        segment_bytes=segment_bytes,
        frame_bytes_max=segment_bytes // 4 - RECORD_MARGIN_BYTES,
        requests_in_flight_max=salvage.seen.open_max + window_records,
        files=files,
        clock_unix_ms=clock_unix_ms,
        randbytes=randbytes,
        window_of=lambda caller: 0,  # no configuration is known here
    )
    copier = _Copier(ledger, window_records)
    await copier.copy(salvage, between, lambda: low_water(salvage, clock_unix_ms(), lifetime_ms_least))
    return copier.copied


class _Copier:
    def __init__(self, ledger: Ledger, window_records: int) -> None:
        self._ledger = ledger
        self._window_records = window_records
        self._ids = BegunIds()
        self._places: dict[tuple[int, int], Place] = {}
        self._under_way = 0
        self._all_landed = trio.Event()
        self._failure: LedgerUnavailable | None = None
        self.copied = Copied(open={}, unattributed=[], remarks=[])

    async def copy(
        self, salvage: Salvage, between: Callable[[], None], wanted: Callable[[], tuple[int, str] | None]
    ) -> None:
        """All that the salvage gives, its highest low water first, and the one that is `wanted` at the end."""
        async with self._ledger.running():
            await self._low_water(salvage.seen.low_water_unix_ms)
            window: list[tuple[Line, Kind]] = []
            size = 0
            for line, kind in salvage.lines():
                window.append((line, kind))
                size += line.length
                if len(window) == self._window_records or size > _WINDOW_BYTES_MAX:
                    await self._write(window, salvage)
                    between()
                    window, size = [], 0
            await self._write(window, salvage)
            if (lowest := wanted()) is not None:
                instant, why = lowest
                is_higher = instant > self._ledger.low_water_unix_ms
                self.copied.low_water_why = why if is_higher else "the low water on record, and no more is needed"
                await self._low_water(instant)
            self.copied.low_water_unix_ms = self._ledger.low_water_unix_ms

    async def _write(self, window: list[tuple[Line, Kind]], salvage: Salvage) -> None:
        """Begins first, and when they have landed, what names their places; each side in its old order."""
        for line, kind in window:
            if line.kind == "Begin":
                await self._begin(line, kind)
        await self._landed()
        for line, kind in window:
            if line.kind == "Completed":
                await self._complete(line, kind, salvage)
        await self._landed()

    async def _begin(self, line: Line, kind: Kind) -> None:
        if not self._ids.is_new(line.members["caller_runtime_id"], line.members["request_id"]):
            self.copied.remarks.append(Remark(line=_without_answer(line), why="its id had begun before"))
            return
        begin = msgspec.convert(line.members, BeginRecord)
        # No end names a place in segment 0.
        old = (line.segment, line.offset) if kind != "unplaced" else (0, self.copied.begun)

        def enter(place: Place) -> None:
            self._places[old] = place
            self.copied.open[old] = begin

        await self._append(lambda: self._ledger.begin(begin), enter)
        self.copied.begun += 1

    async def _complete(self, line: Line, kind: Kind, salvage: Salvage) -> None:
        old = begin_named(line)
        begin = self.copied.open.get(old)
        if begin is None:
            held = salvage.holds(*old)
            why = "no open request begins at the place that it names" if held else "its begin is lost"
            self.copied.unattributed.append(Remark(line=_without_answer(line), why=why))
            return
        if (other := _why_of_another(line, begin)) is not None:
            self.copied.unattributed.append(Remark(line=_without_answer(line), why=other))
            return
        if kind == "off_chain":
            why = "its batch does not continue the chain: the reservation stays held instead"
            self.copied.remarks.append(Remark(line=_without_answer(line), why=why))
            return
        del self.copied.open[old]
        place = self._places.pop(old)
        moved: dict[str, Any] = {**line.members, "begin_segment": place.segment, "begin_offset": place.offset}
        if moved["charge_micro_usd"] > begin.reservation_micro_usd and "over_run" not in moved["notes"]:
            moved["notes"] = [*moved["notes"], "over_run"]
            self.copied.remarks.append(
                Remark(line=_without_answer(line), why="it is charged above its reservation; noted as over_run")
            )
        record = msgspec.convert(moved, CompletedRecord)
        while not self._ledger.room_for(record):
            await self._wait_for_a_spare()
        await self._append(lambda: self._ledger.complete(begin, record), lambda _: None)
        self.copied.completed += 1
        self.copied.charged_micro_usd += record.charge_micro_usd

    async def _low_water(self, expires_at_unix_ms: int) -> None:
        """It only rises."""
        if expires_at_unix_ms > self._ledger.low_water_unix_ms:
            await self._append(
                lambda: self._ledger.append(LowWaterRecord(expires_at_unix_ms=expires_at_unix_ms)), lambda _: None
            )
            await self._landed()

    async def _append(self, append: Callable[[], Landing], enter: Callable[[Place], None]) -> None:
        """Queues a record as soon as there is room for it."""
        while not self._is_queued(append, enter):
            await self._wait_for_a_spare()

    def _is_queued(self, append: Callable[[], Landing], enter: Callable[[Place], None]) -> bool:
        is_at_once, is_refused = True, False

        def hear(landed: Landed) -> None:
            nonlocal is_refused
            if is_at_once:
                is_refused = True
                return
            self._under_way -= 1
            if isinstance(landed, Place):
                enter(landed)
            else:
                self._failure = landed
            if self._under_way == 0:
                self._all_landed.set()

        append().then(hear)
        is_at_once = False
        self._under_way += not is_refused
        return not is_refused

    async def _wait_for_a_spare(self) -> None:
        if (why := self._ledger.poisoned or self._ledger.pressure) is not None:
            raise LedgerUnavailable(why)
        await trio.sleep(_SPARE_SECONDS)

    async def _landed(self) -> None:
        if self._under_way:
            self._all_landed = trio.Event()
            await self._all_landed.wait()
        if self._failure is not None:
            raise self._failure


def _why_of_another(end: Line, begin: BeginRecord) -> str | None:
    """Where a batch was put into another one's place, an end can name a begin that is not its own: its answer tells."""
    try:
        answer = _answer(end.members["response"][len(STORED_AS_IS) :])
    except msgspec.MsgspecError:
        return None  # nothing tells
    named = answer.caller_runtime_id, answer.request_id
    if named == (begin.caller_runtime_id, begin.request_id):
        return None
    return f"its answer is that of request {named[1]} of caller {named[0]}, and the begin that it names is another"


def _without_answer(line: Line) -> Line:
    """As much of a record as a report can hold."""
    return msgspec.structs.replace(
        line, members={name: value for name, value in line.members.items() if name != "response"}
    )
