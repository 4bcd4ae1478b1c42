"""The lines between the runner and a driver: JSON in which no integer is lost. Format: goldens/DRIVERS.md."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from sidecar.conformance.differences import LEVELS_MAX, shown

SAFE_INTEGER_MAX: Final = 2**53 - 1  # what a parser that reads numbers as doubles keeps
LINE_BYTES_MAX: Final = 4 * 1024 * 1024  # of what a driver writes
CLAIMS: Final = ("encode", "concurrent", "resend", "stream", "quote", "status", "cancel", "welcome")


class BrokenLine(ValueError):
    """A line that no driver writes; the message says what is wrong with it."""


def plain(value: Any) -> Any:
    """A published value, or one as MessagePack has it, as plain JSON: bytes as base64, nil members left out."""
    return msgspec.to_builtins(value)


def line(value: Any) -> bytes:
    """The line that says a plain JSON value to a driver."""
    return json.dumps(_spelt(value), ensure_ascii=True).encode() + b"\n"


def read_line(received: bytes) -> dict[str, Any]:
    """What a driver says, its integers whole. Raises BrokenLine."""
    try:
        value = json.loads(received)
    except ValueError as error:
        raise BrokenLine(f"{_start(received)} is no JSON: {error}") from None
    except RecursionError:
        raise _too_deep(received) from None
    if not isinstance(value, dict):
        raise BrokenLine(f"{_start(received)} is no JSON object")
    read = _read(value, 1, received)
    assert isinstance(read, dict)
    return read


def _spelt(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _spelt(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spelt(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and value > SAFE_INTEGER_MAX:
        return {"$int": str(value)}
    return value


def _start(received: bytes) -> str:
    return shown(received.decode(errors="replace"))


def _too_deep(received: bytes) -> BrokenLine:
    return BrokenLine(f"{_start(received)} has more than {LEVELS_MAX} levels")


def _read(value: Any, level: int, received: bytes) -> Any:
    """So bounded that whatever reads the value may call itself for each level."""
    if isinstance(value, dict | list) and level > LEVELS_MAX:
        raise _too_deep(received)
    if isinstance(value, list):
        return [_read(inner, level + 1, received) for inner in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"$int"}:
        return {key: _read(inner, level + 1, received) for key, inner in value.items()}
    digits = value["$int"]
    if not (isinstance(digits, str) and digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        raise BrokenLine(f"$int is {shown(digits)}; it is the digits of an integer")
    return int(digits)
