"""What a connector kind is to the rest: its keys in a configuration, and how it is made of a checked one."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sidecar.config.keys import KindKeys
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.promise import Connector
from sidecar.ops.credentials import Secret


class Kind(Struct, frozen=True):
    """`build` may raise ConfigFaults for what only building can find, such as a script's mistakes."""

    config: KindKeys
    build: Callable[[ConnectorConfig, Secret | None], Connector]
