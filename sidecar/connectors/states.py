"""Reasoning states: what a connector says of a provider's block to its own later self. Pure.

A state is canonical JSON with a version, the word of its kind and the upstream
model that made it. What comes back is untrusted: only an object with these three
as they were said is a state of ours, and what else it holds its kind must check.
Source: WIRE section 1.3, CONTRACT section 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = 1
STATE_BYTES_MAX: Final = 16_777_216  # no frame holds more
_HEAD: Final = frozenset({"v", "k", "m"})


def encode(kind: str, upstream: str, members: Mapping[str, Any]) -> bytes:
    """The state of these members, whose names are none of `v`, `k` and `m`; the same members give the same bytes."""
    assert not _HEAD & members.keys(), "a state's own members have names of their own"
    state = {"v": VERSION, "k": kind, "m": upstream, **members}
    return json.dumps(state, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def decode(state: bytes, kind: str, upstream: str) -> dict[str, Any] | None:
    """The members of a state of this kind and model, their types still to be checked; None for anything else."""
    if len(state) > STATE_BYTES_MAX:
        return None
    try:
        members = json.loads(state.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    version, said_kind, said_upstream = (members.pop(name, None) for name in ("v", "k", "m"))
    if type(version) is not int or (version, said_kind, said_upstream) != (VERSION, kind, upstream):
        return None
    return members
