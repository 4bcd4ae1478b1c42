"""This project's own clients pass what `sidecar conformance --client` asks of any client."""

from __future__ import annotations

import subprocess
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


@pytest.mark.parametrize("words", [["curio"], ["trio", "asyncio"]])
def test_the_driver_says_how_it_is_used(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(DRIVER), *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"usage: python {DRIVER} [blocking | trio | asyncio]\n"


async def test_without_a_word_it_is_the_blocking_client() -> None:
    told: list[Verdict] = []
    vectors = [one for one in client_vectors(found()) if one.name.startswith("results/Refused")]
    await proven(vectors, [sys.executable, str(DRIVER)], timeout_seconds=30, tell=told.append)
    assert {one.state for one in told} == {"passed"}
