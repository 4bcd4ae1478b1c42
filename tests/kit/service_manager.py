"""A service manager as far as a daemon sees it: a socket that is told things, and sockets that are handed over."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from kit.daemon_process import Process, spawn, wait_ready, write_config

_SECONDS_MAX = 30.0
_HIGH = 60  # where no descriptor that is handed over stands in the way of another

# Puts the descriptors where they belong, and becomes the program: the process id stays, as LISTEN_PID wants it.
_HAND_OVER = """
import os, sys
descriptors = [int(one) for one in sys.argv[1].split(",")]
for at, descriptor in enumerate(descriptors):
    os.dup2(descriptor, 3 + at)
    os.set_inheritable(descriptor, False)
os.environ["LISTEN_PID"] = str(os.getpid() + int(os.environ.pop("OFF_BY", "0")))
os.environ["LISTEN_FDS"] = str(len(descriptors))
os.execv(sys.argv[2], sys.argv[2:])
"""


class Manager:
    """Hears what is said to `address`; each thing said is a map, in the order in which it came."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.said: list[dict[str, str]] = []

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        return cls(str(folder / "n"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def hear(self, seconds: float = 0.0) -> dict[str, str] | None:
        """The next thing, if it comes within that time."""
        self._socket.settimeout(seconds)
        try:
            words = self._socket.recv(65_536).decode()
        except (BlockingIOError, TimeoutError):
            return None
        told = dict(line.split("=", 1) for line in words.splitlines())
        self.said.append(told)
        return told

    def hear_all(self) -> None:
        while self.hear() is not None:
            pass

    def wait_for(self, key: str, beginning: str = "") -> dict[str, str]:
        """The next thing that tells this key, with a value that begins so."""
        give_up_at = time.monotonic() + _SECONDS_MAX
        while (left := give_up_at - time.monotonic()) > 0:
            told = self.hear(left)
            if told is not None and told.get(key, "\0").startswith(beginning):
                return told
        raise AssertionError(f"{key}={beginning} was not said: {self.said}")

    def values(self, key: str) -> list[str]:
        return [told[key] for told in self.said if key in told]


@contextmanager
def handed_over(
    folder: Path, *sockets: socket.socket, names: str | None = "requests", **environ: str
) -> Iterator[Process]:
    """A daemon on the configuration in this folder that finds these sockets from descriptor 3 on; not waited for."""
    if not (folder / "sidecar.toml").exists():
        write_config(folder)
    with ExitStack() as copies:
        high = [fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, _HIGH) for one in sockets]
        for copy in high:
            copies.callback(os.close, copy)
        wrapper = [sys.executable, "-I", "-c", _HAND_OVER, ",".join(map(str, high))]
        called = {} if names is None else {"LISTEN_FDNAMES": names}
        daemon = spawn(folder, wrapper=wrapper, environ={**called, **environ}, pass_fds=high)
    try:
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait(timeout=20)


@contextmanager
def activated(folder: Path, *sockets: socket.socket, **more: str) -> Iterator[Process]:
    """As `handed_over`, and ready."""
    with handed_over(folder, *sockets, **more) as daemon:
        wait_ready(daemon)
        yield daemon


@contextmanager
def listening_at(path: Path, backlog: int = 128) -> Iterator[socket.socket]:
    """What a socket unit holds."""
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(path))
        held.listen(backlog)
        yield held
