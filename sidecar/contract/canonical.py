"""The one byte form of a value: what digests are over, and what the daemon sends and stores.

Maps have string keys sorted by their UTF-8 bytes, optional members that are
nil are left out, and every header is the shortest that holds its length.
Source: CONTRACT section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from sidecar.contract.values import BeginRecord, Digest, RecordBody, ReplayRecord, Value

# The published types declare their members in the order of the keys, so nothing has to be sorted; but the header of
# a type with more than 15 members is the shortest only when the encoder sorts.
_encode: Final = msgspec.msgpack.Encoder().encode
_encode_sorted: Final = msgspec.msgpack.Encoder(order="sorted").encode
_LARGE: Final = frozenset({BeginRecord, RecordBody, ReplayRecord})


def encode(value: Value) -> bytes:
    """The canonical bytes of a published value."""
    return _encode_sorted(value) if type(value) in _LARGE else _encode(value)


def digest(encoded: bytes) -> Digest:
    """SHA-256 as the wire carries it: 32 integers."""
    return tuple(sha256(encoded).digest())


def length_of_array(values: Sequence[Value]) -> int:
    """How many canonical bytes an array of values takes."""
    return len(_encode(values))
