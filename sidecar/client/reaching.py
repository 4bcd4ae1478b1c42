"""Where the daemon listens, and what it means that it can't be reached there."""

from __future__ import annotations

import os
import stat
from typing import Final

from sidecar.client.errors import Disconnected

_SOCKET_PATH_BYTES_MAX: Final = 107  # sockaddr_un without its closing NUL


def checked_path(path: str | os.PathLike[str]) -> str:
    """The socket's path. Raises ValueError for one that no socket can have."""
    socket_path = os.fspath(path)
    if not socket_path or "\0" in socket_path:
        raise ValueError("the socket path is empty or holds a NUL")
    is_bytes = len(os.fsencode(socket_path))
    if is_bytes > _SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"the socket path has {is_bytes} bytes; the kernel takes {_SOCKET_PATH_BYTES_MAX}")
    return socket_path


def unreachable(path: str, error: OSError) -> Disconnected:
    """Why there is no connection to be had just now."""
    if isinstance(error, PermissionError):
        return Disconnected(f"this user may not connect to {path}", "not_permitted")
    if isinstance(error, FileNotFoundError):
        return Disconnected(f"there is no socket at {path}")
    if isinstance(error, ConnectionRefusedError):
        return Disconnected(
            f"no daemon listens on {path}" if _is_socket(path) else f"there is something else than a socket at {path}"
        )
    if isinstance(error, BlockingIOError):
        return Disconnected(f"the daemon on {path} takes no more connections just now")
    return Disconnected(f"{path}: {error.strerror or error}")


def hung_up(path: str, why: BaseException | None = None) -> Disconnected:
    """A connection that was there is gone."""
    return Disconnected(f"the connection to the daemon on {path} was lost{f': {why}' if why and str(why) else ''}")


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False
