"""TOML text to a checked Config, or every complaint at once. Source: CONTRACT section 7."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from sidecar.config import tables
from sidecar.config.ceilings import too_low
from sidecar.config.instead import nearest, shown
from sidecar.config.keys import (
    Complaint,
    Complaints,
    ConfigFaults,
    Fault,
    Key,
    KindKeys,
    in_order,
    located,
    read_table,
    read_values,
)
from sidecar.config.naming import Naming
from sidecar.config.parsing import parsed
from sidecar.config.paths import clashes
from sidecar.config.peers import peer_of
from sidecar.config.positions import Places, positions_of
from sidecar.config.values import (
    Caller,
    Config,
    Connector,
    CredentialName,
    Daemon,
    LedgerPlace,
    MetricsFile,
    Model,
    PeerRule,
    smallest_segment_bytes,
)
from sidecar.contract.values import PriceRow
from sidecar.rules.pricing import DatedPrice

_PEER_NAMES = frozenset(key.name for key in tables.peer_keys())

_NAMES_LOST: Final = {kind: f"no {kind} is named" for kind in ("model", "connector")}  # true where not all are known

T = TypeVar("T")


class Reading(Struct, frozen=True):
    """What a text says, and everything that is wrong with it; what is sound can be looked at further.

    `config` is None where anything is wrong. `connectors` are the sound ones, by path (`connector[0]`), without those
    that only stand behind another one; `credentials` are those that tables with something wrong name. `daemon` and
    `ledger` hold what could be read of these tables. `useless` is what a daemon can start on, and nothing can ever be
    done with: `check` counts it as wrong, a start warns of it.
    """

    config: Config | None
    complaints: tuple[Complaint, ...]
    places: Places
    daemon: Mapping[str, Any] = {}
    ledger: Mapping[str, Any] = {}
    connectors: Mapping[str, Connector] = {}
    credentials: Mapping[str, CredentialName] = {}
    useless: tuple[Complaint, ...] = ()


def read_config(source: str, folder: Path, kinds: Mapping[str, KindKeys]) -> Config:
    """The configuration that this text says; `folder` is where its relative paths begin. Raises ConfigFaults."""
    reading = reading_of(source, folder, kinds)
    if reading.config is None:
        raise ConfigFaults(reading.complaints)
    return reading.config


def reading_of(source: str, folder: Path, kinds: Mapping[str, KindKeys], file: str | None = None) -> Reading:
    """As `read_config`, with what is wrong as a part of the answer; `file` is what the text's file is called there."""
    toml = parsed(source)
    if toml.document is None:
        places = Places(file=file)
        return Reading(None, tuple(located(one, places) for one in toml.mistakes), places)
    naming = Naming(toml.document, kinds)
    places = Places(positions_of(toml.source, toml.document), naming.shown(), file)
    found = _Reading(folder.absolute(), kinds, naming, Complaints(places)).found(toml.document)
    if not toml.mistakes:
        return found
    rest = _without_what_follows(found.complaints, {places.with_names(path) for path in toml.taken_out})
    mistakes = [located(one, places) for one in toml.mistakes]
    return structs.replace(found, config=None, complaints=in_order([*mistakes, *rest]))


def _without_what_follows(complaints: Iterable[Complaint], taken_out: set[str]) -> list[Complaint]:
    """Without those that are there only since these keys could not be read."""
    half_read = tuple(path for path in taken_out if path.endswith("."))
    lost = tuple(path for path in taken_out if path.endswith((".name", ".")))
    follows = tuple(said for kind, said in _NAMES_LOST.items() if any(path.startswith(kind) for path in lost))
    return [
        one
        for one in complaints
        if one.path not in taken_out
        and not one.what.startswith(follows)
        and not (one.what == "is missing" and one.path.startswith(half_read))
    ]


