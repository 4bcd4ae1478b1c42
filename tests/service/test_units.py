"""The unit of a peer: only what nobody but root can arrange is believed, and only of the process that connected."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.fake_kernel import FakeKernel

from sidecar.config.reading import read_config
from sidecar.config.values import PeerRule
from sidecar.connectors.kinds import config_keys
from sidecar.service import identity_warnings as identity
from sidecar.service.identity_warnings import identity_warnings
from sidecar.service.kernel_view import LINUX
from sidecar.service.peer import Peer, may_act, read_peer
from sidecar.service.units import WORDS, unit_of

ROOT = Path(__file__).resolve().parents[2]
CONNECTED = cast(Any, None)
DUNGEON = "0::/system.slice/dungeon.service\n"
TAVERN = "0::/system.slice/tavern.service\n"


def peer_of(kernel: FakeKernel) -> Peer:
    peer = read_peer(CONNECTED, kernel)
    assert kernel.open == [], "a pidfd was left open"
    assert (peer.unit is None) == (peer.unit_unknown is not None)
    return peer


# --- the path -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("0::/system.slice/dungeon.service\n", ("/system.slice", "dungeon.service")),
        ("0::/system.slice/dungeon.service", ("/system.slice", "dungeon.service")),
        ("0::/system.slice/dungeon.service/worker\n", ("/system.slice", "dungeon.service")),
        ("0::/game.slice/dungeon.service\n", ("/game.slice", "dungeon.service")),
        ("0::/game.slice/game-eu.slice/dungeon.service\n", ("/game.slice/game-eu.slice", "dungeon.service")),
        ("0::/dungeon.service\n", ("", "dungeon.service")),
        ("0::/system.slice/system-game.slice/game@2.service\n", ("/system.slice/system-game.slice", "game@2.service")),
        (r"0::/system.slice/system-a\x2db.slice/a@1.service", (r"/system.slice/system-a\x2db.slice", "a@1.service")),
        ("0::/system.slice/a.service/b.service\n", ("/system.slice", "a.service")),
        ("0::/system.slice/a.service/system.slice/b.service\n", ("/system.slice", "a.service")),
        ("0::/machine.slice/box@1.service/payload/system.slice/x.service\n", ("/machine.slice", "box@1.service")),
        ("12:pids:/\n1:name=systemd:/a.slice/x.service\n0::/b.slice/y.service\n", ("/b.slice", "y.service")),
        ("1:name=systemd:/system.slice/dungeon.service\n", "no_unified_hierarchy"),
        ("", "no_unified_hierarchy"),
        ("1:name=systemd:/system.slice/dungeon.service\n0::/\n", "not_of_the_system"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/dungeon.service\n", "not_of_the_system"),
        ("0::/user.slice/user-1000.slice/session-2.scope\n", "not_of_the_system"),
        ("0::/user.slice/dungeon.service\n", "not_of_the_system"),
        ("0::/system.slice/docker-0123.scope\n", "not_of_the_system"),
        ("0::/system.slice/docker-0123.scope/system.slice/dungeon.service\n", "not_of_the_system"),
        ("0::/init.scope\n", "not_of_the_system"),
        ("0::/machine.slice/system.slice/dungeon.service\n", "not_of_the_system"),
        ("0::/system.slice/dungeon.servicex\n", "not_of_the_system"),
        ("0::/system.slice/.service.d/dungeon\n", "not_of_the_system"),
        ("0::/../system.slice/dungeon.service\n", "outside_cgroup_namespace"),
        ("0::/../../dungeon.service\n", "outside_cgroup_namespace"),
        ("0::/..\n", "outside_cgroup_namespace"),
    ],
)  # fmt: skip
def test_the_unit_is_the_outermost_service_below_slices_alone(cgroup: str, found: object) -> None:
    assert unit_of(cgroup) == found


NAMES = st.text("abz@\\x2d_.", min_size=1, max_size=6)


@given(st.lists(NAMES, max_size=3), NAMES, st.lists(NAMES.map(lambda name: f"{name}.service"), max_size=3))
def test_what_stands_below_a_service_is_that_service(stems: list[str], name: str, below: list[str]) -> None:
    stems = [stem.replace(".", "") or "s" for stem in stems]
    slices = "".join(f"/x{'-'.join(['', *stems[:depth]])}.slice" for depth in range(len(stems) + 1))
    path = "/".join([f"{slices}/{name}.service", *below])
    assert unit_of(f"0::{path}\n") == (slices, f"{name}.service")
    assert unit_of(f"0::/user.slice{path}\n") == "not_of_the_system"


# --- whose is it --------------------------------------------------------------------------------------------------


def test_a_peer_in_another_unit_of_the_same_user_is_told_from_the_right_one() -> None:
    rule = PeerRule(uid=1001, unit="dungeon.service")
    dungeon, tavern = FakeKernel(), FakeKernel()
    tavern.cgroups[7] = TAVERN
    assert may_act(rule, peer_of(dungeon), 0)
    assert not may_act(rule, peer_of(tavern), 0)
    assert peer_of(tavern).unit == "tavern.service"


@pytest.mark.parametrize("question", ["pidfd", "pid_of", "has_exited", "cgroup_of", "owner_of_cgroup"])
def test_a_pid_that_is_reused_between_connect_and_look_up_is_not_believed(question: str) -> None:
    """The caller, of no unit, ends at that very moment, and the system gives its pid to a process of the dungeon."""
    kernel = FakeKernel()
    kernel.cgroups[7] = "0::/user.slice/user-1001.slice/session-2.scope\n"

    def reuse(asked: str) -> None:
        if asked == question:
            kernel.is_alive, kernel.cgroups[7] = False, DUNGEON

    kernel.before = reuse
    peer = peer_of(kernel)
    assert peer.unit is None
    assert not may_act(PeerRule(unit="dungeon.service"), peer, 0)


@pytest.mark.parametrize("question", ["pid_of", "has_exited", "cgroup_of", "owner_of_cgroup"])
def test_liveness_is_asked_after_all_that_was_read_by_pid(question: str) -> None:
    """Even a process of the right unit is not believed once it has gone: its pid may have been another's already."""
    kernel = FakeKernel()

    def end(asked: str) -> None:
        if asked == question:
            kernel.is_alive = False

    kernel.before = end
    assert peer_of(kernel).unit_unknown == "gone"
    assert FakeKernel().is_alive
    alive = FakeKernel()
    peer_of(alive)
    assert alive.asked[-1] == "has_exited"


