"""What hides callers from a daemon that is about to serve: said before the first of them is turned away."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sidecar.config.keys import Complaint
from sidecar.config.values import Config
from sidecar.service.kernel_view import LINUX, KernelView
from sidecar.service.units import WORDS, Unknown, short_of

_ALL_IDS: Final = 2**32 - 1
_UID_MAP: Final = Path("/proc/self/uid_map")


def identity_warnings(config: Config, kernel: KernelView = LINUX, uid_map: str | None = None) -> Iterator[Complaint]:
    """What of this host, container or hardening keeps callers from being told; `uid_map` is this process's own."""
    uid_map = _own_uid_map() if uid_map is None else uid_map
    if uid_map is None:
        what = f"whether all users of this host can be told is not known: {_UID_MAP} can't be read"
        yield Complaint("caller", what, hint="mount /proc where the daemon runs")
    elif not _maps_all(uid_map):
        what = (
            "this process is in a user namespace that has not all users (PrivateUsers= in the unit, or a container):"
            " whom it hasn't shows as uid 65534 and is never admitted"
        )
        yield Complaint("caller", what, hint="take PrivateUsers= away, or let callers share the namespace")
    wanting = [
        *(f'caller "{caller.id}".unit' for caller in config.callers.values() if caller.peer.unit is not None),
        *("operator.unit" for rule in config.operators if rule.unit is not None),
    ]
    hidden = _what_hides_units(kernel) if wanting else None
    if hidden is not None:
        yield from (Complaint(path, f"can't be told here, so nobody has it: {hidden}") for path in wanting)


def _own_uid_map() -> str | None:
    """None where it can't be read; of a kernel without user namespaces, one that has all users."""
    try:
        return _UID_MAP.read_text()
    except FileNotFoundError:
        return f"0 0 {_ALL_IDS}" if _UID_MAP.parent.exists() else None
    except OSError:
        return None


def _maps_all(uid_map: str) -> bool:
    return sum(int(line.split()[2]) for line in uid_map.splitlines() if line.strip()) >= _ALL_IDS


def _what_hides_units(kernel: KernelView) -> str | None:
    """Asked of a socket of our own, and of the first process of the system, which is hidden first."""
    hidden: Unknown = "no_pidfd"
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            kernel.close(kernel.pidfd(ours))
        hidden = "proc_hidden"
        kernel.cgroup_of(1)
        hidden = "cgroups_hidden"
        own = kernel.cgroup_of(os.getpid())
        kernel.owner_of_cgroup("/")
    except OSError as fault:
        return WORDS[short_of(fault) or hidden]
    return WORDS["no_unified_hierarchy"] if "0::" not in own else None
