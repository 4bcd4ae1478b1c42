"""A ledger small enough to be looked at byte by byte."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.records import FRAME_BYTES_MAX, SEGMENT_BYTES

from sidecar.ledger.files import DiskFiles
from sidecar.ledger.ledger import Ledger

OpenLedger = Callable[..., Ledger]


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_open() -> Iterator[None]:
    """A ledger that a test has left as a crash would holds its descriptors until it is collected."""
    yield
    gc.collect()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def open_ledger(directory: Path) -> OpenLedger:
    def opened(files: DiskFiles | None = None, **changes: object) -> Ledger:
        terms = {
            "segment_bytes": SEGMENT_BYTES,
            "frame_bytes_max": FRAME_BYTES_MAX,
            "requests_in_flight_max": 8,
            "files": files,
            "window_of": lambda caller: 1,
            **changes,
        }
        return Ledger.open(directory, **terms)

    return opened
