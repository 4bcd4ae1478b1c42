"""The key tables of the configuration: every name, its reader with its bounds, its default.

Bounds that the contract leaves open are generous; they keep out what can only
be a slip. Source: CONTRACT section 7.
"""

from __future__ import annotations

import ipaddress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.config.keys import (
    Key,
    an_id,
    choice,
    flag,
    list_of,
    mode,
    path_from,
    seconds,
    text,
    whole,
)
from sidecar.config.values import CredentialName
from sidecar.contract.ids import is_id
from sidecar.contract.values import U64_MAX
from sidecar.rules.framing import FRAME_BYTES_LIMIT, SOCKET_PATH_BYTES_MAX

_U32: Final = 2**32 - 1
_COUNT: Final = 1_000_000
_BYTES: Final = 2**40
_YEAR: Final = 366 * 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOBODY_UID: Final = 65534  # how a user outside our user namespace looks, so nobody in particular


def _as_it_stands(value: Any) -> Any:
    return value


def top_keys() -> tuple[Key, ...]:
    return (
        Key("daemon", _as_it_stands),
        Key("ledger", _as_it_stands),
        Key("metrics", _as_it_stands, None),
        Key("caller", _tables, []),
        Key("operator", _tables, []),
        Key("connector", _tables, []),
        Key("model", _tables, []),
    )


def _tables(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("must be an array of tables: write it in double brackets")
    return value


def _socket_path(folder: Path) -> Any:
    read_path = path_from(folder)

    def read(value: object) -> Path:
        path: Path = read_path(value)
        length = len(str(path).encode())
        if length > SOCKET_PATH_BYTES_MAX:
            raise ValueError(f"{path} is {length} bytes long; the kernel takes {SOCKET_PATH_BYTES_MAX} for a socket")
        return path

    return read


def daemon_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("socket", _socket_path(folder)),
        Key("socket_mode", mode, 0o660),
        Key("frame_bytes_max", whole(1024, FRAME_BYTES_LIMIT), 4_194_304),
        Key("frames_held_bytes_max", whole(1024, _BYTES), 268_435_456),
        Key("connections_max", whole(1, _COUNT), 256),
        Key("connections_per_user_max", whole(1, _COUNT), 128),
        Key("requests_in_flight_max", whole(1, _COUNT), 256),
        Key("expiry_skew_seconds_max", whole(1, _YEAR), 300),
        Key("frame_timeout_seconds", seconds(0.01, 3600), 10),
        Key("drain_seconds_max", seconds(0, 86_400), 300),
    )


def ledger_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("directory", path_from(folder)),
        Key("segment_bytes", _blocks(whole(65_536, 2**36)), 67_108_864),
        Key("retention_days", whole(1, 36_500), 30),
    )


def metrics_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("file", path_from(folder)),
        Key("interval_seconds", seconds(1, 3600), 15),
    )


def _blocks(read_whole: Any) -> Any:
    def read(value: object) -> int:
        size: int = read_whole(value)
        if size % 4096:
            raise ValueError(f"must be a multiple of 4096, not {size}")
        return size

    return read


def peer_keys() -> tuple[Key, ...]:
    return (
        Key("user", text, None),
        Key("uid", whole(0, _U32), None),
        Key("group", text, None),
        Key("gid", whole(0, _U32), None),
        Key("unit", _unit, None),
    )


def _unit(value: object) -> str:
    unit = text(value)
    if not unit.endswith(".service") or "/" in unit:
        raise ValueError(f'must be the name of a system service, such as "dungeon.service", not {unit!r}')
    return unit


def caller_keys() -> tuple[Key, ...]:
    return (
        Key("id", an_id),
        *peer_keys(),
        Key("models", list_of(an_id)),
        Key("concurrent_requests_max", whole(1, _COUNT), 8),
        Key("payload_bytes_max", whole(1, FRAME_BYTES_LIMIT), 1_048_576),
        Key("output_tokens_max", whole(1, _U32), 4096),
        Key("spend_ceiling_micro_usd", whole(1, U64_MAX)),
        Key("spend_window_seconds", whole(1, 100 * _YEAR)),
        Key("foreign_reasoning", choice("drop", "refuse"), "drop"),
    )


def connector_keys(folder: Path) -> tuple[Key, ...]:
    """What every connector has; its kind adds keys of its own."""
    return (
        Key("name", an_id),
        Key("kind", text),
        Key("base_url", base_url, None),
        Key("allow_plain_http", flag, default=False),
        Key("credential", _credential(folder), None),
        Key("time_limit_seconds", seconds(0.01, 86_400), 240),
        Key("concurrent_requests_max", whole(1, _COUNT), 64),
        Key("response_bytes_max", whole(1, _BYTES), 4_194_304),
        Key("body_bytes_max", whole(1, _BYTES), 67_108_864),
        Key("usage", choice("required", "bound", "estimate"), "required"),
    )


def base_url(value: object) -> str:
    url = text(value)
    if not all(is_id(character) for character in url):
        raise ValueError("must be a URL in printable ASCII without spaces")
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError as wrong:
        raise ValueError(f"must be a URL ({wrong})") from None
    if split.scheme not in ("http", "https") or not split.hostname:
        raise ValueError("must be an http or https URL with a host")
    if split.username or split.password or split.query or split.fragment:
        raise ValueError("must have neither a user, a password, a query nor a fragment")
    return url


def is_plain_http_away(url: str) -> bool:
    """Whether this URL would send prompts and keys unencrypted to another machine."""
    split = urlsplit(url)
    if split.scheme == "https":
        return False
    host = split.hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def _credential(folder: Path) -> Any:
    read_path = path_from(folder)

    def read(value: object) -> CredentialName:
        if isinstance(value, str) and is_id(value) and "/" not in value and not value.startswith("."):
            return CredentialName(name=value)
        if isinstance(value, dict) and len(value) == 1:
            if "file" in value:
                return CredentialName(file=read_path(value["file"]))
            if "env" in value:
                return CredentialName(env=an_id(value["env"]))
        raise ValueError('must be the name of a credential, {file = "..."} or {env = "..."}')

    return read


def model_keys() -> tuple[Key, ...]:
    return (
        Key("name", an_id),
        Key("connector", an_id),
        Key("upstream", an_id),
        Key("output_tokens_max", whole(1, _U32), 8192),
        Key("input_overhead_tokens", whole(0, _U32), 1024),
        Key("input_overhead_tokens_per_item", whole(0, _U32), 0),
        Key("tools_rendered_twice", flag, default=False),
        Key("price", _tables),
    )


def price_keys() -> tuple[Key, ...]:
    price = whole(0, U64_MAX)
    return (
        Key("input", price),
        Key("cache_read", price),
        Key("cache_write_short", price),
        Key("cache_write_long", price),
        Key("output", price),
        Key("above_input_tokens", whole(1, U64_MAX), None),
        Key("from", _instant, None),
    )


def _instant(value: object) -> int:
    """Unix milliseconds of a TOML date (UTC midnight) or date-time (UTC where it names no offset)."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        raise ValueError("must be a date or a date-time without quotes, such as 2026-12-01")
    unix_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if unix_ms <= 0:
        raise ValueError("must be after 1970")
    return unix_ms
