"""A configuration to begin with: it serves as it stands, and says at each key what it is for.

A price is never guessed: a provider's model gets the prices that whoever asks
gives, all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sidecar.config.effective import table_text
from sidecar.config.says import SAYS

PRICES: Final = ("input", "cache_read", "cache_write_short", "cache_write_long", "output")
BASE_URLS: Final[Mapping[str, str]] = {
    "openai_chat": "https://api.openai.com/v1",
    "openai_responses": "https://api.openai.com/v1",
    "anthropic_messages": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
_HEAD: Final = """\
# The configuration of a sidecar. Every key there is stands in config.example.toml; `sidecar config show --effective`
# says what is in force, `sidecar check` what is wrong or hardly meant, and `sidecar reload` puts a change in force.
# Numbers carry their unit as the last word of their key; money is whole micro-USD (1_000_000 is one dollar).
"""
_SYSTEM_PLACES: Final = ("/run/sidecar/requests.sock", "/var/lib/sidecar/ledger")
_COMMENT_COLUMN: Final = 44


class Provider(Struct, frozen=True, kw_only=True):
    """A model of a provider; `prices` has each of PRICES, in micro-USD per million tokens."""

    kind: str
    base_url: str
    credential: str | None
    model: str
    upstream: str
    prices: Mapping[str, int]


def starter(
    *, is_system: bool, caller: str, peer: Mapping[str, Any], provider: Provider | None, schema: Path | None
) -> str:
    """The text. `peer` names the caller's process by user, group or unit; empty means the daemon's own user."""
    model = provider.model if provider else "npc-rehearsal"
    socket, ledger = _SYSTEM_PLACES if is_system else ("run/requests.sock", "run/ledger")
    callers = {
        "id": caller,
        **peer,
        "models": [model],
        "spend_ceiling_micro_usd": 5_000_000,
        "spend_window_seconds": 86_400,
    }
    pieces = [
        *([f"#:schema {schema}\n"] if schema else []),
        _HEAD,
        _table("[daemon]", {"socket": socket}, "daemon"),
        _table("[ledger]", {"directory": ledger}, "ledger"),
        _table("[[caller]]", callers, "caller"),
        _table("[[operator]]", {"user": "root"} if is_system else {}, "peer", SAYS[""]["operator"]),
        *(_of_provider(provider) if provider else _of_rehearsal(model)),
    ]
    return "\n".join(pieces)


def _of_rehearsal(model: str) -> list[str]:
    what = "It needs no provider and no money: it says the last user text again. Exchange it for a real one."
    return [
        _table("[[connector]]", {"name": "rehearsal", "kind": "scripted"}, "connector", what),
        _table("[[model]]", {"name": model, "connector": "rehearsal", "upstream": "rehearsal-1"}, "model"),
        _table("[[model.price]]", dict.fromkeys(PRICES, 0), "price"),
    ]


def _of_provider(provider: Provider) -> list[str]:
    name = provider.kind.replace("_", "-")
    connector = {
        "name": name,
        "kind": provider.kind,
        "base_url": provider.base_url,
        **({"credential": provider.credential} if provider.credential is not None else {}),
    }
    model = {"name": provider.model, "connector": name, "upstream": provider.upstream}
    prices = {key: provider.prices[key] for key in PRICES}
    return [
        _table("[[connector]]", connector, "connector"),
        _table("[[model]]", model, "model"),
        _table("[[model.price]]", prices, "price"),
    ]


def _table(header: str, values: Mapping[str, Any], says: str, what: str | None = None) -> str:
    """Each line with what its key is for, above the table what that is for."""
    above = what or SAYS[""].get(header.strip("[]"))
    first, *lines = table_text(header, values).splitlines()
    told = [f"{line:<{_COMMENT_COLUMN}}  # {_says(says, line)}" for line in lines]
    return "\n".join([*([f"# {above}"] if above else []), first, *told, ""])


def _says(table: str, line: str) -> str:
    key = line.partition(" ")[0]
    return SAYS[table].get(key) or SAYS["peer"][key]
