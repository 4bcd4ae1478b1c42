"""Reasoning states: one provider block each, in a form that is checked strictly when it comes back. Pure.

A state is canonical JSON: `v` (the form's version), `k` (what kind of block),
`m` (the upstream model that made it), and the members of the kind. It comes
back from a caller and is not trusted: whatever `encode` would not have written
byte for byte is no state of ours. Source: WIRE section 1.3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

STATE_BYTES_MAX: Final = 1 << 24  # no frame is larger, so no larger one was ever given out
_VERSION: Final = 1


def encode(kind: str, upstream: str, members: Mapping[str, Any]) -> bytes:
    """The state of one block; the same members always give the same bytes."""
    state = {**members, "v": _VERSION, "k": kind, "m": upstream}
    return json.dumps(state, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def decode(state: bytes, kind: str, upstream: str) -> dict[str, Any] | None:
    """The members of a state that `encode` made for this kind and model; None for anything else."""
    if len(state) > STATE_BYTES_MAX:
        return None
    try:
        members = json.loads(state.decode())
        if not isinstance(members, dict) or encode(kind, upstream, members) != state:
            return None
    except (ValueError, RecursionError):
        return None
    return {name: said for name, said in members.items() if name not in ("v", "k", "m")}
