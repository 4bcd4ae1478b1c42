"""A driver's process: started when it is needed, spoken to in lines, stopped without mercy.

Nothing that it does can hold the runner up: every wait for it stands under the
deadline of a vector, a line is bounded, and its stderr is read all the time by a
task of its own, which keeps the end of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import trio

from sidecar.conformance.driver_lines import CLAIMS, LINE_BYTES_MAX, BrokenLine, line, read_line

PROTOCOL: Final = 1
_END_SECONDS_MAX: Final = 5.0  # for a driver whose stdin has ended
_STDERR_SECONDS_MAX: Final = 0.5  # for the rest of it, where somebody outside the driver's group holds it open
_STDERR_BYTES_KEPT: Final = 2000
_STDERR_LINES_SHOWN: Final = 8
_RECEIVE_BYTES_MAX: Final = 65_536


class NoDriver(Exception):
    """The command can't be started, or what it starts is no driver; the message says why."""


class Driver:
    """One command, started again after each end. `claims` are those of its last opening line.

    What reads its stderr runs in `nursery`.
    """

    def __init__(self, command: Sequence[str], nursery: trio.Nursery, *, start_seconds_max: float) -> None:
        self._command = command
        self._nursery = nursery
        self._stderr = bytearray()
        self._stderr_over = trio.Event()
        self._start_seconds_max = start_seconds_max
        self._process: trio.Process | None = None
        self._received = bytearray()
        self.claims: frozenset[str] = frozenset()
        self.client = ""
        self.heard_bytes = 0  # in all lines so far

    async def start(self) -> None:
        """Starts it where it does not run, and hears its opening line. Raises NoDriver."""
        if self._process is not None:
            return
        self._received.clear()
        try:
            self._process = await trio.lowlevel.open_process(
                list(self._command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NoDriver(f"{self._command[0]} can't be started: {error.strerror or error}") from None
        assert self._process.stderr is not None
        self._stderr, self._stderr_over = bytearray(), trio.Event()
        self._nursery.start_soon(_kept, self._process.stderr, self._stderr, self._stderr_over)
        opening: dict[str, Any] | None = None
        with trio.move_on_after(self._start_seconds_max) as patience:
            try:
                opening = await self.hear()
            except BrokenLine as broken:
                await self._no_driver(f"its opening line: {broken}")
        if patience.cancelled_caught:
            await self._no_driver(f"no opening line came within {self._start_seconds_max:g} s")
        if opening is None:
            await self._no_driver("it ended before its opening line")
        await self._open(opening or {})

    async def _open(self, opening: dict[str, Any]) -> None:
        claims = opening.get("claims")
        if opening.get("driver") != PROTOCOL:
            await self._no_driver(f"its opening line says driver {opening.get('driver')!r}; it is {PROTOCOL}")
        if not isinstance(claims, list) or not all(isinstance(claim, str) for claim in claims):
            await self._no_driver("its opening line has no claims: a list of words")
        if unknown := sorted(set(claims or ()) - {*CLAIMS, "invoke"}):
            await self._no_driver(f"it claims {', '.join(unknown)}; there are {', '.join(CLAIMS)}")
        self.claims = frozenset(claims or ())
        self.client = str(opening.get("client", ""))

    async def _no_driver(self, why: str) -> None:
        await self.stop()
        raise NoDriver("\n".join([f"{self._command[0]} is no driver: {why}", *self.said()]))

    async def say(self, value: Any) -> None:
        """One line to it. A driver that has ended takes none, which its silence will tell."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._process.stdin.send_all(line(value))

    async def hear(self) -> dict[str, Any] | None:
        """Its next line; None where it has ended. Raises BrokenLine."""
        assert self._process is not None
        assert self._process.stdout is not None
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > LINE_BYTES_MAX:
                raise BrokenLine(f"a line of more than {LINE_BYTES_MAX} bytes")
            received = await self._process.stdout.receive_some(_RECEIVE_BYTES_MAX)
            if not received:
                return None
            self._received += received
        said = bytes(self._received[:end])
        del self._received[: end + 1]
        self.heard_bytes += len(said)
        return read_line(said)

    async def end(self) -> None:
        """Ends its stdin and waits for it, for a while."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with trio.move_on_after(_END_SECONDS_MAX):
            await self._process.wait()
        await self.stop()

    async def stop(self) -> None:
        """Ends it now, where it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        with trio.CancelScope(shield=True):  # a killed process ends at once
            if process.returncode is None:  # it leads a group: what it has started ends with it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            with trio.move_on_after(_STDERR_SECONDS_MAX):
                await self._stderr_over.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    await pipe.aclose()

    def said(self) -> list[str]:
        """The end of what it has written to stderr, a line each and set in below a heading; nothing of an empty one."""
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        return ["its stderr:", *(f"    {one}" for one in lines[-_STDERR_LINES_SHOWN:])] if lines else []


async def _kept(stderr: trio.abc.ReceiveStream, kept: bytearray, over: trio.Event) -> None:
    """Reads until the end, or until it is closed; the last bytes stay in `kept`."""
    try:
        with contextlib.suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            while received := await stderr.receive_some(_RECEIVE_BYTES_MAX):
                kept += received
                del kept[:-_STDERR_BYTES_KEPT]
    finally:
        over.set()
