"""The connector kinds that llama.cpp's server can be asked through: one more is one more row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pytest
from upstream.llama import Llama
from upstream.plugin import API_KEY

from sidecar.connectors import kinds as built


@dataclass(frozen=True)
class Kind:
    """How the server is asked by it, and what the server shows of that API.

    `path` stands behind the server's address in `base_url`. `keeps_schemas`:
    an answer is made to fit the output schema; else the schema is taken and
    ignored. `cut`: how an answer ends whose tokens are used up, and
    `cut_in_a_call`: that is cut within the arguments of a call.
    """

    path: str = ""
    keeps_schemas: bool = True
    cut: str = "max_output_tokens"
    cut_in_a_call: str = "max_output_tokens"


KINDS: Final = {
    "openai_chat": Kind(),
    "anthropic_messages": Kind(keeps_schemas=False),
    # Of an answer that it has cut the server says `completed` as well, with the half of a call as if it were whole.
    "openai_responses": Kind(path="/v1", keeps_schemas=False, cut="end_turn", cut_in_a_call="provider"),
}


def only_if_built(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(kind not in built.KINDS, reason=f"the connector kind {kind} is not built yet")


each_kind: Final = pytest.mark.parametrize("kind", [pytest.param(kind, marks=only_if_built(kind)) for kind in KINDS])


def config(
    llama: Llama, kind: str, *, path: str = "", key: str = API_KEY, upstream: str = "tiny", **changes: Any
) -> dict[str, Any]:
    """What makes a daemon ask this server."""
    credential = '\ncredential = {env = "LLAMA_KEY"}' if llama.api_key else ""
    connector = f'kind = "{kind}"\nbase_url = "{llama.base_url}{path}{KINDS[kind].path}"{credential}'
    return {"connector": connector, "upstream": upstream, "environ": {"LLAMA_KEY": key}, **changes}
