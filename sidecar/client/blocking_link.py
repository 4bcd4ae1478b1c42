"""The thread behind a blocking Client: it alone touches the session and the socket.

Callers' threads hand it what to do and wait for their own answer, so nothing
is locked, and a KeyboardInterrupt in a caller's thread can leave nothing half
done. It is started by the first call and ends when the client is closed; it is
a daemon thread, so a client that nobody closes keeps no program from ending.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

from sidecar.client.errors import Disconnected, SidecarError
from sidecar.client.patience import Patience
from sidecar.client.reaching import connected_socket, hung_up, unreachable
from sidecar.client.session import ConnectionOver, Session
from sidecar.client.waiting import Waiter

_RECEIVE_BYTES: Final = 65_536
OVERDUE_SECONDS: Final = 60.0  # so long past its time a waiter is nobody: it was to leave, and could not


class BlockingLink:
    """Drives one session over the socket at this path, in a thread of its own."""

    def __init__(self, path: str, session: Session, patience: Patience) -> None:
        self._path = path
        self._session = session
        self._patience = patience
        self._acts: SimpleQueue[tuple[Callable[[], None], Waiter | None]] = SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: int | None = None  # the one that the thread is in
        self._ending = False
        self._closed = Disconnected("the client was closed", "closed")
        self._connection: socket.socket | None = None
        self._unsent = memoryview(b"")
        self._delays: Iterator[float] = patience.delays()
        self._next_attempt_at = 0.0

    # --- for callers' threads ---------------------------------------------------------------------------------

    def post(self, act: Callable[[], None], waiter: Waiter | None = None) -> None:
        """Does this in the thread, in the order of the calls. Raises Disconnected where there can't be one.

        What goes wrong in it is told to this waiter, and to nobody else.
        """
        if self._process not in (None, os.getpid()):
            raise Disconnected("this client was in use before a fork", "forked")
        if not self._is_started() and not self._ending:
            self._start()
        self._acts.put((act, waiter))
        if self._ending:  # asked last, so that nothing is handed over that nobody takes
            raise self._closed
        self._wake()

    def leave(self, waiter: Waiter) -> None:
        """It waits no more. Without effect where nothing is asked any more."""
        with suppress(Disconnected):
            self.post(partial(self._session.leave, waiter))

    def end(self) -> None:
        """Closes the connection; whoever waits is told. Waits for the thread to end, where it is in this process."""
        self._ending = True
        if self._thread is not None and self._is_started() and self._process == os.getpid():
            self._wake()
            self._thread.join()

    def _is_started(self) -> bool:
        return self._thread is not None and self._thread.ident is not None

    def _start(self) -> None:
        with self._starting:
            if not self._is_started():
                self._process = os.getpid()
                self._wake_from, self._wake_to = socket.socketpair()
                self._wake_from.setblocking(False)
                self._wake_to.setblocking(False)
                self._thread = threading.Thread(target=self._run, name="sidecar client", daemon=True)
                self._thread.start()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # full: it will wake anyway; closed: it has ended
            self._wake_to.send(b"\0")

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._wake_from, self._wake_to:
            try:
                selector.register(self._wake_from, selectors.EVENT_READ)
                while not self._ending:
                    self._turn(selector)
            except Exception as crash:  # a broken invariant: nobody is left waiting, and the thread says the rest
                self._closed = Disconnected(f"the client itself has failed: {crash!r}", "crashed")
                raise
            finally:
                self._ending = True
                self._hang_up(selector)
                self._session.close(self._closed)
                self._act_all()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        """Does what it was handed, connects if that is due, writes and reads what can be."""
        self._act_all()
        self._connect_when_due(selector)
        if self._connection is not None:
            self._write(self._connection)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            selector.modify(self._connection, wanted)
        ready = {key.fileobj for key, events in selector.select(self._seconds_to_attempt())}
        if self._wake_from in ready:
            with suppress(BlockingIOError):
                self._wake_from.recv(_RECEIVE_BYTES)
        if self._connection is not None and self._connection in ready:
            trouble = self._read(self._connection)
            if trouble is not None:
                self._hang_up(selector)
                self._session.lost(trouble)

    def _act_all(self) -> None:
        with suppress(Empty):
            while True:
                act, waiter = self._acts.get_nowait()
                try:
                    act()
                except Exception as fault:
                    if waiter is None:
                        raise
                    waiter.settle(Disconnected(f"the client itself has failed: {fault!r}", "crashed"))

    def _seconds_to_attempt(self) -> float | None:
        """How long to sleep: to the next attempt to connect, or until something happens."""
        if self._connection is not None or not self._session.wants_connection:
            return None
        return max(0.0, self._next_attempt_at - time.monotonic())

    def _connect_when_due(self, selector: selectors.BaseSelector) -> None:
        session = self._session
        if self._connection is not None:
            return
        if not session.wants_connection:
            self._delays, self._next_attempt_at = self._patience.delays(), 0.0
            return
        if time.monotonic() < self._next_attempt_at:
            return
        session.drop_overdue(time.monotonic() - OVERDUE_SECONDS)
        if not session.wants_connection:
            return
        self._next_attempt_at = time.monotonic() + next(self._delays)
        try:
            connection = connected_socket(self._path)
        except OSError as error:
            forbidden = isinstance(error, PermissionError) and not session.was_welcomed
            session.unreachable(unreachable(self._path, error), for_good=forbidden)
            return
        self._connection, self._unsent = connection, memoryview(b"")
        selector.register(connection, selectors.EVENT_READ)
        session.connected()

    def _hang_up(self, selector: selectors.BaseSelector) -> None:
        if self._connection is not None:
            selector.unregister(self._connection)
            self._connection.close()
            self._connection = None
        if self._session.has_progressed:
            self._delays, self._next_attempt_at = self._patience.delays(), 0.0

    def _read(self, connection: socket.socket) -> SidecarError | None:
        """Takes what is there. Why the connection is over, if it is."""
        try:
            received = connection.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as why:
            return hung_up(self._path, why)
        if not received:
            return hung_up(self._path)
        try:
            self._session.receive(received)
        except ConnectionOver as over:
            return over.trouble
        return None

    def _write(self, connection: socket.socket) -> None:
        """Writes what the kernel takes. That the daemon has closed, and what it said before, is for the reader."""
        try:
            while self._unsent or self._more():
                self._unsent = self._unsent[connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")  # nobody will take it: a daemon that stops hears no more, and still answers

    def _more(self) -> bool:
        self._unsent = memoryview(self._session.outgoing())
        return bool(self._unsent)