def test_a_pidfd_of_another_process_than_the_one_of_the_credentials_is_not_believed() -> None:
    kernel = FakeKernel()
    kernel.pid_in_fdinfo, kernel.cgroups[8] = 8, DUNGEON
    assert peer_of(kernel).unit_unknown == "gone"


@pytest.mark.parametrize("code", [errno.ENOPROTOOPT, errno.EINVAL])
def test_without_a_pidfd_of_the_kernel_nothing_is_guessed_from_the_pid(code: int) -> None:
    kernel = FakeKernel()
    kernel.faults["pidfd"] = code
    assert peer_of(kernel).unit_unknown == "no_pidfd"
    assert "cgroup_of" not in kernel.asked


@pytest.mark.parametrize(
    ("fault", "code", "unknown"),
    [
        ("pidfd", errno.ESRCH, "gone"),
        ("pid_of", errno.ENOENT, "proc_hidden"),
        ("cgroup_of", errno.ENOENT, "proc_hidden"),
        ("cgroup_of", errno.EACCES, "proc_hidden"),
        ("owner_of_cgroup", errno.ENOENT, "cgroups_hidden"),
    ],
)
def test_what_is_hidden_is_said_and_not_guessed(fault: str, code: int, unknown: str) -> None:
    kernel = FakeKernel()
    kernel.faults[fault] = code
    assert peer_of(kernel).unit_unknown == unknown


