"""Disks that fail for real: system calls that are made to fail or to be slow, small and broken file systems, limits.

Whatever is mounted here is unmounted when its block ends, however it ends; a
loop device goes with its file system. What a machine can't do is skipped, by
name.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from kit.daemon_process import Process, wait_until

_EXT4_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
_NO_LOG_FLUSH = 2
MEBIBYTE = 1 << 20


# --- system calls -----------------------------------------------------------------------------------------------


def needs(*commands: str) -> None:
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def strace(*options: str, log: Path | str = "/dev/null") -> list[str]:
    """A wrapper for a daemon. `when` in an injection counts the calls of each thread by itself."""
    needs("strace")
    expressions = [word for option in options for word in ("-e", option)]
    return ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(log), *expressions]


def failing(call: str, error: str, when: str) -> list[str]:
    """A wrapper in which such calls of a thread fail: the nth (`9`), all from it on (`9+`), some (`9..12`)."""
    return strace(f"trace={call}", f"inject={call}:error={error}:when={when}")


def delayed(call: str, seconds: float) -> list[str]:
    """A wrapper in which every such call takes at least so long."""
    return strace(f"trace={call}", f"inject={call}:delay_enter={round(seconds * 1e6)}")


@dataclass(frozen=True)
class Call:
    """One system call of a trace; `began` and `ended` are line numbers."""

    thread: str
    name: str
    arguments: str
    began: int
    ended: int


class Trace(list[Call]):
    """The calls of all threads that succeeded, in the order in which they began."""

    def of(self, name: str, path: Path | str) -> list[Call]:
        """The calls of this name on a descriptor of this file."""
        return [call for call in self if call.name == name and f"<{path}>" in call.arguments]

    def sync_after(self, write: Call) -> Call:
        """The sync of the same file, by the same thread, that covers a write."""
        file = write.arguments.split(",")[0]
        return next(
            call
            for call in self
            if (call.name, call.thread) == ("fdatasync", write.thread)
            and call.began > write.ended
            and call.arguments.startswith(file)
        )


_TRACED = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed>)(.*?)(?:\) += (-?\d+).*| <unfinished \.\.\.>)")


def trace_of(log: Path) -> Trace:
    """What `strace -f -o log` wrote; a call that another thread interrupted stands in two lines."""
    trace = Trace()
    begun: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(log.read_text().splitlines()):
        if (found := _TRACED.fullmatch(line)) is None:
            continue
        thread, name, arguments, result = found.groups()
        if result is None:
            begun[thread] = number, arguments
            continue
        began, first = begun.pop(thread) if " resumed>" in line else (number, "")
        if int(result) >= 0 or name == "connect":
            trace.append(Call(thread, name, first + arguments, began, number))
    trace.sort(key=lambda call: call.began)
    return trace


@contextmanager
def spares_fail(daemon: Process, call: str, error: str) -> Iterator[None]:
    """While this is entered, every such call of the thread that prepares spare segments fails."""
    needs("strace")
    spare_maker = sorted(int(task) for task in os.listdir(f"/proc/{daemon.pid}/task"))[2]  # after main and commit
    log = daemon.folder / "spares.trace"
    expressions = ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when=1+"]
    tracer = subprocess.Popen(
        ["strace", "-o", str(log), *expressions, "-p", str(spare_maker)], stderr=subprocess.PIPE, text=True
    )
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace can't attach to a process here: {said.strip()}")
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)


def limit_file_size(pid: int, size_bytes: int | None) -> None:
    """From now on the kernel takes no byte of this process beyond that offset of any file; None lifts the limit."""
    soft = resource.RLIM_INFINITY if size_bytes is None else size_bytes
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


# --- file systems -----------------------------------------------------------------------------------------------


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")


def _run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def mount(*options: str | Path) -> None:
    try:
        _run("mount", *options)
    except subprocess.CalledProcessError as fault:
        pytest.skip(f"this machine can't mount {options}: {fault.stderr.strip()}")


def is_mounted(place: Path) -> bool:
    """Also where the same file system is mounted over a part of itself, which `os.path.ismount` doesn't see."""
    return any(line.split()[4] == str(place) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def unmount(place: Path) -> None:
    """As soon as nobody is in it: a process that was just killed takes a moment to let go."""
    give_up_at = time.monotonic() + 10
    while is_mounted(place):
        if subprocess.run(["umount", str(place)], capture_output=True).returncode == 0:
            continue
        if time.monotonic() > give_up_at:
            _run("umount", "--lazy", place)
            raise AssertionError(f"somebody still uses {place}")
        time.sleep(0.02)


@contextmanager
def mounted(place: Path, *options: str | Path) -> Iterator[Path]:
    """A file system at this place, and afterwards none, also where it was mounted again meanwhile."""
    needs_root()
    place.mkdir(exist_ok=True)
    mount(*options, place)
    try:
        yield place
    finally:
        unmount(place)


@contextmanager
def small_tmpfs(place: Path, size_bytes: int) -> Iterator[Path]:
    with mounted(place, "-t", "tmpfs", "-o", f"size={size_bytes}", "none"):
        yield place


class Ext4:
    """A file system of its own in an image file, on a loop device."""

    def __init__(self, image: Path, place: Path, options: str = "") -> None:
        self._image = image
        self.place = place
        self._options = f"loop,{options}" if options else "loop"

    def mount(self) -> None:
        mount("-o", self._options, self._image, self.place)

    def mount_again(self) -> None:
        """As after a reboot: the journal is replayed, and what was never synced is gone."""
        unmount(self.place)
        self.mount()

    def repair_and_mount(self) -> None:
        unmount(self.place)
        subprocess.run(["e2fsck", "-p", "-f", str(self._image)], capture_output=True)  # its code counts the repairs
        self.mount()

    def cut_power(self) -> None:
        """From here on every call fails, and nothing that was not synced reaches the image."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def find_an_error(self) -> None:
        """The kernel is told of an inconsistency: with `errors=remount-ro` it is read-only from here on."""
        device = Path(_run("findmnt", "-n", "-o", "SOURCE", self.place).strip()).name
        trigger = Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
        if not trigger.exists():
            pytest.skip("this kernel can't be told of a file system error")
        trigger.write_text("1")


@contextmanager
def ext4(image: Path, place: Path, size_bytes: int, options: str = "") -> Iterator[Ext4]:
    needs_root()
    needs("mkfs.ext4", "losetup")
    place.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", image)
    disk = Ext4(image, place, options)
    disk.mount()
    try:
        yield disk
    finally:
        unmount(place)


class FailingDevice(Ext4):
    """An ext4 on a block device whose writes fail while it is told so; what is written in that time is nowhere."""

    def __init__(self, device: str, place: Path, trigger: Path) -> None:
        super().__init__(Path(device), place)
        self._options = "defaults"
        self._trigger = trigger

    def fail(self) -> None:
        self._trigger.touch()

    def heal(self) -> None:
        self._trigger.unlink(missing_ok=True)


@contextmanager
def failing_device(folder: Path, place: Path, size_bytes: int) -> Iterator[FailingDevice]:
    """A server of blocks that can refuse writes, seen as a file through FUSE, and as a device through a loop."""
    needs_root()
    needs("nbdkit", "nbdfuse", "mkfs.ext4", "losetup")
    if not Path("/dev/fuse").exists():
        pytest.skip("this kernel has no FUSE")
    image, served, trigger = folder / "blocks", folder / "served", folder / "writes-fail"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-F", image)
    served.mkdir()
    place.mkdir()
    faults = ("error-pwrite=EIO", "error-pwrite-rate=100%", f"error-pwrite-file={trigger}")
    socket = folder / "blocks.sock"
    server = ["nbdkit", "-f", "-U", str(socket), "--filter=error", "file", str(image), *faults]
    with ExitStack() as undone:
        undone.enter_context(_running(server, socket.exists))
        disk = served / "disk"
        undone.enter_context(_running(["nbdfuse", str(disk), "--unix", str(socket)], disk.exists))
        undone.callback(lambda: is_mounted(served) and unmount(served))
        device = _run("losetup", "-f", "--show", disk).strip()
        undone.callback(lambda: _run("losetup", "-d", device))
        undone.callback(unmount, place)
        undone.callback(trigger.unlink, missing_ok=True)
        made = FailingDevice(device, place, trigger)
        made.mount()
        yield made


@contextmanager
def _running(command: list[str], ready: Callable[[], bool]) -> Iterator[None]:
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: ready() or process.poll() is not None)
        if process.poll() is not None:
            pytest.skip(f"{command[0]} does not run here: {process.stderr.read().strip() if process.stderr else ''}")
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)


@contextmanager
def btrfs(image: Path, place: Path) -> Iterator[Path]:
    needs_root()
    needs("mkfs.btrfs", "btrfs", "losetup")
    with image.open("wb") as file:
        file.truncate(120 * MEBIBYTE)
    _run("mkfs.btrfs", "-q", image)
    with mounted(place, "-o", "loop", image):
        yield place


def set_btrfs_quota(disk: Path, directory: Path, limit_bytes: int) -> None:
    """The files of this new or known directory may together take so many bytes, and then get EDQUOT."""
    if not directory.exists():
        _run("btrfs", "quota", "enable", disk)
        _run("btrfs", "subvolume", "create", directory)
    _run("btrfs", "qgroup", "limit", str(limit_bytes), directory)


@contextmanager
def ballast(directory: Path) -> Iterator[None]:
    """A file takes what room there is, until the file system refuses one more byte; then it is gone again."""
    path = directory / "ballast"
    with path.open("wb", buffering=0) as file:
        for piece in (MEBIBYTE, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(piece)):
                    pass
        with suppress(OSError):
            os.fsync(file)
    try:
        yield
    finally:
        path.unlink()
        os.sync()  # some file systems count what was freed only now


def wait_for_spares(ledger: Path, count: int, segment_bytes: int) -> None:
    """Until so many spare segments are written out."""

    def written() -> bool:
        return [path.stat().st_size for path in ledger.glob("*.spare")] == [segment_bytes] * count

    wait_until(written)


def resident_kib(pid: int) -> int:
    """Memory of this process that is in use, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def grow_tmpfs(place: Path, size_bytes: int) -> None:
    _run("mount", "-o", f"remount,size={size_bytes}", place)


@contextmanager
def read_only_bind(place: Path) -> Iterator[None]:
    """The same files, read-only for whoever opens, creates or renames one by this path from now on."""
    with mounted(place, "--bind", place):
        _run("mount", "-o", "remount,ro,bind", place)
        yield
