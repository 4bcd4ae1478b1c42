"""config.example.toml: it serves as it stands, and it shows every key that there is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from sidecar.config import tables
from sidecar.config.keys import REQUIRED, Key
from sidecar.config.reading import read_config
from sidecar.config.values import PeerRule
from sidecar.connectors.kinds import config_keys

EXAMPLE = Path(__file__).resolve().parents[2] / "config.example.toml"
SOURCE = EXAMPLE.read_text(encoding="utf-8")
SWITCHED_ON = re.sub(r"^#(?=[a-z\[])", "", SOURCE, flags=re.MULTILINE)
FOLDER = EXAMPLE.parent


def keys_of_connectors() -> Iterator[Key]:
    yield from tables.connector_keys(FOLDER)
    for kind in config_keys().values():
        yield from kind.keys(FOLDER)


TABLES: dict[str, tuple[Key, ...]] = {
    "daemon": tables.daemon_keys(FOLDER),
    "ledger": tables.ledger_keys(FOLDER),
    "caller": tables.caller_keys(),
    "connector": tuple(keys_of_connectors()),
    "model": (*tables.model_keys(), *[key for kind in config_keys().values() for key in kind.model_keys]),
}


def shown(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    table = document[name]
    return table if isinstance(table, list) else [table]


def names(found: Iterable[dict[str, Any]]) -> set[str]:
    return {key for table in found for key in table}


def test_the_example_serves_as_it_stands_as_any_user() -> None:
    config = read_config(SOURCE, FOLDER, config_keys())
    assert config.daemon.socket == FOLDER / "run/requests.sock"
    assert config.ledger.directory == FOLDER / "run/ledger"
    assert config.callers["dungeon"].peer == PeerRule()
    assert {connector.kind for connector in config.connectors.values()} == {"scripted"}
    assert all(connector.credential is None for connector in config.connectors.values())


@pytest.mark.parametrize("name", TABLES)
def test_every_key_of_every_table_is_shown(name: str) -> None:
    assert names(shown(tomllib.loads(SWITCHED_ON), name)) == {key.name for key in TABLES[name]}


def test_every_table_and_every_key_of_a_price_is_shown() -> None:
    document = tomllib.loads(SWITCHED_ON)
    assert set(document) == {key.name for key in tables.top_keys()}
    rows = [row for model in document["model"] for row in model["price"]]
    assert names(rows) == {key.name for key in tables.price_keys()}


def test_the_keys_that_stand_have_their_defaults() -> None:
    document = tomllib.loads(SOURCE)
    for name, keys in TABLES.items():
        for table in shown(document, name):
            for key in keys:
                if key.default is not REQUIRED and key.name in table:
                    assert key.read(table[key.name]) == key.default, f"{name}.{key.name}"


def test_the_providers_that_are_switched_off_are_sound_when_switched_on() -> None:
    document = tomllib.loads(SWITCHED_ON)
    for name in ("user", "uid", "group", "gid"):  # each in place of another, of users that a host may not have
        del document["caller"][0][name]
    config = read_config(tomli_w.dumps(document), FOLDER, config_keys())
    kinds = {connector.kind for connector in config.connectors.values()}
    assert kinds == config_keys().keys()
    assert {model.connector for model in config.models.values()} == set(config.connectors)


def test_every_paid_row_is_the_price_list_s() -> None:
    wire = FOLDER.parent / "shared/providers/WIRE.md"
    if not wire.exists():
        pytest.skip("the price list is not beside the checkout")
    listed = re.findall(r"^\| .*(?:claude|gpt|gemini)-.*$", wire.read_text(encoding="utf-8"), re.MULTILINE)
    paid = [
        model for model in tomllib.loads(SWITCHED_ON)["model"] if model["name"].startswith(("gpt", "claude", "gem"))
    ]
    assert len(paid) == 5
    for model in paid:
        amounts = {
            round(float(number) * 1_000_000)
            for line in listed
            if model["upstream"] in line
            for number in re.findall(r"\d+\.\d+", line.split("|", 2)[2])
        }
        for row in model["price"]:
            assert {row[name] for name in ("input", "cache_read", "cache_write_short", "output")} <= amounts
