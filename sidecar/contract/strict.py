"""The strict MessagePack profile, checked in one pass that builds no values.

`scan` walks a frame and refuses, with the byte offset and a sentence, all that
the contract forbids and that no library refuses for us: a key that is no
string or stands twice, ext types, floats, broken UTF-8, bytes behind the
value, more than 65,536 array items and map pairs in the whole frame, more than
16 levels. It keeps only the keys of the maps that are open, and those of a
large map as offsets, so a hostile frame can't make it hold more than a small
multiple of itself; the typed decoder runs afterwards, on what has been counted.

Levels count containers: a scalar alone has 0, a flat map 1. A map or array
that would be the 17th is refused. Source: CONTRACT section 1.
"""

from __future__ import annotations

from array import array
from typing import Final

ITEMS_MAX: Final = 65_536
LEVELS_MAX: Final = 16
_FEW_KEYS_MAX: Final = 32  # no published map has as many members, so only strange maps need more than a set

SWITCH_HINT = (
    'a map with string keys is needed: MessagePack-CSharp wants [Key("name")] or keyAsPropertyName,'
    " rmp-serde wants to_vec_named"
)


class NotStrict(ValueError):
    """A frame breaks the profile: where (`offset`, in bytes) and why."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"{why} at byte {offset}")
        self.offset = offset
        self.why = why


class _Level:
    """One open container: how many values it still wants, and, for a map, the keys seen."""

    __slots__ = ("at_key", "keys", "many_keys", "wanted")

    def __init__(self, wanted: int, keys: set[bytes] | None) -> None:
        self.wanted = wanted
        self.keys = keys
        self.many_keys: _ManyKeys | None = None
        self.at_key = keys is not None

    def is_new(self, key: bytes, at: int, frame: bytes) -> bool:
        """Notes the key whose header stands at `at`; False if the map had it already."""
        assert self.keys is not None, "only a map has keys"
        if self.many_keys is not None:
            return key not in self.keys and self.many_keys.is_new(key, at)
        if key in self.keys:
            return False
        self.keys.add(key)
        if len(self.keys) == _FEW_KEYS_MAX:
            self.many_keys = _ManyKeys(frame)
        return True


class _ManyKeys:
    """The keys of a large map by where they stand in the frame: a hash table of offsets, 6 to 18 bytes a key.

    A set of the keys themselves takes about 70 bytes a key, and a hostile
    frame spends 5 bytes on one.
    """

    __slots__ = ("_count", "_frame", "_slots")

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._slots = array("I", [0]) * 128  # 0 is free: no key stands where the frame begins
        self._count = 0

    def is_new(self, key: bytes, at: int) -> bool:
        slot = self._slot(key)
        if self._slots[slot]:
            return False
        self._slots[slot] = at
        self._count += 1
        if 3 * self._count > 2 * len(self._slots):
            self._grow()
        return True

    def _slot(self, key: bytes) -> int:
        """Where this key is, or would be put."""
        mask = len(self._slots) - 1
        slot = hash(key) & mask
        while (at := self._slots[slot]) and self._key(at) != key:
            slot = (slot + 1) & mask
        return slot

    def _key(self, at: int) -> bytes:
        _, length, begin = _head(self._frame, at)
        return self._frame[begin : begin + length]

    def _grow(self) -> None:
        smaller = self._slots
        self._slots = array("I", [0]) * (2 * len(smaller))
        for at in filter(None, smaller):
            self._slots[self._slot(self._key(at))] = at


# first byte -> (kind, header bytes that hold the length). Fixed forms are resolved in `_head`.
_LENGTHS: Final = {
    0xC4: ("bin", 1), 0xC5: ("bin", 2), 0xC6: ("bin", 4),
    0xD9: ("str", 1), 0xDA: ("str", 2), 0xDB: ("str", 4),
    0xDC: ("array", 2), 0xDD: ("array", 4),
    0xDE: ("map", 2), 0xDF: ("map", 4),
}  # fmt: skip
# first byte -> bytes of the integer that follow.
_INTEGERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}


def _head(frame: bytes, at: int) -> tuple[str, int, int]:
    """The kind of the value at `at`, its length (payload bytes, items or pairs), and where what follows begins."""
    if at >= len(frame):
        raise NotStrict(at, "the frame ends inside a value")
    first = frame[at]
    if first <= 0x7F or first >= 0xE0 or 0xC2 <= first <= 0xC3 or first == 0xC0:
        return "scalar", 0, at + 1
    if first <= 0x8F:
        return "map", first & 0x0F, at + 1
    if first <= 0x9F:
        return "array", first & 0x0F, at + 1
    if first <= 0xBF:
        return "str", first & 0x1F, at + 1
    if first in _INTEGERS:
        return "scalar", _INTEGERS[first], at + 1
    if first in _LENGTHS:
        kind, size = _LENGTHS[first]
        begin = at + 1 + size
        if begin > len(frame):
            raise NotStrict(at, "the frame ends inside a header")
        return kind, int.from_bytes(frame[at + 1 : begin], "big"), begin
    if first in (0xCA, 0xCB):
        raise NotStrict(at, "a float")
    if first == 0xC1:
        raise NotStrict(at, "the byte 0xc1, which MessagePack never uses")
    raise NotStrict(at, "an ext type")


def scan(frame: bytes) -> int:
    """The number of array items and map pairs in a strict frame; raises NotStrict at the first fault."""
    at, items = 0, 0
    open_levels: list[_Level] = []
    while True:
        level = open_levels[-1] if open_levels else None
        kind, length, begin = _head(frame, at)
        if level is not None and level.at_key and kind != "str":
            raise NotStrict(at, f"a map key that is no string ({SWITCH_HINT})")
        if kind in ("map", "array"):
            items += length
            if items > ITEMS_MAX:
                raise NotStrict(at, f"more than {ITEMS_MAX} array items and map pairs")
            if len(open_levels) == LEVELS_MAX:
                raise NotStrict(at, f"more than {LEVELS_MAX} levels")
            at = begin
            open_levels.append(_Level(2 * length, set()) if kind == "map" else _Level(length, None))
        else:
            end = begin + length
            if end > len(frame):
                raise NotStrict(begin, "the frame ends inside a value")
            if kind == "str":
                text = frame[begin:end]
                _check_utf8(text, begin)
                if level is not None and level.at_key and not level.is_new(text, at, frame):
                    raise NotStrict(begin, f"the key {text.decode()!r:.80} twice in one map")
            at = end
            _take(level)
        while open_levels and open_levels[-1].wanted == 0:
            open_levels.pop()
            _take(open_levels[-1] if open_levels else None)
        if not open_levels:
            break
    if at != len(frame):
        raise NotStrict(at, "bytes behind the value")
    return items


def _check_utf8(text: bytes, at: int) -> None:
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotStrict(at + error.start, "a string that is not UTF-8") from None


def _take(level: _Level | None) -> None:
    """One value of this container is complete."""
    if level is not None:
        level.wanted -= 1
        if level.keys is not None:
            level.at_key = not level.at_key
