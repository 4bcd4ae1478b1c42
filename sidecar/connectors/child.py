"""One child process: three pipes, a session of its own, and a sure end.

It inherits no descriptor but its ends of the pipes, and of the environment
only what the plan names. It leads a process group, which is killed as a whole
and always before the child is reaped: until then the kernel gives the group's
number to nobody else, so the signal can't hit a stranger. What it writes to
stderr is told line by line to whoever listens, within bounds.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct
from trio.lowlevel import FdStream

_RECEIVE_BYTES_MAX: Final = 65_536
_LINE_BYTES_MAX: Final = 1024
_STDERR_BYTES_MAX: Final = 4096  # read at once
_STDERR_REST_SECONDS: Final = 0.02
_REAP_SECONDS_MAX: Final = 2.0  # SIGKILL takes effect at once, but for a process that the kernel itself holds


class Plan(Struct, frozen=True, kw_only=True):
    """How a child is started. `environment` is all of it."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path

    def __repr__(self) -> str:
        return f"<plan of {self.argv[0]}>"  # the environment may hold a credential


class Child:
    """A child that was started; whoever starts it lets `end` run, or kills it."""

    def __init__(self, process: trio.Process, ended_descriptor: int) -> None:
        self._process = process
        self._stdin, self._stdout, self._stderr = _streams(process)
        self._ended_descriptor = ended_descriptor  # readable once the process has ended, reaped or not
        self._reaped = False
        self.pid = process.pid

    # --- what is said -----------------------------------------------------------------------------------------

    def send_now(self, framed: bytes) -> int:
        """How many of these bytes the pipe took at once. Raises BrokenPipeError where the child takes none any more."""
        try:
            return os.write(self._stdin.fileno(), framed)
        except BlockingIOError:
            return 0

    async def send(self, framed: bytes) -> None:
        """The rest of a frame. A child that has gone is seen where it is read."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._stdin.send_all(framed)

    async def receive(self) -> bytes:
        """What it wrote next; empty at the end, whatever brought it about."""
        try:
            return bytes(await self._stdout.receive_some(_RECEIVE_BYTES_MAX))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def is_quiet(self) -> bool:
        """Whether it is there and has written nothing that is still to be read."""
        if self._reaped or self._ended_descriptor < 0:
            return False
        look = select.poll()
        look.register(self._stdout.fileno(), select.POLLIN)
        look.register(self._stdin.fileno(), 0)  # whether it still takes anything
        return not look.poll(0)

    async def tell_lines(self, tell: Callable[[str], None]) -> None:
        """Each line of its stderr, cut where it is long; returns at the end of it."""
        held = bytearray()
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while piece := await self._stderr.receive_some(_STDERR_BYTES_MAX):
                *whole, rest = (bytes(held) + piece).split(b"\n")
                for line in whole:
                    _tell(line, tell)
                held = bytearray(rest[:_LINE_BYTES_MAX])
                if len(piece) == _STDERR_BYTES_MAX:  # there is more: let the pipe fill, which slows the child
                    await trio.sleep(_STDERR_REST_SECONDS)
        _tell(bytes(held), tell)

    # --- its end ----------------------------------------------------------------------------------------------

    async def wait_ended(self) -> None:
        """Returns once the process has ended; it is not reaped by that."""
        await trio.lowlevel.wait_readable(self._ended_descriptor)

    def kill(self) -> None:
        """The child and all of its group, now."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):  # gone; or all that is left has changed its user
                os.killpg(self.pid, signal.SIGKILL)

    async def reap(self) -> str:
        """Kills it and waits, for a moment and whatever is cancelled, until it is gone. How it ended, for a person."""
        self.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _REAP_SECONDS_MAX):
            code = await self._process.wait()
            self._reaped = True
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        return "it can't be killed"

    def close(self) -> None:
        """Lets go of its pipes."""
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()
        if self._ended_descriptor >= 0:
            trio.lowlevel.notify_closing(self._ended_descriptor)
            os.close(self._ended_descriptor)
            self._ended_descriptor = -1


async def start(plan: Plan) -> Child:
    """A new child. Raises OSError."""
    process = await trio.lowlevel.open_process(
        list(plan.argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plan.environment,
        cwd=plan.cwd,
        start_new_session=True,
    )
    try:
        return Child(process, os.pidfd_open(process.pid))
    except OSError:
        child = Child(process, -1)
        await child.reap()
        child.close()
        raise


def _streams(process: trio.Process) -> tuple[FdStream, FdStream, FdStream]:
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    assert isinstance(stdin, FdStream)
    assert isinstance(stdout, FdStream)
    assert isinstance(stderr, FdStream)
    return stdin, stdout, stderr


def _tell(line: bytes, tell: Callable[[str], None]) -> None:
    text = line[:_LINE_BYTES_MAX].decode("utf-8", "replace").rstrip()
    if text:
        tell(text)
