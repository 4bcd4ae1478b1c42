"""Who is calling: the kernel's word over real sockets, from this process and from others of other users."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from sidecar.config.values import PeerRule
from sidecar.ops.log import Log
from sidecar.service.peer import NOBODY_UID, Peer, may_act, read_peer, why_nobody
from sidecar.service.units import WORDS

ROOT = Path(__file__).resolve().parents[2]

# Becomes somebody else, connects to an abstract socket, which asks for no file's permission, and stays.
CALLER = """
import os, socket, sys
name, uid, gid, groups = sys.argv[1:]
connected = socket.socket(socket.AF_UNIX)
if int(uid) != os.getuid():
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(gid))
    os.setuid(int(uid))
connected.connect(bytes.fromhex(name))
sys.stdin.read()
"""


@contextmanager
def called_by(uid: int, gid: int, groups: list[int]) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """Our end of a connection that a process with these ids has made, and the process."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # the kernel chooses an abstract name
        listening.listen()
        listening.settimeout(30)
        name = bytes(listening.getsockname()).hex()
        command = [sys.executable, "-c", CALLER, name, str(uid), str(gid), ",".join(map(str, groups))]
        caller = subprocess.Popen(command, stdin=subprocess.PIPE)
        try:
            connected, _ = listening.accept()
            with connected:
                yield connected, caller
        finally:
            caller.communicate()


def only_root() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")


