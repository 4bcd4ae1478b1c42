"""Gemini's thought signatures as reasoning states: which part each sat on, so that it comes back on the same. Pure.

A signature stands just before the text or call that it belongs to; one that sat
on a part without either stands at its place. A signed text may be followed by
one that is not, and the two become one event: `n` says how many of its
characters were signed. Source: WIRE sections 1.3 and 6.3.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import Struct

from sidecar.connectors import states

KIND: Final = "gemini.sig"
FILLER: Final = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="  # it switches the check off for a call made elsewhere
_SIGNATURE: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)

Place = Literal["call", "text", "empty"]
_PLACES: Final[dict[str, Place]] = {"call": "call", "text": "text", "empty": "empty"}


class Signature(Struct, frozen=True):
    """`characters` is how much of a text it covers; None: all of it."""

    on: Place
    sig: str
    characters: int | None = None


def is_signature(said: object) -> bool:
    """Whether this can be a signature, which is base64."""
    return isinstance(said, str) and _SIGNATURE.fullmatch(said) is not None


def encode(signature: Signature, upstream: str) -> bytes:
    members: dict[str, object] = {"on": signature.on, "sig": signature.sig}
    if signature.characters is not None:
        members["n"] = signature.characters
    return states.encode(KIND, upstream, members)


def decode(state: bytes, upstream: str) -> Signature | None:
    """The signature of a state that was emitted for this upstream model; None for anything else."""
    members = states.decode(state, KIND, upstream)
    if members is None or not members.keys() <= {"on", "sig", "n"}:
        return None
    on, sig, characters = members.get("on"), members.get("sig"), members.get("n")
    if not isinstance(on, str) or on not in _PLACES or not isinstance(sig, str) or not is_signature(sig):
        return None
    if "n" in members and (type(characters) is not int or characters < 1 or on != "text"):
        return None
    return Signature(_PLACES[on], sig, characters)
