"""A checked configuration as TOML again: all of it, with every default, or only what differs from the defaults.

Read again, it is the same configuration, but for the values of a process
connector's environment, which may be for nobody's eyes. Secrets are named: a
configuration holds nothing else of them. Users and groups are numbers, paths whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import tomli_w
from msgspec import Struct, structs

from sidecar.config import tables
from sidecar.config.keys import REQUIRED, Key, KindKeys
from sidecar.config.values import Config, Connector, CredentialName, Model, PeerRule
from sidecar.rules.pricing import DatedPrice

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


HIDDEN: Final = "(not shown)"


def document(config: Config, kinds: Mapping[str, KindKeys], *, with_defaults: bool) -> dict[str, Any]:
    """The TOML document of this configuration."""
    nowhere = Path("/nowhere")

    def table(values: Mapping[str, Any], keys: Iterable[Key]) -> dict[str, Any]:
        said = {key.name: values[key.name] for key in keys if values.get(key.name) is not None}
        defaults = {key.name: key.default for key in keys}
        return {
            name: written(name, value)
            for name, value in said.items()
            if with_defaults or defaults[name] is REQUIRED or value != defaults[name]
        }

    def connector(one: Connector) -> dict[str, Any]:
        own = kinds[one.kind].keys(nowhere)
        away = one.base_url is not None and tables.is_plain_http_away(one.base_url)
        values = {**_fields(one), **one.settings, "allow_plain_http": away or None}
        return table(values, (*tables.connector_keys(nowhere), *own))

    def model(one: Model) -> dict[str, Any]:
        asked = config.connectors[one.connector]
        own = kinds[(asked.wrapped or asked).kind].model_keys
        values = {**_fields(one), **one.settings}
        keys = (*(key for key in tables.model_keys() if key.name != "price"), *own)
        return {**table(values, keys), "price": [_price(row) for row in one.prices]}

    return {
        "daemon": table(_fields(config.daemon), tables.daemon_keys(nowhere)),
        "ledger": table(_fields(config.ledger), tables.ledger_keys(nowhere)),
        **({"metrics": table(_fields(config.metrics), tables.metrics_keys(nowhere))} if config.metrics else {}),
        "caller": [table({**_fields(one), **_peer(one.peer)}, tables.caller_keys()) for one in config.callers.values()],
        **({"operator": [_peer(one) for one in config.operators]} if config.operators else {}),
        **({"connector": [connector(one) for one in config.connectors.values()]} if config.connectors else {}),
        **({"model": [model(one) for one in config.models.values()]} if config.models else {}),
    }


def as_toml(document: Mapping[str, Any]) -> str:
    """The text of a document of ours: each table under a header of its own, what stands within one in braces."""
    pieces = [
        piece
        for name, value in document.items()
        for piece in ([table_text(f"[{name}]", value)] if isinstance(value, Mapping) else _array_texts(name, value))
    ]
    return "\n".join(pieces)


def table_text(header: str, table: Mapping[str, Any]) -> str:
    """One table; arrays of tables in it stand below it, under their own headers."""
    name = header.strip("[]")
    below = {key: value for key, value in table.items() if _are_tables(value)}
    lines = [_line(key, value) for key, value in table.items() if key not in below]
    texts = [text for key, value in below.items() for text in _array_texts(f"{name}.{key}", value)]
    return "".join([f"{header}\n", *lines, *texts])


def _array_texts(name: str, tables_: Iterable[Mapping[str, Any]]) -> list[str]:
    return [table_text(f"[[{name}]]", table) for table in tables_]


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)


def _line(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(_line(one, said).strip() for one, said in value.items())
        return f"{_line(key, '').partition(' = ')[0]} = {{{inner}}}\n"
    if isinstance(value, list):
        inner = ", ".join(_line("x", said).strip().partition(" = ")[2] for said in value)
        return f"{key} = [{inner}]\n"
    return tomli_w.dumps({key: value})


def written(name: str, value: Any) -> Any:
    """One of our values as the TOML that it is read from."""
    if name == "socket_mode":
        return f"{value:04o}"
    if name == "environment":
        return dict.fromkeys(value, HIDDEN)
    if isinstance(value, CredentialName):
        return value.name if value.name else {key: str(said) for key, said in structs.asdict(value).items() if said}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [written("", one) for one in value]
    return value


def _fields(value: Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _peer(rule: PeerRule) -> dict[str, Any]:
    return {name: said for name, said in _fields(rule).items() if said is not None}


def _price(dated: DatedPrice) -> dict[str, Any]:
    names = [key.name for key in tables.price_keys()]
    fields = _fields(dated.row)
    row = {name: fields[name] for name in names if fields.get(name) is not None}
    if dated.from_unix_ms:
        row["from"] = _EPOCH + timedelta(milliseconds=dated.from_unix_ms)
    return row
