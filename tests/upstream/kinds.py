"""The connector kinds that llama.cpp's server can be asked through: one more is one more row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from kit.daemon_process import write_config
from upstream.llama import Llama
from upstream.plugin import API_KEY

from sidecar.config.reading import read_config
from sidecar.connectors import kinds as built
from sidecar.connectors.promise import Connector
from sidecar.ops.credentials import Secret

FEWEST_TOKENS: Final = 16  # the smallest output bound that each of the APIs takes


@dataclass(frozen=True)
class Kind:
    """How the server is asked by it, and what the server shows of that API.

    `path` stands behind the server's address in `base_url`, and `settings` are
    further lines of the connector. `keeps_schemas`: an answer is made to fit
    the output schema; else the schema is taken and ignored. `cut`: how an
    answer ends whose tokens are used up, and `cut_in_a_call`: that is cut
    within the arguments of a call.
    """

    path: str = ""
    settings: str = ""
    keeps_schemas: bool = True
    cut: str = "max_output_tokens"
    cut_in_a_call: str = "max_output_tokens"


KINDS: Final = {
    "openai_chat": Kind(),
    "anthropic_messages": Kind(keeps_schemas=False),
    # Of an answer that it has cut the server says `completed` as well, with the half of a call as if it were whole;
    # this dialect sees it by the count of its tokens.
    "openai_responses": Kind(path="/v1", settings='\ndialect = "compatible"', keeps_schemas=False),
}


def only_if_built(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(kind not in built.KINDS, reason=f"the connector kind {kind} is not built yet")


each_kind: Final = pytest.mark.parametrize("kind", [pytest.param(kind, marks=only_if_built(kind)) for kind in KINDS])


def config(
    llama: Llama, kind: str, *, path: str = "", key: str = API_KEY, upstream: str = "tiny", **changes: Any
) -> dict[str, Any]:
    """What makes a daemon ask this server."""
    credential = '\ncredential = {env = "LLAMA_KEY"}' if llama.api_key else ""
    asked = KINDS[kind]
    connector = f'kind = "{kind}"\nbase_url = "{llama.base_url}{path}{asked.path}"{asked.settings}{credential}'
    return {"connector": connector, "upstream": upstream, "environ": {"LLAMA_KEY": key}, **changes}


def connector_to(
    llama: Llama, kind: str, folder: Path, *, key: str | None = None
) -> tuple[Connector, Mapping[str, Any]]:
    """A connector as the daemon would make it of that configuration, and the settings of its model."""
    terms = config(llama, kind)
    del terms["environ"]
    read = read_config(write_config(folder, **terms).read_text(), folder, built.config_keys())
    secret = key or llama.api_key
    (wanted,), (model,) = read.connectors.values(), read.models.values()
    return built.KINDS[kind].build(wanted, Secret("LLAMA_KEY", secret) if secret else None), model.settings