@pytest.mark.parametrize("question", ["pidfd", "pid_of", "cgroup_of", "owner_of_cgroup"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_daemon_that_has_run_short_blames_neither_the_kernel_nor_its_hardening(question: str, code: int) -> None:
    kernel = FakeKernel()
    kernel.faults[question] = code
    assert peer_of(kernel).unit_unknown == "no_descriptor"


@pytest.mark.parametrize("owned", ["/", "/game.slice", "/game.slice/game-eu.slice"])
def test_a_slice_that_another_user_than_root_owns_is_not_believed(owned: str) -> None:
    kernel = FakeKernel()
    kernel.cgroups[7] = "0::/game.slice/game-eu.slice/dungeon.service\n"
    assert peer_of(kernel).unit == "dungeon.service"
    kernel.owners[owned] = 1001
    assert peer_of(kernel).unit_unknown == "slice_of_a_user"


def test_a_service_whose_own_cgroup_is_delegated_to_its_user_is_believed() -> None:
    kernel = FakeKernel()
    kernel.owners["/system.slice/dungeon.service"] = 1001
    assert peer_of(kernel).unit == "dungeon.service"


def test_a_pid_of_another_namespace_is_said_to_be_one() -> None:
    assert peer_of(FakeKernel(pid=0)).unit_unknown == "other_pid_namespace"
    hidden = FakeKernel()
    hidden.pid_in_fdinfo = 0
    assert peer_of(hidden).unit_unknown == "other_pid_namespace"


def test_every_reason_has_words_that_say_what_to_change() -> None:
    assert all("name" in words or "start it" in words or "must" in words for words in WORDS.values())


# --- what is said before anybody calls ----------------------------------------------------------------------------

CONFIG = """
[daemon]
socket = "s"
[ledger]
directory = "l"
[[caller]]
id = "a"
models = []
spend_ceiling_micro_usd = 1
spend_window_seconds = 60
{}
"""


def warned(rule: str, kernel: FakeKernel, uid_map: str = "0 0 4294967295\n") -> list[str]:
    config = read_config(CONFIG.format(rule), Path("/nowhere"), config_keys())
    return [str(warning) for warning in identity_warnings(config, kernel, uid_map)]


def seeing() -> FakeKernel:
    kernel = FakeKernel()
    kernel.cgroups |= {1: "0::/init.scope\n", os.getpid(): DUNGEON}
    return kernel


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("pidfd", errno.ENOPROTOOPT, "Linux 6.5"),
        ("cgroup_of", errno.ENOENT, "ProtectProc="),
        ("owner_of_cgroup", errno.ENOENT, "/sys/fs/cgroup"),
    ],
)
def test_rules_by_unit_that_nobody_can_match_are_warned_of(fault: str, code: int, words: str) -> None:
    kernel = seeing()
    assert warned('unit = "dungeon.service"', kernel) == []
    kernel.faults[fault] = code
    [warning] = warned('unit = "dungeon.service"', kernel)
    assert warning.startswith('caller "a".unit: ')
    assert words in warning
    assert warned("uid = 1000", kernel) == []
    assert kernel.open == []


def test_a_user_namespace_that_has_not_all_users_is_warned_of() -> None:
    [warning] = warned("uid = 1000", seeing(), "0 100000 65536\n")
    assert "PrivateUsers=" in warning
    assert warned("uid = 1000", seeing(), "         0          0 4294967295\n") == []


def test_a_proc_that_is_hidden_whole_is_said_and_one_without_user_namespaces_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read_config(CONFIG.format("uid = 1000"), Path("/nowhere"), config_keys())
    monkeypatch.setattr(identity, "_UID_MAP", tmp_path / "self" / "uid_map")
    [warning] = identity_warnings(config, seeing())
    assert "mount /proc" in str(warning)
    (tmp_path / "self").mkdir()
    assert list(identity_warnings(config, seeing())) == []
    assert list(identity_warnings(config)) == list(identity_warnings(config, uid_map="0 0 4294967295"))


@pytest.mark.parametrize("fault", ["pidfd", "cgroup_of", "owner_of_cgroup"])
def test_a_daemon_that_is_short_of_descriptors_does_not_blame_the_kernel(fault: str) -> None:
    kernel = seeing()
    kernel.faults[fault] = errno.EMFILE
    [warning] = warned('unit = "dungeon.service"', kernel)
    assert "LimitNOFILE=" in warning


# --- the kernel itself --------------------------------------------------------------------------------------------


