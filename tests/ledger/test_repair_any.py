"""Any damage at all, and several at once: what repair keeps, what it holds, and what it never does."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit import records
from kit.dropped_segments import STEPS, drop
from kit.ledger_view import LedgerView
from kit.small_ledgers import BLOCK, SEGMENT_BYTES, Contents, contents_of, segment_name
from msgspec.structs import replace

from sidecar.audit.reading import Reading
from sidecar.cli.ledger_repair import repair
from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.contract.values import BeginRecord, CompletedRecord
from sidecar.ledger.landing import Place
from sidecar.ledger.ledger import Ledger

LONG_AGO_MS = 1_700_000_000_000
SECOND_MS = 1000
Blocks = frozenset[tuple[int, int]]
KEPT = (0, 0)
SUFFIXES = (".segment", ".seal", ".checkpoint")
DROPPING = ("nothing", "all of it", "a part of it")


def opened(directory: Path, clock_unix_ms: Callable[[], int]) -> Ledger:
    return Ledger.open(
        directory,
        segment_bytes=SEGMENT_BYTES,
        frame_bytes_max=SEGMENT_BYTES // 4 - RECORD_MARGIN_BYTES,
        requests_in_flight_max=4,
        clock_unix_ms=clock_unix_ms,
    )


async def made(directory: Path) -> None:
    """Four runs, of which the third ends cleanly, the others as the process is killed; some answers of three blocks."""
    now = LONG_AGO_MS
    number = 0
    for run, count in enumerate((6, 4, 5, 3)):
        ledger = opened(directory, lambda: now)
        try:
            async with ledger.running():
                for place in range(count):
                    while ledger.statistics().spares_ready < 3:
                        await trio.lowlevel.checkpoint()
                    number += 1
                    now += SECOND_MS
                    begin = records.begin(
                        number, admitted_at_unix_ms=now, expires_at_unix_ms=now + 60_000 + number * 7000 % 90_000
                    )
                    begun = await ledger.begin(begin)
                    if place % 4 != 3:
                        answer = bytes([number]) * (9000 if number % 3 == 0 else 60)
                        end = records.completed(begun, 40 + number, answer, completed_at_unix_ms=now + 500)
                        await ledger.complete(begin, end)
                if run != 2:
                    raise KeyError("the process is gone")
        except* KeyError:
            pass


async def dropped(directory: Path, *, leaves_some: bool) -> tuple[str, CompletedRecord]:
    """Its first segments are dropped twice, and a request that began there ends behind them: which, and how.

    `leaves_some`: the second time a crash leaves the older checkpoint, and all but the first of what was to go.
    """
    begun = [line for batch in Reading(directory).batches() for line in batch.lines if line.kind == "Begin"]
    for until, steps in ((2, STEPS), (4, STEPS[:3] if leaves_some else STEPS)):
        low_water = max(line.members["expires_at_unix_ms"] for line in begun if line.segment <= until)
        await drop(directory, until, steps=steps, low_water=low_water)
    if leaves_some:
        (directory / segment_name(3)).unlink()
    return await ended(directory)


async def ended(directory: Path) -> tuple[str, CompletedRecord]:
    """The oldest request that is open."""
    reading = Reading(directory)
    reading.begin()
    (segment, offset), _ = min(reading.open.items())
    ledger = opened(directory, lambda: LONG_AGO_MS)
    begin = ledger.recovery.indeterminate[0]
    end = records.completed(Place(segment, offset, 0))
    async with ledger.running():
        await ledger.complete(begin, end)
    return begin.request_id, end


class Known:
    """A ledger before it is damaged: each request's begin and end, and the blocks of the batches that hold them.

    A begin that the newest checkpoint keeps stands in `KEPT`; what was dropped stands nowhere.
    """

    def __init__(self, directory: Path, dropping: str = "nothing") -> None:
        trio.run(made, directory)
        view = LedgerView(directory)
        self.begins = {begin.request_id: begin for begin in view.begins}
        self.ends = {begin.request_id: placeless(end) for begin, end in view.completes}
        if dropping != "nothing":
            request, end = trio.run(lambda: dropped(directory, leaves_some=dropping == "a part of it"))
            self.ends[request] = placeless(end)
        self.contents = contents_of(directory)
        named = {suffix: sorted(name for name in self.contents if name.endswith(suffix)) for suffix in SUFFIXES}
        self.names = [name for suffix in SUFFIXES for name in named[suffix]]
        self.blocks_of_begin: dict[str, Blocks] = {}
        self.blocks_of_end: dict[str, Blocks] = {}
        self.last_batch: dict[int, tuple[Blocks, bool]] = {}
        reading = Reading(directory)
        reading.begin()
        self.dropped_until = reading.dropped_until
        self.blocks_of_begin.update((line.members["request_id"], frozenset({KEPT})) for line in reading.open.values())
        for batch in reading.batches():
            last = batch.lines[-1]
            covered = range(batch.offset // BLOCK, -(-(last.offset + last.length) // BLOCK))
            blocks = frozenset((batch.segment, block) for block in covered)
            self.last_batch[batch.segment] = blocks, last.kind == "Closed"
            for line in batch.lines:
                if line.kind == "Begin":
                    self.blocks_of_begin[line.members["request_id"]] = blocks
                elif line.begun is not None:
                    self.blocks_of_end[line.begun.members["request_id"]] = blocks
        self.segments = sorted(self.last_batch)


def placeless(end: CompletedRecord) -> CompletedRecord:
    return replace(end, begin_segment=0, begin_offset=0)


@pytest.fixture(scope="module", params=DROPPING)
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    return Known(tmp_path_factory.mktemp("known") / "ledger", request.param)


# --- damage ---------------------------------------------------------------------------------------------------------

Damage = tuple[str, int, int, int]
KINDS = ("flip", "zero", "garbage", "cut", "remove", "misdirect")
damages = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, 30), st.integers(0, SEGMENT_BYTES - 1), st.integers(0, SEGMENT_BYTES - 1)
    ),
    min_size=1,
    max_size=5,
)


def damaged(known: Known, damages: list[Damage]) -> tuple[Contents, set[tuple[int, int]]]:
    """The files, and the blocks that are not as they were."""
    contents, touched = dict(known.contents), set()
    for kind, which, at, other in damages:
        name = known.names[which % len(known.names)]
        if name not in contents:
            continue
        content = bytearray(contents[name])
        if not name.endswith(".segment"):
            contents.pop(name) if kind == "remove" else contents.update({name: changed(content, kind, at, other)})
            if name == checkpoint_name(known.dropped_until):
                touched.add(KEPT)
            continue
        number = int(name[:16])
        block = at // BLOCK
        if kind == "remove":
            del contents[name]
            touched |= {(number, each) for each in range(SEGMENT_BYTES // BLOCK)}
            continue
        if kind == "cut":
            content = content[:at]
            touched |= {(number, each) for each in range(block, SEGMENT_BYTES // BLOCK)}
        elif at < len(content):
            width = len(content[block * BLOCK : (block + 1) * BLOCK])
            written = {
                "flip": lambda: bytes([content[at] ^ (1 + other % 255)]),
                "zero": lambda: bytes(width),
                "garbage": lambda: os.urandom(width),
                "misdirect": lambda: bytes(content[other // BLOCK * BLOCK :][:width]),
            }[kind]()
            begin = at if kind == "flip" else block * BLOCK
            content[begin : begin + len(written)] = written
            touched.add((number, block))
        contents[name] = bytes(content)
    return contents, touched


def changed(content: bytearray, kind: str, at: int, other: int) -> bytes:
    """A file that has no blocks."""
    at %= len(content) or 1
    if kind == "cut":
        return bytes(content[:at])
    width = 1 if kind == "flip" else len(content) - at
    written = bytes(width) if kind == "zero" else bytes(byte ^ (1 + other % 255) for byte in content[at : at + width])
    return bytes(content[:at]) + written + bytes(content[at + width :])


def checkpoint_name(segment: int) -> str:
    return f"{segment:016d}.checkpoint"


def undetectable(known: Known, contents: Contents, touched: set[tuple[int, int]], request: str) -> bool:
    """Whether the request stood in a last segment that is gone without leaving a trace: its ledger ended cleanly
    before that."""
    left = [number for number in known.segments if segment_name(number) in contents]
    [(number, _), *_] = known.blocks_of_begin.get(request, {KEPT})
    if not left or number <= left[-1] or left != list(range(known.segments[0], left[-1] + 1)):
        return False
    blocks, is_closed = known.last_batch[left[-1]]
    return is_closed and not blocks & touched


# --- what holds -----------------------------------------------------------------------------------------------------


def repaired(contents: Contents, place: Path) -> dict[str, Any] | None:
    directory, new = place / "ledger", place / "new"
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    code = repair(directory, new, as_json=True)
    assert contents_of(directory) == contents
    if code != os.EX_OK:
        assert code == os.EX_DATAERR
        assert not new.exists()
        return None
    told: dict[str, Any] = json.loads((new / "repair-report.json").read_bytes())
    return told


@settings(max_examples=60, deadline=None)
@given(damages=damages)
@example(damages=[("flip", -1, 100, 0)])  # the newest checkpoint, where there is one
@example(damages=[("cut", -1, 100, 0), ("remove", -2, 0, 0)])
@example(damages=[("remove", -1, 0, 0), ("flip", 0, 9000, 0)])
@example(damages=[("misdirect", 0, 4096, 12288)])  # a later batch over the first one
@example(damages=[("misdirect", 0, 4096, 8192)])
@example(damages=[("misdirect", 6, 4096, 12288)])  # ... and over a begin that another segment's end names
def test_any_damage_loses_at_most_what_it_touched_and_nothing_is_invented_or_forgotten(
    known: Known, damages: list[Damage]
) -> None:
    contents, touched = damaged(known, damages)
    with tempfile.TemporaryDirectory() as temporary:
        told = repaired(contents, Path(temporary))
        if told is None:
            assert not [name for name, blocks in known.blocks_of_begin.items() if not blocks & touched]
            return
        new = Path(temporary) / "new"
        reading = Reading(new, every_id=True)
        assert all(batch.number for batch in reading.batches())
        assert not reading.tails
        view = LedgerView(new)
        misdirected = {known.names[which % len(known.names)] for kind, which, _, _ in damages if kind == "misdirect"}
        twisted = {int(name[:16]) for name in misdirected}
        holds(known, touched, view, told, twisted)
        low_water = opened(new, lambda: LONG_AGO_MS).low_water_unix_ms
        kept = {begin.request_id for begin in view.begins}
        for request, begin in known.begins.items():
            if request in kept or undetectable(known, contents, touched, request):
                continue
            if told["verdict"] == "sound" and (request in known.blocks_of_begin or not told["read"]["segments"]):
                continue
            assert begin.expires_at_unix_ms <= low_water, request


def holds(
    known: Known, touched: set[tuple[int, int]], view: LedgerView, told: dict[str, Any], twisted: Set[int] = frozenset()
) -> None:
    """`twisted`: segments in which batches stand in each other's places. Which of them is right can be beyond telling;
    then a request is held, and not settled."""
    begins: dict[str, BeginRecord] = {begin.request_id: begin for begin in view.begins}
    ends = {begin.request_id: placeless(end) for begin, end in view.completes}
    assert len(begins) == len(view.begins)
    assert begins.items() <= known.begins.items()
    assert ends.items() <= known.ends.items()
    at_least = 0
    for request in untouched(known.blocks_of_begin, touched):
        assert request in begins
        reservation = known.begins[request].reservation_micro_usd
        if request in ends:
            assert ends[request] == known.ends[request]
        at_least += ends[request].charge_micro_usd if request in ends else reservation
    for request in untouched(known.blocks_of_end, touched):
        # The begin may stand alone in a stretch of damage, where it is not known for which place it was written.
        if not known.blocks_of_begin[request] & touched and not twisted & segments_of(known, request):
            assert request in ends
    new = told["new"]
    assert new["charged_micro_usd"] + new["held_micro_usd"] >= at_least
    assert new["charged_micro_usd"] == sum(end.charge_micro_usd for end in ends.values())
    whole_ends = [request for request in untouched(known.blocks_of_end, touched) if request not in begins]
    assert told["unattributed_micro_usd"] >= sum(known.ends[request].charge_micro_usd for request in whole_ends)


def segments_of(known: Known, request: str) -> set[int]:
    return {segment for segment, _ in known.blocks_of_begin[request] | known.blocks_of_end[request]}


def untouched(blocks_of: dict[str, Blocks], touched: set[tuple[int, int]]) -> Iterator[str]:
    return (request for request, blocks in blocks_of.items() if not blocks & touched)


@pytest.mark.parametrize("kind", ["zero", "garbage"])
def test_each_block_alone_costs_what_stood_in_it(known: Known, kind: str, tmp_path: Path) -> None:
    for which in range(len(known.names)):
        for block in range(0, SEGMENT_BYTES if known.names[which].endswith(".segment") else 1, BLOCK):
            contents, touched = damaged(known, [(kind, which, block, 0)])
            place = tmp_path / f"{which}-{block}"
            place.mkdir()
            told = repaired(contents, place)
            assert told is not None
            holds(known, touched, LedgerView(place / "new"), told)
