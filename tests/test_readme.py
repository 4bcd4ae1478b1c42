"""The README's config serves, and its client works, as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

from kit.daemon_process import Process, wait_ready

from sidecar.contract.values import Refusal

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def block(language: str, at: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[at]


def shell_call() -> list[str]:
    """The README's `sidecar call`, with this interpreter's sidecar."""
    [line] = re.findall(r"^\.venv/bin/sidecar (call .*)$", README, re.MULTILINE)
    return [sys.executable, "-m", "sidecar", *shlex.split(line)]


def test_the_first_config_serves_the_first_client_and_the_first_call(tmp_path: Path) -> None:
    (tmp_path / "sidecar.toml").write_text(block("toml"))
    (tmp_path / "client.py").write_text(block("python"))
    log = tmp_path / "log"
    with log.open("wb") as sink:
        serving = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "serve", "--config", "sidecar.toml"], cwd=tmp_path, stderr=sink
        )
    try:
        wait_ready(Process(tmp_path, serving, log))
        done = subprocess.run(
            [sys.executable, "client.py"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30
        )
        assert "Who goes there?" in done.stdout
        assert "cost_micro_usd" in done.stdout
        called = subprocess.run(shell_call(), cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
        assert called.stdout == "Who goes there?"
        assert "charge:" in called.stderr
    finally:
        serving.terminate()
        assert serving.wait(timeout=30) == 0


def test_every_refusal_is_explained_in_the_order_of_the_contract() -> None:
    explained = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(explained) == sorted(get_args(Refusal))


def test_the_demo_ends_as_it_promises() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "demo"], capture_output=True, text=True, check=True, timeout=60
    )
    for said in ("receipt: tool_use", "identical to the first answer", "refused: SpendCeiling", "closed", "chain head"):
        assert said in done.stdout
