"""Which models of a configuration are answered by the kit's script, and which by connectors that a test has added."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from sidecar.testing.configuration import SCRIPTED
from sidecar.testing.faults import NotScripted, WrongRule


class Served(Struct, frozen=True):
    """`scripted`: models whose requests reach the script. `elsewhere`: the others, each with its connector."""

    scripted: tuple[str, ...]
    elsewhere: Mapping[str, str]

    def check_sayable(self, model: str | None) -> None:
        """Whether an answer that a test says of this model, or of all, is ever given. Raises WrongRule, NotScripted."""
        if model is None:
            self.check_scripted("what is said here is never answered")
        elif model in self.elsewhere:
            raise WrongRule(f"model: {model} is answered by {self.elsewhere[model]}, and not by what a test says")
        elif model not in self.scripted:
            raise WrongRule(f"model: no {model} is served; there are {', '.join((*self.scripted, *self.elsewhere))}")

    def check_scripted(self, so: str) -> None:
        """Raises NotScripted where no model's requests reach the script; `so` is what comes of it."""
        if not self.scripted:
            told = ", ".join(f"{model} by {connector}" for model, connector in self.elsewhere.items())
            raise NotScripted(f"no model is answered by the test's own words ({told}), so {so}")


def served_by(config: Path) -> Served:
    """By this configuration, which a daemon has taken."""
    document = tomllib.loads(config.read_text(encoding="utf-8"))
    connectors = {table["name"]: table for table in document["connector"]}
    models = {table["name"]: table["connector"] for table in document.get("model", ())}
    scripted = tuple(model for model, connector in models.items() if _reaches_script(connectors[connector], connectors))
    elsewhere = {model: _told(connectors[name]) for model, name in models.items() if model not in scripted}
    return Served(scripted, elsewhere)


def _reaches_script(connector: Mapping[str, Any], connectors: Mapping[str, Mapping[str, Any]]) -> bool:
    """The kit's own connector, and one that records it: a replay asks nobody."""
    if connector["kind"] != "recorded":
        return bool(connector["name"] == SCRIPTED)
    is_asked = connector.get("mode", "replay") != "replay"
    return is_asked and _reaches_script(connectors[connector["records"]], connectors)


def _told(connector: Mapping[str, Any]) -> str:
    mode = f", {connector.get('mode', 'replay')}" if connector["kind"] == "recorded" else ""
    return f"connector {connector['name']} ({connector['kind']}{mode})"
