"""Google's Gemini, by generateContent as a stream of events.

`gemini_lower` makes one POST body of a request and `gemini_lift` an answer of
what comes back; `gemini_signatures` keeps what a model needs back of its
thoughts. The key goes in a header and never into the URL, which ends in logs.
Source: WIRE section 6.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from sidecar.config.keys import Fault, Key, KindKeys, choice
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import gemini_lower
from sidecar.connectors.gemini_lift import Lift
from sidecar.connectors.gemini_lower import BUDGETS, LEVELS, ModelSettings
from sidecar.connectors.http_connector import Api, HttpConnector, built
from sidecar.connectors.kind import Kind
from sidecar.connectors.lowering import efforts
from sidecar.connectors.promise import Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

_VERSION: Final = re.compile(r"v[0-9]+(?:(?:alpha|beta)[0-9]*)?")
_SLASHES: Final = re.compile(r"/{2,}")
_MODELS: Final = re.compile(r"/(?:models|tunedModels)(?:/[^/]*)?$")
_FOLDERS: Final = ("models", "tunedModels")


def url_of(base_url: str, upstream: str) -> str:
    """The one URL that is posted to for a model, whatever slashes the base has and whether it ends in a version.

    A model is a word, which can't lead out of its place in the path, or one with its folder: `tunedModels/mine`.
    """
    split = urlsplit(base_url)
    base = _MODELS.sub("", _SLASHES.sub("/", split.path).rstrip("/"))
    if not any(map(_VERSION.fullmatch, base.split("/"))):
        base += "/v1beta"
    folder, slash, model = upstream.partition("/")
    if not slash or folder not in _FOLDERS:
        folder, model = _FOLDERS[0], upstream
    path = f"{base}/{folder}/{quote(model, safe='')}:streamGenerateContent"
    return urlunsplit((split.scheme, split.netloc, path, "alt=sse", ""))


def api(*, base_url: str, secret: str | None) -> Api:
    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        return gemini_lower.lower(request, upstream, ModelSettings(**settings))

    return Api(
        endpoint=lambda upstream: url_of(base_url, upstream),
        headers={} if secret is None else {"x-goog-api-key": secret},
        secret=secret,
        lower=lower,
        lift=lambda answer, clean, lowered, document_bytes_max: Lift(
            answer, clean, upstream=lowered.upstream, document_bytes_max=document_bytes_max
        ),
    )


def _model_faults(connector: Mapping[str, Any], model: Mapping[str, Any]) -> Iterable[Fault]:
    efforts = model["efforts"] or ()
    if model["thinking"] == "off" and efforts:
        yield "efforts", 'thinking = "off" sends no effort; leave them out, or say how the model is told to think'
    if model["thinking"] == "budget":
        for word in efforts:
            if word not in BUDGETS:
                yield "efforts", f"{word} has no budget of tokens; known: {', '.join(BUDGETS)}"


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    return built(config, secret, lambda base_url, key: api(base_url=base_url, secret=key))


KIND: Final = Kind(
    KindKeys(
        needs_base_url=True,
        model_keys=(
            Key("thinking", choice("level", "budget", "off"), "level"),
            Key("efforts", efforts(*LEVELS), None),
        ),
        model_faults=_model_faults,
    ),
    _build,
)
