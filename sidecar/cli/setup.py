"""From a configuration file to the parts that a daemon is made of. Shared by serve and check."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.config.reading import read_config
from sidecar.config.values import Config
from sidecar.connectors.building import Built, build_all
from sidecar.connectors.kinds import config_keys
from sidecar.connectors.promise import Connector
from sidecar.service.reloading import Loaded


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


def load(path: Path, built: Mapping[str, Built]) -> Loaded:
    """The configuration in this file, and its connectors; those that were built before and stay the same are kept.

    Raises ConfigFaults with whatever is wrong in any of it.
    """
    config = load_config(path)
    return Loaded(config, build_all(config, built))


def build_connectors(config: Config) -> Mapping[str, Connector]:
    """Every connector that can be asked for, by name. Raises ConfigFaults with what is wrong in any of them."""
    return {name: built.connector for name, built in build_all(config, {}).items()}
