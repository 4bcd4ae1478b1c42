"""The connectors that requests go to: those in force, and those that are gone until their last request has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import trio

from sidecar.connectors.promise import Connector, Serving
from sidecar.ops.log import Log
from sidecar.rules.reservations import Live, Reservations
from sidecar.service.in_force import InForce

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class AskedConnectors:
    """Runs what they have to run; `tasks` is theirs and outlives every request. `until` waits for a condition."""

    def __init__(self, in_force: InForce, reservations: Reservations, log: Log, until: Until) -> None:
        self.tasks: trio.Nursery
        self._in_force = in_force
        self._reservations = reservations
        self._log = log
        self._until = until
        self._retired: set[Connector] = set()

    async def start_all(self, tasks: trio.Nursery) -> None:
        self.tasks = tasks
        for connector in self._in_force.connectors.values():
            await self.start(connector)

    async def start(self, connector: Connector) -> None:
        """Returns when it can be asked."""
        if isinstance(connector, Serving):
            await self.tasks.start(connector.serve, self._log)

    def retire(self, before: Mapping[str, Connector]) -> None:
        """Of these, those that are not in force any more end behind their last request."""
        for name, connector in before.items():
            if self._in_force.connectors.get(name) is not connector:
                self._retired.add(connector)
                self.tasks.start_soon(self._retire, connector, self._reservations.at_connector(name))

    async def _retire(self, connector: Connector, running: Collection[Live]) -> None:
        """What is admitted from now on is another connector's."""
        await self._until(lambda: not any(self._reservations.is_live(live) for live in running))
        await connector.aclose()
        self._retired.discard(connector)

    async def aclose(self) -> None:
        for connector in (*self._in_force.connectors.values(), *self._retired):
            await connector.aclose()

    def kill(self) -> None:
        """What runs for them outside of this process ends now; from any thread."""
        for connector in (*self._in_force.connectors.values(), *self._retired):
            if isinstance(connector, Serving):
                connector.kill()
