"""TOML text to a checked Config, or every complaint at once. Source: CONTRACT section 7."""

from __future__ import annotations

import grp
import pwd
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import structs

from sidecar.config import tables
from sidecar.config.keys import (
    Complaint,
    Complaints,
    ConfigFaults,
    Fault,
    Key,
    KindKeys,
    lines_of,
    nearest,
    read_table,
    read_values,
)
from sidecar.config.values import (
    Caller,
    Config,
    Connector,
    Daemon,
    LedgerPlace,
    MetricsFile,
    Model,
    PeerRule,
    smallest_segment_bytes,
)
from sidecar.contract.ids import is_id
from sidecar.contract.values import PriceRow
from sidecar.rules.pricing import DatedPrice

_PEER_NAMES = frozenset(key.name for key in tables.peer_keys())
_ID_KEYS: Final = {"caller": "id", "connector": "name", "model": "name"}  # what a person calls one of these tables
_TOML_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")

T = TypeVar("T")


def read_config(source: str, folder: Path, kinds: Mapping[str, KindKeys]) -> Config:
    """The configuration that this text says; `folder` is where its relative paths begin. Raises ConfigFaults."""
    document = _parsed(source)
    reading = _Reading(folder.absolute(), kinds, Complaints(lines_of(source), _table_names(document)))
    config = reading.config(document)
    if config is None:
        raise ConfigFaults(reading.complaints.all)
    return config


