"""Paths that stand in each other's way, or are hardly what was meant. Pure: the disk is asked elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.config.keys import Complaint
from sidecar.config.values import Config


def clashes(daemon: Mapping[str, Any], ledger: Mapping[str, Any], metrics: Mapping[str, Any]) -> Iterator[Complaint]:
    """Of what could be read of these tables: paths of which one can't be there while the other is."""
    socket: Path | None = daemon.get("socket")
    directory: Path | None = ledger.get("directory")
    file: Path | None = metrics.get("file")
    if socket is not None and directory is not None and (socket == directory or socket in directory.parents):
        what = "and ledger.directory are one path, or the second is in the first: a socket is no directory"
        yield Complaint("daemon.socket", what, hint='write two paths, such as "run/requests.sock" and "run/ledger"')
    if file is not None and file in (socket, directory):
        other = "daemon.socket" if file == socket else "ledger.directory"
        what = f"is {other} too, which it would replace"
        yield Complaint("metrics.file", what, hint='write a file of its own, such as "sidecar.prom"')


def path_warnings(config: Config) -> Iterator[Complaint]:
    """Of a sound configuration."""
    socket, directory, metrics = config.daemon.socket, config.ledger.directory, config.metrics
    named = {"daemon.socket": socket, "ledger.directory": directory}
    if metrics is not None:
        named["metrics.file"] = metrics.file
    for path, place in named.items():
        if any(part.startswith(("~", "$")) for part in place.parts):
            what = "is taken as it stands: neither ~ nor $ stands for a directory here"
            yield Complaint(path, what, hint="write the whole path")
    if directory in socket.parents:
        what = f"is in the ledger's directory, {directory}, which no caller should be able to enter"
        yield Complaint("daemon.socket", what, hint="write a path beside that directory")
    if metrics is not None and metrics.file.suffix != ".prom":
        what = f"ends in {metrics.file.suffix or 'nothing'}, and the collector takes only what ends in .prom"
        yield Complaint("metrics.file", what, hint=f'write "{metrics.file.with_suffix(".prom").name}" as its name')
