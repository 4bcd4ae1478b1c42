"""The connector kinds that are built: each one's key table, and how it is made from a checked configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from sidecar.config.keys import ConfigFaults, Key, KindKeys, choice, flag, path_from
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.http_exchange import new_client
from sidecar.connectors.openai_chat import OpenAIChat
from sidecar.connectors.openai_chat_lower import Dialect
from sidecar.connectors.process_config import build_process, process_keys
from sidecar.connectors.promise import Connector
from sidecar.connectors.script import read_script
from sidecar.connectors.scripted import Scripted
from sidecar.ops.credentials import Secret


class Kind(Struct, frozen=True):
    """`build` may raise ConfigFaults for what only building can find, such as a script's mistakes."""

    config: KindKeys
    build: Callable[[ConnectorConfig, Secret | None], Connector]


def _scripted_keys(folder: Path) -> tuple[Key, ...]:
    return (Key("script", path_from(folder), None),)


def _scripted(config: ConnectorConfig, secret: Secret | None) -> Connector:
    script = config.settings["script"]
    try:
        return Scripted(read_script(script) if script else ())
    except ConfigFaults as faults:
        raise ConfigFaults([structs.replace(one, path=f"script: {one.path}") for one in faults.complaints]) from None


def _openai_chat_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("max_tokens_field", choice("max_tokens", "max_completion_tokens"), "max_tokens"),
        Key("send_stream_options", flag, default=True),
        Key("send_tool_choice", flag, default=True),
        Key("send_parallel_tool_calls", flag, default=True),
        Key("send_strict", flag, default=True),
        Key("effort", choice("omit", "send"), "omit"),
    )


def _openai_chat(config: ConnectorConfig, secret: Secret | None) -> Connector:
    assert config.base_url is not None
    return OpenAIChat(
        new_client(config.base_url, idle_connections_max=config.concurrent_requests_max),
        base_url=config.base_url,
        secret=secret.reveal() if secret else None,
        response_bytes_max=config.response_bytes_max,
        body_bytes_max=config.body_bytes_max,
        dialect=Dialect(**config.settings),
    )


KINDS: Final[Mapping[str, Kind]] = {
    "openai_chat": Kind(KindKeys(_openai_chat_keys, needs_base_url=True), _openai_chat),
    "process": Kind(KindKeys(process_keys), build_process),
    "scripted": Kind(KindKeys(_scripted_keys), _scripted),
}


def config_keys() -> dict[str, KindKeys]:
    """The key tables by kind, as `sidecar.config` takes them."""
    return {name: kind.config for name, kind in KINDS.items()}
