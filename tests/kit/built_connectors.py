"""The connectors of a checked configuration, for tests that have no file."""

from __future__ import annotations

from collections.abc import Mapping

from sidecar.config.keys import ConfigFaults
from sidecar.config.values import Config
from sidecar.connectors.building import build_all
from sidecar.connectors.promise import Connector


def build_connectors(config: Config) -> Mapping[str, Connector]:
    """Every connector that can be asked for, by name. Raises ConfigFaults with what is wrong in any of them."""
    wanted = {f'connector "{name}"': one for name, one in config.connectors.items() if name not in config.only_wrapped}
    built, complaints = build_all(wanted, {})
    if complaints:
        raise ConfigFaults(complaints)
    return {name: one.connector for name, one in built.items()}