def test_this_process_is_read_with_its_user_and_all_its_groups() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = read_peer(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.gids == {os.getgid(), *os.getgroups()}
    assert not peer.is_nobody


def test_another_process_is_read_as_itself() -> None:
    with called_by(os.getuid(), os.getgid(), []) as (connected, caller):
        assert (read_peer(connected).pid, read_peer(connected).uid) == (caller.pid, os.getuid())


@pytest.mark.parametrize("groups", [[], [30_001], [30_001, 30_002, 30_003]], ids=len)
def test_another_user_is_read_with_its_groups(groups: list[int]) -> None:
    only_root()
    with called_by(20_001, 20_002, groups) as (connected, caller):
        peer = read_peer(connected)
    assert (peer.pid, peer.uid, peer.gids) == (caller.pid, 20_001, {20_002, *groups})


@pytest.mark.parametrize("number", [63, 64, 65, 255, 256, 257, 300, 5_000])
def test_any_number_of_groups_is_read(number: int) -> None:
    """Python's own getsockopt ends at 1,024 bytes, which are 256 groups."""
    only_root()
    groups = list(range(100_000, 100_000 + number))
    with called_by(20_001, 20_002, groups) as (connected, _):
        peer = read_peer(connected)
    assert peer.gids == {20_002, *groups}
    assert may_act(PeerRule(gid=100_000 + number - 1), peer, own_uid=0)
    assert not may_act(PeerRule(gid=100_000 + number), peer, own_uid=0)


def test_what_a_peer_becomes_after_it_connected_changes_nothing() -> None:
    """The credentials are those of the connect: a process that has gone since is still who called."""
    with called_by(os.getuid(), os.getgid(), []) as (connected, caller):
        caller.communicate()
        peer = read_peer(connected)
    assert (peer.pid, peer.uid, peer.unit) == (caller.pid, os.getuid(), None)


def test_a_socket_that_has_no_peer_of_a_user_is_an_error_and_no_peer() -> None:
    with socket.socket(socket.AF_INET) as unconnected, pytest.raises(OSError, match=r"."):
        read_peer(unconnected)


def test_i10_a_peer_outside_our_pid_and_user_namespaces_is_nobody() -> None:
    """Read from within other namespaces, this very process has pid 0 and uid 65534."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Upf", "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces can't be made here")
    read = (
        "import socket, sys; from sidecar.service.peer import read_peer;"
        "peer = read_peer(socket.socket(fileno=int(sys.argv[1]))); print(peer.pid, peer.uid, peer.is_nobody)"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [unshare, "-Upf", sys.executable, "-c", read, str(ours.fileno())]
        said = subprocess.run(command, pass_fds=[ours.fileno()], cwd=ROOT, capture_output=True, check=True, text=True)
    assert said.stdout.split() == ["0", str(NOBODY_UID), "True"]


# --- rules ------------------------------------------------------------------------------------------------------

OWN = 1000
GAME = Peer(pid=7, uid=1001, gids=frozenset({2001, 2002}), unit="dungeon.service")


@pytest.mark.parametrize(
    ("rule", "may"),
    [
        (PeerRule(uid=1001), True),
        (PeerRule(uid=1002), False),
        (PeerRule(gid=2001), True),
        (PeerRule(gid=2002), True),
        (PeerRule(gid=2003), False),
        (PeerRule(gid=1001), False),
        (PeerRule(unit="dungeon.service"), True),
        (PeerRule(unit="dungeon"), False),
        (PeerRule(unit="other.service"), False),
        (PeerRule(uid=1001, gid=2002), True),
        (PeerRule(uid=1001, gid=2003), False),
        (PeerRule(uid=1002, gid=2002), False),
        (PeerRule(uid=1001, unit="dungeon.service"), True),
        (PeerRule(uid=1001, unit="other.service"), False),
        (PeerRule(gid=2001, unit="dungeon.service"), True),
        (PeerRule(uid=1001, gid=2001, unit="dungeon.service"), True),
        (PeerRule(uid=1001, gid=2001, unit="other.service"), False),
        (PeerRule(uid=0), False),
        (PeerRule(gid=0), False),
        (PeerRule(), False),
    ],
)
def test_all_that_a_rule_names_must_match(rule: PeerRule, may: bool) -> None:
    assert may_act(rule, GAME, OWN) is may


def test_a_rule_that_names_nothing_means_our_own_user() -> None:
    assert may_act(PeerRule(), Peer(pid=7, uid=OWN, gids=frozenset({1})), OWN)
    assert may_act(PeerRule(), Peer(pid=7, uid=0, gids=frozenset({0})), 0)
    assert not may_act(PeerRule(), Peer(pid=7, uid=0, gids=frozenset({0})), OWN)


def test_a_unit_that_is_not_known_matches_no_rule() -> None:
    unknown = Peer(pid=7, uid=1001, gids=frozenset({2001}))
    assert not may_act(PeerRule(unit="dungeon.service"), unknown, OWN)
    assert may_act(PeerRule(uid=1001), unknown, OWN)


@pytest.mark.parametrize(
    "nobody",
    [
        Peer(pid=0, uid=OWN, gids=frozenset({2001}), unit="dungeon.service"),
        Peer(pid=-1, uid=OWN, gids=frozenset({2001})),
        Peer(pid=7, uid=65534, gids=frozenset({2001}), unit="dungeon.service"),
        Peer(pid=7, uid=-1, gids=frozenset({2001})),
    ],
)
def test_i10_pid_0_and_uid_65534_are_nobody_under_any_rule(nobody: Peer) -> None:
    rules = [
        PeerRule(),
        PeerRule(uid=nobody.uid),
        PeerRule(uid=65534),
        PeerRule(gid=2001),
        PeerRule(unit="dungeon.service"),
    ]
    for rule in rules:
        assert not may_act(rule, nobody, OWN)
        assert not may_act(rule, nobody, 65534)


def test_a_group_that_the_kernel_can_not_name_matches_nobody() -> None:
    assert not may_act(PeerRule(gid=65534), Peer(pid=7, uid=OWN, gids=frozenset({65534})), OWN)


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (Peer(pid=0, uid=OWN, gids=frozenset()), "another pid namespace"),
        (Peer(pid=7, uid=65534, gids=frozenset()), "PrivateUsers="),
        (Peer(pid=7, uid=4000, gids=frozenset()), "uid 4000 may call as nobody here"),
        (Peer(pid=7, uid=1001, gids=frozenset(), unit="other.service"), "from the unit other.service"),
        (Peer(pid=7, uid=1001, gids=frozenset(), unit_unknown="proc_hidden"), "ProtectProc="),
        (Peer(pid=7, uid=1001, gids=frozenset(), unit_unknown="no_pidfd"), "Linux 6.5"),
        (Peer(pid=7, uid=1001, gids=frozenset(), unit_unknown="not_of_the_system"), "start it as a system service"),
    ],
)
def test_who_is_nobody_is_told_what_to_change(peer: Peer, words: str) -> None:
    assert words in why_nobody([PeerRule(uid=1001, unit="dungeon.service")], peer)


def test_a_stranger_is_not_told_that_units_count_for_others() -> None:
    said = why_nobody([PeerRule(uid=1001, unit="dungeon.service")], Peer(pid=7, uid=4000, gids=frozenset()))
    assert said == "uid 4000 may call as nobody here"


@pytest.mark.parametrize("unknown", [*WORDS, "pid", "uid"])
def test_the_log_has_the_whole_of_why_and_of_what_to_change(unknown: Any) -> None:
    greatest = 2**32 - 2
    peer = Peer(pid=4_194_304, uid=greatest, gids=frozenset(), unit_unknown=unknown if unknown in WORDS else None)
    nobody = {"pid": structs.replace(peer, pid=0), "uid": structs.replace(peer, uid=NOBODY_UID)}.get(unknown, peer)
    why = why_nobody([PeerRule(uid=greatest, unit="dungeon.service")], nobody)
    written = StringIO()
    Log(written, "text").warning("not_admitted", **nobody.for_the_log, why=why)
    assert why in written.getvalue()
