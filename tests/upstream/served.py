"""A server as a child process: it says where it listens, and it ends when its standard input does."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

STOP_SECONDS_MAX: Final = 10


class ServerUnavailable(Exception):
    """A server can't be had on this machine; the message says why."""


def cache_directory() -> Path:
    """Where packages and models are kept between runs: `$SIDECAR_UPSTREAM_CACHE`, or under the user's cache."""
    named = os.environ.get("SIDECAR_UPSTREAM_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "model-sidecar-upstream"


@contextmanager
def alone(cache_dir: Path) -> Iterator[None]:
    """Processes that come to the same cache at the same time wait for each other."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(pip: Sequence[str], what: str, seconds_max: int) -> None:
    """Runs an installer to its end. Raises ServerUnavailable."""
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=seconds_max, check=False)
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"{what} was not installed within {seconds_max} s") from None
    if done.returncode:
        raise ServerUnavailable(f"{what} can't be installed: {done.stderr.strip()[-500:]}")


@contextmanager
def served(command: Sequence[str], log: Path, environ: dict[str, str]) -> Iterator[tuple[str, int]]:
    """(base URL, pid) of a server that prints `LISTENING` and its address. Raises ServerUnavailable."""
    with log.open("w") as written:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, **environ},
        )
    try:
        yield _address(process, log), process.pid
    finally:
        _stop(process)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """The first line that says where it listens; its end of file is a server that did not come up."""
    assert process.stdout is not None
    for line in process.stdout:
        word, _, address = line.strip().partition(" ")
        if word == "LISTENING":
            return address
    raise ServerUnavailable(f"the server did not come up: {log.read_text(errors='replace').strip()[-500:]}")


def _stop(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
