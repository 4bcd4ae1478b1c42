"""Which peers a table means: names of users and groups become numbers, or complaints with the nearest known name."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from sidecar.config import tables
from sidecar.config.instead import closest
from sidecar.config.keys import Complaints
from sidecar.config.values import PeerRule

_NAMES_MAX: Final = 10_000  # of this host, looked through for the nearest one


def peer_of(values: dict[str, Any], path: str, complaints: Complaints) -> PeerRule | None:
    """The peers meant by user or uid, group or gid, and unit; names are looked up now, once."""
    before = len(complaints.all)
    uid = _number(values, path, "user", "uid", lambda name: pwd.getpwnam(name).pw_uid, complaints)
    gid = _number(values, path, "group", "gid", lambda name: grp.getgrnam(name).gr_gid, complaints)
    if uid == tables.NOBODY_UID:
        complaints.add(
            f"{path}.{'uid' if values.get('user') is None else 'user'}",
            f"uid {uid} is how the kernel shows users whom it can't name here; it is never admitted",
            "write the user of the caller's own that it runs as, and run the daemon in the same user namespace",
        )
    if gid == tables.NOBODY_GID:
        complaints.add(
            f"{path}.{'gid' if values.get('group') is None else 'group'}",
            f"gid {gid} is how the kernel shows groups that it can't name here; it never matches",
            "write a group that was made for callers",
        )
    if len(complaints.all) > before:
        return None
    return PeerRule(uid=uid, gid=gid, unit=values.get("unit"))


def _number(
    values: dict[str, Any],
    path: str,
    by_name: str,
    by_number: str,
    look_up: Callable[[str], int],
    complaints: Complaints,
) -> int | None:
    name, number = values.get(by_name), values.get(by_number)
    if name is None:
        return number
    if number is not None:
        what = f"stands beside {by_number}: give one of the two"
        complaints.add(f"{path}.{by_name}", what, f"leave out the line of {by_name}, or that of {by_number}")
        return None
    try:
        return look_up(name)
    except (KeyError, ValueError):  # ValueError: a name that no host could have
        complaints.add(f"{path}.{by_name}", f"this host has no {by_name} {name!r}", _hint(name, by_name, by_number))
        return None


def _hint(name: str, by_name: str, by_number: str) -> str:
    if name.isascii() and name.isdigit():
        return f"write: {by_number} = {name}"
    known: Iterable[str] = (
        (one.pw_name for one in pwd.getpwall()) if by_name == "user" else (one.gr_name for one in grp.getgrall())
    )
    near = closest(name, islice(known, _NAMES_MAX))
    return (
        f"did you mean {near}?"
        if near
        else f"make that {by_name} first, or write one that is there, or its {by_number}"
    )
