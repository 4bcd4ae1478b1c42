"""A real llama.cpp server for tests: installed on demand, with a model that is made here, on a port of the kernel's.

What is installed and made is kept in `$SIDECAR_UPSTREAM_CACHE`, by default
under the user's cache directory, and used again by later runs. Processes that
come at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from upstream import tiny_model
from upstream.served import alone, install, served
from upstream.tiny_model import CALLS_TOOLS, TALKS, Model

PACKAGE: Final = "xllamacpp==2026.10.11549"
INSTALL_SECONDS_MAX: Final = 240
_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Llama:
    """A server that is ready. `base_url` has no path; `log` is what it writes of itself."""

    base_url: str
    api_key: str | None
    log: Path
    pid: int


@contextmanager
def start_llama(
    cache_dir: Path, tools: bool = False, api_key: str | None = None, model: Model | None = None
) -> Iterator[Llama]:
    """A server for as long as the block runs. Raises ServerUnavailable.

    `tools`: the model calls a tool whenever it is given one (without, it only talks).
    """
    with alone(cache_dir):
        packages = _installed(cache_dir)
        weights = _made(cache_dir, model or (CALLS_TOOLS if tools else TALKS))
    with tempfile.TemporaryDirectory(prefix="llama-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, str(_HERE / "serve_llama.py"), str(weights), *([api_key] if api_key else [])]
        with served(command, log, {"PYTHONPATH": str(packages)}) as (base_url, pid):
            yield Llama(base_url, api_key, log, pid)


def _installed(cache_dir: Path) -> Path:
    """The folder with the package, for this very Python."""
    tag = f"{sys.implementation.cache_tag}-{PACKAGE.replace('==', '-')}"
    target = cache_dir / tag
    if target.is_dir():
        return target
    unfinished = cache_dir / f"{tag}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished), PACKAGE]
    install(pip, PACKAGE, INSTALL_SECONDS_MAX)
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
