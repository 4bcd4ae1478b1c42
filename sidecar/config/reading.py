"""TOML text to a checked Config, or every complaint at once. Source: CONTRACT section 7."""

from __future__ import annotations

import grp
import pwd
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sidecar.config import tables
from sidecar.config.keys import Complaint, Complaints, ConfigFaults, Key, KindKeys, lines_of, nearest, read_table
from sidecar.config.values import RECORD_MARGIN_BYTES, Caller, Config, Connector, Daemon, LedgerPlace, Model, PeerRule
from sidecar.contract.values import PriceRow
from sidecar.rules.pricing import DatedPrice

_PEER_NAMES = frozenset(key.name for key in tables.peer_keys())

T = TypeVar("T")


def read_config(source: str, folder: Path, kinds: Mapping[str, KindKeys]) -> Config:
    """The configuration that this text says; `folder` is where its relative paths begin. Raises ConfigFaults."""
    try:
        document = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise ConfigFaults([Complaint("the file", f"is no TOML: {error}")]) from None
    reading = _Reading(folder.absolute(), kinds, Complaints(lines_of(source)))
    config = reading.config(document)
    if config is None or reading.complaints.all:
        raise ConfigFaults(reading.complaints.all)
    return config


class _Reading:
    """One reading; each method gives a value, or None after complaining."""

    def __init__(self, folder: Path, kinds: Mapping[str, KindKeys], complaints: Complaints) -> None:
        self._folder = folder
        self._kinds = kinds
        self.complaints = complaints

    def config(self, document: dict[str, Any]) -> Config | None:
        read_table(document, tables.top_keys(), "", self.complaints)
        daemon = self._table(document, "daemon", tables.daemon_keys(self._folder))
        ledger = self._table(document, "ledger", tables.ledger_keys(self._folder))
        connectors = self._named(document, "connector", "name", self._connector)
        models = self._named(document, "model", "name", self._model)
        callers = self._named(document, "caller", "id", self._caller)
        operators = [self._peer(one, f"operator[{at}]") for at, one in enumerate(_list(document, "operator"))]
        self._check_names(document)
        if not _list(document, "caller"):
            self.complaints.add("caller", "there is none, so the daemon would serve nobody")
        if daemon is None or ledger is None or self.complaints.all:
            return None
        config = Config(
            daemon=Daemon(**daemon),
            ledger=LedgerPlace(**ledger),
            callers=callers,
            operators=tuple(one for one in operators if one is not None),
            connectors=connectors,
            models=models,
        )
        self._check_together(config)
        return config

    def _table(self, document: dict[str, Any], name: str, keys: tuple[Key, ...]) -> dict[str, Any] | None:
        return read_table(document[name], keys, name, self.complaints) if name in document else None

    def _named(
        self, document: dict[str, Any], kind: str, id_key: str, read: Callable[[Any, str], T | None]
    ) -> dict[str, T]:
        """The tables of one kind by their names, which must differ."""
        named: dict[str, T] = {}
        for at, table in enumerate(_list(document, kind)):
            path = f"{kind}[{at}]"
            value = read(table, path)
            if value is None:
                continue
            name = getattr(value, id_key)
            if name in named:
                self.complaints.add(f"{path}.{id_key}", f"{name} is the {id_key} of an earlier {kind}")
            named[name] = value
        return named

    # --- one table of each kind -------------------------------------------------------------------------------

    def _caller(self, table: Any, path: str) -> Caller | None:
        values = read_table(table, tables.caller_keys(), path, self.complaints)
        if values is None:
            return None
        peer = self._peer_of(values, path)
        if peer is None:
            return None
        values = {name: value for name, value in values.items() if name not in _PEER_NAMES}
        return Caller(peer=peer, **{**values, "models": frozenset(values["models"])})

    def _peer(self, table: Any, path: str) -> PeerRule | None:
        values = read_table(table, tables.peer_keys(), path, self.complaints)
        return None if values is None else self._peer_of(values, path)

    def _peer_of(self, values: dict[str, Any], path: str) -> PeerRule | None:
        """The peers meant by user or uid, group or gid, and unit; names are looked up now, once."""
        before = len(self.complaints.all)
        uid = self._number(values, path, "user", "uid", lambda name: pwd.getpwnam(name).pw_uid)
        gid = self._number(values, path, "group", "gid", lambda name: grp.getgrnam(name).gr_gid)
        if len(self.complaints.all) > before:
            return None
        return PeerRule(uid=uid, gid=gid, unit=values["unit"])

    def _number(
        self, values: dict[str, Any], path: str, by_name: str, by_number: str, look_up: Callable[[str], int]
    ) -> int | None:
        name, number = values[by_name], values[by_number]
        if name is None:
            return number  # type: ignore[no-any-return]  # read as a whole number or None
        if number is not None:
            self.complaints.add(f"{path}.{by_name}", f"stands beside {by_number}: give one of the two")
            return None
        try:
            return look_up(name)
        except KeyError:
            self.complaints.add(f"{path}.{by_name}", f"this host has no {by_name} {name}")
            return None

    def _connector(self, table: Any, path: str) -> Connector | None:
        common = tables.connector_keys(self._folder)
        kind_name = table.get("kind") if isinstance(table, dict) else None
        kind = self._kinds.get(kind_name) if isinstance(kind_name, str) else None
        if isinstance(kind_name, str) and kind is None:
            self.complaints.add(f"{path}.kind", f"no kind {kind_name} is built", nearest(kind_name, self._kinds))
            table = {name: value for name, value in table.items() if name in {key.name for key in common}}
        own = kind.keys(self._folder) if kind else ()
        values = read_table(table, (*common, *own), path, self.complaints)
        if values is None or kind is None:
            return None
        self._check_url(kind, values, path)
        settings = {key.name: values.pop(key.name) for key in own}
        del values["allow_plain_http"]
        return Connector(settings=settings, **values)

    def _check_url(self, kind: KindKeys, values: dict[str, Any], path: str) -> None:
        url = values["base_url"]
        if url is None and kind.needs_base_url:
            self.complaints.add(path, "base_url is missing")
        elif url is not None and not kind.needs_base_url:
            self.complaints.add(f"{path}.base_url", f"the kind {values['kind']} has none")
        elif url is not None and tables.is_plain_http_away(url) and not values["allow_plain_http"]:
            self.complaints.add(
                f"{path}.base_url",
                "plain http to another machine shows prompts and keys to the network",
                "use https, or write allow_plain_http = true",
            )

    def _model(self, table: Any, path: str) -> Model | None:
        values = read_table(table, tables.model_keys(), path, self.complaints)
        if values is None:
            return None
        prices = self._prices(values.pop("price"), path)
        return None if prices is None else Model(prices=prices, **values)

    def _prices(self, price_tables: list[Any], path: str) -> tuple[DatedPrice, ...] | None:
        before = len(self.complaints.all)
        prices: dict[tuple[int | None, int], DatedPrice] = {}
        for at, table in enumerate(price_tables):
            price_path = f"{path}.price[{at}]"
            values = read_table(table, tables.price_keys(), price_path, self.complaints)
            if values is None:
                continue
            from_unix_ms = values.pop("from") or 0
            row = PriceRow(**values)
            if (row.above_input_tokens, from_unix_ms) in prices:
                self.complaints.add(price_path, "another row has the same above_input_tokens and from")
            prices[row.above_input_tokens, from_unix_ms] = DatedPrice(from_unix_ms=from_unix_ms, row=row)
        if (None, 0) not in prices and len(self.complaints.all) == before:
            self.complaints.add(path, "a base price is missing: a row without above_input_tokens and without from")
        return tuple(prices.values()) if len(self.complaints.all) == before else None

    # --- what only the whole file can show --------------------------------------------------------------------

    def _check_names(self, document: dict[str, Any]) -> None:
        """Names that point to other tables; asked of the raw tables, so that a broken one is not reported twice."""
        connectors, models = _names(document, "connector"), _names(document, "model")
        for at, table in enumerate(_list(document, "model")):
            name = table.get("connector") if isinstance(table, dict) else None
            if isinstance(name, str) and name not in connectors:
                self.complaints.add(
                    f"model[{at}].connector", f"no connector is named {name}", nearest(name, connectors)
                )
        for at, table in enumerate(_list(document, "caller")):
            wanted = table.get("models") if isinstance(table, dict) else None
            for position, name in enumerate(wanted if isinstance(wanted, list) else ()):
                if isinstance(name, str) and name not in models:
                    path = f"caller[{at}].models[{position}]"
                    self.complaints.add(path, f"no model is named {name}", nearest(name, models))

    def _check_together(self, config: Config) -> None:
        daemon, ledger = config.daemon, config.ledger
        least = 4 * (daemon.frame_bytes_max + RECORD_MARGIN_BYTES)
        if ledger.segment_bytes < least:
            self.complaints.add("ledger.segment_bytes", f"must be at least {least}: 4 x (frame_bytes_max + 65536)")
        if daemon.frames_held_bytes_max < daemon.frame_bytes_max:
            self.complaints.add("daemon.frames_held_bytes_max", "must be at least frame_bytes_max")
        for at, caller in enumerate(config.callers.values()):
            if caller.spend_window_seconds > ledger.retention_days * 86_400:
                self.complaints.add(
                    f"caller[{at}].spend_window_seconds",
                    f"is longer than the {ledger.retention_days} days of ledger.retention_days:"
                    " spend would be forgotten inside its window",
                )


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


def _names(document: dict[str, Any], kind: str) -> set[str]:
    return {table["name"] for table in _list(document, kind) if isinstance(table, dict) and _is_name(table.get("name"))}


def _is_name(value: Any) -> bool:
    return isinstance(value, str)
