"""Reasoning states as they are handed to callers: canonical JSON that says of which API and model it is.

What comes back is untrusted: anything but the exact form, with the exact
version, kind and upstream model, is no state of ours. What its other members
may be is for each API to check. Source: WIRE section 1.3, CONTRACT section 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = 1
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode(kind: str, upstream: str, members: Mapping[str, Any]) -> bytes:
    """The opaque bytes of one block. `members` hold JSON values; `v`, `k` and `m` are ours."""
    assert not members.keys() & {"v", "k", "m"}
    return _ENCODER.encode({**members, "v": VERSION, "k": kind, "m": upstream}).encode()


def decode(state: bytes, kind: str, upstream: str) -> dict[str, Any] | None:
    """The members of a block of this kind and model; None for anything that `encode` would not have made."""
    try:
        said = json.loads(state)
        is_ours = isinstance(said, dict) and _ENCODER.encode(said).encode() == state
    except (ValueError, RecursionError):
        return None
    if not is_ours or type(said.get("v")) is not int:  # true is no version, though it equals 1
        return None
    if (said.pop("v"), said.pop("k", None), said.pop("m", None)) != (VERSION, kind, upstream):
        return None
    members: dict[str, Any] = said
    return members
