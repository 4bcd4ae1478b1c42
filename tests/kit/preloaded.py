"""Daemons that are forked from a process that has read all modules already: a start then takes 30 ms instead of 300.

Campaigns that kill a daemon a hundred times spend most of their time on
imports otherwise. What runs is the same command line in a process of its own;
beside each stands a keeper, which is its parent and passes on how it ended.
Run as a script, this is the process that is forked from.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_START_SECONDS_MAX = 30


class Forked:
    """As much of `subprocess.Popen` as a daemon under test needs."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        self._keeper.settimeout(_START_SECONDS_MAX)
        self._said = keeper.makefile("r")
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._keeper.settimeout(timeout or None)
            try:
                ready = self._keeper.recv(1, socket.MSG_PEEK | (socket.MSG_DONTWAIT if timeout == 0 else 0))
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("sidecar serve", timeout or 0) from None
            assert ready, "the keeper has gone"
            self._keeper.settimeout(None)
            self.returncode = int(self._said.readline())
            self._said.close()
            self._keeper.close()
        return self.returncode


class Preloaded:
    """The process that daemons are forked from."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def serve(self, config: Path, log: Path) -> Forked:
        """A daemon on this configuration whose stderr is this file."""
        keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        keeper.connect(str(self._place))
        keeper.sendall(json.dumps([str(config.absolute()), str(log.absolute())]).encode() + b"\n")
        return Forked(keeper)


@contextmanager
def preloaded(folder: Path) -> Iterator[Preloaded]:
    place = folder / "preloaded.sock"
    process = subprocess.Popen([sys.executable, __file__, str(place)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield Preloaded(place)
    finally:
        process.terminate()
        process.communicate(timeout=20)


# --- the process itself -----------------------------------------------------------------------------------------


def _listen(place: str) -> None:
    from sidecar.cli import main, serve  # noqa: F401  what is to be read before

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    listener.listen(16)
    print("listening", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks after keepers
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Starts a daemon, says its pid, and then how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    config, log = json.loads(connection.makefile("r").readline())
    pid = os.fork()
    if pid == 0:
        os.setsid()
        connection.close()
        _become_daemon(config, log)
    with suppress(OSError):  # whoever asked may have gone
        connection.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become_daemon(config: str, log: str) -> None:
    code: Any = 1
    try:
        for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, os.devnull, os.O_WRONLY),
                                        (2, log, os.O_WRONLY | os.O_APPEND)):  # fmt: skip
            opened = os.open(path, flags)
            os.dup2(opened, descriptor)
            os.close(opened)
        random.seed()
        sys.argv = ["sidecar", "serve", "--config", config]
        from sidecar.__main__ import run

        code = run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _listen(sys.argv[1])
