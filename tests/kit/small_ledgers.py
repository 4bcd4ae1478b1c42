"""Real ledgers of 32 KiB segments, small enough that every byte can be looked at, and their files in memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import trio
from kit import records

from sidecar.config.values import RECORD_MARGIN_BYTES
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger

SEGMENT_BYTES = 32_768
BLOCK = 4096
WINDOW_SECONDS = 3600
Contents = dict[str, bytes]


def segment_name(number: int) -> str:
    return f"{number:016d}.segment"


def open_small(directory: Path, files: DiskFiles | None = None) -> Ledger:
    return Ledger.open(
        directory,
        segment_bytes=SEGMENT_BYTES,
        frame_bytes_max=SEGMENT_BYTES // 4 - RECORD_MARGIN_BYTES,  # records of tests are far smaller
        requests_in_flight_max=1,
        files=files,
        window_of=lambda caller: WINDOW_SECONDS,
    )


async def session(
    directory: Path,
    numbers: Iterable[int],
    *,
    unfinished: Iterable[int] = (),
    clean: bool = True,
    files: DiskFiles | None = None,
) -> None:
    """One run of a daemon: requests that end, each record in a batch of its own, and then some that don't."""
    ledger = open_small(directory, files)
    try:
        async with ledger.running():
            for number in numbers:
                await _has_a_spare(ledger)
                begin = records.begin(number)
                await ledger.complete(begin, records.completed(await ledger.begin(begin)))
            for number in unfinished:
                await _has_a_spare(ledger)
                await ledger.begin(records.begin(number))
            if not clean:
                raise KeyError("the process is gone")
    except* KeyError:
        pass


async def _has_a_spare(ledger: Ledger) -> None:
    while ledger.statistics().spares_ready < 2:
        await trio.lowlevel.checkpoint()


async def three_segments(directory: Path) -> None:
    """The first ended by a rotation, the second by a crash that leaves a request open, the third by a clean exit."""
    await session(directory, [1, 2, 3, 4], unfinished=[5], clean=False)
    await session(directory, [6])


def contents_of(directory: Path) -> Contents:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


class MemoryFiles(DiskFiles):
    """Only what reading a ledger needs; files in `quarantine/` are named with it."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self._opened: list[str] = []
        self.forgotten: list[str] = []

    def names(self, directory: Path) -> list[str]:
        return sorted(self.contents)

    def open_to_read(self, path: Path) -> int:
        name = f"quarantine/{path.name}" if path.parent.name == "quarantine" else path.name
        if name not in self.contents:
            raise FileNotFoundError(name)
        self._opened.append(name)
        return len(self._opened) - 1

    def size(self, descriptor: int) -> int:
        return len(self.contents[self._opened[descriptor]])

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        return self.contents[self._opened[descriptor]][offset : offset + length]

    def close(self, descriptor: int) -> None:
        return

    def forget_if_it_can(self, descriptor: int) -> None:
        self.forgotten.append(self._opened[descriptor])


class RecordedFiles(DiskFiles):
    """The real calls; what they change in segments is noted, in order, as (name, offset, bytes).

    A rename to a segment's name is noted as the whole file that it then is.
    """

    def __init__(self) -> None:
        self.changes: list[tuple[str, int, bytes]] = []
        self._names: dict[int, Path] = {}
        self._renamed: dict[Path, Path] = {}

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._names[descriptor] = path
        return descriptor

    def write(self, descriptor: int, pieces: Iterable[bytes | memoryview], offset: int) -> None:
        whole = list(pieces)
        super().write(descriptor, whole, offset)
        path = self._names.get(descriptor)
        if path in self._renamed:
            self.changes.append((self._renamed[path].name, offset, b"".join(whole)))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self._renamed[old] = new
        self.changes.append((new.name, 0, new.read_bytes()))


DAY_MS = 86_400_000


async def mixed(directory: Path) -> None:
    """Two callers, two models, two days: two answers, a failure of unknown usage, and one that never ended."""
    ledger = open_small(directory)
    requests = [
        (records.begin(1, admitted_at_unix_ms=5), {"charge": 60}),
        (records.begin(2, admitted_at_unix_ms=DAY_MS, model="sage"), {"charge": 7}),
        (
            records.begin(3, caller="arena", admitted_at_unix_ms=DAY_MS - 1),
            {"charge": 100, "outcome": "unavailable", "usage": None},
        ),
    ]
    async with ledger.running():
        for begin, end in requests:
            await _has_a_spare(ledger)
            completed_at = begin.admitted_at_unix_ms + 1500
            place = await ledger.begin(begin)
            await ledger.complete(begin, records.completed(place, completed_at_unix_ms=completed_at, **end))
        await _has_a_spare(ledger)
        await ledger.begin(records.begin(4, admitted_at_unix_ms=DAY_MS + 1, reservation=250))


def damage(directory: Path, segment: int, offset: int) -> Path:
    """One byte of a segment is changed; the file."""
    path = directory / segment_name(segment)
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return path
