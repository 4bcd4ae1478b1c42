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
from sidecar.cli.setup import add_config_argument, build, read, warnings_of
from sidecar.config.keys import Complaint, in_order, located
from sidecar.config.values import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar check` takes."""
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines; default: off")


def run(arguments: argparse.Namespace) -> int:
    return check(arguments.config, as_json=arguments.json)


def check(config_path: Path, *, as_json: bool) -> int:
    """0 for a configuration that a daemon can start on, and serve with (warnings aside), else 78."""
    reading = read(config_path)
    _, complaints = build(reading, {})
    rights = (located(one, reading.places) for one in _rights(reading.daemon, reading.ledger))
    complaints = in_order([*complaints, *rights, *reading.useless])
    warnings = [*warnings_of(reading), *(located(one, reading.places) for one in _of_metrics(reading.config))]
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


def _of_metrics(config: Config | None) -> list[Complaint]:
    """A directory that takes no metrics keeps no daemon from serving; nobody makes it."""
    if config is None or config.metrics is None:
        return []
    directory = config.metrics.file.parent
    if not directory.is_dir():
        hint = "make it first, or write another path"
        return [Complaint("metrics.file", f"{directory} is no directory", hint=hint)]
    wrong = _unusable("metrics.file", directory)
    return [wrong] if wrong else []


def _unusable(path: str, directory: Path) -> Complaint | None:
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        return Complaint(path, f"{there} is no directory", hint="move it away, or write a path through directories")
    if not os.access(there, os.W_OK | os.X_OK):
        who, owner = os.geteuid(), there.stat().st_uid
        way = (
            f"chmod u+rwx {there}"
            if owner == who
            else f"let uid {who} own it (now uid {owner} does)"
            if there == directory
            else f"as root: install -d -o {who} {directory}"
        )
        hint = f"{way}, or write another path"
        return Complaint(path, f"this user may not write in {there}", hint=hint)
    return None


def _is_socket(path: Path) -> bool:
    """As the daemon looks before it binds: a link to a socket is none, though a client may connect through it."""
    return stat.S_ISSOCK(os.lstat(path).st_mode)


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
