"""What the disk under a ledger does: a sync alone, and how many batches a ledger has written."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

from sidecar.ledger import format as on_disk
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import BLOCK_BYTES
from sidecar.ledger.recovery import segment_path, segments_in

_FILE_BYTES = 1 << 24
_ZEROS = bytes(1 << 20)


def sync_median_us(folder: Path, size_bytes: int, times: int) -> float:
    """A write of this size and its fdatasync, one after the other through a file that was written out with zeros."""
    path = folder / "synced"
    step = on_disk.padded(size_bytes)
    written = os.urandom(size_bytes)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(_FILE_BYTES // len(_ZEROS)):
            os.write(descriptor, _ZEROS)
        os.fsync(descriptor)
        took = []
        for at in range(times):
            began = time.perf_counter_ns()
            os.pwrite(descriptor, written, at * step % (_FILE_BYTES - step))
            os.fdatasync(descriptor)
            took.append(time.perf_counter_ns() - began)
        return median(took) / 1000
    finally:
        os.close(descriptor)
        path.unlink()


def batches_written(directory: Path) -> int:
    """The number of the last batch of a ledger that is at rest: each has one sync, and each new segment two more."""
    path = segment_path(directory, segments_in(DiskFiles(), directory)[-1])
    last, at = 0, BLOCK_BYTES
    with path.open("rb") as segment:
        opened = on_disk.decode_segment_header(segment.read(BLOCK_BYTES))
        while True:
            segment.seek(at)
            batch = on_disk.decode_batch_header(segment.read(BLOCK_BYTES), salt=opened.salt, segment=opened.segment)
            if batch is None:
                return last
            last, at = batch.number, at + batch.total_bytes
