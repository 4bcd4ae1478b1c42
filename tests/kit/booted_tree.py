"""A small Debian with its own systemd, made from packages and booted in a container, to install sidecar in.

Making it takes a minute and 300 MB, so trees are kept in the folder that
SIDECAR_BOOTED_TREES names, and in a temporary one where it names none. Each
boot gets a copy of its own. Packages come from where this machine's apt gets
its own, or from SIDECAR_DEBIAN_MIRROR.

    base tree                  debootstrap or mmdebstrap, once
    wheels                     sidecar's from the checkout each time, what it needs by pip for the tree's Python
    a copy, booted             systemd-nspawn with a network of its own: loopback, and one address beside it
    commands inside            nsenter, as root; files go in and out through the copy's folder
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = os.environ.get("SIDECAR_DEBIAN_SUITE", "trixie")
PACKAGES = ("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "iproute2", "passwd", "util-linux")
NOT_LOOPBACK = "192.0.2.1"  # an address for documentation, given to the tree's own interface
_BOOT_SECONDS_MAX = 60
_MAKING_SECONDS_MAX = 900


def why_no_tree() -> str | None:
    """What this machine has not; None where a tree can be made and booted."""
    if os.getuid() != 0:
        return "needs root, to boot a tree"
    for tool in ("systemd-nspawn", "nsenter", "mkfs.ext4", "fsfreeze"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if _maker() is None:
        return "needs debootstrap or mmdebstrap"
    if _mirror() is None:
        return "apt's configuration names no Debian mirror; SIDECAR_DEBIAN_MIRROR can"
    return None


def _maker() -> str | None:
    return shutil.which("mmdebstrap") or shutil.which("debootstrap")


def _mirror() -> str | None:
    """Where this machine's own packages come from."""
    if given := os.environ.get("SIDECAR_DEBIAN_MIRROR"):
        return given
    if shutil.which("apt-get") is None:
        return None
    wanted = ("indextargets", "--format", "$(REPO_URI) $(COMPONENT) $(CODENAME)", "Created-By: Packages")
    told = subprocess.run(["apt-get", *wanted, "Origin: Debian"], capture_output=True, text=True, check=False).stdout
    for line in told.splitlines():
        uri, component, codename = line.split()
        if component == "main" and "-" not in codename:  # neither security nor updates
            return uri
    return None


@contextmanager
def kept_trees() -> Iterator[Path]:
    """The folder for trees: one that stays, or one for this run."""
    if given := os.environ.get("SIDECAR_BOOTED_TREES"):
        Path(given).mkdir(parents=True, exist_ok=True)
        yield Path(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="sidecar-trees-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def base_tree(trees: Path) -> Path:
    """A tree that has never been booted and knows nothing of sidecar; made where it is not there yet."""
    base, maker, mirror = trees / f"base-{SUITE}", _maker(), _mirror()
    if base.exists():
        return base
    assert maker is not None
    assert mirror is not None
    making = trees / f"making-{SUITE}"
    shutil.rmtree(making, ignore_errors=True)
    words = [maker, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(making), mirror]
    subprocess.run(words, check=True, timeout=_MAKING_SECONDS_MAX, stdout=subprocess.DEVNULL)
    making.rename(base)
    return base


def wheels_for(tree: Path, trees: Path) -> Path:
    """A folder with sidecar, as it is in the checkout, and all that it needs, for the Python of this tree."""
    folder = trees / "wheels"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("model_sidecar-*.whl"):
        old.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, ROOT], check=True, timeout=300)
    [sidecar] = folder.glob("model_sidecar-*.whl")
    [python] = [path.name.removeprefix("python") for path in (tree / "usr/bin").glob("python3.[0-9]*")]
    tags = [f"--platform={tag}_{platform.machine()}" for tag in ("manylinux_2_28", "manylinux2014")]
    version = [f"--python-version={python}", "--implementation=cp", "--only-binary=:all:"]
    subprocess.run([*pip, "download", *version, *tags, "-d", folder, sidecar], check=True, timeout=300)
    return folder


