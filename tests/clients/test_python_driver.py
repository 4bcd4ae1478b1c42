"""This project's own clients pass what `sidecar conformance --client` asks of any client."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sidecar.conformance.client_play import proven
from sidecar.conformance.client_vectors import client_vectors
from sidecar.conformance.goldens import found
from sidecar.conformance.verdicts import Verdict

DRIVER = Path(__file__).resolve().parent / "python_driver.py"


@pytest.mark.parametrize("kind", ["blocking", "trio", "asyncio"])
async def test_a_client_of_ours_passes_every_vector(kind: str) -> None:
    told: list[Verdict] = []
    command = [sys.executable, str(DRIVER), kind]
    await proven(client_vectors(found()), command, timeout_seconds=30, tell=told.append)
    assert [one for one in told if one.state != "passed"] == []
    assert len(told) > 300
