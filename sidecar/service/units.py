"""The systemd unit of a peer: told from its cgroup, believed only where nobody but root could have arranged it.

    through a pidfd    the kernel's own handle on the very process that connected
    its pid            from the pidfd, and the same as at the connect
    its cgroup         by that pid: perhaps another process's by now, so
    is it still there  asked last; if it is, what was read was its

The unit is the outermost service of the path, below slices alone: what a
service makes below itself, and what runs in a container that is a service,
belongs to it. A slice that another user than root owns could hold anything, and
so does all that is under a user's manager. Where the unit can't be known there is
no guess, but a reason, and a sentence that says what to change.
Source: ECOSYSTEM section 2; cgroups(7); systemd's cgroup delegation rules.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, Literal

from sidecar.service.kernel_view import ConnectedSocket, KernelView

Unknown = Literal[
    "no_pidfd",
    "no_descriptor",
    "other_pid_namespace",
    "gone",
    "proc_hidden",
    "no_unified_hierarchy",
    "outside_cgroup_namespace",
    "not_of_the_system",
    "cgroups_hidden",
    "slice_of_a_user",
]

# For a person: why, and what to change. The log shows 200 characters of a value, all that is said before them included.
WORDS: Final[Mapping[Unknown, str]] = {
    "no_pidfd": "this kernel has no SO_PEERPIDFD (Linux 6.5 and later have it), so no unit is certain; name it by user"
    " or group",
    "no_descriptor": "the daemon had no descriptor or memory left to look with, and must have more: raise LimitNOFILE=,"
    " or lower connections_max",
    "other_pid_namespace": "the peer is in another pid namespace (a container); name it by user or group, or let it"
    " share the host's pid namespace",
    "gone": "the process that connected had ended by the time its unit was read; it must live as long as it is"
    " connected",
    "proc_hidden": "its cgroup can't be read: take away the daemon's ProtectProc=, or hidepid or subset=pid of /proc,"
    " or name it by user or group",
    "no_unified_hierarchy": "its cgroup is not in the unified hierarchy (cgroup v2); boot with it, or name the peer by"
    " user or group",
    "outside_cgroup_namespace": "it is outside of the daemon's cgroup namespace (a container, PrivatePIDs=,"
    " ProtectControlGroups=strict); name it by user or group",
    "not_of_the_system": "it is in no service of the system (a session, a user's manager, a bare scope): start it as a"
    " system service, or name it by user or group",
    "cgroups_hidden": "who owns its slice can't be seen (/sys/fs/cgroup is not mounted here); name it by user or group",
    "slice_of_a_user": "its slice is owned by another user than root, who could put any process there; name it by user"
    " or group",
}

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_LINE: Final = re.compile(r"^0::(/.*)$", re.MULTILINE)
_SLICES: Final = re.compile(r"((?:/[^/]+\.slice)*)/([^/]+\.service)(?:/.*)?", re.DOTALL)
_USERS: Final = "/user.slice"


Told = tuple[str | None, Unknown | None]


def unit_of_peer(kernel: KernelView, connected: ConnectedSocket, pid_at_connect: int) -> Told:
    """The unit, or why there is none that is certain: one of the two."""
    try:
        pidfd = kernel.pidfd(connected)
    except ProcessLookupError:
        return None, "gone"
    except OSError as fault:
        return None, short_of(fault) or "no_pidfd"  # older kernels say ENOPROTOOPT, and some EINVAL
    try:
        return _through(kernel, pidfd, pid_at_connect)
    finally:
        kernel.close(pidfd)


def _through(kernel: KernelView, pidfd: int, pid_at_connect: int) -> Told:
    try:
        pid = kernel.pid_of(pidfd)
    except OSError as fault:
        return None, short_of(fault) or "proc_hidden"
    if pid == 0:
        return None, "other_pid_namespace"
    if pid != pid_at_connect or kernel.has_exited(pidfd):
        return None, "gone"
    try:
        cgroup = kernel.cgroup_of(pid)
    except OSError as fault:
        return None, short_of(fault) or ("gone" if kernel.has_exited(pidfd) else "proc_hidden")
    found = unit_of(cgroup)
    if not isinstance(found, tuple):
        return None, "gone" if kernel.has_exited(pidfd) else found
    slices, unit = found
    try:
        owners = {kernel.owner_of_cgroup(path) for path in _up_from(slices)}
    except OSError as fault:
        return None, short_of(fault) or "cgroups_hidden"
    if kernel.has_exited(pidfd):  # last of all: what was read by its pid was its
        return None, "gone"
    return (unit, None) if owners == {0} else (None, "slice_of_a_user")


def short_of(fault: OSError) -> Unknown | None:
    """What is wrong where it is only that the daemon has run short: it says nothing of the kernel or the peer."""
    return "no_descriptor" if fault.errno in _SHORT else None


def unit_of(cgroup: str) -> tuple[str, str] | Unknown:
    """The slices' path and the unit that the text of a /proc/PID/cgroup names; or why it names none."""
    line = _LINE.search(cgroup)
    if line is None:
        return "no_unified_hierarchy"
    path = line[1]
    if path.startswith("/..") and (path == "/.." or path[3] == "/"):
        return "outside_cgroup_namespace"
    found = _SLICES.fullmatch(path)
    if found is None or not _are_systemds(found[1]) or (found[1] + "/").startswith(f"{_USERS}/"):
        return "not_of_the_system"
    return found[1], found[2]


def _are_systemds(slices: str) -> bool:
    """Whether these slices stand within each other as systemd puts them: `a.slice/a-b.slice`."""
    names = [name.removesuffix(".slice") for name in slices.split("/")[1:]]
    return all(inner.startswith(f"{outer}-") for outer, inner in pairwise(names))


def _up_from(slices: str) -> list[str]:
    """This path and all above it, the root's included."""
    parts = slices.split("/")
    return ["/".join(parts[:length]) or "/" for length in range(1, len(parts) + 1)]
