"""The process connector with a real child, that behaves as the contract of every connector asks."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from sidecar.connectors.child import Plan
from sidecar.connectors.process import Process
from sidecar.ops.log import Log

ODD_CHILD = Path(__file__).with_name("odd_child.py")


def plan_of(behaviour: str) -> Plan:
    environment = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONDONTWRITEBYTECODE": "1"}
    return Plan(
        argv=("./nowhere",) if behaviour == "unreachable" else (sys.executable, str(ODD_CHILD), behaviour),
        environment=environment,
        cwd=ODD_CHILD.parent,
    )


@asynccontextmanager
async def process(behaviour: str, *, log: io.StringIO | None = None, **changes: Any) -> AsyncIterator[Process]:
    """Serves while it is entered; then nothing of it runs any more."""
    terms: dict[str, Any] = {
        "name": "parrots",
        "secret": None,
        "children_max": 4,
        "time_limit_seconds": 60,
        "response_bytes_max": 1_000_000,
        "body_bytes_max": 10_000_000,
        **changes,
    }
    connector = Process(terms.pop("plan", None) or plan_of(behaviour), **terms)
    async with trio.open_nursery() as nursery:
        await nursery.start(connector.serve, Log(log or io.StringIO(), "text"))
        try:
            yield connector
        finally:
            await connector.aclose()
            nursery.cancel_scope.cancel()