class Booted:
    """A running tree."""

    def __init__(self, folder: Path, init_pid: int) -> None:
        self.folder = folder
        self._init_pid = init_pid

    def path(self, inside: str) -> Path:
        """Where a file of the tree's disk is for us. /run, /tmp and /proc are the tree's own and not there."""
        return self.folder / inside.lstrip("/")

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        path = self.path(inside)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def words(self, script: str) -> list[str]:
        """The command, for this machine, that runs a script of sh inside."""
        return ["nsenter", "-t", str(self._init_pid), "-m", "-u", "-i", "-n", "-p", "-C", "--", "sh", "-ec", script]

    def run(
        self, script: str, *, check: bool = True, seconds_max: float = 60, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script of sh inside, as root; `given` is its stdin."""
        done = subprocess.run(
            self.words(script), input=given or "", capture_output=True, text=True, timeout=seconds_max, check=False,
            env=_ENVIRONMENT,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done

    def out(self, script: str, *, seconds_max: float = 60) -> str:
        return self.run(script, seconds_max=seconds_max).stdout.strip()

    def begun(self, script: str) -> subprocess.Popen[str]:
        """A script that runs beside us; who began it waits for it."""
        return subprocess.Popen(
            self.words(script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=_ENVIRONMENT,
        )  # fmt: skip

    def systemd_version(self) -> int:
        return int(self.out("systemctl --version").split()[1])

    def shown(self, unit: str, member: str) -> str:
        """One property of a unit, as systemd has it."""
        return self.out(f"systemctl show -P {member} {unit}")

    def wait_until(self, script: str, *, seconds_max: float = 30) -> str:
        """What the script says, once it succeeds."""
        until = time.monotonic() + seconds_max
        while True:
            done = self.run(script, check=False)
            if done.returncode == 0:
                return done.stdout.strip()
            assert time.monotonic() < until, f"not within {seconds_max} s: {script}\n{done.stdout}{done.stderr}"
            time.sleep(0.1)


# What the README's commands need to find their packages without a network, and nothing of ours.
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "/root/wheels",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
}


@contextmanager
def booted(trees: Path, base: Path, wheels: Path, *, binds: Sequence[str] = ()) -> Iterator[Booted]:
    """A copy of this tree, booted, with the wheels in /root/wheels; shut down and deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="booted-", dir=trees))
    try:
        subprocess.run(["cp", "-a", f"{base}/.", folder], check=True)
        shutil.copytree(wheels, folder / "root/wheels")
        shutil.copytree(Path(__file__).parent / "booted_inside", folder / "root/inside")
        with _container(folder, binds) as init_pid:
            tree = Booted(folder, init_pid)
            tree.run(f"ip addr add {NOT_LOOPBACK}/32 dev lo")
            yield tree
    finally:
        shutil.rmtree(folder)


@contextmanager
def _container(folder: Path, binds: Sequence[str]) -> Iterator[int]:
    """Gives the process id of the tree's init."""
    words = [
        "systemd-nspawn", "-q", "-D", str(folder), "--boot", "--register=no", "--keep-unit", "--private-network",
        "--kill-signal=SIGRTMIN+3", "--capability=CAP_BPF,CAP_NET_ADMIN", "--system-call-filter=bpf",  # IPAddressDeny=
        *(f"--bind={bind}" for bind in binds),
    ]  # fmt: skip
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as sink:
        running = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
            env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
        )  # fmt: skip
    try:
        yield _wait_booted(running, log)
    finally:
        running.send_signal(signal.SIGTERM)  # nspawn asks the tree's init to power off
        try:
            running.wait(timeout=_BOOT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        log.unlink()


def _wait_booted(running: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + _BOOT_SECONDS_MAX
    while time.monotonic() < until:
        assert running.poll() is None, f"the tree does not boot: {log.read_text(errors='replace')[-2000:]}"
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        if children:
            state = subprocess.run(
                Booted(log, int(children[0])).words("systemctl is-system-running"),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if state.stdout.strip() in ("running", "degraded"):
                return int(children[0])
        time.sleep(0.2)
    raise AssertionError(f"not booted in {_BOOT_SECONDS_MAX} s: {log.read_text(errors='replace')[-2000:]}")
