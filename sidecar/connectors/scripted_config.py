"""The kind `scripted` in a configuration: its keys, and how a connector is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from sidecar.config.keys import Complaint, ConfigFaults, Fault, Key, KindKeys, flag, path_from
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.asked_file import AskedFile
from sidecar.connectors.kind import Kind
from sidecar.connectors.promise import Connector
from sidecar.connectors.script import read_script
from sidecar.connectors.script_file import ScriptFile
from sidecar.connectors.scripted import Scripted
from sidecar.ops.credentials import Secret


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("script", path_from(folder), None),
        Key("script_reread", flag, default=False),
        Key("asked_file", path_from(folder), None),
    )


def _faults(settings: Mapping[str, Any]) -> Iterable[Fault]:
    if settings["script_reread"] and settings["script"] is None:
        yield "script_reread", 'is for a connector with a script; write: script = "script.toml", or leave the line out'


def _build(config: ConnectorConfig, secret: Secret | None) -> Connector:
    script: Path | None = config.settings["script"]
    asked: Path | None = config.settings["asked_file"]
    if asked is not None and not asked.parent.is_dir():
        raise ConfigFaults([Complaint("asked_file", f"{asked.parent} is no folder", hint=f"mkdir -p {asked.parent}")])
    asked_file = AskedFile(asked) if asked is not None else None
    if script is None:
        return Scripted(asked_file=asked_file)
    try:
        if config.settings["script_reread"]:
            return Scripted(script=ScriptFile(script), asked_file=asked_file)
        return Scripted(read_script(script), asked_file=asked_file)
    except ConfigFaults as faults:
        raise ConfigFaults([_in_script(script, one) for one in faults.complaints]) from None


def _in_script(script: Path, fault: Complaint) -> Complaint:
    """A fault of the script, whose line is none of the configuration's."""
    if fault.line is None and fault.path == str(script):
        return Complaint("script", f"{script}: {fault.what}", hint=fault.hint)
    inner = str(structs.replace(fault, file=script.name, hint=None))
    return Complaint("script", inner, hint=fault.hint or "write it as the README shows, under: a script")


def _stays(built: Connector, config: ConnectorConfig) -> bool:
    """While its script says the same: so its rules go on counting."""
    again = _build(config, None)
    assert isinstance(built, Scripted)
    assert isinstance(again, Scripted)
    return built.says_the_same(again)


KIND: Final = Kind(KindKeys(_keys, faults=_faults), _build, stays=_stays)
