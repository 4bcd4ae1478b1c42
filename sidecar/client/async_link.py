"""The tasks behind an AsyncClient: they keep a connection as long as somebody waits, and move bytes both ways.

One task connects and reads, one writes while there is a connection; neither
ever waits for a caller. The session decides what goes out and what came in.

The first of them belongs to the client and not to the task that opened it: a
client may be opened in one task and closed in another, as test fixtures and
start-up hooks do, and an error in the block of a client is never one of a
group. So it is spawned beside all task groups, ends with the client, and
brings its own crash back to whoever waits and whoever closes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final

import anyio

from sidecar.client.errors import Disconnected, SidecarError
from sidecar.client.patience import Patience
from sidecar.client.reaching import connected_socket, hung_up, unreachable
from sidecar.client.session import ConnectionOver, Session

_RECEIVE_BYTES: Final = 65_536


class AsyncLink:
    """Drives one session over the socket at this path."""

    def __init__(self, path: str, session: Session, patience: Patience) -> None:
        self._path = path
        self._session = session
        self._patience = patience
        self._stirred = anyio.Event()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._crash: Exception | None = None
        self._task: Any = None

    def start(self) -> None:
        """Begins to drive the session, in the event loop that runs here."""
        trio = sys.modules.get("trio")
        if trio is not None and trio.lowlevel.in_trio_task():
            self._task = trio.lowlevel.spawn_system_task(self._run, name="sidecar client")
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="sidecar client")

    async def end(self) -> None:
        """Closes the connection; whoever waits is told. Raises what the tasks have crashed with, if they have."""
        self._session.close(Disconnected("the client was closed", "closed"))
        self._scope.cancel()
        await self._ended.wait()
        if self._crash is not None:
            raise self._crash

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._drive()
        except Exception as crash:
            self._crash = crash
            self._session.close(Disconnected(f"the client itself has failed: {crash!r}", "crashed"))
        finally:
            self._session.close(Disconnected("the event loop of the client has ended", "closed"))
            self._ended.set()

    def stir(self) -> None:
        """The session has something new to send, or somebody to connect for, or nobody any more."""
        self._stirred.set()
        self._stirred = anyio.Event()

    async def _drive(self) -> None:
        session, delays = self._session, self._patience.delays()
        is_first = True
        while True:
            while not session.wants_connection:
                delays, is_first = self._patience.delays(), True
                await self._stirred.wait()
            if not is_first:
                await self._pause(next(delays))
                if not session.wants_connection:
                    continue
            is_first = False
            try:
                connection = connected_socket(self._path)
            except OSError as error:
                forbidden = isinstance(error, PermissionError) and not session.was_welcomed
                session.unreachable(unreachable(self._path, error), for_good=forbidden)
                continue
            with connection:
                session.lost(await self._carried(connection))
            if session.has_progressed:
                delays, is_first = self._patience.delays(), True

    async def _pause(self, seconds: float) -> None:
        """Until the next attempt, or until nobody waits for one any more."""
        with anyio.move_on_after(seconds):
            while self._session.wants_connection:
                await self._stirred.wait()

    async def _carried(self, connection: socket.socket) -> SidecarError:
        """Serves this connection until it is over; why it is."""
        self._session.connected()
        async with anyio.create_task_group() as both:
            both.start_soon(self._write, connection)
            trouble = await self._read(connection)
            both.cancel_scope.cancel()
        return trouble

    async def _read(self, connection: socket.socket) -> SidecarError:
        while True:
            await anyio.wait_readable(connection)
            try:
                received = connection.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError as why:
                return hung_up(self._path, why)
            if not received:
                return hung_up(self._path)
            try:
                self._session.receive(received)
            except ConnectionOver as over:
                return over.trouble
            self.stir()

    async def _write(self, connection: socket.socket) -> None:
        while True:
            unsent = memoryview(self._session.outgoing())
            if not unsent:
                await self._stirred.wait()
            while unsent:
                try:
                    unsent = unsent[connection.send(unsent) :]
                except BlockingIOError:
                    await anyio.wait_writable(connection)
                except OSError:
                    return  # what the daemon said before it closed, and that it closed, is for the reader
