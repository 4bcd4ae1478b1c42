"""What tables call themselves and each other: asked of the raw tables, so that one that is broken counts too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from sidecar.config.instead import SURELY, closest, nearest
from sidecar.config.keys import Complaints, KindKeys
from sidecar.config.tables import top_keys
from sidecar.contract.ids import is_id

_HEADERS: Final = tuple(key.name for key in top_keys())
_ID_KEYS: Final = {"caller": "id", "connector": "name", "model": "name"}  # what a person calls one of these tables


class Naming:
    """The names of one document."""

    def __init__(self, document: Mapping[str, Any], kinds: Mapping[str, KindKeys]) -> None:
        self._document = document
        self._kinds = kinds

    def shown(self) -> dict[str, str]:
        """From `caller[0]` to `caller "dungeon"` for every table whose name is its own."""
        shown: dict[str, str] = {}
        for kind, id_key in _ID_KEYS.items():
            ids = [name_in(table, id_key) for table in self.tables(kind)]
            shown |= {
                f"{kind}[{at}]": f'{kind} "{name}"' for at, name in enumerate(ids) if name and ids.count(name) == 1
            }
        return shown

    def tables(self, kind: str) -> list[Any]:
        value = self._document.get(kind)
        return value if isinstance(value, list) else []

    def all_tables(self, kind: str) -> list[tuple[str, Any]]:
        """Each with its path; also those under a header that is complained of: misspelt, or in too few brackets."""
        found: list[tuple[str, Any]] = []
        for header, value in self._document.items():
            if header == kind or (header not in _HEADERS and closest(header, _HEADERS) == kind):
                tables = [(f"{header}[{at}]", one) for at, one in enumerate(value)] if isinstance(value, list) else []
                found += tables if not isinstance(value, dict) else [(header, value)]
        return found

    def names(self, kind: str) -> set[str]:
        return {name for _, table in self.all_tables(kind) if (name := name_in(table, _ID_KEYS[kind]))}

    def connector(self, name: str | None) -> tuple[dict[str, Any], KindKeys | None]:
        """The raw table of a connector and its kind, as far as there are such; none where two have this name."""
        named = [table for table in self.tables("connector") if name and name_in(table, "name") == name]
        return (named[0], self.kind_of(named[0])) if len(named) == 1 else ({}, None)

    def kind_of(self, connector: Any) -> KindKeys | None:
        """The kind that a raw table of a connector names, or surely means, where it is built."""
        kind = connector.get("kind") if isinstance(connector, dict) else None
        return self._kinds.get(_meant(kind, self._kinds)) if isinstance(kind, str) else None

    def kind_of_model(self, table: Any) -> KindKeys | None:
        """The kind of the connector that a model names, or of the one that stands behind it, where it is built."""
        name = name_in(table, "connector")
        connector, kind = self.connector(_meant(name, self.names("connector")) if name else None)
        if kind is not None and kind.wraps:
            _, kind = self.connector(name_in(connector, kind.wraps))
            return None if kind is None or kind.wraps else kind
        return kind

    def only_behind(self) -> set[str]:
        """Connectors that no model names and another connector does."""
        raw = [(table, self.kind_of(table)) for table in self.tables("connector")]
        behind = {name for table, kind in raw if kind and kind.wraps and (name := name_in(table, kind.wraps))}
        return behind - {name for table in self.tables("model") if (name := name_in(table, "connector"))}

    # --- what is wrong with them ------------------------------------------------------------------------------

    def check(self, complaints: Complaints) -> None:
        for kind, id_key in _ID_KEYS.items():
            self._check_twice(kind, id_key, complaints)
        connectors, models = self.names("connector"), self.names("model")
        for path, table in self.all_tables("connector"):
            self._check_wrapped(table, connectors, path, complaints)
        for path, table in self.all_tables("model"):
            _check_known(name_in(table, "connector"), "connector", connectors, f"{path}.connector", complaints)
        for path, table in self.all_tables("caller"):
            wanted = table.get("models") if isinstance(table, dict) else None
            for position, name in enumerate(wanted if isinstance(wanted, list) else ()):
                _check_known(name, "model", models, f"{path}.models[{position}]", complaints)

    def _check_twice(self, kind: str, id_key: str, complaints: Complaints) -> None:
        seen: dict[str, str] = {}
        for header, table in self.all_tables(kind):
            name, path = name_in(table, id_key), f"{header}.{id_key}"
            if name in seen:
                first = complaints.places.position(seen[name])
                where = f", on line {first.line}" if first else ""
                hint = f"write another {id_key}, or leave one of the two tables out"
                complaints.add(path, f"{name} is the {id_key} of an earlier {kind}{where}", hint)
            elif name:
                seen[name] = path

    def _check_wrapped(self, table: Any, connectors: set[str], path: str, complaints: Complaints) -> None:
        name, kind = name_in(table, "name"), self.kind_of(table)
        wanted = name_in(table, kind.wraps) if kind and kind.wraps else None
        if kind is None or name is None or wanted is None:
            return
        path = f"{path}.{kind.wraps}"
        _check_known(wanted, "connector", connectors, path, complaints)
        behind, other = self.connector(wanted)
        if wanted == name:
            others = sorted(connectors - {name})
            complaints.add(path, "names this connector itself", nearest("", others) or "write the name of another one")
        elif other is not None and other.wraps:
            what = f"{wanted} stands before another connector itself: name that one"
            last = name_in(behind, other.wraps)
            complaints.add(path, what, f'write: {kind.wraps} = "{last}"' if last else None)


def _check_known(name: Any, kind: str, known: set[str], path: str, complaints: Complaints) -> None:
    if isinstance(name, str) and is_id(name) is not None and name not in known:
        hint = nearest(name, known) or f"write a [[{kind}]] of this name"
        complaints.add(path, f"no {kind} is named {name}", hint)


def _meant(name: str, known: Collection[str]) -> str:
    """The name itself if it is known, or the one that it surely is a slip of."""
    return name if name in known else closest(name, known, likeness=SURELY) or name


def name_in(table: Any, key: str) -> str | None:
    """The id that stands under this key of a raw table, if it is one."""
    name = table.get(key) if isinstance(table, dict) else None
    return name if isinstance(name, str) and is_id(name) is not None else None
