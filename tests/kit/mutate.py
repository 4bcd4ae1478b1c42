"""Seeded faults in frames: bits, bytes, lengths, and MessagePack put where it does not belong."""

from __future__ import annotations

import random

import msgpack
from kit import build

_PIECES = [
    b"\xc0", b"\xc1", b"\xc2", b"\xc4\x01x", b"\xca\x00\x00\x00\x00", b"\xcb" + bytes(8), b"\xd4\x01\x00",
    b"\xd6\xff\x00\x00\x00\x00", b"\xd9\x01x", b"\xda\x00\x01x", b"\xcc\x01", b"\xcd\x00\x01", b"\x80", b"\x90",
    b"\x81\xa1a\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\x00\x00\x00\x01", b"\xa2\xc3\x28", b"\xa3\xed\xa0\x80", b"\xff",
]  # fmt: skip


def seeds() -> list[bytes]:
    """Valid invocations that between them use every member."""
    return [
        build.frame(),
        build.frame(build.request(build.text("Grüße 🙂"), instructions="be brief", cache_retention="long")),
        build.frame(
            build.request(
                build.text(), build.call("c1"), build.call("c2"), build.result("c2"), build.result("c1"),
                build.state(opaque=b"\x00\xff"), build.said("so"), build.text("on"),
                tools=(build.v.ToolDefinition(description="d", name="look", parameters_json='{"a": [1]}'),),
                tool_choice="required", parallel_tool_calls=True, output_schema_json="{}", reasoning_effort="max",
            )
        ),
    ]  # fmt: skip


def mutated(frame: bytes, chance: random.Random) -> bytes:
    """The frame with one to three faults; sometimes only written in another, equally valid way."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        frame = chance.choice(_WAYS)(frame, chance)
    return frame


def _flip(frame: bytes, chance: random.Random) -> bytes:
    if not frame:
        return frame
    at = chance.randrange(len(frame))
    return frame[:at] + bytes([frame[at] ^ (1 << chance.randrange(8))]) + frame[at + 1 :]


def _byte(frame: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(frame) + 1)
    return frame[:at] + chance.choice(_PIECES) + frame[at + chance.randrange(3) :]


def _cut(frame: bytes, chance: random.Random) -> bytes:
    return frame[: chance.randrange(len(frame) + 1)]


def _longer(frame: bytes, chance: random.Random) -> bytes:
    return frame + chance.choice(_PIECES)


def _remove(frame: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(frame) + 1)
    return frame[:at] + frame[at + chance.randrange(1, 9) :]


def _again(frame: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(frame) + 1)
    end = min(len(frame), begin + chance.randrange(40))
    return frame[:end] + frame[begin:end] + frame[end:]


def _other_order(frame: bytes, chance: random.Random) -> bytes:
    """The same value with its keys in another order, if it still is a value."""
    try:
        value = msgpack.unpackb(frame, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, TypeError):
        return frame
    if not isinstance(value, dict):
        return frame
    members = list(value.items())
    chance.shuffle(members)
    try:
        return bytes(msgpack.packb(dict(members)))
    except (ValueError, TypeError, OverflowError):
        return frame


def _wrong_value(frame: bytes, chance: random.Random) -> bytes:
    """One member replaced by something of another kind."""
    try:
        value = msgpack.unpackb(frame, strict_map_key=False)
        holder = value["request"] if chance.random() < 0.6 else value
        holder[chance.choice(list(holder))] = chance.choice([None, -1, 0, 1, "", "x y", "id", [], {}, 1.5, True, b"x"])
        return bytes(msgpack.packb(value))
    except (ValueError, msgpack.UnpackException, TypeError, KeyError, IndexError, OverflowError):
        return frame


_WAYS = [_flip, _flip, _flip, _byte, _byte, _cut, _longer, _remove, _again, _other_order, _wrong_value, _wrong_value]
