"""Every test that asks for `way` runs three times: under Trio, under asyncio and for the blocking client."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.three_clients import WAYS, Way


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


@pytest.fixture
def path() -> Iterator[Path]:
    """Where a socket can be: short, and not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "s.sock"
