"""What is in force: a checked configuration, and the connectors that were made of it.

Both change together, in one turn, when a reload has succeeded. Whoever decides
something asks at that moment and keeps nothing of it; a request that has been
admitted carries the terms of its admission with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.config.values import Config
from sidecar.connectors.building import Built
from sidecar.connectors.promise import Connector


class InForce:
    """One daemon's configuration and connectors of now; `built` says what these were made of."""

    def __init__(
        self, config: Config, connectors: Mapping[str, Connector], built: Mapping[str, Built] | None = None
    ) -> None:
        self.config = config
        self.connectors = connectors
        self.built = built or {}

    def put(self, config: Config, built: Mapping[str, Built]) -> None:
        """From now on these are in force."""
        self.config = config
        self.built = built
        self.connectors = {name: one.connector for name, one in built.items()}
