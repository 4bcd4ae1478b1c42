"""Where the daemon listens, and what it means that it can't be reached there."""

from __future__ import annotations

import os
import socket
import stat
from typing import Literal

from sidecar.client.errors import Disconnected
from sidecar.rules.framing import SOCKET_PATH_BYTES_MAX

Unreachable = Literal["busy", "not_permitted", "no_daemon", "no_socket"]


def path_complaint(path: str) -> str | None:
    """Why no socket can have this path, as the rest of a sentence about it; None where one can."""
    if not path or "\0" in path:
        return "is empty or holds a NUL"
    is_bytes = len(os.fsencode(path))
    if is_bytes > SOCKET_PATH_BYTES_MAX:
        return f"has {is_bytes} bytes; the kernel takes {SOCKET_PATH_BYTES_MAX}"
    return None


def checked_path(path: str | os.PathLike[str]) -> str:
    """The socket's path. Raises ValueError for one that no socket can have."""
    socket_path = os.fspath(path)
    if (complaint := path_complaint(socket_path)) is not None:
        raise ValueError(f"the socket path {complaint}")
    return socket_path


def connected_socket(path: str) -> socket.socket:
    """A connection to what listens there, which never blocks. Raises OSError.

    A Unix socket connects at once or not at all. While the daemon's backlog is
    full that is BlockingIOError: no event loop can wait for its end, so those
    that try burn a core; whoever wants the connection tries again later.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def why_unreachable(path: str, error: OSError) -> tuple[Unreachable, str]:
    """Why there is no connection to be had just now: in a word, and in a sentence."""
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return "busy", f"the daemon on {path} takes no more connections just now"
    if isinstance(error, PermissionError):
        return "not_permitted", f"this user may not connect to {path}"
    if isinstance(error, FileNotFoundError):
        return "no_daemon", f"there is no socket at {path}"
    if isinstance(error, ConnectionRefusedError):
        if _is_socket(path):
            return "no_daemon", f"no daemon listens on {path}"
        return "no_socket", f"there is something else than a socket at {path}"
    return "no_socket", f"{path}: {error.strerror or error}"


def unreachable(path: str, error: OSError) -> Disconnected:
    """The same as an exception."""
    why, told = why_unreachable(path, error)
    return Disconnected(told, "not_permitted" if why == "not_permitted" else "no_daemon")


def hung_up(path: str, why: BaseException | None = None) -> Disconnected:
    """A connection that was there is gone."""
    return Disconnected(f"the connection to the daemon on {path} was lost{f': {why}' if why and str(why) else ''}")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
