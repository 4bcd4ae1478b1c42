"""Which socket is served: the one that was handed over, or else our own where the config wants it.

One that was handed over belongs to whoever listens on it when we are gone: its
file, its mode and its queue are theirs. Connections that wait in that queue at
our end are served by the next of us. Source: ECOSYSTEM 1.2.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Sequence
from typing import Final, Protocol

from sidecar.config.values import Daemon
from sidecar.ops.activation import ActivationFault, Passed, take_listening
from sidecar.ops.log import Log
from sidecar.service.listener import Bound, SocketUnavailable

_ADVICE_GONE: Final = "restart the socket unit; keep the socket out of a RuntimeDirectory= of the service"


class Listening(Protocol):
    """A listening Unix socket, and where it listens."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def where(self) -> str:
        """Its path, or `@` and its abstract name."""
        ...

    @property
    def activated(self) -> bool:
        """Whether it was handed over, so that others listen on it too."""
        ...

    def remove(self) -> None:
        """We are done with it."""
        ...


class Inherited:
    """A socket that was handed over: it is closed at the end, and nothing else is ever done to it."""

    activated = True

    def __init__(self, given: socket.socket) -> None:
        self.socket = given
        name = given.getsockname()
        self.where = f"@{name[1:].decode(errors='replace')}" if isinstance(name, bytes) else str(name)

    def remove(self) -> None:
        self.socket.close()


def listening(daemon: Daemon, passed: Sequence[Passed], log: Log) -> Listening:
    """The socket to be served. Raises SocketUnavailable."""
    try:
        given = take_listening(passed, log)
    except ActivationFault as fault:
        raise SocketUnavailable(str(fault)) from fault
    if given is None:
        return Bound(daemon.socket, daemon.socket_mode)
    inherited = Inherited(given)
    _tell_what_differs(inherited.where, daemon, log)
    return inherited


def _tell_what_differs(where: str, daemon: Daemon, log: Log) -> None:
    """What callers meet otherwise than the config says, each a line. Nothing of it is ours to change."""
    if os.path.realpath(where) != os.path.realpath(daemon.socket):
        log.warning("socket_elsewhere", served=where, not_served=daemon.socket, why="this one was handed over")
    if where.startswith("@"):
        return
    try:
        mode = stat.S_IMODE(os.stat(where).st_mode)
    except OSError as error:
        log.warning("socket_unreachable", socket=where, why=error.strerror or error, advice=_ADVICE_GONE)
        return
    if mode & ~daemon.socket_mode & 0o222:
        advice = f"write SocketMode={daemon.socket_mode:04o} into the socket unit"
        log.warning("socket_more_open", mode=f"{mode:04o}", socket_mode=f"{daemon.socket_mode:04o}", advice=advice)
