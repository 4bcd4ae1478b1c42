"""`sidecar check`: everything that is wrong with a configuration, before a daemon is started on it."""

from __future__ import annotations

import argparse
import json
import os
import stat
from pathlib import Path
from typing import Any

from sidecar.cli.output import line_out, say
from sidecar.cli.setup import add_config_argument, build_connectors, load_config
from sidecar.config.keys import Complaint, ConfigFaults
from sidecar.config.values import Config
from sidecar.connectors.kinds import KINDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar check` takes."""
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines; default: off")


def run(arguments: argparse.Namespace) -> int:
    return check(arguments.config, as_json=arguments.json)


def check(config_path: Path, *, as_json: bool) -> int:
    """0 for a configuration that a daemon can start on (warnings aside), else 78."""
    complaints: list[Complaint] = []
    warnings: list[Complaint] = []
    try:
        config = load_config(config_path)
    except ConfigFaults as faults:
        complaints += faults.complaints
    else:
        try:
            build_connectors(config)
        except ConfigFaults as faults:
            complaints += faults.complaints
        complaints += _rights(config)
        warnings += _warnings(config)
    _tell(config_path, complaints, warnings, as_json=as_json)
    return os.EX_CONFIG if complaints else os.EX_OK


def _rights(config: Config) -> list[Complaint]:
    """Directories that this user could not use."""
    complaints = []
    for path, directory in (
        ("ledger.directory", config.ledger.directory),
        ("daemon.socket", config.daemon.socket.parent),
    ):
        there = directory
        while not os.path.lexists(there) and there != there.parent:
            there = there.parent
        if not os.path.isdir(there):
            complaints.append(Complaint(path, f"{there} is no directory"))
        elif not os.access(there, os.W_OK | os.X_OK):
            complaints.append(Complaint(path, f"this user may not write in {there}"))
    socket = config.daemon.socket
    if os.path.lexists(socket) and not _is_socket(socket):
        complaints.append(Complaint("daemon.socket", f"{socket} is there and is no socket"))
    return complaints


def _is_socket(path: Path) -> bool:
    """As the daemon looks before it binds: a link to a socket is none, though a client may connect through it."""
    return stat.S_ISSOCK(os.lstat(path).st_mode)


def _warnings(config: Config) -> list[Complaint]:
    drain, only_wrapped = config.daemon.drain_seconds_max, config.only_wrapped
    warnings = [
        Complaint(
            "daemon.drain_seconds_max",
            f"{drain:g} s is below the {connector.time_limit_seconds:g} s that connector {connector.name} may take:"
            " a stop can cut its requests off, at their whole reservation",
        )
        for connector in config.connectors.values()
        if drain < connector.time_limit_seconds and connector.name not in only_wrapped
    ]
    for connector in config.connectors.values():
        if connector.name in only_wrapped:
            continue
        found = KINDS[connector.kind].warnings(connector)
        warnings += [Complaint(f'connector "{connector.name}".{key}', what) for key, what in found]
        asked = KINDS[connector.kind].credential_of(connector)
        if asked and asked.base_url and asked.base_url.startswith("https:") and asked.credential is None:
            what = "is missing, and servers that are reached by https mostly want one"
            warnings.append(Complaint(f'connector "{asked.name}".credential', what))
    served = {name for caller in config.callers.values() for name in caller.models}
    warnings += [
        Complaint(f'caller "{caller.id}".models', "is empty, so this caller can run nothing")
        for caller in config.callers.values()
        if not caller.models
    ]
    warnings += [Complaint(f'model "{name}"', "no caller may use it") for name in config.models if name not in served]
    used = {model.connector for model in config.models.values()} | only_wrapped
    warnings += [Complaint(f'connector "{name}"', "no model uses it") for name in config.connectors if name not in used]
    return warnings


def _tell(path: Path, complaints: list[Complaint], warnings: list[Complaint], *, as_json: bool) -> None:
    if as_json:
        told = {"ok": not complaints, "complaints": _plain(complaints), "warnings": _plain(warnings)}
        line_out(json.dumps(told, indent=2))
        return
    for complaint in complaints:
        say(f"{path}: {complaint}")
    for warning in warnings:
        say(f"{path}: warning: {warning}")
    if not complaints:
        line_out(f"{path}: good")


def _plain(complaints: list[Complaint]) -> list[dict[str, Any]]:
    return [{"path": one.path, "line": one.line, "what": one.what, "hint": one.hint} for one in complaints]
