"""The Responses API, as OpenAI and some compatible servers speak it; stateless: nothing is stored, all is sent again.

`openai_responses_lower` makes one POST body of a request, `openai_responses_lift`
an answer of what comes back, and `openai_responses_states` keeps between the
two what only the provider can read. Source: WIRE section 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.config.keys import Fault, Key, KindKeys, choice, flag
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import openai_responses_lower
from sidecar.connectors.body_lift import BodyLift, Clean
from sidecar.connectors.http_connector import Api, HttpConnector, bearer, built, joined_url
from sidecar.connectors.kind import Kind
from sidecar.connectors.lowering import EFFORTS, efforts
from sidecar.connectors.openai_responses_lift import Lift
from sidecar.connectors.openai_responses_lower import CACHES, Dialect
from sidecar.connectors.promise import Answer, Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

_PATH: Final = "/responses"


def api(*, base_url: str, secret: str | None, dialect: Dialect) -> Api:
    url = joined_url(base_url, _PATH)

    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        return openai_responses_lower.lower(request, upstream, settings, dialect)

    def lift(answer: Answer, clean: Clean, lowered: Lowered, document_bytes_max: int) -> BodyLift:
        return Lift(
            answer,
            clean,
            upstream=lowered.upstream,
            document_bytes_max=document_bytes_max,
            silent_cut_tokens=None if dialect.is_openai else lowered.request.max_output_tokens,
        )

    return Api(
        endpoint=lambda _: url,
        headers=bearer(secret),
        secret=secret,
        lower=lower,
        lift=lift,
    )


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("dialect", choice("openai", "compatible"), "openai"),
        Key("output_schema", choice("sent", "refused"), "sent"),
        Key("send_include", flag, default=True),
        Key("send_tool_choice", flag, default=True),
        Key("send_parallel_tool_calls", flag, default=True),
        Key("send_strict", flag, default=True),
    )


_MODEL_KEYS: Final = (
    Key("efforts", efforts(*EFFORTS), ()),
    Key("cache", choice(*CACHES), None),
)


def _model_faults(connector: Mapping[str, Any], model: Mapping[str, Any]) -> Iterable[Fault]:
    if connector.get("dialect") == "compatible" and model.get("cache") == "charged":
        yield (
            "cache",
            'the dialect compatible has no way to ask for no charged cache writes; write cache = "free" or "none"',
        )


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    dialect = Dialect(**config.settings)
    return built(config, secret, lambda base_url, key: api(base_url=base_url, secret=key, dialect=dialect))


KIND: Final = Kind(
    KindKeys(_keys, needs_base_url=True, model_keys=_MODEL_KEYS, model_faults=_model_faults),
    _build,
)
