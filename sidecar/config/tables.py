"""The key tables of the configuration: every name, its reader with its bounds, its default.

Bounds that the contract leaves open are generous; they keep out what can only
be a slip. Source: CONTRACT section 7.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sidecar.config.instead import shown
from sidecar.config.keys import (
    Key,
    Wrong,
    an_id,
    choice,
    flag,
    list_of,
    mode,
    path_from,
    seconds,
    shape_of,
    shaped,
    text,
    whole,
)
from sidecar.config.values import CredentialName
from sidecar.contract.ids import is_id
from sidecar.contract.values import U64_MAX
from sidecar.ops.credentials import is_rather_a_key
from sidecar.rules.framing import FRAME_BYTES_LIMIT, SOCKET_PATH_BYTES_MAX

_U32: Final = 2**32 - 1
_COUNT: Final = 1_000_000
_BYTES: Final = 2**40
_YEAR: Final = 366 * 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOBODY_GID: Final = 65534  # the same of groups
NOBODY_UID: Final = 65534  # how a user outside our user namespace looks, so nobody in particular


_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ][\d:.]+(?:Z|[+-]\d\d:\d\d)?)?")


_HOST_NAME: Final = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")  # as user and group names are, mostly
_UNIT_SUFFIX: Final = re.compile(r"\.(?:service|socket|target|timer|slice|scope|path|mount)$")
_NOTHING_ELSE: Final = {"additionalProperties": False}


def _as_it_stands(value: Any) -> Any:
    return value


CALLER_EXAMPLE: Final = "[[caller]] with id, models, spend_ceiling_micro_usd and spend_window_seconds"
BASE_URL_EXAMPLE: Final = 'base_url = "https://api.example.com/v1"'
PRICE_EXAMPLE: Final = (
    "[[model.price]] with input, cache_read, cache_write_short, cache_write_long and output, zeros too"
)
_CREDENTIAL_HINT: Final = (
    'write "openai-key" for the file of that name in $CREDENTIALS_DIRECTORY, or {file = "openai.key"}'
)
_SOCKET_EXAMPLE: Final = 'socket = "/run/sidecar/requests.sock"'
_DIRECTORY_EXAMPLE: Final = 'directory = "/var/lib/sidecar/ledger"'


def top_keys() -> tuple[Key, ...]:
    return (
        Key("daemon", _as_it_stands, example=f"[daemon] with {_SOCKET_EXAMPLE}"),
        Key("ledger", _as_it_stands, example=f"[ledger] with {_DIRECTORY_EXAMPLE}"),
        Key("metrics", _as_it_stands, None),
        Key("caller", _tables("caller"), []),
        Key("operator", _tables("operator"), []),
        Key("connector", _tables("connector"), []),
        Key("model", _tables("model"), []),
    )


def _tables(header: str) -> Any:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Wrong("must be an array of tables: write it in double brackets", f"write: [[{header}]]")
        return value

    return read


def _socket_path(folder: Path) -> Any:
    read_path = path_from(folder)

    @shaped(**shape_of(read_path))
    def read(value: object) -> Path:
        path: Path = read_path(value)
        length = len(str(path).encode())
        if length > SOCKET_PATH_BYTES_MAX:
            raise Wrong(
                f"{path} is {length} bytes long; the kernel takes {SOCKET_PATH_BYTES_MAX} for a socket",
                f"make it {length - SOCKET_PATH_BYTES_MAX} bytes shorter, such as {_SOCKET_EXAMPLE}",
            )
        return path

    return read


def daemon_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("socket", _socket_path(folder), example=_SOCKET_EXAMPLE),
        Key("socket_mode", mode, 0o660),
        Key("frame_bytes_max", whole(1024, FRAME_BYTES_LIMIT, "bytes"), 4_194_304),
        Key("frames_held_bytes_max", whole(1024, _BYTES, "bytes"), 268_435_456),
        Key("connections_max", whole(1, _COUNT), 256),
        Key("connections_per_user_max", whole(1, _COUNT), 128),
        Key("requests_in_flight_max", whole(1, _COUNT), 256),
        Key("expiry_skew_seconds_max", whole(1, _YEAR, "seconds"), 300),
        Key("frame_timeout_seconds", seconds(0.01, 3600), 10),
        Key("drain_seconds_max", seconds(0, 86_400), 300),
    )


def ledger_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("directory", path_from(folder), example=_DIRECTORY_EXAMPLE),
        Key("segment_bytes", _blocks(whole(65_536, 2**36, "bytes")), 67_108_864),
        Key("retention_days", whole(1, 36_500, "days"), 30),
    )


def metrics_keys(folder: Path) -> tuple[Key, ...]:
    return (
        Key("file", path_from(folder)),
        Key("interval_seconds", seconds(1, 3600), 15),
    )


def _blocks(read_whole: Any) -> Any:
    @shaped(**shape_of(read_whole), multipleOf=4096)
    def read(value: object) -> int:
        size: int = read_whole(value)
        if size % 4096:
            raise Wrong(f"must be a multiple of 4096, not {size}", f"write {shown(-(-size // 4096) * 4096)}")
        return size

    return read


def peer_keys() -> tuple[Key, ...]:
    return (
        Key("user", text, None),
        Key("uid", _number_of("user"), None),
        Key("group", text, None),
        Key("gid", _number_of("group"), None),
        Key("unit", _unit, None),
    )


def _number_of(by_name: str) -> Any:
    """A reader of uids or gids; a name in their place belongs under the other key."""
    read_whole = whole(0, _U32)

    @shaped(**shape_of(read_whole))
    def read(value: object) -> int:
        if isinstance(value, str) and _HOST_NAME.fullmatch(value):
            raise Wrong("must be a whole number", f'write: {by_name} = "{value}"')
        number: int = read_whole(value)
        return number

    return read


@shaped(type="string", pattern="^[^/]+\\.service$")
def _unit(value: object) -> str:
    unit = text(value)
    if not unit.endswith(".service") or "/" in unit:
        what = f'must be the name of a system service, such as "dungeon.service", not {unit!r}'
        name = _UNIT_SUFFIX.sub("", unit.rpartition("/")[2])
        raise Wrong(what, f'write "{name}.service"' if name else "write its name alone")
    return unit


def caller_keys() -> tuple[Key, ...]:
    return (
        Key("id", an_id, example='id = "dungeon"'),
        *peer_keys(),
        Key("models", list_of(an_id), example='models = ["npc-fast"]'),
        Key("concurrent_requests_max", whole(1, _COUNT), 8),
        Key("payload_bytes_max", whole(1, FRAME_BYTES_LIMIT, "bytes"), 1_048_576),
        Key("output_tokens_max", whole(1, _U32), 4096),
        Key(
            "spend_ceiling_micro_usd",
            whole(1, U64_MAX, "micro-USD"),
            example="spend_ceiling_micro_usd = 5_000_000 (that is 5 USD)",
        ),
        Key(
            "spend_window_seconds",
            whole(1, 100 * _YEAR, "seconds"),
            example="spend_window_seconds = 86_400 (that is a day)",
        ),
        Key("foreign_reasoning", choice("drop", "refuse"), "drop"),
    )


def connector_keys(folder: Path) -> tuple[Key, ...]:
    """What every connector has; its kind adds keys of its own."""
    return (
        Key("name", an_id, example='name = "local"'),
        Key("kind", text, example='kind = "openai_chat"'),
        Key("base_url", base_url, None),
        Key("allow_plain_http", flag, default=False),
        Key("credential", _credential(folder), None),
        Key("time_limit_seconds", seconds(0.01, 86_400), 240),
        Key("concurrent_requests_max", whole(1, _COUNT), 64),
        Key("response_bytes_max", whole(1, _BYTES, "bytes"), 4_194_304),
        Key("body_bytes_max", whole(1, _BYTES, "bytes"), 67_108_864),
        Key("usage", choice("required", "bound", "estimate"), "required"),
    )


@shaped(type="string", pattern="^https?://")
def base_url(value: object) -> str:
    """A URL of http or https, which is never said again: keys are pasted into URLs as well."""
    url, hint = text(value), f"write: {BASE_URL_EXAMPLE}"
    if not all(is_id(character) for character in url):
        raise Wrong("must be a URL in printable ASCII without spaces", hint)
    try:
        split = urlsplit(url)
        _ = split.port
    except ValueError:  # its words quote the text
        what = "must be a URL, whose host is a name or an address and whose port is at most 65535"
        raise Wrong(what, hint) from None
    if split.scheme not in ("http", "https") or not split.hostname:
        raise Wrong("must be an http or https URL with a host", hint)
    if split.username or split.password or split.query or split.fragment:
        hint = "write it without these; a key is named by credential"
        raise Wrong("must have neither a user, a password, a query nor a fragment", hint)
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

    @shaped(
        anyOf=[
            {"type": "string", "pattern": "^[!-.0-~]+$"},
            *(
                {"type": "object", "properties": {key: {"type": "string"}}, "required": [key], **_NOTHING_ELSE}
                for key in ("file", "env")
            ),
        ]
    )
    def read(value: object) -> CredentialName:
        place = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("name", value)
        match place:
            case "name" | "env" | "file", str(name) if is_rather_a_key(
                name.rpartition("/")[2], of_file=place[0] == "file"
            ):
                what = f"a text of {len(name)} characters stands there, which looks like a key itself"
                raise Wrong(what, 'never write a key here: put it into a file, and write the name: "openai-key"')
            case "name", str(name) if is_id(name) and "/" not in name and not name.startswith("."):
                return CredentialName(name=name)
            case "file", file:
                return CredentialName(file=read_path(file))
            case "env", str(name) if name.startswith("$"):
                raise Wrong("must be the name of an environment variable alone", "write it without the $")
            case "env", str(name) if is_id(name):
                return CredentialName(env=name)
        what = 'must be the name of a credential, {file = "..."} or {env = "..."}'
        is_path = place[0] == "name" and isinstance(place[1], str) and "/" in place[1]
        raise Wrong(what, 'write a path as {file = "..."}' if is_path else _CREDENTIAL_HINT)

    return read


def model_keys() -> tuple[Key, ...]:
    return (
        Key("name", an_id, example='name = "npc-fast"'),
        Key("connector", an_id, example='connector = "local"'),
        Key("upstream", an_id, example='upstream = "the provider\'s name of it"'),
        Key("output_tokens_max", whole(1, _U32), 8192),
        Key("input_overhead_tokens", whole(0, _U32), 1024),
        Key("input_overhead_tokens_per_item", whole(0, _U32), 0),
        Key("tools_rendered_twice", flag, default=False),
        Key("price", _tables("model.price"), example=PRICE_EXAMPLE),
    )


def price_keys() -> tuple[Key, ...]:
    price = whole(0, U64_MAX, "micro-USD")
    names = ("input", "cache_read", "cache_write_short", "cache_write_long", "output")
    return (
        *(Key(name, price, example=f"{name} = 0, or its micro-USD per million tokens") for name in names),
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
        written = value if isinstance(value, str) and _DATE.fullmatch(value) else "2026-12-01"
        what = "must be a date or a date-time without quotes, such as 2026-12-01"
        raise Wrong(what, f"write {written}, without quotes")
    unix_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    if unix_ms <= 0:
        raise Wrong("must be after 1970", "leave the line out for a price that has always held")
    return unix_ms
