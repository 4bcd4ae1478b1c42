"""A real Llama Stack server over a llama.cpp server: the last release that has the native inference routes.

Its virtual environment (430 MB) is kept where `upstream.served` keeps
everything, by default under the user's cache directory; it is made on demand.
Everything else it writes goes into a folder that ends with it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from upstream.llama import Llama
from upstream.served import alone, install, served

PACKAGE: Final = "llama-stack==0.2.12"
# What its providers import although nothing of the package asks for it.
UNDECLARED: Final = ("uvicorn", "aiosqlite", "sqlalchemy[asyncio]", "opentelemetry-exporter-otlp-proto-http", "mcp")
INSTALL_SECONDS_MAX: Final = 600
MODEL: Final = "tiny"
_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True)
class LlamaStack:
    """A server that is ready. `base_url` has no path; `log` is what it writes of itself, telemetry too."""

    base_url: str
    log: Path
    pid: int


@contextmanager
def start_llama_stack(cache_dir: Path, llama: Llama, telemetry: bool = True) -> Iterator[LlamaStack]:
    """A server in front of that one for as long as the block runs. Raises ServerUnavailable.

    `telemetry`: without it the server counts no tokens, and says 0 of each.
    """
    with alone(cache_dir):
        python = _environment(cache_dir)
    with tempfile.TemporaryDirectory(prefix="llama-stack-") as name:
        folder = Path(name)
        config = folder / "config.yaml"
        config.write_text(json.dumps(_config(folder, llama, telemetry)))  # JSON is YAML, too
        # Without -P this folder would come first in the path, and `llama_stack` be this module.
        command = [str(python), "-P", str(_HERE / "serve_llama_stack.py"), str(config)]
        environ = {"PYTHONPATH": "", "LLAMA_STACK_CONFIG_DIR": name, "SQLITE_STORE_DIR": name}
        with served(command, folder / "log", environ) as (base_url, pid):
            yield LlamaStack(base_url, folder / "log", pid)


def _environment(cache_dir: Path) -> Path:
    """The Python of the virtual environment; whole or not at all."""
    folder = cache_dir / f"{sys.implementation.cache_tag}-{PACKAGE.replace('==', '-')}"
    python, whole = folder / "bin" / "python", folder / "installed"
    if not whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        install([sys.executable, "-m", "venv", str(folder)], "a virtual environment", INSTALL_SECONDS_MAX)
        pip = [str(python), "-m", "pip", "install", "--quiet", PACKAGE, *UNDECLARED]
        install(pip, PACKAGE, INSTALL_SECONDS_MAX)
        whole.touch()
    return python


def _config(folder: Path, llama: Llama, telemetry: bool) -> dict[str, Any]:
    upstream = {"url": f"{llama.base_url}/v1", "max_tokens": 256, "api_token": llama.api_key or "none"}
    traces = {"service_name": "stack", "sinks": "console", "sqlite_db_path": str(folder / "traces.db")}
    return {
        "version": "2",
        "image_name": "stack",
        "apis": ["inference", *(["telemetry"] if telemetry else [])],
        "providers": {
            "inference": [{"provider_id": "llama", "provider_type": "remote::vllm", "config": upstream}],
            "telemetry": [
                {"provider_id": "console", "provider_type": "inline::meta-reference", "config": traces},
            ][: int(telemetry)],
        },
        "metadata_store": {"type": "sqlite", "db_path": str(folder / "registry.db")},
        "inference_store": {"type": "sqlite", "db_path": str(folder / "inference.db")},
        "models": [{"model_id": MODEL, "provider_id": "llama", "provider_model_id": MODEL, "model_type": "llm"}],
    }
