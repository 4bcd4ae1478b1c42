"""A connector with tasks of its own: the last way out, past the drain, ends what runs for it too."""

from __future__ import annotations

import io

import trio
from kit.memory_ledger import MemoryLedger
from kit.road import HeldConnector, config

from sidecar.connectors.promise import Serving
from sidecar.ops.log import Log
from sidecar.service.daemon import DISK_ERROR, Daemon
from sidecar.service.limits import make_accounts, make_reservations


class WithTasks(HeldConnector):
    """Notes what it is told."""

    def __init__(self, told: list[object]) -> None:
        super().__init__()
        self.told = told

    async def serve(self, log: Log, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()

    def kill(self) -> None:
        self.told.append("kill")


async def test_a_daemon_that_gives_up_on_its_disk_kills_what_runs_for_its_connectors_first() -> None:
    told: list[object] = []
    terms = config()
    connectors = {"echo": WithTasks(told), "plain": HeldConnector()}
    assert [isinstance(one, Serving) for one in connectors.values()] == [True, False]
    reservations = make_reservations(terms, make_accounts(terms))
    daemon = Daemon(terms, connectors, MemoryLedger(), reservations, Log(io.StringIO(), "text"), die=told.append)
    daemon._die_of_silence()
    assert told == ["kill", DISK_ERROR]
