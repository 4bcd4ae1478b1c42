"""The connector kinds that are built, by the name that a configuration calls them by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from sidecar.config.keys import Complaint, ConfigFaults, Key, KindKeys, path_from
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import (
    anthropic_messages,
    gemini,
    llama_stack,
    openai_chat,
    openai_responses,
    process_config,
    recorded_config,
)
from sidecar.connectors.kind import Kind
from sidecar.connectors.promise import Connector
from sidecar.connectors.script import read_script
from sidecar.connectors.scripted import Scripted
from sidecar.ops.credentials import Secret


def _scripted_keys(folder: Path) -> tuple[Key, ...]:
    return (Key("script", path_from(folder), None),)


def _scripted(config: ConnectorConfig, secret: Secret | None) -> Connector:
    script = config.settings["script"]
    try:
        return Scripted(read_script(script) if script else ())
    except ConfigFaults as faults:
        raise ConfigFaults([_in_script(script, one) for one in faults.complaints]) from None


def _in_script(script: Path, fault: Complaint) -> Complaint:
    """A fault of the script, whose line is none of the configuration's."""
    place = script.name if fault.line is None else f"{script.name}, line {fault.line}"
    return structs.replace(fault, path=f"script: {place}: {fault.path}", line=None)


_KINDS: Final[Mapping[str, Kind]] = {
    "anthropic_messages": anthropic_messages.KIND,
    "gemini": gemini.KIND,
    "llama_stack": llama_stack.KIND,
    "openai_chat": openai_chat.KIND,
    "openai_responses": openai_responses.KIND,
    "process": process_config.KIND,
    "scripted": Kind(KindKeys(_scripted_keys), _scripted),
}
KINDS: Final[Mapping[str, Kind]] = {**_KINDS, "recorded": recorded_config.kind(_KINDS)}


def config_keys() -> dict[str, KindKeys]:
    """The key tables by kind, as `sidecar.config` takes them."""
    return {name: kind.config for name, kind in KINDS.items()}
