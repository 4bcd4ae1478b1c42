"""What the kernel says of the process at the other end of a Unix socket: the few questions, and Linux's answers.

Tests put a kernel of their own in its place, in which pids are reused and
things are hidden. Source: unix(7), pidfd_open(2), cgroups(7); ECOSYSTEM section 2.
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

_SO_PEERGROUPS: Final = 59
_SO_PEERPIDFD: Final = 77  # Linux 6.5; Python 3.11 has no name for it
_UCRED: Final = struct.Struct("3i")
_GID_BYTES: Final = 4
_GROUPS_FIRST: Final = 64  # room for this many at the first asking
_libc: Final = ctypes.CDLL(None, use_errno=True)
# The fields of a mount, among them its root and where it is: proc_pid_mountinfo(5).
_CGROUP2: Final = re.compile(r"^\d+ \d+ \S+ (\S+) (\S+) .* - cgroup2 ", re.MULTILINE)


class ConnectedSocket(Protocol):
    """As much of a socket as is asked; the standard library's and Trio's both do."""

    def fileno(self) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


class KernelView(Protocol):
    """Every method raises OSError where the kernel doesn't say."""

    def credentials(self, connected: ConnectedSocket) -> tuple[int, int, int]:
        """The pid, uid and gid of whoever connected, as of the connect."""
        ...

    def groups(self, connected: ConnectedSocket) -> Iterable[int]:
        """Its supplementary groups, as of the connect."""
        ...

    def pidfd(self, connected: ConnectedSocket) -> int:
        """A descriptor that stands for that very process; to be closed with `close`."""
        ...

    def pid_of(self, pidfd: int) -> int:
        """Its pid here and now: 0 where it is of another pid namespace, below where it has gone."""
        ...

    def has_exited(self, pidfd: int) -> bool: ...

    def close(self, pidfd: int) -> None: ...

    def cgroup_of(self, pid: int) -> str:
        """The text of /proc/PID/cgroup, of whichever process has this pid now."""
        ...

    def owner_of_cgroup(self, path: str) -> int:
        """The uid that owns a cgroup of the unified hierarchy, and may move processes within it."""
        ...


class Linux:
    """The kernel that we run on."""

    def credentials(self, connected: ConnectedSocket) -> tuple[int, int, int]:
        pid, uid, gid = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return pid, uid, gid

    def groups(self, connected: ConnectedSocket) -> Iterable[int]:
        """Python's getsockopt stops at 1,024 bytes, which a user of 257 groups passes."""
        size = ctypes.c_uint32(_GROUPS_FIRST * _GID_BYTES)
        while True:
            buffer = (ctypes.c_uint32 * (size.value // _GID_BYTES))()
            answer = _libc.getsockopt(connected.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(size))
            if answer == 0:
                return buffer[: size.value // _GID_BYTES]
            code = ctypes.get_errno()
            if code != errno.ERANGE or ctypes.sizeof(buffer) >= size.value:  # ERANGE: it has said how much it wants
                raise OSError(code, os.strerror(code))

    def pidfd(self, connected: ConnectedSocket) -> int:
        return connected.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)

    def pid_of(self, pidfd: int) -> int:
        found = re.search(r"^Pid:\s*(-?\d+)$", _text(f"/proc/self/fdinfo/{pidfd}"), re.MULTILINE)
        if found is None:
            raise OSError(errno.ENODATA, "its fdinfo names no pid")
        return int(found[1])

    def has_exited(self, pidfd: int) -> bool:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self, pidfd: int) -> None:
        os.close(pidfd)

    def cgroup_of(self, pid: int) -> str:
        return _text(f"/proc/{pid}/cgroup")

    def owner_of_cgroup(self, path: str) -> int:
        mounted = [where for root, where in _CGROUP2.findall(_text("/proc/self/mountinfo")) if root == "/"]
        if not mounted:
            raise FileNotFoundError(errno.ENOENT, "the unified cgroup hierarchy is not mounted whole")
        return os.stat(mounted[0] + path).st_uid


def _text(path: str) -> str:
    return Path(path).read_text(errors="replace")


LINUX: Final = Linux()
