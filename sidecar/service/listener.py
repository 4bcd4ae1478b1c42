"""The socket: bound with its mode from the start, and every connection admitted or told why not.

A socket file is replaced only where nobody listens behind it any more: another
daemon with a ledger of its own may use the same path. Anything that is not a
socket is left alone. The umask is set before the bind, so there is no moment in
which the socket is more open than it should be. Source: ECOSYSTEM section 2,
CONTRACT sections 1 and 7.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from sidecar.config.values import PeerRule
from sidecar.contract.values import TransportErrorCode
from sidecar.ops.clock import unix_ms
from sidecar.ops.log import Log
from sidecar.rules.framing import framed
from sidecar.service.errors import error_frame
from sidecar.service.in_force import InForce
from sidecar.service.metrics import Meter
from sidecar.service.peer import Peer, Standing, may_act, read_peer, why_nobody
from sidecar.service.strangers import Strangers

_BACKLOG: Final = 4096  # as many as Linux takes by default: one more that connects without waiting gets EAGAIN
_FAREWELL_SECONDS: Final = 1.0
FAREWELLS_MAX: Final = 16  # at a time: who asks again and again must not take all descriptors


class SocketUnavailable(Exception):
    """The socket can't be bound where the config wants it; the message says why."""


def bind(path: Path, mode: int) -> socket.socket:
    """A listening Unix socket at `path` with exactly this mode; replaces a stale one, makes its folder."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise SocketUnavailable(f"{path} is there and is no socket; it is left alone")
        if _somebody_listens(path):
            raise SocketUnavailable(f"another process listens on {path}; stop it, or give this daemon another socket")
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SocketUnavailable(f"{path}: {error.strerror or error}") from error
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o777 & ~mode)
    try:
        listening.bind(str(path))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise SocketUnavailable(f"{path}: {error.strerror or error}") from error
    finally:
        os.umask(umask)
    return listening


def _somebody_listens(path: Path) -> bool:
    """Whether this socket file leads to a live socket, also one that is too busy to accept. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        refused = probe.connect_ex(str(path))
    if refused in (0, errno.EAGAIN, errno.EPROTOTYPE):  # the last: a socket of another type is bound to it
        return True
    if refused != errno.ECONNREFUSED:
        raise OSError(refused, f"whether anybody listens there can't be told: {os.strerror(refused)}")
    return False


class Bound:
    """The bound socket and the file it stands for, so that only our own file is removed at the end."""

    activated = False

    def __init__(self, path: Path, mode: int) -> None:
        self.socket = bind(path, mode)
        self.where = str(path)
        self._path = path
        self._file = os.lstat(path)

    def remove(self) -> None:
        self.socket.close()
        try:
            now = os.lstat(self._path)
            if (now.st_dev, now.st_ino) == (self._file.st_dev, self._file.st_ino):
                self._path.unlink()
        except FileNotFoundError:
            return


Serve = Callable[[trio.SocketStream, Standing], Awaitable[None]]


class Doorkeeper:
    """Knows each connection's peer, counts connections, and lets in whom the config names."""

    def __init__(
        self,
        in_force: InForce,
        log: Log,
        serve: Serve,
        own_uid: int,
        clock_unix_ms: Callable[[], int] = unix_ms,
        meter: Meter | None = None,
    ) -> None:
        self._in_force = in_force
        self._log = log
        self._serve = serve
        self._own_uid = own_uid
        self._meter = meter or Meter()
        self._connections = 0
        self._farewells = 0
        self._by_user: Counter[int] = Counter()
        self._standings: set[Standing] = set()
        self._strangers = Strangers(log, clock_unix_ms)

    @property
    def connections(self) -> int:
        return self._connections

    def callers_of(self, peer: Peer) -> frozenset[str]:
        """What this peer may call as."""
        return frozenset(c.id for c in self._in_force.config.callers.values() if may_act(c.peer, peer, self._own_uid))

    def regard(self) -> None:
        """What each connected peer may be is decided again, by what is in force now. Nobody is turned away:

        a peer that may call as nobody any more still gets the answers that it waits for, and refusals.
        """
        for standing in self._standings:
            standing.callers = self.callers_of(standing.peer)
            standing.is_operator = self._is_operator(standing.peer)

    def _rules(self) -> Iterator[PeerRule]:
        config = self._in_force.config
        yield from (caller.peer for caller in config.callers.values())
        yield from config.operators

    def _is_operator(self, peer: Peer) -> bool:
        return any(may_act(rule, peer, self._own_uid) for rule in self._in_force.config.operators)

    async def welcome(self, stream: trio.SocketStream) -> None:
        """One accepted connection from its first moment to its last."""
        try:
            peer = read_peer(stream.socket)
        except OSError as error:
            self._strangers.tell("peer_unknown", why=str(error))
            await self._turn_away(stream, "not_admitted", "the kernel doesn't say who is calling")
            return
        number = self._meter.connections_accepted + 1
        standing = Standing(
            peer=peer, callers=self.callers_of(peer), is_operator=self._is_operator(peer), connection=number
        )
        if not standing.callers and not standing.is_operator:
            why = why_nobody(self._rules(), peer)
            self._strangers.tell("not_admitted", **peer.for_the_log, why=why)
            await self._turn_away(stream, "not_admitted", why)
            return
        full = self._full(peer.uid)
        if full:
            self._log.warning("too_many_connections", uid=peer.uid, why=full)
            await self._turn_away(stream, "too_many_connections", full)
            return
        self._meter.connections_accepted = number
        self._connections += 1
        self._by_user[peer.uid] += 1
        self._standings.add(standing)
        try:
            await self._serve(stream, standing)
        finally:
            self._standings.discard(standing)
            self._connections -= 1
            self._by_user[peer.uid] -= 1

    def _full(self, uid: int) -> str | None:
        daemon = self._in_force.config.daemon
        if self._connections >= daemon.connections_max:
            return f"{daemon.connections_max} connections are open, connections_max"
        if self._by_user[uid] >= daemon.connections_per_user_max:
            return f"{daemon.connections_per_user_max} connections of this user are open, connections_per_user_max"
        return None

    async def _turn_away(self, stream: trio.SocketStream, code: TransportErrorCode, why: str) -> None:
        """Says why and closes; where many are told so already, only closes."""
        self._meter.turned_away(code)
        if self._farewells < FAREWELLS_MAX:
            self._farewells += 1
            try:
                with trio.move_on_after(_FAREWELL_SECONDS):
                    await _say_why(stream, code, why)
            finally:
                self._farewells -= 1
        await trio.aclose_forcefully(stream)


async def _say_why(stream: trio.SocketStream, code: TransportErrorCode, why: str) -> None:
    """What the client has sent already is discarded, so that why can be read."""
    try:
        await stream.send_all(framed(error_frame(code, why)))
        await stream.send_eof()
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        return
