"""A kernel in which pids are reused, processes end at the worst moment, and things are hidden."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

_PIDFD = 99


class FakeKernel:
    """Whoever connected has `pid`; `cgroups` is what each pid's /proc/PID/cgroup says now.

    `before` is called ahead of each question, with its name: tests let things happen there.
    """

    def __init__(self, pid: int = 7, uid: int = 1001, gid: int = 1001) -> None:
        self.pid, self.uid, self.gid = pid, uid, gid
        self.pid_in_fdinfo = pid
        self.cgroups = {pid: "0::/system.slice/dungeon.service\n"}
        self.owners: dict[str, int] = {}
        self.faults: dict[str, int] = {}
        self.is_alive = True
        self.open: list[int] = []
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda question: None

    def credentials(self, connected: Any) -> tuple[int, int, int]:
        self._ask("credentials")
        return self.pid, self.uid, self.gid

    def groups(self, connected: Any) -> Iterable[int]:
        self._ask("groups")
        return []

    def pidfd(self, connected: Any) -> int:
        self._ask("pidfd")
        self.open.append(_PIDFD)
        return _PIDFD

    def pid_of(self, pidfd: int) -> int:
        self._ask("pid_of")
        return self.pid_in_fdinfo if self.is_alive else -1

    def has_exited(self, pidfd: int) -> bool:
        self._ask("has_exited")
        return not self.is_alive

    def close(self, pidfd: int) -> None:
        self.open.remove(pidfd)

    def cgroup_of(self, pid: int) -> str:
        self._ask("cgroup_of")
        if pid not in self.cgroups:
            raise FileNotFoundError(errno.ENOENT, "no such process")
        return self.cgroups[pid]

    def owner_of_cgroup(self, path: str) -> int:
        self._ask("owner_of_cgroup")
        return self.owners.get(path, 0)

    def _ask(self, question: str) -> None:
        self.before(question)
        self.asked.append(question)
        if question in self.faults:
            raise OSError(self.faults[question], question)
