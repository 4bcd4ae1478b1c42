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

    `warnings` says what of a sound configuration is hardly meant: keys, and why. `credential_of` is the table whose
    credential it is built with, None for none. `build_unasked` makes one that only ever lowers, so it wants neither a
    credential nor whoever it would ask to be there; where it is None, `build` without a secret makes such a one.
    `stays` says whether one that was made of this very table and credential is still what `build` would make now: it
    is not where files that it has read may have changed. It may raise what `build` may.
    """

    config: KindKeys
    build: Callable[[ConnectorConfig, Secret | None], Connector]
    warnings: Callable[[ConnectorConfig], Iterable[Fault]] = lambda config: ()
    credential_of: Callable[[ConnectorConfig], ConnectorConfig | None] = lambda config: config
    build_unasked: Callable[[ConnectorConfig], Connector] | None = None
    stays: Callable[[Connector, ConnectorConfig], bool] = lambda built, config: True
