"""The input bound is the contract's formula, whichever kind of connector serves the model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit import build
from kit.memory_ledger import MemoryLedger

from sidecar.config.reading import read_config
from sidecar.connectors.kinds import KINDS, config_keys
from sidecar.contract.frames import Invocation, parse
from sidecar.ops.log import Log
from sidecar.service.daemon import make_accounts, make_reservations
from sidecar.service.decision import Admitted
from sidecar.service.exchange import Exchange

CONFIG = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 60
[[model]]
name = "npc"
connector = "it"
upstream = "tiny"
input_overhead_tokens = 257
input_overhead_tokens_per_item = 13
tools_rendered_twice = {twice}
[[model.price]]
input = 1
cache_read = 1
cache_write_short = 1
cache_write_long = 1
output = 1
[[connector]]
name = "it"
kind = "{kind}"
{settings}
"""
OWN = {"process": 'argv = ["true"]', "scripted": ""}
NOW_UNIX_MS = 1_800_000_000_000
TOOL = build.v.ToolDefinition(name="look", description="Schau 🙂", parameters_json='{"type": "object"}')
ITEMS = (build.text("北京 🙂"), build.said("Ja."), build.call("c1"), build.result("c1", "a\ndoor"), build.text("more"))


def plain(value: Any) -> Any:
    """A value as its map: keys sorted, what is nil left out."""
    if isinstance(value, dict):
        return {key: plain(said) for key, said in sorted(value.items()) if said is not None}
    return [plain(said) for said in value] if isinstance(value, list) else value


@pytest.mark.parametrize("twice", [False, True], ids=["rendered once", "rendered twice"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_bound_is_the_canonical_request_with_its_margins(kind: str, twice: bool) -> None:
    settings = OWN.get(kind, 'base_url = "https://h.test/v1"')
    text = CONFIG.format(kind=kind, settings=settings, twice=str(twice).lower())
    config = read_config(text, Path("/tmp"), config_keys())
    connector = KINDS[kind].build(config.connectors["it"], None)
    exchange = Exchange(
        config,
        {"it": connector},
        MemoryLedger(),
        make_reservations(config, make_accounts(config)),
        Log(io.StringIO(), "text"),
        lambda: NOW_UNIX_MS,
    )
    frame = build.frame(
        build.request(*ITEMS, model="npc", tools=(TOOL,), max_output_tokens=64), expires_at_unix_ms=NOW_UNIX_MS + 60_000
    )
    parsed = parse(frame)
    assert isinstance(parsed, Invocation)
    admitted = exchange.decide(parsed, frozenset({"dungeon"}))
    assert isinstance(admitted, Admitted), exchange
    request = msgpack.unpackb(frame)["request"]
    again = len(msgpack.packb(plain(request["tools"]))) if twice else 0
    assert admitted.begin.input_bound_tokens == len(msgpack.packb(plain(request))) + 257 + 13 * len(ITEMS) + again
    await connector.aclose()
