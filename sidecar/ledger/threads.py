"""The threads of a running ledger, as a port: a test gives ones that work in its own, so that nothing is left
to the scheduler."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sidecar.ledger.commit_thread import CommitThread
from sidecar.ledger.keeping import KeepingThread
from sidecar.ledger.spares import SpareMaker


class Threads(Struct, frozen=True):
    """What makes the thread that batches reach the disk in, the one that spares are made in, and that of upkeep."""

    commit: type[CommitThread[Any]] = CommitThread
    spares: type[SpareMaker] = SpareMaker
    keeping: type[KeepingThread[Any]] = KeepingThread