def unified() -> Path:
    """Where cgroups can be made, with systemd's names and none of its own."""
    found = [
        Path(path) for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if (Path(path) / "cgroup.procs").exists()
    ]
    mounted = [path for path in found if (path / "cgroup.controllers").exists()]
    if os.getuid() != 0 or not mounted or (mounted[0] / "system.slice").exists():
        pytest.skip("needs root, cgroup v2, and a system without systemd's own slices")
    return mounted[0]


@contextmanager
def cgroups(*paths: str) -> Iterator[Path]:
    root, made = unified(), []
    try:
        for path in paths:
            for part in reversed([root / path, *(root / path).parents]):
                if part.is_relative_to(root) and not part.exists():
                    part.mkdir()
                    made.append(part)
        yield root
    except OSError as fault:
        pytest.skip(f"cgroups can't be made here: {fault}")
    finally:
        for part in reversed(made):
            part.rmdir()


CALLER = """
import socket, sys
path, name = sys.argv[1:]
open(path + "/cgroup.procs", "w").write("0")
connected = socket.socket(socket.AF_UNIX)
connected.connect(bytes.fromhex(name))
sys.stdin.read()
"""


@contextmanager
def calling_from(cgroup: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")
        listening.listen()
        listening.settimeout(30)
        name = bytes(listening.getsockname()).hex()
        caller = subprocess.Popen([sys.executable, "-c", CALLER, str(cgroup), name], stdin=subprocess.PIPE)
        try:
            connected, _ = listening.accept()
            with connected:
                yield connected
        finally:
            caller.communicate()


def no_pidfd_here() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(LINUX.pidfd(ours))
        except OSError:
            pytest.skip("this kernel has no SO_PEERPIDFD")


def test_two_real_processes_of_one_user_in_two_units_are_told_apart_by_the_real_kernel() -> None:
    no_pidfd_here()
    with cgroups("system.slice/dungeon.service", "system.slice/tavern.service/deep") as root:
        for path, unit in (("dungeon.service", "dungeon.service"), ("tavern.service/deep", "tavern.service")):
            with calling_from(root / "system.slice" / path) as connected:
                peer = read_peer(connected)
            assert (peer.unit, peer.unit_unknown) == (unit, None)


def test_a_real_slice_that_is_given_to_a_user_is_not_believed() -> None:
    no_pidfd_here()
    with cgroups("system.slice/dungeon.service") as root:
        os.chown(root / "system.slice", 12345, -1)
        with calling_from(root / "system.slice" / "dungeon.service") as connected:
            assert read_peer(connected).unit_unknown == "slice_of_a_user"


READ = """
import socket, sys
from sidecar.service.peer import read_peer
peer = read_peer(socket.socket(fileno=int(sys.argv[1])))
print(peer.unit, peer.unit_unknown)
"""


@pytest.mark.parametrize(
    ("how", "unknown"),
    [
        ("mount -t proc -o hidepid=invisible proc /proc", "proc_hidden"),
        ("umount -R /sys/fs/cgroup", "cgroups_hidden"),
    ],
)
def test_a_daemon_from_which_a_real_mount_hides_peers_says_so(how: str, unknown: str) -> None:
    no_pidfd_here()
    unshare, setpriv = shutil.which("unshare"), shutil.which("setpriv")
    if unshare is None or setpriv is None:
        pytest.skip("needs unshare and setpriv")
    tried = subprocess.run([unshare, "-m", "sh", "-c", how], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"it can't be brought about here: {tried.stderr.strip()[-200:]}")
    with (
        cgroups("system.slice/dungeon.service") as root,
        calling_from(root / "system.slice" / "dungeon.service") as ours,
    ):
        as_nobody = f"{setpriv} --reuid=12345 --regid=12345 --clear-groups --bounding-set=-all --inh-caps=-all"
        program = f'{how} && exec {as_nobody} {sys.executable} -c "$0" {ours.fileno()}'
        said = subprocess.run(
            [unshare, "-m", "sh", "-c", program, READ], pass_fds=[ours.fileno()], cwd=ROOT, capture_output=True,
            text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert said.stdout.split() == ["None", unknown], said.stderr