class _Reading:
    """One reading; each method gives a value, or None after complaining."""

    def __init__(self, folder: Path, kinds: Mapping[str, KindKeys], naming: Naming, complaints: Complaints) -> None:
        self._folder = folder
        self._kinds = kinds
        self._naming = naming
        self.complaints = complaints
        self._credentials: dict[str, CredentialName] = {}

    def found(self, document: dict[str, Any]) -> Reading:
        read_table(document, tables.top_keys(), "", self.complaints)
        daemon = self._section(document, "daemon", tables.daemon_keys(self._folder))
        ledger = self._section(document, "ledger", tables.ledger_keys(self._folder))
        metrics = self._section(document, "metrics", tables.metrics_keys(self._folder))
        self._check_sizes(daemon, ledger)
        for one in clashes(daemon, ledger, metrics):
            self.complaints.add(one.path, one.what, one.hint)
        sound = {path: one for path, one in self._each("connector", self._connector) if one is not None}
        alone = {connector.name: connector for connector in sound.values()}
        by_name = {name: self._wrapping(connector, alone) for name, connector in alone.items()}
        models = self._each("model", lambda table, path: self._model(table, path, by_name))
        callers = self._each("caller", lambda table, path: self._caller(table, path, ledger))
        operators = self._each("operator", self._peer)
        self._naming.check(self.complaints)
        usable = {model.name: model for _, model in models if model}
        useless = too_low([(path, caller) for path, caller in callers if caller], usable)
        if document.get("caller", []) == [] and not callers:
            what = "there is none, so the daemon would serve nobody"
            self.complaints.add("caller", what, f"write: {tables.CALLER_EXAMPLE}")
        only_behind = self._naming.only_behind()
        asked = {path: self._wrapping(one, by_name) for path, one in sound.items() if one.name not in only_behind}
        reading = Reading(
            config=None,
            complaints=in_order(self.complaints.all),
            places=self.complaints.places,
            daemon=daemon,
            ledger=ledger,
            connectors={path: one for path, one in asked.items() if self._is_whole(one)},
            credentials=self._credentials,
            useless=in_order(located(one, self.complaints.places) for one in useless),
        )
        if reading.complaints:
            return reading
        config = Config(
            daemon=Daemon(**daemon),
            ledger=LedgerPlace(**ledger),
            callers={caller.id: caller for _, caller in callers if caller},
            operators=tuple(operator for _, operator in operators if operator),
            connectors=by_name,
            models=usable,
            metrics=MetricsFile(**metrics) if "metrics" in document else None,
        )
        return structs.replace(reading, config=config)

    def _section(self, document: dict[str, Any], name: str, keys: tuple[Key, ...]) -> dict[str, Any]:
        """What can be read of a table that stands once, or of one that was surely meant to be it."""
        if name in document and not isinstance(document[name], dict):
            read_values(document[name], keys, name, self.complaints)
        for header, table in self._naming.all_tables(name):
            return read_values(table, keys, header, self.complaints)
        return {}

    def _each(self, kind: str, read: Callable[[Any, str], T]) -> list[tuple[str, T]]:
        """The tables of one kind, each with its path."""
        return [(path, read(table, path)) for path, table in self._naming.all_tables(kind)]

    # --- one table of each kind -------------------------------------------------------------------------------

    def _caller(self, table: Any, path: str, ledger: dict[str, Any]) -> Caller | None:
        before = len(self.complaints.all)
        values = read_values(table, tables.caller_keys(), path, self.complaints)
        self._check_window(values, ledger, path)
        peer = peer_of(values, path, self.complaints)
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
                f"write {shown(days * 86_400)} or less, or keep records for {shown(-(-window // 86_400))} days",
            )

    def _peer(self, table: Any, path: str) -> PeerRule | None:
        return peer_of(read_values(table, tables.peer_keys(), path, self.complaints), path, self.complaints)

    def _connector(self, table: Any, path: str) -> Connector | None:
        before = len(self.complaints.all)
        common = tables.connector_keys(self._folder)
        kind_name = table.get("kind") if isinstance(table, dict) else None
        kind = self._kinds.get(kind_name) if isinstance(kind_name, str) else None
        if isinstance(kind_name, str) and kind is None:
            self.complaints.add(f"{path}.kind", f"no kind {kind_name} is built", nearest(kind_name, self._kinds))
        kind = kind or self._naming.kind_of(table)
        own = kind.keys(self._folder) if kind else ()
        if kind is None and isinstance(table, dict):  # what else its kind would have wanted is not known
            table = {name: value for name, value in table.items() if name in {key.name for key in common}}
        if kind is not None and isinstance(table, dict):
            others = {kind: its.keys(self._folder) for kind, its in self._kinds.items()}
            table = self._without_keys_of_others(table, (*common, *own), others, path, f"this one is {table['kind']}")
        values = read_values(table, (*common, *own), path, self.complaints)
        if kind is not None:
            self._check_url(kind, values, path)
            if kind.wraps and values.get("credential") is not None:
                self.complaints.add(
                    f"{path}.credential",
                    f"belongs to the connector that {kind.wraps} names",
                    "write it in the table of that one",
                )
        settings = {key.name: values.pop(key.name) for key in own if key.name in values}
        if kind is not None and len(settings) == len(own):
            self._say_faults(kind.faults(settings), path)
        if len(self.complaints.all) > before:
            if values.get("credential") and values.get("name") not in self._naming.only_behind():
                self._credentials[path] = values["credential"]
            return None
        del values["allow_plain_http"]
        return Connector(settings=settings, **values)

    def _wrapping(self, connector: Connector, connectors: Mapping[str, Connector]) -> Connector:
        """With the one that it stands before, if it does; one that is broken is complained of elsewhere."""
        wraps = self._kinds[connector.kind].wraps
        return structs.replace(connector, wrapped=connectors.get(connector.settings[wraps]) if wraps else None)

    def _is_whole(self, connector: Connector) -> bool:
        """Whether the one that it must stand before is there, and stands before none itself."""
        behind = connector.wrapped
        return self._kinds[connector.kind].wraps is None or (
            behind is not None and self._kinds[behind.kind].wraps is None
        )

    def _without_keys_of_others(
        self,
        table: dict[str, Any],
        known: Iterable[Key],
        of_kinds: Mapping[str, Iterable[Key]],
        path: str,
        this_one: str,
    ) -> dict[str, Any]:
        """What is left of a table; a key that another kind of connector has is said to be that kind's."""
        left = dict(table)
        for name in table.keys() - {key.name for key in known}:
            kinds = sorted(kind for kind, keys in of_kinds.items() if name in {key.name for key in keys})
            if kinds:
                del left[name]
                hint = "leave it out" if "price" in table else f'leave it out, or write: kind = "{kinds[0]}"'
                what = f"is a key of the kind {' and '.join(kinds)}, and {this_one}"
                self.complaints.add(f"{path}.{name}", what, hint)
        return left

    def _say_faults(self, faults: Iterable[Fault], path: str) -> None:
        for key, said in faults:
            what, _, hint = said.partition("; ")
            self.complaints.add(f"{path}.{key}", what, hint or "leave the line out")

    def _check_url(self, kind: KindKeys, values: dict[str, Any], path: str) -> None:
        if "base_url" not in values:
            return
        url = values["base_url"]
        if url is None and kind.needs_base_url:
            self.complaints.add(f"{path}.base_url", "is missing", f"write: {tables.BASE_URL_EXAMPLE}")
        elif url is not None and not kind.needs_base_url:
            self.complaints.add(f"{path}.base_url", f"the kind {values['kind']} has none", "leave the line out")
        elif url is not None and tables.is_plain_http_away(url) and not values.get("allow_plain_http"):
            self.complaints.add(
                f"{path}.base_url",
                "plain http to another machine shows prompts and keys to the network",
                "write https://, or allow_plain_http = true",
            )

    def _model(self, table: Any, path: str, connectors: Mapping[str, Connector]) -> Model | None:
        before = len(self.complaints.all)
        common = tables.model_keys()
        kind = self._naming.kind_of_model(table)
        if kind is None and isinstance(table, dict):  # what its connector's kind would have wanted is not known
            of_kinds = {key.name for one in self._kinds.values() for key in one.model_keys}
            table = {name: value for name, value in table.items() if name not in of_kinds}
        own = kind.model_keys if kind else ()
        if kind is not None and isinstance(table, dict):
            others = {of: its.model_keys for of, its in self._kinds.items()}
            table = self._without_keys_of_others(table, (*common, *own), others, path, "its connector is of another")
        values = read_values(table, (*common, *own), path, self.complaints)
        prices = self._prices(values.pop("price"), path) if "price" in values else ()
        settings = {key.name: values.pop(key.name) for key in own if key.name in values}
        connector = connectors.get(values.get("connector", ""))
        if kind is not None and connector is not None and len(settings) == len(own) and self._is_whole(connector):
            self._say_faults(kind.model_faults((connector.wrapped or connector).settings, settings), path)
        if len(self.complaints.all) > before:
            return None
        return Model(prices=prices, settings=settings, **values)

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
                self.complaints.add(
                    price_path,
                    "another row has the same above_input_tokens and from",
                    "leave one of the two out, or write another above_input_tokens or from",
                )
            prices[row.above_input_tokens, from_unix_ms] = DatedPrice(from_unix_ms=from_unix_ms, row=row)
        if (None, 0) not in prices and len(self.complaints.all) == before:
            what = "a base price is missing: a row without above_input_tokens and without from"
            self.complaints.add(f"{path}.price", what, f"write: {tables.PRICE_EXAMPLE}")
        return tuple(prices.values())

    def _check_sizes(self, daemon: dict[str, Any], ledger: dict[str, Any]) -> None:
        frame_bytes_max = daemon.get("frame_bytes_max", 0)
        least = smallest_segment_bytes(frame_bytes_max)
        if frame_bytes_max and ledger.get("segment_bytes", least) < least:
            what = f"must be at least {least}: 4 x (frame_bytes_max + 65536)"
            self.complaints.add("ledger.segment_bytes", what, f"write {shown(-(-least // 4096) * 4096)} or more")
        if daemon.get("frames_held_bytes_max", frame_bytes_max) < frame_bytes_max:
            what = f"must be at least frame_bytes_max, {frame_bytes_max}"
            hint = f"write {shown(frame_bytes_max)} or more, or a smaller frame_bytes_max"
            self.complaints.add("daemon.frames_held_bytes_max", what, hint)
