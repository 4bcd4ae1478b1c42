"""Where a price comes from: rows D16 and D18 of the cases from the field."""

from __future__ import annotations

import io
from pathlib import Path

from kit import build
from kit.memory_ledger import MemoryLedger

from sidecar.config.reading import read_config
from sidecar.connectors.kinds import config_keys
from sidecar.connectors.scripted import Scripted
from sidecar.contract.frames import Invocation, parse
from sidecar.contract.values import BeginRecord, PriceRow
from sidecar.ops.log import Log
from sidecar.service.decision import Admitted
from sidecar.service.exchange import Exchange
from sidecar.service.in_force import InForce
from sidecar.service.limits import make_accounts, make_reservations

NOW_UNIX_MS = 1_800_000_000_000
_PROVIDER = """
[[connector]]
name = "{name}"
kind = "scripted"
[[model]]
name = "opus-at-{name}"
connector = "{name}"
upstream = "claude-opus-5"
[[model.price]]
input = {input}
cache_read = 3
cache_write_short = 5
cache_write_long = 7
output = {output}
"""
CONFIG = (
    """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["opus-at-vendor", "opus-at-reseller"]
spend_ceiling_micro_usd = 1_000_000_000
spend_window_seconds = 60
"""
    + _PROVIDER.format(name="vendor", input=5_000_000, output=25_000_000)
    + _PROVIDER.format(name="reseller", input=6_000_000, output=30_000_000)
)


async def begun(model: str) -> BeginRecord:
    config = read_config(CONFIG, Path("/nowhere"), config_keys())
    exchange = Exchange(
        InForce(config, {name: Scripted() for name in config.connectors}),
        MemoryLedger(),
        make_reservations(config, make_accounts(config)),
        Log(io.StringIO(), "text"),
        lambda: NOW_UNIX_MS,
    )
    asked = build.request(model=model, max_output_tokens=64)
    frame = build.frame(asked, expires_at_unix_ms=NOW_UNIX_MS + 60_000, max_cost_micro_usd=10_000_000)
    parsed = parse(frame)
    assert isinstance(parsed, Invocation)
    admitted = exchange.decide(parsed, frozenset({"dungeon"}))
    assert isinstance(admitted, Admitted), admitted
    return admitted.begin


async def test_d16_the_same_model_under_two_providers_keeps_two_prices() -> None:
    vendor, reseller = await begun("opus-at-vendor"), await begun("opus-at-reseller")
    assert vendor.upstream == reseller.upstream == "claude-opus-5"
    assert (vendor.provider, vendor.prices[0].input, vendor.prices[0].output) == ("vendor", 5_000_000, 25_000_000)
    assert (reseller.provider, reseller.prices[0].input, reseller.prices[0].output) == (
        "reseller",
        6_000_000,
        30_000_000,
    )
    assert vendor.reservation_micro_usd < reseller.reservation_micro_usd


async def test_d18_prices_are_those_of_the_configuration_and_stand_in_the_begin_record() -> None:
    assert (await begun("opus-at-vendor")).prices == (
        PriceRow(input=5_000_000, cache_read=3, cache_write_short=5, cache_write_long=7, output=25_000_000),
    )
