"""Sockets that whoever started us has opened already: descriptors from 3 on, with a name each.

They are meant for one process, named by its id; any other leaves them alone.
The variables are taken out of the environment at once, and the descriptors are
closed for children, which they don't come as. One of them is served: the one
named `requests`, or the only one there is. The socket is shared with who gave
it: it is never shut down, never unlinked and never changed. Closing it is fine.
Source: sd_listen_fds(3), ECOSYSTEM 1.2.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Final

from msgspec import Struct

from sidecar.ops.log import Log

NAME: Final = "requests"
_FIRST: Final = 3
_DIGITS_MAX: Final = 20  # of what a descriptor, a process or its inode may have
_PASSED_MAX: Final = 1024
_VARIABLES: Final = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES")
_UNNAMED: Final = "unknown"  # what systemd calls one without a name
# What the socket unit says where it gives another type of socket than the one that is served.
_TYPES: Final = {
    socket.SOCK_DGRAM: "a datagram socket (ListenDatagram=)",
    socket.SOCK_SEQPACKET: "a sequential packet socket (ListenSequentialPacket=)",
}


class ActivationFault(Exception):
    """What was handed over can't be served; the message says why, and what the socket unit should say."""


class Passed(Struct, frozen=True):
    """A descriptor that was handed over, and its name."""

    descriptor: int
    name: str

    def __str__(self) -> str:
        return f"descriptor {self.descriptor} ({self.name})"


def take_passed(log: Log, environ: MutableMapping[str, str] = os.environ, pid: int | None = None) -> tuple[Passed, ...]:
    """What was handed to this process, perhaps nothing; from now on no child inherits it. Raises ActivationFault.

    To be called before anything opens a file. The variables are gone from `environ`, for whomever they were.
    """
    said, whose, pidfd, names = [environ.pop(name, "") for name in _VARIABLES]
    if not said:
        return ()
    if not _is_ours(whose, pidfd, os.getpid() if pid is None else pid):
        log.warning("sockets_not_ours", count=said, meant_for=whose or "nobody", now="they are left alone")
        return ()
    count = _number("LISTEN_FDS", said)
    if count > _PASSED_MAX:
        raise ActivationFault(f"LISTEN_FDS is {count}; at most {_PASSED_MAX} descriptors are taken")
    called = names.split(":") if names else [_UNNAMED] * count
    if len(called) != count:
        raise ActivationFault(f"LISTEN_FDNAMES has {len(called)} names for {count} descriptors")
    passed = tuple([Passed(_FIRST + at, name or _UNNAMED) for at, name in enumerate(called)])
    for one in passed:
        try:
            os.set_inheritable(one.descriptor, False)
        except OSError as error:
            raise ActivationFault(f"{one} was announced by LISTEN_FDS and is not open") from error
    return passed


def _is_ours(whose: str, pidfd: str, pid: int) -> bool:
    """By the process id, and by the id that no later process gets, where both who started us and the kernel have it."""
    if not whose or _number("LISTEN_PID", whose) != pid:
        return False
    if not pidfd:
        return True
    try:
        own = os.pidfd_open(pid)
    except OSError:
        return True  # the kernel doesn't let us look: the process id has to do
    try:
        return os.fstat(own).st_ino == _number("LISTEN_PIDFDID", pidfd)
    finally:
        os.close(own)


def _number(variable: str, said: str) -> int:
    if not (said.isascii() and said.isdigit()) or len(said) > _DIGITS_MAX:
        raise ActivationFault(f"{variable} is {said[:40]!r}, which is no number")
    return int(said)


def take_listening(passed: Sequence[Passed], log: Log) -> socket.socket | None:
    """The listening socket among them, None where nothing was passed; all others are closed, with a line for each.

    Raises ActivationFault where it can't be told which one is meant, or that one is not what can be served.
    """
    if not passed:
        return None
    one = _the_one(passed, log)
    for other in passed:
        if other is not one:
            os.close(other.descriptor)
            why = f"only the one that is named {NAME} is served"
            log.warning("descriptor_closed", descriptor=other.descriptor, name=other.name, why=why)
    return _checked(one)


def _the_one(passed: Sequence[Passed], log: Log) -> Passed:
    named = [one for one in passed if one.name == NAME]
    if len(named) > 1:
        raise ActivationFault(f"{len(named)} descriptors are named {NAME}, and one is served: leave one ListenStream=")
    if named:
        return named[0]
    if len(passed) > 1:
        names = ", ".join([one.name for one in passed[:8]])
        raise ActivationFault(
            f"{len(passed)} descriptors were handed over ({names}) and none is named {NAME}:"
            f" write FileDescriptorName={NAME} into the socket unit"
        )
    log.warning(
        "socket_name",
        name=passed[0].name,
        now="served, since it is the only one",
        advice=f"write FileDescriptorName={NAME} into the socket unit",
    )
    return passed[0]


def _checked(one: Passed) -> socket.socket:
    try:
        given = socket.socket(fileno=one.descriptor)
    except OSError as error:
        raise ActivationFault(f"{one} is no socket; a socket unit with ListenStream= and a path gives one") from error
    try:
        _check(one, given)
    except ActivationFault:
        given.close()
        raise
    return given


def _check(one: Passed, given: socket.socket) -> None:
    if given.family != socket.AF_UNIX:
        family = getattr(given.family, "name", given.family)
        raise ActivationFault(f"{one} is a socket of {family}: callers are told by AF_UNIX alone, ListenStream=/a/path")
    if given.type != socket.SOCK_STREAM:
        kind = _TYPES.get(given.type, f"a socket of type {given.type}")
        raise ActivationFault(f"{one} is {kind}; ListenStream= is wanted")
    if not given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ActivationFault(f"{one} doesn't listen, it is one connection or none; Accept=no is wanted")
