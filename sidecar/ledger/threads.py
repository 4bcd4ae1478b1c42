"""The two threads of a running ledger, as a port: a test gives ones that work in its own, so that nothing is left
to the scheduler."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sidecar.ledger.commit_thread import CommitThread
from sidecar.ledger.spares import SpareMaker


class Threads(Struct, frozen=True):
    """What makes the thread that batches reach the disk in, and the one that spares are made in."""

    commit: type[CommitThread[Any]] = CommitThread
    spares: type[SpareMaker] = SpareMaker
