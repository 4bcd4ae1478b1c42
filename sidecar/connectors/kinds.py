"""The connector kinds that are built, by the name that a configuration calls them by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.config.keys import KindKeys
from sidecar.connectors import (
    anthropic_messages,
    gemini,
    llama_stack,
    openai_chat,
    openai_responses,
    process_config,
    recorded_config,
    scripted_config,
)
from sidecar.connectors.kind import Kind

_KINDS: Final[Mapping[str, Kind]] = {
    "anthropic_messages": anthropic_messages.KIND,
    "gemini": gemini.KIND,
    "llama_stack": llama_stack.KIND,
    "openai_chat": openai_chat.KIND,
    "openai_responses": openai_responses.KIND,
    "process": process_config.KIND,
    "scripted": scripted_config.KIND,
}
KINDS: Final[Mapping[str, Kind]] = {**_KINDS, "recorded": recorded_config.kind(_KINDS)}


def config_keys() -> dict[str, KindKeys]:
    """The key tables by kind, as `sidecar.config` takes them."""
    return {name: kind.config for name, kind in KINDS.items()}
