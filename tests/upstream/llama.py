"""A real llama.cpp server for tests: installed on demand, with a model that is made here, on a port of the kernel's.

What is installed and made is kept in `$SIDECAR_UPSTREAM_CACHE`, by default
under the user's cache directory, and used again by later runs. Processes that
come at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upstream import tiny_model
from upstream.tiny_model import CALLS_TOOLS, TALKS, Model

PACKAGE: Final = "xllamacpp==2026.10.11549"
INSTALL_SECONDS_MAX: Final = 240
STOP_SECONDS_MAX: Final = 10
_HERE: Final = Path(__file__).resolve().parent


class LlamaUnavailable(Exception):
    """The server can't be had on this machine; the message says why."""


@dataclass(frozen=True)
class Llama:
    """A server that is ready. `base_url` has no path; `log` is what it writes of itself."""

    base_url: str
    api_key: str | None
    log: Path
    pid: int


def cache_directory() -> Path:
    """Where packages and models are kept between runs."""
    named = os.environ.get("SIDECAR_UPSTREAM_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "model-sidecar-upstream"


@contextmanager
def start_llama(
    cache_dir: Path, tools: bool = False, api_key: str | None = None, model: Model | None = None
) -> Iterator[Llama]:
    """A server for as long as the block runs. Raises LlamaUnavailable.

    `tools`: the model calls a tool whenever it is given one (without, it only talks).
    """
    with _alone(cache_dir):
        packages = _installed(cache_dir)
        weights = _made(cache_dir, model or (CALLS_TOOLS if tools else TALKS))
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        log = Path(folder) / "log"
        process = _started(packages, weights, api_key, log)
        try:
            yield Llama(_address(process, log), api_key, log, process.pid)
        finally:
            _stop(process)


@contextmanager
def _alone(cache_dir: Path) -> Iterator[None]:
    cache_dir.mkdir(parents=True, exist_ok=True)
    with (cache_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(cache_dir: Path) -> Path:
    """The folder with the package, for this very Python."""
    tag = f"{sys.implementation.cache_tag}-{PACKAGE.replace('==', '-')}"
    target = cache_dir / tag
    if target.is_dir():
        return target
    unfinished = cache_dir / f"{tag}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished), PACKAGE]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise LlamaUnavailable(f"{PACKAGE} was not installed within {INSTALL_SECONDS_MAX} s") from None
    if done.returncode:
        raise LlamaUnavailable(f"{PACKAGE} can't be installed: {done.stderr.strip()[-500:]}")
    unfinished.rename(target)
    return target


def _made(cache_dir: Path, model: Model) -> Path:
    """The model's file, named by all that goes into it."""
    made_from = repr(model).encode() + b"".join(
        source.read_bytes() for source in (Path(tiny_model.__file__), tiny_model.CHAT_TEMPLATE)
    )
    path = cache_dir / f"{hashlib.sha256(made_from).hexdigest()[:16]}.gguf"
    if not path.exists():
        tiny_model.write(path, model)
    return path


def _started(packages: Path, weights: Path, api_key: str | None, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(_HERE / "serve_llama.py"), str(weights), *([api_key] if api_key else [])]
    with log.open("w") as written:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, "PYTHONPATH": str(packages)},
        )


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """The first line that says where it listens; its end of file is a server that did not come up."""
    assert process.stdout is not None
    for line in process.stdout:
        word, _, address = line.strip().partition(" ")
        if word == "LISTENING":
            return address
    raise LlamaUnavailable(f"the server did not come up: {log.read_text(errors='replace').strip()[-500:]}")


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
