"""The one byte form of a value: what digests are over, and what the daemon sends and stores.

Maps have string keys sorted by their UTF-8 bytes, optional members that are
nil are left out, and every header is the shortest that holds its length.
Source: CONTRACT section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from sidecar.contract.values import Digest, Value

_encoder = msgspec.msgpack.Encoder(order="sorted")


def encode(value: Value) -> bytes:
    """The canonical bytes of a published value."""
    return _encoder.encode(value)


def digest(encoded: bytes) -> Digest:
    """SHA-256 as the wire carries it: 32 integers."""
    return tuple(sha256(encoded).digest())


def length_of_array(values: Sequence[Value]) -> int:
    """How many canonical bytes an array of values takes."""
    encoded: bytes = _encoder.encode(values)
    return len(encoded)
