"""What of a sound configuration is hardly meant: said at `check`, at a start and at a reload, and it is in force."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from sidecar.config.ceilings import rather_low
from sidecar.config.keys import Complaint
from sidecar.config.paths import path_warnings
from sidecar.config.prices import price_warnings
from sidecar.config.starter import BASE_URLS
from sidecar.config.tables import caller_keys
from sidecar.config.values import Config, Connector

# What connectors put behind a base_url themselves.
_OWN_PATHS: Final = ("/chat/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent")
_PAYLOAD_BYTES_DEFAULT: Final = next(key.default for key in caller_keys() if key.name == "payload_bytes_max")


def config_warnings(config: Config) -> Iterator[Complaint]:
    """Each with the path that it is about; the connector kinds have warnings of their own."""
    yield from _of_bounds(config)
    yield from _of_reach(config)
    yield from rather_low(config.callers.values(), config.models)
    yield from price_warnings(config.models)
    yield from path_warnings(config)
    yield from _of_urls(config)


def _of_bounds(config: Config) -> Iterator[Complaint]:
    drain, frame_bytes_max = config.daemon.drain_seconds_max, config.daemon.frame_bytes_max
    for connector in _asked(config):
        if drain < connector.time_limit_seconds:
            yield Complaint(
                "daemon.drain_seconds_max",
                f"{drain:g} s is below the {connector.time_limit_seconds:g} s that connector {connector.name} may take:"
                " a stop can cut its requests off, at their whole reservation",
                hint=f"write {connector.time_limit_seconds:g} or more",
            )
    for caller in config.callers.values():
        is_default = caller.payload_bytes_max == _PAYLOAD_BYTES_DEFAULT  # then nobody has meant it
        if caller.payload_bytes_max > frame_bytes_max and not is_default:
            yield Complaint(
                f'caller "{caller.id}".payload_bytes_max',
                f"{caller.payload_bytes_max} is above daemon.frame_bytes_max, {frame_bytes_max}: it is never reached",
                hint=f"write {frame_bytes_max} or less, or raise frame_bytes_max",
            )


def _of_reach(config: Config) -> Iterator[Complaint]:
    served = {name for caller in config.callers.values() for name in caller.models}
    used = {model.connector for model in config.models.values()} | config.only_wrapped
    for caller in config.callers.values():
        if not caller.models:
            what = "is empty, so this caller can run nothing"
            yield Complaint(f'caller "{caller.id}".models', what, hint="name models of this file")
    for name in config.models:
        if name not in served:
            yield Complaint(f'model "{name}"', "no caller may use it", hint="name it in a caller's models")
    for name in config.connectors:
        if name not in used:
            yield Complaint(f'connector "{name}"', "no model uses it", hint="name it in a model, or take it out")


def _of_urls(config: Config) -> Iterator[Complaint]:
    for connector in _asked(config):
        path = urlsplit(connector.base_url or "").path.rstrip("/")
        own = next((one for one in _OWN_PATHS if path.endswith(one)), None)
        if own is not None:
            what = f"ends in {own}, which the connector adds itself"
            yield Complaint(f'connector "{connector.name}".base_url', what, hint="leave it out")
        elif usual := _usual_of_host(connector):
            what = "is not what this host answers to, as far as is known"
            yield Complaint(f'connector "{connector.name}".base_url', what, hint=f'write "{usual}"')
    for model in config.models.values():
        asked = config.connectors[model.connector]
        where = (asked.wrapped or asked).base_url
        if where and where.startswith("https:") and not any(one.row.input or one.row.output for one in model.prices):
            what = "are all zero, and its connector asks a server by https, which is rarely free"
            yield Complaint(f'model "{model.name}".price[0]', what, hint="write what the provider asks")


def _usual_of_host(connector: Connector) -> str | None:
    """The base_url of a provider that is known, where one of the same host has another path."""
    usual, given = urlsplit(BASE_URLS.get(connector.kind, "")), urlsplit(connector.base_url or "")
    is_other = usual.netloc == given.netloc and usual.path != given.path.rstrip("/")
    return usual.geturl() if usual.netloc and is_other else None


def _asked(config: Config) -> list[Connector]:
    return [one for name, one in config.connectors.items() if name not in config.only_wrapped]
