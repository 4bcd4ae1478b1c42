"""Taking connections, and the end of it: what has been taken is heard out, what has not waits for whoever is next.

At the end nothing more is taken first. Then each connection is told that
nothing more is heard: the kernel refuses what is sent from then on, and gives
us what was sent before, behind which an end of file stands. So each frame is
answered, or its sender finds the end; none is taken in and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from sidecar.service.listener import Doorkeeper
from sidecar.service.listening import Listening
from sidecar.service.stream import SocketStream


class Accepting:
    """Gives each connection that comes to the doorkeeper, in a task of `connections`, until `end`."""

    def __init__(self, listening: Listening, doorkeeper: Doorkeeper, connections: trio.Nursery) -> None:
        self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening.socket))
        self._doorkeeper = doorkeeper
        self._connections = connections
        self._taking = trio.CancelScope()
        self._over = trio.Event()
        self._open: set[SocketStream] = set()
        self._heard_enough = False

    async def serve(self, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        try:
            with self._taking:
                await trio.serve_listeners(
                    self._doorkeeper.welcome,
                    [self._listener],
                    handler_nursery=self._connections,
                    task_status=task_status,
                )
        finally:
            self._over.set()

    @contextmanager
    def hearing(self, stream: SocketStream) -> Iterator[None]:
        """While a connection is served."""
        if self._heard_enough:
            stream.hear_no_more()
        self._open.add(stream)
        try:
            yield
        finally:
            self._open.discard(stream)

    async def end(self) -> None:
        """When this returns, nothing more is taken or heard; the connections that are open end by themselves."""
        self._taking.cancel()
        await self._over.wait()
        await trio.lowlevel.checkpoint()  # a connection that was taken last has its task by now
        self._heard_enough = True
        for stream in self._open:
            stream.hear_no_more()
