"""Chat Completions, as OpenAI and many compatible servers speak it.

`openai_chat_lower` makes one POST body of a request and `openai_chat_lift` an
answer of what comes back. Source: WIRE section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.config.keys import Key, KindKeys, choice, flag
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import openai_chat_lower
from sidecar.connectors.http_connector import Api, Bounds, HttpConnector, connected, joined_url
from sidecar.connectors.kind import Kind
from sidecar.connectors.openai_chat_lift import Lift
from sidecar.connectors.openai_chat_lower import Dialect
from sidecar.connectors.promise import Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

_PATH: Final = "/chat/completions"


def api(*, base_url: str, secret: str | None, dialect: Dialect) -> Api:
    url = joined_url(base_url, _PATH)

    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        return openai_chat_lower.lower(request, upstream, dialect)

    return Api(
        endpoint=lambda _: url,
        headers={} if secret is None else {"authorization": f"Bearer {secret}"},
        secret=secret,
        lower=lower,
        lift=lambda answer, clean, lowered, document_bytes_max: Lift(
            answer, clean, upstream=lowered.upstream, document_bytes_max=document_bytes_max
        ),
    )


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("max_tokens_field", choice("max_tokens", "max_completion_tokens"), "max_tokens"),
        Key("send_stream_options", flag, default=True),
        Key("send_tool_choice", flag, default=True),
        Key("send_parallel_tool_calls", flag, default=True),
        Key("send_strict", flag, default=True),
        Key("effort", choice("omit", "send"), "omit"),
    )


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    assert config.base_url is not None
    return connected(
        api(
            base_url=config.base_url,
            secret=secret.reveal() if secret else None,
            dialect=Dialect(**config.settings),
        ),
        Bounds(response_bytes_max=config.response_bytes_max, body_bytes_max=config.body_bytes_max),
        base_url=config.base_url,
        idle_connections_max=config.concurrent_requests_max,
    )


KIND: Final = Kind(KindKeys(_keys, needs_base_url=True), _build)
