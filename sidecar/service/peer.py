"""Who is calling: the kernel's word about the process at the other end of a Unix socket.

User and groups decide, and they are the kernel's, read once when the
connection is made. The unit is a refinement: it is read from the peer's
cgroup through a pidfd and believed only if the peer is still the process that
connected. Pid 0 (a process outside our pid namespace) and uid 65534 (a user
outside our user namespace) are nobody.

Source: unix(7) for SO_PEERCRED and SO_PEERGROUPS; ECOSYSTEM section 2.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol, overload

from msgspec import Struct

from sidecar.config.tables import NOBODY_UID
from sidecar.config.values import PeerRule

_SO_PEERGROUPS: Final = 59
_SO_PEERPIDFD: Final = 77  # Linux 6.5; Python 3.11 has no name for it
_UCRED: Final = struct.Struct("3i")
_GID_BYTES: Final = 4
_GROUPS_FIRST: Final = 64  # room for this many at the first asking
_libc: Final = ctypes.CDLL(None, use_errno=True)
# Only units of root-owned slices: a unit under user@N.service is arranged by that user.
_SYSTEM_UNIT: Final = re.compile(r"^0::/system\.slice/(?:[^/]+\.slice/)*([^/]+\.service)(?:/|$)", re.MULTILINE)


class Peer(Struct, frozen=True, kw_only=True):
    """One process that connected, as the kernel vouches for it."""

    pid: int
    uid: int
    gids: frozenset[int]
    unit: str | None = None

    @property
    def is_nobody(self) -> bool:
        return self.pid <= 0 or self.uid < 0 or self.uid == NOBODY_UID


class Standing(Struct, frozen=True, kw_only=True):
    """Who is at the other end of a connection, and what the configuration lets it be."""

    peer: Peer
    callers: frozenset[str]
    is_operator: bool = False
    connection: int = 0  # by which the log calls it


class ConnectedSocket(Protocol):
    """As much of a socket as this module asks; the standard library's and Trio's both do."""

    def fileno(self) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def read_peer(connected: ConnectedSocket) -> Peer:
    """The peer of a connected Unix socket. Raises OSError where the kernel doesn't say."""
    pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid=pid, uid=uid, gids=frozenset({gid, *_groups(connected)}), unit=_unit(connected))


def may_act(rule: PeerRule, peer: Peer, own_uid: int) -> bool:
    """Whether a rule of the config means this peer: all its members must match; none set means our own user."""
    if peer.is_nobody:
        return False
    if rule.uid is None and rule.gid is None and rule.unit is None:
        return peer.uid == own_uid
    return (
        (rule.uid is None or rule.uid == peer.uid)
        and (rule.gid is None or rule.gid in peer.gids)
        and (rule.unit is None or rule.unit == peer.unit)
    )


def _groups(connected: ConnectedSocket) -> Iterable[int]:
    """Supplementary groups. Python's getsockopt stops at 1,024 bytes, which a user of 257 groups passes."""
    size = ctypes.c_uint32(_GROUPS_FIRST * _GID_BYTES)
    while True:
        buffer = (ctypes.c_uint32 * (size.value // _GID_BYTES))()
        answer = _libc.getsockopt(connected.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(size))
        if answer == 0:
            return buffer[: size.value // _GID_BYTES]
        code = ctypes.get_errno()
        if code != errno.ERANGE or ctypes.sizeof(buffer) >= size.value:  # ERANGE: the kernel has said how much it wants
            raise OSError(code, os.strerror(code))


def _unit(connected: ConnectedSocket) -> str | None:
    """The peer's system unit, or None where there is none or it can't be known for certain."""
    try:
        pidfd = connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return (
            None  # older kernels say ENOPROTOOPT or EINVAL: the unit is not known, and a rule that asks for one fails
        )
    try:
        info = Path(f"/proc/self/fdinfo/{pidfd}").read_text(errors="replace")
        pid = re.search(r"^Pid:\s*(-?\d+)$", info, re.MULTILINE)
        if pid is None or int(pid[1]) <= 0:
            return None
        cgroup = Path(f"/proc/{pid[1]}/cgroup").read_text(errors="replace")
        return None if _has_exited(pidfd) else unit_of(cgroup)
    except OSError:
        return None
    finally:
        os.close(pidfd)


def _has_exited(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def unit_of(cgroup: str) -> str | None:
    """The system unit that the text of a /proc/PID/cgroup names; None outside root-owned slices."""
    found = _SYSTEM_UNIT.search(cgroup)
    return found[1] if found else None
