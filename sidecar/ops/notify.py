"""What a service manager is told, by its own protocol: datagrams of `KEY=value` lines to `$NOTIFY_SOCKET`.

Nobody depends on being heard: without the variable nothing is sent, and what
can't be sent is dropped without a wait. The variables are taken out of the
environment, so that no child speaks in our name. Source: sd_notify(3),
sd_watchdog_enabled(3).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

_VALUE_CHARACTERS_MAX: Final = 800  # all of a datagram fits into the 4096 bytes that older managers read
_FULL: Final = (errno.EAGAIN, errno.ENOBUFS)


class Notifier:
    """Says things to the socket at `address`, a path or `@` and an abstract name; without one, to nobody."""

    def __init__(self, address: str | None = None) -> None:
        self._address: str | None = None
        if address and address[0] in "/@" and len(address) > 1:
            self._address = f"\0{address[1:]}" if address[0] == "@" else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @property
    def is_heard(self) -> bool:
        return self._address is not None

    def say(self, **states: str) -> bool:
        """One datagram. False only where it is worth saying again: there was no room for it at the receiver."""
        if self._address is None:
            return True
        try:
            self._socket.sendto("\n".join([f"{key}={_line(states[key])}" for key in states]).encode(), self._address)
        except OSError as error:
            return error.errno not in _FULL
        return True

    def close(self) -> None:
        if self._address is not None:
            self._address = None
            self._socket.close()


def _line(value: str) -> str:
    """As it may stand in one line: nothing in it begins another."""
    shown = "".join([character if character.isprintable() else " " for character in value[:_VALUE_CHARACTERS_MAX]])
    return shown.encode("utf-8", "replace").decode()


def take_notifier(environ: MutableMapping[str, str] = os.environ) -> Notifier:
    """For whoever started us, if they listen; the variable is gone from `environ` then."""
    return Notifier(environ.pop("NOTIFY_SOCKET", None))


def take_watchdog_seconds(environ: MutableMapping[str, str] = os.environ, pid: int | None = None) -> float | None:
    """Within how many seconds after each ping the next one must come; None where no watchdog waits for this process."""
    microseconds, whose = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if whose and whose != str(os.getpid() if pid is None else pid):
        return None
    with suppress(ValueError):
        return int(microseconds) / 1e6 if int(microseconds) > 0 else None
    return None
