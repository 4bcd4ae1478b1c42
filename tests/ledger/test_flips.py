"""Any byte of a small ledger is changed: it opens with the totals that it had or not at all, and answers only what it
answered before."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from kit import records
from kit.dropped_segments import drop
from kit.small_ledgers import SEGMENT_BYTES, WINDOW_SECONDS, Contents, contents_of, open_small
from msgspec import Struct

from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger

CALLER = "dungeon"
Known = dict[str, bytes | None]


async def _run(directory: Path, numbers: range, unfinished: int | None, known: Known) -> None:
    ledger = open_small(directory)
    try:
        async with ledger.running():
            for number in numbers:
                while ledger.statistics().spares_ready < 2:
                    await trio.lowlevel.checkpoint()
                begin, answer = records.begin(number), f"answer {number}".encode()
                end = records.completed(await ledger.begin(begin), charge=number, response=answer)
                await ledger.complete(begin, end)
                known[begin.request_id] = answer
            if unfinished is not None:
                begin = records.begin(unfinished)
                await ledger.begin(begin)
                known[begin.request_id] = None
                raise KeyError("the process is gone")
    except* KeyError:
        pass


async def made(directory: Path) -> Known:
    """Three segments of 32 KiB, the first two with seals: ended by a rotation, by a crash, by a clean exit."""
    known: Known = {}
    await _run(directory, range(1, 5), 5, known)
    await _run(directory, range(6, 8), None, known)
    segments = list(directory.glob("*.segment"))
    assert (len(segments), sum(path.stat().st_size for path in segments)) == (3, 96 * 1024)
    assert len(list(directory.glob("*.seal"))) == 2
    return known


async def made_and_dropped(directory: Path) -> Known:
    """Behind a checkpoint, with a seal of what is dropped beside."""
    known: Known = {}
    await _run(directory, range(1, 4), 5, known)
    await _run(directory, range(6, 7), None, known)
    await drop(directory, 1)
    for number in (1, 2, 3):
        known.pop(f"request-{number}")
    return known


class QuickFiles(DiskFiles):
    """The real calls, but for those that only wait for the disk."""

    def sync(self, descriptor: int) -> None:
        return

    def sync_directory(self, path: Path) -> None:
        return

    def forget_cache(self, descriptor: int) -> None:
        return

    def write_zeros(self, descriptor: int, size: int, go_on: Callable[[], bool]) -> None:
        self.write(descriptor, [bytes(size)], 0)


def opened(directory: Path, totals: records.Totals, window_seconds: int) -> Ledger:
    """At an instant of the window in which all requests were admitted."""
    return Ledger.open(
        directory,
        segment_bytes=SEGMENT_BYTES,
        frame_bytes_max=SEGMENT_BYTES // 4 - RECORD_MARGIN_BYTES,
        requests_in_flight_max=1,
        files=QuickFiles(),
        clock_unix_ms=lambda: 3000,
        listeners=totals.listeners,
        window_of=lambda caller: window_seconds,
    )


async def answer_of(ledger: Ledger, request: str) -> bytes | str | None:
    """The answer; None for a request without one; why it can't be given."""
    try:
        recorded = ledger.find(CALLER, request)
        assert recorded is not None, f"{request} is not found"
        return await ledger.read_response(recorded) if recorded.completed is not None else None
    except LedgerUnavailable as fault:
        return str(fault)


def placed(directory: Path, contents: Contents) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)


class Sound(Struct):
    """A ledger as it was before a byte of it was changed."""

    contents: Contents
    known: Known
    window_seconds: int
    spent: int = 0
    reserved: int = 0


async def became(directory: Path, sound: Sound, where: str) -> str:
    """What opening came to, and then a look at each request."""
    totals = records.Totals()
    try:
        ledger = opened(directory, totals, sound.window_seconds)
    except LedgerDamaged as damage:
        refused = damage
    else:
        refused = None
    if refused is not None:
        assert (refused.segment.parent, refused.offset >= 0) == (directory, True), where
        return "refused"
    try:
        assert (totals.spent, totals.reserved) == (sound.spent, sound.reserved), where
        answers = {request: await answer_of(ledger, request) for request in sound.known}
    finally:
        ledger._let_go()
    for request, answer in answers.items():
        assert isinstance(answer, str) or answer == sound.known[request], where
    return "unavailable" if any(isinstance(answer, str) for answer in answers.values()) else "as it was"


@pytest.mark.parametrize("stride", [499, pytest.param(1, marks=[pytest.mark.campaign, pytest.mark.timeout(7200)])])
@pytest.mark.parametrize(
    ("make", "spent", "window_seconds"),
    [
        (made, 23, WINDOW_SECONDS),
        (made, 23, 2 * WINDOW_SECONDS),
        (made_and_dropped, None, WINDOW_SECONDS),
        (made_and_dropped, None, 2 * WINDOW_SECONDS),
    ],
)
async def test_a_changed_byte_is_refused_or_changes_no_total_and_no_answer(
    tmp_path: Path, make: Callable[[Path], Awaitable[Known]], spent: int | None, window_seconds: int, stride: int
) -> None:
    """With windows of another length than the seals have, sealed segments are read at open too."""
    known = await make(tmp_path / "made")
    sound = Sound(contents_of(tmp_path / "made"), known, window_seconds)
    copy, totals = tmp_path / "copy", records.Totals()
    placed(copy, sound.contents)
    opened(copy, totals, window_seconds)._let_go()
    sound.spent, sound.reserved = totals.spent, totals.reserved
    assert spent in (None, sound.spent)
    assert sound.reserved == 100
    seen = []
    for name, content in sound.contents.items():
        for at in range(0, len(content), stride if name.endswith(".segment") else min(stride, 37)):
            changed = content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :]
            placed(copy, {**sound.contents, name: changed})
            seen.append(await became(copy, sound, f"byte {at} of {name}"))
    # Where windows have another length now, an opening reads all segments of this ledger, and refuses.
    assert {"refused", "as it was"} <= set(seen)
    assert "unavailable" in seen or window_seconds == 7200
