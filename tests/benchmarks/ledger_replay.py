"""One segment read as opening reads what no index covers, beside its checksums alone, in turn, from the page cache.

There is no one checksum-only scan, for the format has three: the CRC of each batch, the SHA-256 chain through the
batches, and the CRC of each record. The scans here read the same bytes with the same calls and decode nothing; each
checks one more than the one before it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from struct import Struct as Packed
from zlib import crc32

from msgspec import Struct

from sidecar.contract.values import BeginRecord
from sidecar.ledger import format as on_disk
from sidecar.ledger import recovery
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BATCH_HEADER_BYTES, BLOCK_BYTES, RECORD_HEADER_BYTES, BatchHeader
from sidecar.ledger.opening import Listeners, Opening
from sidecar.rules.windows import Account

_RECORD = Packed(">IBBHI")
_Check = Callable[[BatchHeader, bytes, bytes], None]


class Pass(Struct, frozen=True):
    """All rounds of one way of reading: seconds each."""

    took: list[float]
    records: int
    read_bytes: int

    @property
    def records_per_second(self) -> list[float]:
        return [self.records / seconds for seconds in self.took]


def _nothing_more(header: BatchHeader, batch: bytes, previous_head: bytes) -> None:
    """The batch's CRC is always checked."""


def _the_chain(header: BatchHeader, batch: bytes, previous_head: bytes) -> None:
    assert on_disk.chained_head(header, batch, previous_head) == header.head, "off the chain"


def _each_record(header: BatchHeader, batch: bytes, previous_head: bytes) -> None:
    seen, at = memoryview(batch), BATCH_HEADER_BYTES
    for _ in range(header.count):
        length, kind, _, _, crc = _RECORD.unpack_from(batch, at)
        at += RECORD_HEADER_BYTES
        assert crc32(seen[at : at + length], kind) == crc, "a record's CRC"
        at += length


def _all_three(header: BatchHeader, batch: bytes, previous_head: bytes) -> None:
    _the_chain(header, batch, previous_head)
    _each_record(header, batch, previous_head)


SCANS: dict[str, _Check] = {
    "the CRC of each batch": _nothing_more,
    "and the chain": _the_chain,
    "and the CRC of each record": _all_three,
}


def scan(path: Path, check: _Check) -> tuple[int, int]:
    """How many records there are, and where the last batch ends."""
    files = DiskFiles()
    descriptor = files.open_to_read(path)
    try:
        opened = on_disk.decode_segment_header(files.read(descriptor, BLOCK_BYTES, 0))
        records, at, head = 0, BLOCK_BYTES, opened.previous_head
        while True:
            block = files.read(descriptor, BLOCK_BYTES, at)
            header = on_disk.decode_batch_header(block, salt=opened.salt, segment=opened.segment)
            if header is None:
                return records, at
            rest = header.total_bytes - BLOCK_BYTES
            batch = block + files.read(descriptor, rest, at + BLOCK_BYTES) if rest else block
            assert on_disk.batch_is_whole(header, batch), "a batch's CRC"
            check(header, batch, head)
            records, at, head = records + header.count, at + header.total_bytes, header.head
    finally:
        files.close(descriptor)


def replay(directory: Path) -> int:
    """With the spend of every caller, as a daemon counts it."""
    accounts: defaultdict[str, Account] = defaultdict(lambda: Account(86_400, 1 << 60))

    def held(begin: BeginRecord) -> None:
        accounts[begin.caller_runtime_id].reserve(begin.admitted_at_unix_ms, begin.reservation_micro_usd)

    def charged(caller: str, admitted_at_unix_ms: int, charge_micro_usd: int) -> None:
        accounts[caller].settle(admitted_at_unix_ms, 0, charge_micro_usd)

    told = Listeners(on_open=held, on_sum=charged)
    opening = Opening(DiskFiles(), directory, window_of=lambda caller: 86_400, now_unix_ms=0, listeners=told)
    found = recovery.replay(DiskFiles(), directory, opening.take, cold=False)
    opening.tell()
    return found.records


def measured(directory: Path, folder: Path, rounds: int) -> tuple[dict[str, Pass], Pass]:
    """The scans and the replay of this ledger's first segment; `folder` is for a directory that has no other."""
    alone = folder / "one-segment"
    alone.mkdir()
    path = recovery.segment_path(alone, 1)
    os.link(recovery.segment_path(directory, 1), path)
    records, end = scan(path, _nothing_more)
    took: dict[str, list[float]] = {name: [] for name in (*SCANS, "replay")}
    for _ in range(rounds):
        for name, check in SCANS.items():
            took[name].append(_seconds(lambda check=check: scan(path, check)))  # type: ignore[misc]  # a default in a lambda
        took["replay"].append(_seconds(lambda: replay(alone)))
    assert replay(alone) == records
    passes = {name: Pass(seconds, records, end) for name, seconds in took.items()}
    return passes, passes.pop("replay")


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
