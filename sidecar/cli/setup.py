"""From a configuration file to the parts that a daemon is made of. Shared by serve and check."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sidecar.config.keys import Complaint, ConfigFaults, in_order, located
from sidecar.config.positions import Places
from sidecar.config.reading import Reading, reading_of
from sidecar.config.values import Config
from sidecar.config.warnings import config_warnings
from sidecar.connectors.building import Built, build_all, unusable
from sidecar.connectors.kinds import config_keys
from sidecar.connectors.warnings import connector_warnings
from sidecar.service.identity_warnings import identity_warnings
from sidecar.service.reloading import Loaded

CONFIG_BYTES_MAX: Final = 4 << 20


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    what = "the configuration, TOML; always wanted"
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help=what)


def read(path: Path) -> Reading:
    """What this file says, and everything that is wrong with it before its connectors are built."""
    file = str(path)
    try:
        with open(path, "rb") as opened:
            held = opened.read(CONFIG_BYTES_MAX + 1)
        if len(held) > CONFIG_BYTES_MAX:
            what, hint = f"is larger than {CONFIG_BYTES_MAX} bytes", "name the configuration, which is a text"
            return Reading(None, (Complaint("the file", what, hint=hint, file=file),), Places(file=file))
        source = held.decode("utf-8")
    except OSError as error:
        what, hint = f"can't be read: {error.strerror or error}", "name a file that this user may read"
        return Reading(None, (Complaint("the file", what, hint=hint, file=file),), Places(file=file))
    except UnicodeDecodeError as error:
        return Reading(None, (_no_utf_8(error, file),), Places(file=file))
    return reading_of(source, path.parent, config_keys(), file)


def _no_utf_8(error: UnicodeDecodeError, file: str) -> Complaint:
    before = error.object[: error.start].decode("utf-8")
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return Complaint("the file", "is not UTF-8", line, "save the file as UTF-8", column, file)


def load_config(path: Path) -> Config:
    """The checked configuration in this file. Raises ConfigFaults, also where the file can't be read."""
    reading = read(path)
    if reading.config is None:
        raise ConfigFaults(reading.complaints)
    return reading.config


def build(reading: Reading, before: Mapping[str, Built]) -> tuple[Mapping[str, Built], tuple[Complaint, ...]]:
    """The sound connectors of a file, and all complaints about it: those of reading it, and what building found."""
    built, found = build_all(reading.connectors, before)
    found += unusable(reading.credentials)
    return built, in_order([*reading.complaints, *(located(one, reading.places) for one in found)])


def warnings_of(reading: Reading) -> tuple[Complaint, ...]:
    """What is hardly meant in a configuration that is sound, and what of this host keeps callers from being told."""
    config = reading.config
    if config is None:
        return ()
    found = (*config_warnings(config), *connector_warnings(config), *identity_warnings(config))
    return in_order(located(one, reading.places) for one in found)


def load(path: Path, built: Mapping[str, Built]) -> Loaded:
    """The configuration in this file, and its connectors; those that were built before and stay the same are kept.

    Raises ConfigFaults with whatever is wrong in any of it.
    """
    reading = read(path)
    connectors, complaints = build(reading, built)
    if reading.config is None or complaints:
        raise ConfigFaults(complaints)
    warnings = tuple(map(str, in_order([*reading.useless, *warnings_of(reading)])))
    return Loaded(reading.config, connectors, warnings, places=reading.places)
