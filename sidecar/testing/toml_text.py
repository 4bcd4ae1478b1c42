"""Values as TOML: as much of it as scripts and configurations need, and always as one that reads back the same."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def document(tables: Mapping[str, Any]) -> str:
    """Each member a table, or an array of tables. Raises TypeError for a value that TOML, or this, doesn't know."""
    parts = []
    for name, content in tables.items():
        if isinstance(content, Mapping):
            parts.append(_table(f"[{_key(name)}]", content))
        else:
            parts += [_table(f"[[{_key(name)}]]", table) for table in content]
    return "\n".join(parts)


def _table(header: str, members: Mapping[str, Any]) -> str:
    return "".join([header + "\n", *(f"{_key(name)} = {value(member)}\n" for name, member in members.items())])


def value(said: Any) -> str:
    """One value on one line."""
    if isinstance(said, bool):
        return "true" if said else "false"
    if isinstance(said, int | float):
        return str(said)
    if isinstance(said, str | Path):
        return _text(str(said))
    if isinstance(said, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {value(member)}" for name, member in said.items()) + "}"
    if isinstance(said, Sequence) and not isinstance(said, bytes | bytearray):
        return "[" + ", ".join(map(value, said)) + "]"
    raise TypeError(f"{said!r} is a {type(said).__name__}, which can't be written as TOML")


def _key(name: str) -> str:
    return name if _BARE(name) else _text(name)


def _text(text: str) -> str:
    """A basic string: what JSON escapes, TOML reads too, but it wants DEL escaped and knows no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TypeError(f"{text!r} is no text: it holds half of a character") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
