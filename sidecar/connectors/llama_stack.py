"""Llama Stack: its native chat completion, and the Chat Completions that it speaks as well.

Which release a server is can't be found out without asking it, so the
configuration says it: `route` chooses between the two, and where the base URL
of the second has `/openai` in it, the server is one of those whose schemas
allow no other members than they list (July 2025); without, today's.

    route   base_url ends in             posts to
    native  nothing, /v1, /v1/inference  /v1/inference/chat-completion   (releases up to 0.2)
    openai  /v1/openai/v1                /v1/openai/v1/chat/completions  (releases up to 0.3)
    openai  nothing, /v1                 /v1/chat/completions            (releases from 0.3 on)

The native route's counts are estimates and no money: `usage = "required"`
takes none of them, `"estimate"` takes them. Source: WIRE section 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct

from sidecar.config.keys import Fault, Key, KindKeys, choice
from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors import llama_stack_lower, openai_chat_lower
from sidecar.connectors.http_connector import Api, HttpConnector, bearer, built
from sidecar.connectors.kind import Kind
from sidecar.connectors.llama_stack_lift import Lift, OpenAILift
from sidecar.connectors.lowering import efforts
from sidecar.connectors.openai_chat_dialects import DIALECTS
from sidecar.connectors.promise import Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

EFFORTS: Final = ("low", "medium", "high", "xhigh")
_SLASHES: Final = re.compile(r"/{2,}")
_BASE: Final = re.compile(
    r"(?P<root>.*?)(?:/v1)?(?P<openai>/openai(?:/v1)?)?(?:/inference(?:/chat-completion)?|/chat/completions)?"
)


class Route(Struct, frozen=True):
    """A path of the server, what it means that it is absent, and whether only the members of July 2025 may be sent."""

    path: str
    absent: str
    is_listed: bool = False


NATIVE: Final = Route(
    "/v1/inference/chat-completion",
    "a Llama Stack of another release: the native route is in releases up to 0.2, and later ones have only"
    ' route = "openai"',
    is_listed=True,
)
SEED: Final = Route(
    "/v1/openai/v1/chat/completions",
    "a Llama Stack of another release: this route is in releases up to 0.3, and later ones have it without /openai/v1"
    " in base_url",
    is_listed=True,
)
CURRENT: Final = Route(
    "/v1/chat/completions",
    "a Llama Stack of another release: this route is in releases from 0.3 on, and earlier ones have it behind"
    " /v1/openai/v1 in base_url",
)


def url_and_route(base_url: str, route: str) -> tuple[str, Route]:
    """The one URL that is posted to, whatever slashes and beginnings of a path the base ends in."""
    split = urlsplit(base_url)
    base = _BASE.fullmatch(_SLASHES.sub("/", split.path).rstrip("/"))
    assert base, "every path has a root, be it empty"
    chosen = NATIVE if route == "native" else SEED if base["openai"] else CURRENT
    return urlunsplit((split.scheme, split.netloc, base["root"] + chosen.path, "", "")), chosen


def api(*, base_url: str, secret: str | None, route: str, takes_estimates: bool = False) -> Api:
    """`takes_estimates`: the native route's counts are taken for usage."""
    url, chosen = url_and_route(base_url, route)

    def lower(request: ProviderRequest, upstream: str, settings: Mapping[str, Any]) -> Lowered:
        if chosen is NATIVE:
            return llama_stack_lower.lower(request, upstream)
        return _lower_openai(request, upstream, settings.get("efforts", ()), is_listed=chosen.is_listed)

    def lift(answer: Any, clean: Any, lowered: Lowered, document_bytes_max: int) -> Lift | OpenAILift:
        if chosen is not NATIVE:
            return OpenAILift(answer, clean, upstream=lowered.upstream, document_bytes_max=document_bytes_max)
        return Lift(
            answer,
            clean,
            upstream=lowered.upstream,
            document_bytes_max=document_bytes_max,
            tool_names=frozenset(tool.name for tool in lowered.request.tools),
            takes_estimates=takes_estimates,
        )

    return Api(
        endpoint=lambda _: url,
        headers=bearer(secret),
        secret=secret,
        lower=lower,
        lift=lift,
        absent=chosen.absent,
    )


def _lower_openai(request: ProviderRequest, upstream: str, efforts: tuple[str, ...], *, is_listed: bool) -> Lowered:
    """Chat Completions; `max_tokens` alone bounds the output, for not all servers behind it read the newer name."""
    dialect = DIALECTS["llama_stack_2025_07" if is_listed else "llama_stack"]
    return openai_chat_lower.lower(request, upstream, dialect, {"efforts": efforts})


def _keys(folder: Path) -> tuple[Key, ...]:
    return (Key("route", choice("native", "openai"), "native"),)


def _model_faults(connector: Mapping[str, Any], model: Mapping[str, Any]) -> Iterable[Fault]:
    if connector["route"] == "native" and model["efforts"]:
        yield "efforts", 'the native route has no reasoning effort; route = "openai" has it on today\'s servers'


def _build(config: ConnectorConfig, secret: Secret | None) -> HttpConnector:
    route, takes_estimates = config.settings["route"], config.usage == "estimate"
    return built(
        config,
        secret,
        lambda base_url, key: api(base_url=base_url, secret=key, route=route, takes_estimates=takes_estimates),
    )


def _warnings(config: ConnectorConfig) -> Iterable[Fault]:
    if config.settings["route"] == "native" and config.usage == "required":
        yield (
            "usage",
            'is "required", and the native route only guesses its counts: every answer will fail at its whole'
            ' reservation; write "estimate" to take the guesses as money, or "bound" to charge each answer its'
            " reservation",
        )


KIND: Final = Kind(
    KindKeys(
        _keys,
        needs_base_url=True,
        model_keys=(Key("efforts", efforts(*EFFORTS), ()),),
        model_faults=_model_faults,
    ),
    _build,
    _warnings,
)
