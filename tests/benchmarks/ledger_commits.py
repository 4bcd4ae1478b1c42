"""Records that are durable, by the second: the ledger with 64 waiting, its writer alone, and SQLite, in turn."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import trio
from benchmarks.ledger_made import IN_FLIGHT, opened
from benchmarks.ledger_records import Requests
from msgspec import Struct

from sidecar.contract.values import BeginRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger.landing import Landing
from sidecar.ledger.ledger import Ledger
from sidecar.ledger.writer import Append

RECORD_BYTES = 600
_KEY_BYTES = 16
_TABLE = "CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
_INSERT = "INSERT INTO records VALUES (?, ?)"


class Round(Struct, frozen=True):
    """Records by the second."""

    ledger: float
    writer: float
    sqlite: float


class Sqlite:
    """A table with a random key; each transaction is synced, and holds as many rows as wait for the ledger."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        [(journal,)] = self._database.execute("PRAGMA journal_mode=WAL")
        assert journal == "wal", journal
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute(_TABLE)

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        for at in range(0, len(rows), IN_FLIGHT):
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(_INSERT, rows[at : at + IN_FLIGHT])
            self._database.execute("COMMIT")

    def close(self) -> None:
        self._database.close()


class Commits:
    """Begins of about 600 bytes are made before they are timed, as the rows are."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._records = records
        self._numbers = count()
        self._requests = Requests(records)

    def rounds(self, wanted: int) -> list[Round]:
        return trio.run(self._rounds, wanted)

    async def _rounds(self, wanted: int) -> list[Round]:
        ledger, sqlite = opened(self._folder / "commits"), Sqlite(self._folder / "commits.sqlite")
        try:
            async with ledger.running():
                return [await self._round(ledger, sqlite) for _ in range(wanted)]
        finally:
            sqlite.close()

    async def _round(self, ledger: Ledger, sqlite: Sqlite) -> Round:
        begins = [self._requests.begin(next(self._numbers)) for _ in range(self._records)]
        framed = [on_disk.encode_record(begin) for begin in begins]
        rows = [(os.urandom(_KEY_BYTES), os.urandom(RECORD_BYTES)) for _ in range(self._records)]
        while not ledger.statistics().spares_ready:
            await trio.sleep(0.01)  # what makes one takes the disk's time
        through_the_ledger = await _per_second(ledger.begin, begins)
        through_the_writer = await _per_second(partial(_appended, ledger), framed)
        began = time.perf_counter()
        sqlite.write(rows)
        through_sqlite = len(rows) / (time.perf_counter() - began)
        for landing in [self._completed(ledger, begin) for begin in begins]:  # else they would keep their room
            await landing
        return Round(ledger=through_the_ledger, writer=through_the_writer, sqlite=through_sqlite)

    def _completed(self, ledger: Ledger, begin: BeginRecord) -> Landing:
        recorded = ledger.find(begin.caller_runtime_id, begin.request_id)
        assert recorded is not None
        return ledger.complete(begin, self._requests.completed(begin, recorded.begin))


def _appended(ledger: Ledger, framed: bytes) -> Landing:
    """As `Ledger.begin` does it, but for what keeps a request: the index, and room to settle it."""
    append = Append(framed, ledger._room.place_closed(len(framed)), lambda _: None)
    ledger._writer.append(append)
    return append


async def _per_second(write: Callable[[Any], Landing], records: Sequence[Any]) -> float:
    """How many are durable by the second, with 64 tasks of which each waits for its record."""
    left = iter(records)

    async def wait_for_each() -> None:
        for record in left:
            await write(record)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(wait_for_each)
    return len(records) / (time.perf_counter() - began)
