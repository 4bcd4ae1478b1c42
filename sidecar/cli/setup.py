"""From a configuration file to the parts that a daemon is made of. Shared by serve and check."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.config.reading import read_config
from sidecar.config.values import Config
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.kinds import KINDS, config_keys
from sidecar.connectors.promise import Connector
from sidecar.ops import credentials
from sidecar.ops.credentials import CredentialFault, Secret


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    what = "the configuration, TOML; always wanted"
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=what)


def load_config(path: Path) -> Config:
    """The checked configuration in this file. Raises ConfigFaults, also where the file can't be read."""
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigFaults([Complaint("the file", f"can't be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError:
        raise ConfigFaults([Complaint("the file", "is not UTF-8")]) from None
    return read_config(source, path.parent, config_keys())


def build_connectors(config: Config) -> Mapping[str, Connector]:
    """Every connector that can be asked for, with its credential; one that only stands behind another is part of that.

    Raises ConfigFaults with everything that is wrong in any of them.
    """
    built: dict[str, Connector] = {}
    complaints: list[Complaint] = []
    only_wrapped = config.only_wrapped
    for name, wanted in config.connectors.items():
        if name in only_wrapped:
            continue
        kind = KINDS[wanted.kind]
        owner = kind.credential_of(wanted)
        try:
            built[name] = kind.build(wanted, _secret(owner) if owner else None)
        except CredentialFault as fault:
            complaints.append(Complaint(f'connector "{owner.name if owner else name}".credential', str(fault)))
        except ConfigFaults as faults:
            complaints += [
                Complaint(f'connector "{name}".{one.path}', one.what, one.line, one.hint) for one in faults.complaints
            ]
    if complaints:
        raise ConfigFaults(complaints)
    return built


def _secret(connector: ConnectorConfig) -> Secret | None:
    wanted = connector.credential
    return None if wanted is None else credentials.load(name=wanted.name, file=wanted.file, env=wanted.env)
