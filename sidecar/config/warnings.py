"""What of a sound configuration is hardly meant: said at `check`, at a start and at a reload, and it is in force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from sidecar.config.ceilings import rather_low
from sidecar.config.keys import Complaint
from sidecar.config.paths import path_warnings
from sidecar.config.prices import price_warnings
from sidecar.config.starter import BASE_URLS
from sidecar.config.tables import caller_keys, connector_keys, daemon_keys
from sidecar.config.values import Config, Connector

# What connectors put behind a base_url themselves.
_OWN_PATHS: Final = ("/chat/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent")
_DAEMON, _CALLER, _CONNECTOR = (
    {key.name: key.default for key in keys} for keys in (daemon_keys(Path()), caller_keys(), connector_keys(Path()))
)


def config_warnings(config: Config) -> Iterator[Complaint]:
    """Each with the path that it is about; the connector kinds have warnings of their own."""
    yield from _of_bounds(config)
    yield from _of_reach(config)
    yield from rather_low(config.callers.values(), config.models)
    yield from price_warnings(config.models)
    yield from path_warnings(config)
    yield from _of_urls(config)


def _of_bounds(config: Config) -> Iterator[Complaint]:
    drain = config.daemon.drain_seconds_max
    for connector in _asked(config):
        if drain < connector.time_limit_seconds:
            yield Complaint(
                "daemon.drain_seconds_max",
                f"{drain:g} s is below the {connector.time_limit_seconds:g} s that connector {connector.name} may take:"
                " a stop can cut its requests off, at their whole reservation",
                hint=f"write {connector.time_limit_seconds:g} or more",
            )
    yield from _of_pairs(config)
    mode = config.daemon.socket_mode
    if not mode & 0o200 or any(mode >> place & 0o4 and not mode >> place & 0o2 for place in (0, 3)):
        what = f"{mode:04o} keeps out its owner or whom it lets look: to connect takes the right to write"
        yield Complaint("daemon.socket_mode", what, hint='write "0660", or "0600" for the daemon\'s own user alone')


def _of_pairs(config: Config) -> Iterator[Complaint]:
    """Bounds that another one keeps from ever being reached; one that stands at its default nobody has meant."""
    daemon = config.daemon
    in_flight = ("daemon.requests_in_flight_max", daemon.requests_in_flight_max)
    frame = ("daemon.frame_bytes_max", daemon.frame_bytes_max)
    found: list[tuple[str, dict[str, Any], str, Struct, tuple[str, int]]] = [
        ("daemon", _DAEMON, "connections_per_user_max", daemon, ("connections_max", daemon.connections_max))
    ]
    for caller in config.callers.values():
        table = f'caller "{caller.id}"'
        found.append((table, _CALLER, "concurrent_requests_max", caller, in_flight))
        found.append((table, _CALLER, "payload_bytes_max", caller, frame))
    for one in _asked(config):
        bound = ("body_bytes_max", one.body_bytes_max)
        found.append((f'connector "{one.name}"', _CONNECTOR, "response_bytes_max", one, bound))
    for table, defaults, key, values, (other, most) in found:
        value = getattr(values, key)
        if value > most and value != defaults[key]:
            what = f"{value} is above {other}, {most}: it is never reached"
            yield Complaint(f"{table}.{key}", what, hint=f"write {most} or less, or raise {other.split('.')[-1]}")


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
