"""`sidecar check`: everything that is wrong with a configuration, before a daemon is started on it."""

from __future__ import annotations

import argparse
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from sidecar.cli.output import line_out, say
from sidecar.cli.setup import add_config_argument, build, read
from sidecar.config.keys import Complaint, in_order, located
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
    reading = read(config_path)
    _, complaints = build(reading, {})
    rights = (located(one, reading.places) for one in _rights(reading.daemon, reading.ledger))
    complaints = in_order([*complaints, *rights])
    warnings = _warnings(reading.config) if reading.config else []
    warnings = [located(one, reading.places) for one in warnings]
    _tell(config_path, complaints, warnings, as_json=as_json)
    return os.EX_CONFIG if complaints else os.EX_OK


def _rights(daemon: Mapping[str, Any], ledger: Mapping[str, Any]) -> list[Complaint]:
    """Directories that this user could not use, as far as the file names them."""
    socket: Path | None = daemon.get("socket")
    wanted: list[tuple[str, Path | None]] = [
        ("ledger.directory", ledger.get("directory")),
        ("daemon.socket", socket.parent if socket else None),
    ]
    complaints = [one for path, directory in wanted if directory and (one := _unusable(path, directory))]
    if socket is not None and os.path.lexists(socket) and not _is_socket(socket):
        hint = "move away what is there, or write another path"
        complaints.append(Complaint("daemon.socket", f"{socket} is there and is no socket", hint=hint))
    return complaints


def _unusable(path: str, directory: Path) -> Complaint | None:
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        return Complaint(path, f"{there} is no directory", hint="move it away, or write a path through directories")
    if not os.access(there, os.W_OK | os.X_OK):
        who, owner = os.geteuid(), there.stat().st_uid
        hint = f"let uid {who} own it (now uid {owner} does), or write another path"
        return Complaint(path, f"this user may not write in {there}", hint=hint)
    return None


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


def _tell(path: Path, complaints: tuple[Complaint, ...], warnings: list[Complaint], *, as_json: bool) -> None:
    if as_json:
        told = {"ok": not complaints, "complaints": _plain(complaints), "warnings": _plain(warnings)}
        line_out(json.dumps(told, indent=2))
        return
    for complaint in complaints:
        say(str(complaint))
    for warning in warnings:
        say(str(structs.replace(warning, what=f"warning: {warning.what}")))
    if not complaints:
        line_out(f"{path}: good")


def _plain(complaints: Iterable[Complaint]) -> list[dict[str, Any]]:
    return [
        {"path": one.path, "line": one.line, "column": one.column, "what": one.what, "hint": one.hint}
        for one in complaints
    ]
