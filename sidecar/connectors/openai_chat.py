"""Chat Completions, as OpenAI and many compatible servers speak it.

`openai_chat_lower` makes one POST body of a request and `openai_chat_lift` an
answer of what comes back. Source: WIRE section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sidecar.config.keys import Fault, Key, KindKeys, an_id, choice, flag
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import openai_chat_lower
from sidecar.connectors.body_lift import Clean
from sidecar.connectors.http_connector import Api, HttpConnector, built, joined_url
from sidecar.connectors.kind import Kind
from sidecar.connectors.lowering import EFFORTS, efforts
from sidecar.connectors.openai_chat_dialects import DIALECTS, Dialect, choices_of
from sidecar.connectors.openai_chat_dialects import dialect as dialect_of
from sidecar.connectors.openai_chat_lift import Lift
from sidecar.connectors.promise import Answer, Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

_PATH: Final = "/chat/completions"


def api(*, base_url: str, secret: str | None, dialect: Dialect) -> Api:
    url = joined_url(base_url, _PATH)
    if dialect.api_version is not None:
        url += f"?api-version={quote(dialect.api_version)}"

    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        return openai_chat_lower.lower(request, upstream, dialect, settings)

    def lift(answer: Answer, clean: Clean, lowered: Lowered, document_bytes_max: int) -> Lift:
        return Lift(answer, clean, upstream=lowered.upstream, document_bytes_max=document_bytes_max, dialect=dialect)

    return Api(endpoint=lambda _: url, headers=_auth(secret, dialect), secret=secret, lower=lower, lift=lift)


def _auth(secret: str | None, dialect: Dialect) -> dict[str, str]:
    if secret is None:
        return {}
    return {"api-key": secret} if dialect.auth == "api-key" else {"authorization": f"Bearer {secret}"}


def _keys(folder: Path) -> tuple[Key, ...]:
    """A dialect, and every switch of it, for servers that are like none of them."""
    flags = ("send_stream_options", "send_obfuscation", "send_tool_choice", "send_parallel_tool_calls", "send_strict")
    words = ("max_tokens_field", "system_role", "effort_field", "reasoning_replay", "empty_content", "auth")
    return (
        Key("dialect", choice(*DIALECTS), "compatible"),
        *[Key(name, flag, None) for name in (*flags, "cache_key", "done_is_an_end")],
        *[Key(name, choice(*choices_of(name)), None) for name in words],
        Key("api_version", an_id, None),
        Key("service_tier", choice("default"), None),
    )


def _dialect(settings: Mapping[str, Any]) -> Dialect:
    return dialect_of(settings["dialect"], {name: value for name, value in settings.items() if name != "dialect"})


def _faults(settings: Mapping[str, Any]) -> Iterator[Fault]:
    said = _dialect(settings)
    if said.send_obfuscation and not said.send_stream_options:
        yield (
            "send_obfuscation",
            "stands in stream_options, which are not sent; leave it out, or write send_stream_options = true",
        )


def _model_faults(connector: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Fault]:
    said = _dialect(connector)
    if model["efforts"] and said.effort_field == "omit":
        yield (
            "efforts",
            f"the dialect {connector['dialect']} sends no effort; leave them out, or set effort_field there",
        )
    if model["cache"] == "charged" and not said.cache_key:
        yield (
            "cache",
            f'the dialect {connector["dialect"]} has no cache that can be asked for; write cache = "free" or "none"',
        )


_MODEL_KEYS: Final = (
    Key("efforts", efforts(*EFFORTS), None),
    Key("cache", choice("none", "free", "charged"), None),
)


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    dialect = _dialect(config.settings)
    return built(config, secret, lambda base_url, key: api(base_url=base_url, secret=key, dialect=dialect))


KIND: Final = Kind(
    KindKeys(_keys, needs_base_url=True, model_keys=_MODEL_KEYS, faults=_faults, model_faults=_model_faults), _build
)
