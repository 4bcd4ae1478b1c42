"""The input bound is the contract's formula, whichever kind of connector serves the model."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgpack
import pytest
from kit import build
from kit.memory_ledger import MemoryLedger
from kit.one_connector import config_of

from sidecar.connectors.kinds import KINDS
from sidecar.contract.frames import Invocation, parse
from sidecar.ops.log import Log
from sidecar.service.decision import Admitted
from sidecar.service.exchange import Exchange
from sidecar.service.in_force import InForce
from sidecar.service.limits import make_accounts, make_reservations

RECORDED = """records = "behind"
directory = "recordings"
mode = "record"

[[connector]]
name = "behind"
kind = "scripted"
"""
OWN = {"process": 'argv = ["true"]', "scripted": "", "recorded": RECORDED}
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
async def test_the_bound_is_the_canonical_request_with_its_margins(kind: str, twice: bool, tmp_path: Path) -> None:
    settings = OWN.get(kind, 'base_url = "https://h.test/v1"')
    margins = (
        f"input_overhead_tokens = 257\ninput_overhead_tokens_per_item = 13\ntools_rendered_twice = {str(twice).lower()}"
    )
    config = config_of(f'kind = "{kind}"\n{settings}', margins, ceiling_micro_usd=1_000_000_000, folder=tmp_path)
    connector = KINDS[kind].build(config.connectors["it"], None)
    exchange = Exchange(
        InForce(config, {"it": connector}),
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
