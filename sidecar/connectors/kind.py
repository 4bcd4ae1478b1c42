"""What a connector kind is to the rest: its keys in a configuration, and how it is made of a checked one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from sidecar.config.keys import Fault, KindKeys
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.promise import Connector
from sidecar.ops.credentials import Secret


class Kind(Struct, frozen=True):
    """`build` may raise ConfigFaults for what only building can find, such as a script's mistakes.

    `warnings` says what of a sound configuration is hardly meant: keys, and why.
    """

    config: KindKeys
    build: Callable[[ConnectorConfig, Secret | None], Connector]
    warnings: Callable[[ConnectorConfig], Iterable[Fault]] = lambda config: ()
