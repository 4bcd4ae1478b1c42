"""A configuration of one caller, one model and one connector, for what only the last two of them are about."""

from __future__ import annotations

from pathlib import Path

from sidecar.config.reading import read_config
from sidecar.config.values import Config
from sidecar.connectors.kinds import config_keys

PRICE = "[[model.price]]\ninput = 1\ncache_read = 1\ncache_write_short = 1\ncache_write_long = 1\noutput = 1\n"
_TEXT = """
[daemon]
socket = "s.sock"
[ledger]
directory = "ledger"
[[caller]]
id = "dungeon"
models = ["npc"]
spend_ceiling_micro_usd = {ceiling_micro_usd}
spend_window_seconds = 60
[[model]]
name = "npc"
connector = "{name}"
upstream = "{upstream}"
{model}
{price}[[connector]]
name = "{name}"
{connector}
"""


def config_of(
    connector: str,
    model: str = "",
    *,
    name: str = "it",
    upstream: str = "tiny",
    ceiling_micro_usd: int = 1,
    folder: Path = Path("."),
) -> Config:
    """`connector` and `model` are further lines of their tables; tables of their own may stand behind the former's."""
    text = _TEXT.format(
        connector=connector,
        model=model,
        name=name,
        upstream=upstream,
        ceiling_micro_usd=ceiling_micro_usd,
        price=PRICE,
    )
    return read_config(text, folder, config_keys())