def _parsed(source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(source)
    except RecursionError:
        raise ConfigFaults([Complaint("the file", "is nested too deeply")]) from None
    except ValueError as error:  # a syntax error, or a number too long to be read
        what = str(error)
        if place := _TOML_PLACE.search(what):
            what = f"{what[: place.start()]}, at column {place[2]}"
        line = int(place[1]) if place else None
        raise ConfigFaults([Complaint("the file", f"is no TOML: {what}", line)]) from None


def _table_names(document: dict[str, Any]) -> dict[str, str]:
    """From `caller[0]` to `caller "dungeon"` for every table whose name is its own."""
    names: dict[str, str] = {}
    for kind, id_key in _ID_KEYS.items():
        ids = [_id_of(table, id_key) for table in _list(document, kind)]
        names |= {f"{kind}[{at}]": f'{kind} "{name}"' for at, name in enumerate(ids) if name and ids.count(name) == 1}
    return names


class _Reading:
    """One reading; each method gives a value, or None after complaining."""

    def __init__(self, folder: Path, kinds: Mapping[str, KindKeys], complaints: Complaints) -> None:
        self._folder = folder
        self._kinds = kinds
        self.complaints = complaints

    def config(self, document: dict[str, Any]) -> Config | None:
        read_table(document, tables.top_keys(), "", self.complaints)
        daemon = self._section(document, "daemon", tables.daemon_keys(self._folder))
        ledger = self._section(document, "ledger", tables.ledger_keys(self._folder))
        metrics = self._section(document, "metrics", tables.metrics_keys(self._folder))
        self._check_sizes(daemon, ledger)
        connectors = self._each(document, "connector", self._connector)
        by_name = self._with_wrapped({connector.name: connector for connector in connectors})
        models = self._each(document, "model", lambda table, path: self._model(table, path, document, by_name))
        callers = self._each(document, "caller", lambda table, path: self._caller(table, path, ledger))
        operators = self._each(document, "operator", self._peer)
        self._check_names(document)
        if document.get("caller", []) == []:
            self.complaints.add("caller", "there is none, so the daemon would serve nobody")
        if self.complaints.all:
            return None
        return Config(
            daemon=Daemon(**daemon),
            ledger=LedgerPlace(**ledger),
            callers={caller.id: caller for caller in callers},
            operators=tuple(operators),
            connectors=by_name,
            models={model.name: model for model in models},
            metrics=MetricsFile(**metrics) if "metrics" in document else None,
        )

    def _section(self, document: dict[str, Any], name: str, keys: tuple[Key, ...]) -> dict[str, Any]:
        """What can be read of a table that stands once."""
        return read_values(document[name], keys, name, self.complaints) if name in document else {}

    def _each(self, document: dict[str, Any], kind: str, read: Callable[[Any, str], T | None]) -> list[T]:
        """The sound tables of one kind."""
        read_ones = [read(table, f"{kind}[{at}]") for at, table in enumerate(_list(document, kind))]
        return [one for one in read_ones if one is not None]

    # --- one table of each kind -------------------------------------------------------------------------------

    def _caller(self, table: Any, path: str, ledger: dict[str, Any]) -> Caller | None:
        before = len(self.complaints.all)
        values = read_values(table, tables.caller_keys(), path, self.complaints)
        self._check_window(values, ledger, path)
        peer = self._peer_of(values, path)
        if peer is None or len(self.complaints.all) > before:
            return None
        values = {name: value for name, value in values.items() if name not in _PEER_NAMES}
        return Caller(peer=peer, **{**values, "models": frozenset(values["models"])})

    def _check_window(self, values: dict[str, Any], ledger: dict[str, Any], path: str) -> None:
        window, days = values.get("spend_window_seconds"), ledger.get("retention_days")
        if window is not None and days is not None and window > days * 86_400:
            self.complaints.add(
                f"{path}.spend_window_seconds",
                f"is longer than the {days} days of ledger.retention_days: spend would be forgotten in its window",
            )

    def _peer(self, table: Any, path: str) -> PeerRule | None:
        return self._peer_of(read_values(table, tables.peer_keys(), path, self.complaints), path)

    def _peer_of(self, values: dict[str, Any], path: str) -> PeerRule | None:
        """The peers meant by user or uid, group or gid, and unit; names are looked up now, once."""
        before = len(self.complaints.all)
        uid = self._number(values, path, "user", "uid", lambda name: pwd.getpwnam(name).pw_uid)
        gid = self._number(values, path, "group", "gid", lambda name: grp.getgrnam(name).gr_gid)
        if uid == tables.NOBODY_UID:
            self.complaints.add(
                f"{path}.{'uid' if values.get('user') is None else 'user'}",
                f"uid {uid} is how the kernel shows users whom it can't name here; it is never admitted",
            )
        if len(self.complaints.all) > before:
            return None
        return PeerRule(uid=uid, gid=gid, unit=values.get("unit"))

    def _number(
        self, values: dict[str, Any], path: str, by_name: str, by_number: str, look_up: Callable[[str], int]
    ) -> int | None:
        name, number = values.get(by_name), values.get(by_number)
        if name is None:
            return number
        if number is not None:
            self.complaints.add(f"{path}.{by_name}", f"stands beside {by_number}: give one of the two")
            return None
        try:
            return look_up(name)
        except (KeyError, ValueError):  # ValueError: a name that no host could have
            self.complaints.add(f"{path}.{by_name}", f"this host has no {by_name} {name!r}")
            return None

    def _connector(self, table: Any, path: str) -> Connector | None:
        before = len(self.complaints.all)
        common = tables.connector_keys(self._folder)
        kind_name = table.get("kind") if isinstance(table, dict) else None
        kind = self._kinds.get(kind_name) if isinstance(kind_name, str) else None
        if isinstance(kind_name, str) and kind is None:
            self.complaints.add(f"{path}.kind", f"no kind {kind_name} is built", nearest(kind_name, self._kinds))
        own = kind.keys(self._folder) if kind else ()
        if kind is None and isinstance(table, dict):  # what else its kind would have wanted is not known
            table = {name: value for name, value in table.items() if name in {key.name for key in common}}
        if kind is not None and isinstance(table, dict):
            table = self._without_keys_of_others(table, {key.name for key in (*common, *own)}, path)
        values = read_values(table, (*common, *own), path, self.complaints)
        if kind is not None:
            self._check_url(kind, values, path)
            if kind.wraps and values.get("credential") is not None:
                self.complaints.add(f"{path}.credential", f"belongs to the connector that {kind.wraps} names")
        if len(self.complaints.all) > before:
            return None
        settings = {key.name: values.pop(key.name) for key in own}
        if kind is not None:
            self._say_faults(kind.faults(settings), path)
        del values["allow_plain_http"]
        return Connector(settings=settings, **values) if len(self.complaints.all) == before else None

    def _with_wrapped(self, connectors: Mapping[str, Connector]) -> dict[str, Connector]:
        """Those that stand before another one, with that one; one that is broken is complained of elsewhere."""
        whole = {}
        for name, connector in connectors.items():
            wraps = self._kinds[connector.kind].wraps
            other = connectors.get(connector.settings[wraps]) if wraps else None
            whole[name] = structs.replace(connector, wrapped=other) if other else connector
        return whole

    def _without_keys_of_others(self, table: dict[str, Any], known: set[str], path: str) -> dict[str, Any]:
        """What is left of a connector's table; a key that another kind has is said to be that kind's."""
        others: dict[str, list[str]] = {}
        for name in table.keys() - known:
            kinds = [kind for kind, its in self._kinds.items() if name in {key.name for key in its.keys(self._folder)}]
            if kinds:
                others[name] = sorted(kinds)
        for name in (name for name in table if name in others):
            what = f"is a key of the kind {' and '.join(others[name])}, and this one is {table['kind']}"
            self.complaints.add(f"{path}.{name}", what)
        return {name: value for name, value in table.items() if name not in others}

    def _say_faults(self, faults: Iterable[Fault], path: str) -> None:
        for key, what in faults:
            self.complaints.add(f"{path}.{key}", what)

    def _check_url(self, kind: KindKeys, values: dict[str, Any], path: str) -> None:
        if "base_url" not in values:
            return
        url = values["base_url"]
        if url is None and kind.needs_base_url:
            self.complaints.add(path, "base_url is missing")
        elif url is not None and not kind.needs_base_url:
            self.complaints.add(f"{path}.base_url", f"the kind {values['kind']} has none")
        elif url is not None and tables.is_plain_http_away(url) and not values.get("allow_plain_http"):
            self.complaints.add(
                f"{path}.base_url",
                "plain http to another machine shows prompts and keys to the network",
                "use https, or write allow_plain_http = true",
            )

    def _model(
        self, table: Any, path: str, document: dict[str, Any], connectors: Mapping[str, Connector]
    ) -> Model | None:
        before = len(self.complaints.all)
        common = tables.model_keys()
        kind = self._kind_of_model(table, document)
        if kind is None and isinstance(table, dict):  # what its connector's kind would have wanted is not known
            of_kinds = {key.name for one in self._kinds.values() for key in one.model_keys}
            table = {name: value for name, value in table.items() if name not in of_kinds}
        own = kind.model_keys if kind else ()
        values = read_values(table, (*common, *own), path, self.complaints)
        prices = self._prices(values.pop("price"), path) if "price" in values else ()
        if len(self.complaints.all) > before:
            return None
        settings = {key.name: values.pop(key.name) for key in own}
        connector = connectors.get(values["connector"])
        if kind is not None and connector is not None:
            self._say_faults(kind.model_faults((connector.wrapped or connector).settings, settings), path)
        model = Model(prices=prices, settings=settings, **values)
        return model if len(self.complaints.all) == before else None

    def _kind_of_model(self, table: Any, document: dict[str, Any]) -> KindKeys | None:
        """The kind of the connector that a model names, or of the one that stands behind it, where it is built."""
        connector, kind = self._named(_id_of(table, "connector"), document)
        if kind is not None and kind.wraps:
            _, kind = self._named(_id_of(connector, kind.wraps), document)
            return None if kind is None or kind.wraps else kind
        return kind

    def _named(self, name: str | None, document: dict[str, Any]) -> tuple[dict[str, Any], KindKeys | None]:
        """The raw table of a connector and its kind, as far as there are such."""
        for table in _list(document, "connector"):
            if name and _id_of(table, "name") == name:
                kind = table.get("kind")
                return table, self._kinds.get(kind) if isinstance(kind, str) else None
        return {}, None

    def _prices(self, price_tables: list[Any], path: str) -> tuple[DatedPrice, ...]:
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
        return tuple(prices.values())

    # --- what only the whole file can show --------------------------------------------------------------------
    # Asked of the raw tables, so that one that is broken elsewhere is held against the others all the same.

    def _check_names(self, document: dict[str, Any]) -> None:
        for kind, id_key in _ID_KEYS.items():
            seen: set[str] = set()
            for at, table in enumerate(_list(document, kind)):
                name = _id_of(table, id_key)
                if name in seen:
                    self.complaints.add(f"{kind}[{at}].{id_key}", f"{name} is the {id_key} of an earlier {kind}")
                seen |= {name} if name else set()
        connectors, models = _names(document, "connector"), _names(document, "model")
        for at, table in enumerate(_list(document, "connector")):
            self._check_wrapped(table, connectors, f"connector[{at}]", document)
        for at, table in enumerate(_list(document, "model")):
            self._check_known(_id_of(table, "connector"), "connector", connectors, f"model[{at}].connector")
        for at, table in enumerate(_list(document, "caller")):
            wanted = table.get("models") if isinstance(table, dict) else None
            for position, name in enumerate(wanted if isinstance(wanted, list) else ()):
                self._check_known(name, "model", models, f"caller[{at}].models[{position}]")

    def _check_wrapped(self, table: Any, connectors: set[str], path: str, document: dict[str, Any]) -> None:
        name = _id_of(table, "name")
        kind = self._kinds.get(table["kind"]) if name and isinstance(table.get("kind"), str) else None
        wanted = _id_of(table, kind.wraps) if kind and kind.wraps else None
        if kind is None or wanted is None:
            return
        self._check_known(wanted, "connector", connectors, f"{path}.{kind.wraps}")
        _, other = self._named(wanted, document)
        if wanted == name:
            self.complaints.add(f"{path}.{kind.wraps}", "names this connector itself")
        elif other is not None and other.wraps:
            self.complaints.add(
                f"{path}.{kind.wraps}", f"{wanted} stands before another connector itself: name that one"
            )

    def _check_known(self, name: Any, kind: str, known: set[str], path: str) -> None:
        if _is_id(name) and name not in known:
            self.complaints.add(path, f"no {kind} is named {name}", nearest(name, known))

    def _check_sizes(self, daemon: dict[str, Any], ledger: dict[str, Any]) -> None:
        frame_bytes_max = daemon.get("frame_bytes_max", 0)
        least = smallest_segment_bytes(frame_bytes_max)
        if frame_bytes_max and ledger.get("segment_bytes", least) < least:
            self.complaints.add("ledger.segment_bytes", f"must be at least {least}: 4 x (frame_bytes_max + 65536)")
        if daemon.get("frames_held_bytes_max", frame_bytes_max) < frame_bytes_max:
            self.complaints.add("daemon.frames_held_bytes_max", f"must be at least frame_bytes_max, {frame_bytes_max}")


def _list(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


def _id_of(table: Any, id_key: str) -> str | None:
    name = table.get(id_key) if isinstance(table, dict) else None
    return name if _is_id(name) else None


def _is_id(name: Any) -> bool:
    return isinstance(name, str) and is_id(name) is not None


def _names(document: dict[str, Any], kind: str) -> set[str]:
    return {name for table in _list(document, kind) if (name := _id_of(table, _ID_KEYS[kind]))}
