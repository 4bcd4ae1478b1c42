"""The frames between an operator and the daemon, as frozen values: one question each, and its answer.

A question is held to the same strict profile as every frame; one that breaks
its table or a rule below is the transport error `malformed_frame`. What an
operator may not ask, or what the daemon can't do now, is a transport error
too (`not_admitted`, `ledger_unavailable`, `shutting_down`). Source: CONTRACT
sections 1, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from sidecar.contract.ids import is_id
from sidecar.contract.values import U64, Digest, Value

OPERATOR_RESOLVE: Literal["gamecult.model.operator_resolve.v1"] = "gamecult.model.operator_resolve.v1"
OPERATOR_RESOLVED: Literal["gamecult.model.operator_resolved.v1"] = "gamecult.model.operator_resolved.v1"
OPERATOR_CHECK: Literal["gamecult.model.operator_check.v1"] = "gamecult.model.operator_check.v1"
OPERATOR_CHECKED: Literal["gamecult.model.operator_checked.v1"] = "gamecult.model.operator_checked.v1"
OPERATOR_RELOAD: Literal["gamecult.model.operator_reload.v1"] = "gamecult.model.operator_reload.v1"
OPERATOR_RELOADED: Literal["gamecult.model.operator_reloaded.v1"] = "gamecult.model.operator_reloaded.v1"
OPERATOR_METRICS: Literal["gamecult.model.operator_metrics.v1"] = "gamecult.model.operator_metrics.v1"
OPERATOR_METERED: Literal["gamecult.model.operator_metered.v1"] = "gamecult.model.operator_metered.v1"

WHO_CHARACTERS_MAX: Final = 128
WHY_CHARACTERS_MAX: Final = 768  # with who and charge it fits the longest message that an outcome has

ResolutionCharge = Literal["nothing", "reservation"]
Found = Literal[
    "settled",  # by this very frame, on disk
    "ended",  # it is on record how it ended
    "running",  # it runs in this daemon, which will record its end
    "being_resolved",  # another operator's decision is on its way to the disk
    "unknown",  # there is none on record
]


class OperatorResolve(Value, frozen=True, kw_only=True):
    """A person decides what became of an Indeterminate request: its caller is charged nothing, or its reservation.

    `who` and `why` are 1 to 128 and 1 to 768 printable characters, on one line, and not only spaces.
    """

    caller_runtime_id: str
    charge: ResolutionCharge
    request_id: str
    schema_id: Literal["gamecult.model.operator_resolve.v1"]
    who: str
    why: str


class OperatorResolved(Value, frozen=True, kw_only=True):
    """What the request was found to be; only where it says `settled` was anything changed.

    `charge_micro_usd` is there where it is settled; `message` is a sentence for a person.
    """

    caller_runtime_id: str
    charge_micro_usd: U64 | None = None
    found: Found
    message: str
    request_id: str
    schema_id: Literal["gamecult.model.operator_resolved.v1"]


class OperatorCheck(Value, frozen=True):
    """Are the daemon's accounts what its ledger's records add up to?"""

    schema_id: Literal["gamecult.model.operator_check.v1"]


class OperatorChecked(Value, frozen=True, kw_only=True):
    """The ledger was read again up to this batch, whose chain head is given, and held against the accounts.

    `settled_micro_usd` and `open_micro_usd` are what the records add up to in
    the windows compared. Each of `mismatches` is a sentence; where there is
    one, the daemon stops.
    """

    batch: U64
    head_sha256: Digest
    mismatches: tuple[str, ...]
    open_micro_usd: U64
    schema_id: Literal["gamecult.model.operator_checked.v1"]
    settled_micro_usd: U64
    windows: U64


class OperatorReload(Value, frozen=True):
    """Read the configuration again, and put it in force if all of it is right."""

    schema_id: Literal["gamecult.model.operator_reload.v1"]


class OperatorReloaded(Value, frozen=True, kw_only=True):
    """Either all of the new configuration is in force, and what that changed, or none, and everything against it.

    `changes`, `complaints` and `warnings` are lines for a person.
    """

    changes: tuple[str, ...]
    complaints: tuple[str, ...]
    reloaded: bool
    schema_id: Literal["gamecult.model.operator_reloaded.v1"]
    warnings: tuple[str, ...]


class OperatorMetrics(Value, frozen=True):
    """What has the daemon counted, and what does it hold now?"""

    schema_id: Literal["gamecult.model.operator_metrics.v1"]


class OperatorMetered(Value, frozen=True, kw_only=True):
    """The daemon's metrics as text in the Prometheus exposition format 0.0.4, whole."""

    exposition: str
    schema_id: Literal["gamecult.model.operator_metered.v1"]


OperatorFrame = OperatorResolve | OperatorCheck | OperatorReload | OperatorMetrics

_decoders: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    OPERATOR_RESOLVE: msgspec.msgpack.Decoder(OperatorResolve),
    OPERATOR_CHECK: msgspec.msgpack.Decoder(OperatorCheck),
    OPERATOR_RELOAD: msgspec.msgpack.Decoder(OperatorReload),
    OPERATOR_METRICS: msgspec.msgpack.Decoder(OperatorMetrics),
}


class BrokenOperatorFrame(ValueError):
    """A frame that breaks its table; the message says how."""


def is_operators(schema_id: str) -> bool:
    """Whether a frame of this schema_id is an operator's question."""
    return schema_id in _decoders


def parse_from_operator(schema_id: str, frame: bytes) -> OperatorFrame:
    """What a strict frame of this schema_id says. Raises BrokenOperatorFrame."""
    try:
        value: OperatorFrame = _decoders[schema_id].decode(frame)
    except msgspec.MsgspecError as error:
        raise BrokenOperatorFrame(str(error)) from None
    if isinstance(value, OperatorResolve) and (wrong := complaint(value)) is not None:
        raise BrokenOperatorFrame(wrong)
    return value


def complaint(asked: OperatorResolve) -> str | None:
    """The first rule that no schema says and that this breaks."""
    for name, said in (("caller_runtime_id", asked.caller_runtime_id), ("request_id", asked.request_id)):
        if not is_id(said):
            return f"{name} is no id (1 to 256 bytes of 0x21 to 0x7e)"
    for name, said, characters_max in (("who", asked.who, WHO_CHARACTERS_MAX), ("why", asked.why, WHY_CHARACTERS_MAX)):
        if not are_words(said, characters_max):
            return f"{name} is not 1 to {characters_max} printable characters on one line"
    return None


def are_words(said: str, characters_max: int) -> bool:
    """A text that a record can hold and a person read; isprintable() also keeps out what is no text at all."""
    return bool(said.strip()) and said.isprintable() and len(said) <= characters_max
