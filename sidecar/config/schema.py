"""The JSON Schema of the configuration, for editors, made from the very tables that read it.

It keeps to what old drafts and new ones have in common, which is what TOML
editors understand: no conditions. So a connector's table may have the keys of
any kind, each of which says whose it is; `sidecar check` knows better.
Source: ECOSYSTEM section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.config import tables
from sidecar.config.effective import written
from sidecar.config.keys import REQUIRED, Key, KindKeys, shape_of
from sidecar.config.says import SAYS

DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_NOWHERE: Final = Path("/nowhere")
_TABLES: Final = {"caller": "caller", "operator": "operator", "connector": "connector", "model": "model"}


def schema(kinds: Mapping[str, KindKeys]) -> dict[str, Any]:
    """For a configuration with connectors of these kinds."""
    peers = {key.name for key in tables.peer_keys()}
    whose = dict.fromkeys(peers, "peer")
    connector = _table(tables.connector_keys(_NOWHERE), "connector")
    connector["properties"]["kind"]["enum"] = sorted(kinds)
    model = _table(tables.model_keys(), "model")
    model["properties"]["price"] = _array("price", SAYS["model"]["price"])
    _add_of_kinds(connector, {kind: (kind, keys.keys(_NOWHERE)) for kind, keys in kinds.items()})
    _add_of_kinds(model, {kind: (f"{kind} model", keys.model_keys) for kind, keys in kinds.items()})
    return {
        "$schema": DRAFT,
        "title": "sidecar's configuration",
        "description": "Numbers carry their unit as the last word of their key; money is whole micro-USD.",
        "type": "object",
        "properties": {
            "daemon": {"$ref": "#/definitions/daemon"},
            "ledger": {"$ref": "#/definitions/ledger"},
            "metrics": {"$ref": "#/definitions/metrics"},
            **{name: _array(name, SAYS[""][name]) for name in _TABLES},
        },
        "required": ["daemon", "ledger", "caller"],
        "additionalProperties": False,
        "definitions": {
            "daemon": {"description": SAYS[""]["daemon"], **_table(tables.daemon_keys(_NOWHERE), "daemon")},
            "ledger": {"description": SAYS[""]["ledger"], **_table(tables.ledger_keys(_NOWHERE), "ledger")},
            "metrics": {"description": SAYS[""]["metrics"], **_table(tables.metrics_keys(_NOWHERE), "metrics")},
            "caller": _table(tables.caller_keys(), "caller", whose),
            "operator": _table(tables.peer_keys(), "peer"),
            "connector": connector,
            "model": model,
            "price": _table(tables.price_keys(), "price"),
        },
    }


def _array(of: str, description: str) -> dict[str, Any]:
    return {"type": "array", "description": description, "items": {"$ref": f"#/definitions/{of}"}}


def _table(keys: Iterable[Key], says: str, whose: Mapping[str, str] | None = None) -> dict[str, Any]:
    keys = tuple(keys)
    return {
        "type": "object",
        "properties": {key.name: _property(key, SAYS[(whose or {}).get(key.name, says)][key.name]) for key in keys},
        "required": [key.name for key in keys if key.default is REQUIRED],
        "additionalProperties": False,
    }


def _property(key: Key, says: str) -> dict[str, Any]:
    default = written(key.name, key.default) if key.default not in (REQUIRED, None, _NOWHERE) else None
    return {"description": says, **shape_of(key.read), **({} if default is None else {"default": default})}


def _add_of_kinds(table: dict[str, Any], of_kinds: Mapping[str, tuple[str, Iterable[Key]]]) -> None:
    """Their own keys; one that several kinds have takes what any of them takes."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for kind, (says, keys) in of_kinds.items():
        for key in keys:
            found.setdefault(key.name, []).append((kind, _property(key, SAYS[says][key.name])))
    for name, ones in found.items():
        described = [{**one, "description": f"{one['description']} (Of the kind {kind}.)"} for kind, one in ones]
        shapes = [{key: said for key, said in one.items() if key not in ("description", "default")} for _, one in ones]
        alike = [kind for kind, _ in ones] if all(shape == shapes[0] for shape in shapes) else []
        if alike:
            whose = f"(Of the kind {', '.join(alike)}.)"
            table["properties"][name] = {**shapes[0], "description": f"{ones[0][1]['description']} {whose}"}
        else:
            table["properties"][name] = {"anyOf": described}
