"""The schema for editors is made from the tables that read; what it shows is what is there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sidecar.config import tables
from sidecar.config.keys import Key
from sidecar.config.says import SAYS
from sidecar.config.schema import schema
from sidecar.connectors.kinds import KINDS, config_keys

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = schema(config_keys())
HERE = Path("/nowhere")


def valid(document: Any) -> bool:
    return bool(jsonschema.Draft7Validator(SCHEMA).is_valid(document))


def plain(value: Any) -> Any:
    """As JSON: a date is no type of its."""
    return json.loads(json.dumps(value, default=str))


def test_the_published_one_is_what_the_tables_give() -> None:
    published = json.loads((ROOT / "schemas" / "config.schema.json").read_text())
    assert published == SCHEMA, "run: sidecar config schema > schemas/config.schema.json"


def test_it_is_a_schema_of_its_draft_with_nothing_that_editors_don_t_know() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    words = set(re.findall(r'"([$a-zA-Z]+)":', json.dumps(SCHEMA)))
    assert not words & {"$defs", "if", "then", "else", "dependentRequired", "unevaluatedProperties", "prefixItems"}


def whole_example() -> str:
    """The example with all that is switched off switched on."""
    text = (ROOT / "config.example.toml").read_text()
    return re.sub(r"^#(?=[a-z\[])(?!:)", "", text, flags=re.MULTILINE)


def test_the_example_names_it_and_is_valid_also_with_all_that_is_switched_off() -> None:
    text = (ROOT / "config.example.toml").read_text()
    assert text.startswith("#:schema ./schemas/config.schema.json\n")
    for one in (text, whole_example()):
        for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(plain(tomllib.loads(one))):
            raise AssertionError(f"{list(error.path)}: {error.message}")


def configs_of_the_readme() -> Iterator[str]:
    for block in re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL):
        if "[daemon]" in block and "[[caller]]" in block:
            yield block


def test_the_readme_s_configurations_are_valid() -> None:
    found = list(configs_of_the_readme())
    assert found
    assert all(valid(plain(tomllib.loads(block))) for block in found)


def mutated(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("daemon", "connections_max"), "256"),
        (("daemon", "connections_max"), 0),
        (("daemon", "socket_mode"), 660),
        (("daemon", "sockett"), "x"),
        (("ledger", "segment_bytes"), 70_000),
        (("caller", 0, "spend_ceiling_micro_usd"), 1.5),
        (("caller", 0, "foreign_reasoning"), "keep"),
        (("caller", 0, "unit"), "dungeon"),
        (("connector", 0, "kind"), "open_ai"),
        (("connector", 0, "base_url"), "ftp://h"),
        (("connector", 0, "credential"), {"vault": "x"}),
        (("model", 0, "price"), {}),
        (("model", 0, "price", 0, "input"), -1),
        (("model", 0, "price", 0, "outputt"), 1),
        (("callers",), []),
    ],
)
def test_what_check_would_refuse_is_not_valid(path: tuple[Any, ...], value: Any) -> None:
    document = plain(tomllib.loads((ROOT / "config.example.toml").read_text()))
    assert valid(document)
    assert not valid(mutated(document, path, value))


@pytest.mark.parametrize("missing", ["daemon", "ledger", "caller"])
def test_what_must_be_there_is_missed(missing: str) -> None:
    document = plain(tomllib.loads((ROOT / "config.example.toml").read_text()))
    del document[missing]
    assert not valid(document)


def all_keys() -> Iterator[tuple[str, Key]]:
    for table, keys in (
        ("daemon", tables.daemon_keys(HERE)),
        ("ledger", tables.ledger_keys(HERE)),
        ("metrics", tables.metrics_keys(HERE)),
        ("caller", tables.caller_keys()),
        ("connector", tables.connector_keys(HERE)),
        ("model", tables.model_keys()),
        ("price", tables.price_keys()),
        *((kind, one.config.keys(HERE)) for kind, one in KINDS.items()),
        *((f"{kind} model", one.config.model_keys) for kind, one in KINDS.items()),
    ):
        for key in keys:
            yield table, key


def test_every_key_has_a_line_and_every_line_a_key() -> None:
    wanted = {(table, key.name) for table, key in all_keys()}
    peers = {("caller", key.name) for key in tables.peer_keys()}
    wanted = (wanted - peers) | {("peer", key.name) for key in tables.peer_keys()}
    wanted |= {("", key.name) for key in tables.top_keys()}
    assert {(table, key) for table, says in SAYS.items() for key in says} == wanted


def test_every_key_stands_in_the_example() -> None:
    text = (ROOT / "config.example.toml").read_text()
    assert [
        key.name
        for _, key in all_keys()
        if not re.search(rf"^#?{key.name} = ", text, re.MULTILINE) and key.name != "price"
    ] == []
