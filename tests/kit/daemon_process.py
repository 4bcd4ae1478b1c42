"""The real daemon in its own process, and a lean client for it: blocking sockets and the msgpack library only."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import msgpack
from kit.preloaded import Forked, Preloaded

START_SECONDS_MAX = 30.0
READY = re.compile(r'\bready\b.*\bpid(?:=|": )(\d+)')  # in each of the log's forms

CONFIG = """
[daemon]
socket = "s.sock"
frame_bytes_max = {frame_bytes_max}
drain_seconds_max = 20
{daemon}

[ledger]
directory = "ledger"
segment_bytes = {segment_bytes}

[[caller]]
id = "dungeon"
models = ["npc"]
concurrent_requests_max = {concurrent}
spend_ceiling_micro_usd = {ceiling}
spend_window_seconds = 86_400
{callers}

[[connector]]
name = "provider"
{connector}

[[model]]
name = "npc"
connector = "provider"
upstream = "{upstream}"
[[model.price]]
input = {price_input}
cache_read = 3_000_017
cache_write_short = 5_000_011
cache_write_long = 7_000_003
output = 11_000_027
"""


def write_config(
    folder: Path,
    *,
    script: str | None = None,
    connector: str | None = None,
    ceiling: int = 10**12,
    concurrent: int = 100,
    callers: str = "",
    daemon: str = "",
    upstream: str = "echo-1",
    price_input: int = 2_000_003,
    frame_bytes_max: int = 196_608,
) -> Path:
    """A configuration in this folder, with a scripted connector unless another is given; the smallest segments."""
    if script is not None:
        (folder / "script.toml").write_text(script)
    with_script = 'kind = "scripted"' + ('\nscript = "script.toml"' if script is not None else "")
    config = folder / "sidecar.toml"
    config.write_text(
        CONFIG.format(
            connector=connector or with_script, ceiling=ceiling, concurrent=concurrent, callers=callers, daemon=daemon,
            upstream=upstream, price_input=price_input,
            frame_bytes_max=frame_bytes_max, segment_bytes=4 * (frame_bytes_max + 65_536),
        )
    )  # fmt: skip
    return config


class Process:
    """A daemon that runs; `log()` is what it has said so far."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.folder = folder
        self.process = process
        self._log = log

    @property
    def socket_path(self) -> Path:
        return self.folder / "s.sock"

    @property
    def pid(self) -> int:
        """The daemon itself, also where it runs under a wrapper."""
        ready = READY.search(self.log())
        return int(ready[1]) if ready else self.process.pid

    def log(self) -> str:
        return self._log.read_text()

    def connect(self) -> Client:
        return Client(self.socket_path)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(timeout=20)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout=40)


# Where a campaign has set it, daemons without a wrapper are forked from it.
preloaded: list[Preloaded] = []


def spawn(
    folder: Path,
    *,
    wrapper: Sequence[str] = (),
    environ: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """A daemon on the configuration in this folder; not waited for."""
    log = folder / "log"
    log.write_bytes(b"")
    if preloaded and not wrapper and not environ:
        return Process(folder, preloaded[-1].serve(folder / "sidecar.toml", log), log)
    command = [*wrapper, sys.executable, "-m", "sidecar", "serve", "--config", str(folder / "sidecar.toml")]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stderr=sink, env={**os.environ, **(environ or {})}, pass_fds=pass_fds)
    return Process(folder, process, log)


def wait_ready(daemon: Process) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while READY.search(daemon.log()) is None:
        assert daemon.process.poll() is None, daemon.log()
        assert time.monotonic() < give_up_at, daemon.log()
        time.sleep(0.01)


@contextmanager
def running_daemon(
    folder: Path, *, wrapper: Sequence[str] = (), environ: dict[str, str] | None = None, **config: Any
) -> Iterator[Process]:
    """A ready daemon; it is killed at the end if it still runs."""
    if config or not (folder / "sidecar.toml").exists():
        write_config(folder, **config)
    daemon = spawn(folder, wrapper=wrapper, environ=environ)
    try:
        wait_ready(daemon)
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    """Polls what another process does; fails after a while."""
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at, "it has not happened"
        time.sleep(0.005)


# --- a client ---------------------------------------------------------------------------------------------------


def request(request_id: str, words: str = "hello there", **changes: Any) -> dict[str, Any]:
    return {
        "schema_id": "gamecult.model.provider_request.v1",
        "request_id": request_id,
        "conversation_id": "conversation",
        "model": "npc",
        "instructions": "",
        "input": [{"UserText": {"text": words}}],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 64,
        **changes,
    }


def packed(value: Any) -> bytes:
    """Canonical: keys sorted, shortest headers."""
    return bytes(msgpack.packb(_sorted(value)))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value) if value[key] is not None}
    return [_sorted(inner) for inner in value] if isinstance(value, list) else value


def invocation(request_id: str, words: str = "hello there", *, seconds: float = 60, **changes: Any) -> bytes:
    """The frame of an invocation that is valid now."""
    members = {name: changes.pop(name) for name in ("caller_runtime_id", "max_cost_micro_usd") if name in changes}
    asked = request(request_id, words, **changes)
    digest = list(sha256(packed(asked)).digest())
    return packed(
        {
            "schema_id": "gamecult.model.transport_invocation.v1",
            "caller_runtime_id": "dungeon",
            "expires_at_unix_ms": int((time.time() + seconds) * 1000),
            "max_cost_micro_usd": 10**9,
            "native_request_sha256": digest,
            "provider_request_sha256": digest,
            "request": asked,
            **members,
        }
    )


class Client:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self._stream = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self) -> bytes | None:
        """The next frame, or None where the daemon has closed."""
        try:
            prefix = self._stream.read(4)
            return self._stream.read(int.from_bytes(prefix, "big")) if len(prefix) == 4 else None
        except ConnectionResetError:
            return None

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        answer = self.receive()
        assert answer is not None, "the daemon closed the connection"
        return answer
