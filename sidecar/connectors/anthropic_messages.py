"""The Messages API, as Anthropic and several compatible servers speak it.

`anthropic_messages_lower` makes one POST body of a request and
`anthropic_messages_lift` an answer of what comes back. What a model's family
takes is a table in `anthropic_messages_models`. Source: WIRE section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.config.keys import Key, KindKeys, Wrong, choice, flag, shape_of, shaped, text
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import anthropic_messages_lower
from sidecar.connectors.anthropic_messages_lift import Lift
from sidecar.connectors.anthropic_messages_lower import Dialect
from sidecar.connectors.anthropic_messages_models import MODEL_KEYS, Model, model_faults
from sidecar.connectors.body_lift import BodyLift, Clean
from sidecar.connectors.http_connector import Api, HttpConnector, built, joined_url
from sidecar.connectors.kind import Kind
from sidecar.connectors.promise import Answer, Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

# Anthropic takes this one as well as its newest, which changes nothing that is asked for here; every other server
# knows only this one.
VERSION: Final = "2023-06-01"
BINDING_BETA: Final = "thinking-binding-controls-2026-08-01"
_PATH: Final = "/messages"
_VERSION_PATH: Final = "/v1"


def endpoint(base_url: str) -> str:
    """The one URL that is posted to. As in the vendor's own clients a base's path is what stands before the version."""
    path = urlsplit(base_url).path.rstrip("/")
    if not path.endswith((_VERSION_PATH, _PATH)):
        base_url = base_url.rstrip("/") + _VERSION_PATH
    return joined_url(base_url, _PATH)


def headers(secret: str | None, *, version: str, auth: str, dialect: Dialect) -> dict[str, str]:
    """The credential goes into one header, never into both."""
    made = {"anthropic-version": version}
    if dialect.block_binding == "drop":
        made["anthropic-beta"] = BINDING_BETA
    if secret is not None and auth == "bearer":
        made["authorization"] = f"Bearer {secret}"
    elif secret is not None:
        made["x-api-key"] = secret
    return made


def api(*, base_url: str, secret: str | None, version: str = VERSION, auth: str = "x-api-key", dialect: Dialect) -> Api:
    url = endpoint(base_url)

    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        return anthropic_messages_lower.lower(request, upstream, dialect, Model(**settings))

    def lift(answer: Answer, clean: Clean, lowered: Lowered, document_bytes_max: int) -> BodyLift:
        return Lift(
            answer,
            clean,
            upstream=lowered.upstream,
            document_bytes_max=document_bytes_max,
            retention=lowered.request.cache_retention,
        )

    return Api(
        endpoint=lambda _: url,
        headers=headers(secret, version=version, auth=auth, dialect=dialect),
        secret=secret,
        lower=lower,
        lift=lift,
    )


@shaped(**shape_of(text))
def _header_value(value: object) -> str:
    said = text(value)
    if not said.isascii() or not said.isprintable() or " " in said:
        raise Wrong("must be a version, such as 2023-06-01", 'write "2023-06-01", in quotes')
    return said


def _keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("version", _header_value, VERSION),
        Key("auth", choice("x-api-key", "bearer"), "x-api-key"),
        Key("block_binding", choice("fail", "drop"), "fail"),
        Key("output_schema", choice("checked", "sent", "refused"), "checked"),
        Key("send_cache_control", flag, default=True),
        Key("replay_thinking", flag, default=True),
    )


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    settings = dict(config.settings)
    version, auth = settings.pop("version"), settings.pop("auth")
    dialect = Dialect(**settings)
    return built(
        config,
        secret,
        lambda base_url, key: api(base_url=base_url, secret=key, version=version, auth=auth, dialect=dialect),
    )


KIND: Final = Kind(KindKeys(_keys, needs_base_url=True, model_keys=MODEL_KEYS, model_faults=model_faults), _build)
