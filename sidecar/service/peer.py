"""Who is calling: the kernel's word about the process at the other end of a Unix socket.

User and groups decide, and they are the kernel's, read once when the
connection is made. The unit is a refinement (`sidecar.service.units`). Pid 0 (a
process outside our pid namespace) and uid 65534 (a user outside our user
namespace) are nobody, and the words say what to change.

Source: unix(7) for SO_PEERCRED and SO_PEERGROUPS; ECOSYSTEM section 2.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sidecar.config.tables import NOBODY_GID, NOBODY_UID
from sidecar.config.values import PeerRule
from sidecar.service.kernel_view import LINUX, ConnectedSocket, KernelView
from sidecar.service.units import WORDS, Unknown, unit_of_peer


class Peer(Struct, frozen=True, kw_only=True):
    """One process that connected, as the kernel vouches for it; where it has no unit that is certain, why."""

    pid: int
    uid: int
    gids: frozenset[int]
    unit: str | None = None
    unit_unknown: Unknown | None = None

    @property
    def for_the_log(self) -> dict[str, object]:
        """Whom a line is about."""
        return {"uid": self.uid, "pid": self.pid, **({"unit": self.unit} if self.unit is not None else {})}

    @property
    def is_nobody(self) -> bool:
        return self.pid <= 0 or self.uid < 0 or self.uid == NOBODY_UID


class Standing(Struct, kw_only=True, eq=False):
    """Who is at the other end of a connection, and what the configuration in force lets it be.

    The peer is the kernel's word and stays; the rest changes with the configuration, while the connection is open.
    """

    peer: Peer
    callers: frozenset[str]
    is_operator: bool = False
    connection: int = 0  # by which the log calls it


def read_peer(connected: ConnectedSocket, kernel: KernelView = LINUX) -> Peer:
    """The peer of a connected Unix socket. Raises OSError where the kernel doesn't say who it is."""
    pid, uid, gid = kernel.credentials(connected)
    gids = frozenset({gid, *kernel.groups(connected)})
    if pid <= 0:
        return Peer(pid=pid, uid=uid, gids=gids, unit_unknown="other_pid_namespace")
    unit, unknown = unit_of_peer(kernel, connected, pid)
    return Peer(pid=pid, uid=uid, gids=gids, unit=unit, unit_unknown=unknown)


def may_act(rule: PeerRule, peer: Peer, own_uid: int) -> bool:
    """Whether a rule of the config means this peer: all its members must match; none set means our own user."""
    if peer.is_nobody:
        return False
    if rule.uid is None and rule.gid is None and rule.unit is None:
        return peer.uid == own_uid
    return _means_its_user(rule, peer) and (rule.unit is None or rule.unit == peer.unit)


def _means_its_user(rule: PeerRule, peer: Peer) -> bool:
    return (rule.uid is None or rule.uid == peer.uid) and (
        rule.gid is None or (rule.gid != NOBODY_GID and rule.gid in peer.gids)
    )


def why_nobody(rules: Iterable[PeerRule], peer: Peer) -> str:
    """Why no rule means this peer, as far as its own developer may know, and what to change."""
    if peer.pid <= 0:
        return (
            "the caller is in another pid namespace (a container), so the kernel can't say which process it is: let it"
            " share the host's pid namespace, or run a daemon beside it in the container"
        )
    if peer.uid < 0 or peer.uid == NOBODY_UID:
        return (
            f"the kernel can't name this user here (uid {peer.uid}): take PrivateUsers= from the daemon's unit, or let"
            " the daemon and its callers share a user namespace (a container's hides them)"
        )
    said = f"uid {peer.uid} may call as nobody here"
    if not any(rule.unit is not None and _means_its_user(rule, peer) for rule in rules):
        return said
    if peer.unit_unknown is not None:
        return f"{said}; its unit isn't known: {WORDS[peer.unit_unknown]}"
    return f"{said} from the unit {peer.unit}"
