"""How a family of Claude models thinks, as data: what turns it on and off, and what forbids a forced tool call. Pure.

A model's configuration names its family by the word `thinking`; nothing is
guessed from a model's name, so a new model needs no new code.

    off            takes no `thinking` at all: models before it, and most compatible servers
    budget         off unless asked, and asked by a number of tokens: Sonnet 4.5, Haiku 4.5, Opus 4.5 (low to high)
    adaptive       off unless asked: Opus and Sonnet 4.6, Opus 4.7 and 4.8
    on             thinks unless told not to: Sonnet 5, Opus 5, Haiku 5.5
    between_tools  thinks unless told to do so between tools only, and can't be forced to call: Sonnet 5.5
    always         can't be kept from thinking, nor forced to call: Opus 5.5, Fable, Mythos

Source: WIRE sections 4.4 and 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from sidecar.config.keys import Fault, Key, choice, flag
from sidecar.connectors.lowering import efforts, fitting_effort

Effort = Literal["low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[tuple[Effort, ...]] = ("low", "medium", "high", "xhigh", "max")
BUDGET_TOKENS: Final[Mapping[str, int]] = {"low": 2_048, "medium": 10_000, "high": 16_384, "max": 32_768}
BUDGET_TOKENS_MIN: Final = 1_024  # a budget below it is refused, and it must stay below `max_tokens`


class Family(Struct, frozen=True, kw_only=True):
    """A row of the table.

    `asked_by`: what a request's effort turns thinking on with; None where it needs no turning on, or can't be.
    `off_as`: the type that a request which wants no thinking sends; None where nothing is to be sent, or nothing helps.
    `efforts`: those that its models take where the configuration names none.
    `forced_tools`: whether a tool call may be required of it; `idle` is only while it does not think.
    `binds`: whether its thinking may be tied to what stood before it, and so the way out can be asked for.
    """

    asked_by: Literal["budget", "adaptive"] | None = None
    off_as: Literal["disabled", "between_tools"] | None = None
    efforts: tuple[Effort, ...] = ()
    forced_tools: Literal["yes", "idle", "no"] = "yes"
    binds: bool = False


FAMILIES: Final[Mapping[str, Family]] = {
    "off": Family(),
    "budget": Family(asked_by="budget", forced_tools="idle"),
    "adaptive": Family(asked_by="adaptive", efforts=EFFORTS),
    "on": Family(off_as="disabled", efforts=EFFORTS, binds=True),
    "between_tools": Family(off_as="between_tools", efforts=EFFORTS, forced_tools="no", binds=True),
    "always": Family(efforts=EFFORTS, forced_tools="no", binds=True),
}


class Model(Struct, frozen=True, kw_only=True):
    """One model's own keys.

    `think_unasked`: whether a model that thinks unless told not to may do so for a request that names no effort.
    """

    thinking: str = "off"
    efforts: tuple[Effort, ...] | None = None
    forced_tools: bool = True
    think_unasked: bool = True

    @property
    def family(self) -> Family:
        return FAMILIES[self.thinking]

    def effort(self, asked: str | None) -> str | None:
        """The word that is sent; None where the request or the model has none. Raises Rejected."""
        known = self.family.efforts if self.efforts is None else self.efforts
        if asked is None or not known:
            return None
        return fitting_effort(asked, known)


MODEL_KEYS: Final = (
    Key("thinking", choice(*FAMILIES), "off"),
    Key("efforts", efforts(*EFFORTS), None),
    Key("forced_tools", flag, default=True),
    Key("think_unasked", flag, default=True),
)


def model_faults(connector: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Fault]:
    """What of a model's keys can't work together."""
    settings = Model(**model)
    family = settings.family
    if family.asked_by == "adaptive" and settings.efforts == ():
        yield (
            "efforts",
            f"thinking = {settings.thinking!r} is asked for by an effort; write one, or leave efforts out",
        )
    if family.asked_by == "budget" and settings.efforts and "max" in settings.efforts:
        yield "efforts", "no model that thinks by a budget takes the effort max; it falls back by itself; leave max out"
    if not settings.think_unasked and settings.thinking == "always":
        yield "think_unasked", "nothing keeps a model of thinking = 'always' from thinking"
