"""How a TOML table is read: by a tuple of keys, with every complaint at once.

A `Key` names what may stand in a table, how its value is read (a reader raises
ValueError with what is wrong), and its default. Connector kinds bring tables of
their own in the same form. A complaint has a path, the line where it is surely
known, what is wrong, and the nearest known name where a name was mistyped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sidecar.contract.ids import is_id

REQUIRED: Final = object()


_ITEM: Final = re.compile(r"\[\d+\]$")


class Complaint(Struct, frozen=True):
    """One thing that is wrong, as one line."""

    path: str
    what: str
    line: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line is not None else ""
        hint = f" ({self.hint})" if self.hint else ""
        said = f"{where}{self.path}: {self.what}{hint}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)


class ConfigFaults(Exception):
    """Everything that is wrong with a configuration."""

    def __init__(self, complaints: Iterable[Complaint]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)))


class Key(Struct, frozen=True):
    """One key of a table: `read` turns the TOML value into ours, or raises ValueError."""

    name: str
    read: Callable[[Any], Any]
    default: Any = REQUIRED


Fault = tuple[str, str]


class KindKeys(Struct, frozen=True):
    """What a connector kind wants of its table beside the keys that all connectors have.

    `keys` gives the key table for a configuration in this folder, from which relative paths begin; `model_keys` are
    those of each model that it serves. `faults` says what of a connector's settings can't work together, and
    `model_faults` what of a model's settings can't work with those of its connector: keys, and what is wrong with each.
    `wraps` is the key by which a connector names another one that it stands before: its models have that one's keys,
    and its credential is that one's.
    """

    keys: Callable[[Path], tuple[Key, ...]] = lambda folder: ()
    needs_base_url: bool = False
    model_keys: tuple[Key, ...] = ()
    faults: Callable[[Mapping[str, Any]], Iterable[Fault]] = lambda settings: ()
    model_faults: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterable[Fault]] = lambda connector, model: ()
    wraps: str | None = None


class Complaints:
    """Collects complaints; knows the line of a path where the text was plain enough to tell.

    `names` says what a person calls a table: with `caller[0]` named `caller "dungeon"`, a complaint about
    `caller[0].models` is shown as one about `caller "dungeon".models`.
    """

    def __init__(self, lines: Mapping[str, int], names: Mapping[str, str] | None = None) -> None:
        self._lines = lines
        self._names = names or {}
        self.all: list[Complaint] = []

    def add(self, path: str, what: str, hint: str | None = None) -> None:
        line = self._lines.get(path, self._lines.get(_ITEM.sub("", path)))  # an item's line: where its array begins
        self.all.append(Complaint(self._named(path), what, line, hint))

    def _named(self, path: str) -> str:
        table, dot, rest = path.partition(".")
        return self._names.get(table, table) + dot + rest


def nearest(name: str, known: Iterable[str]) -> str | None:
    """A hint with the known name that looks most like this one, or with all of them where none does."""
    known = sorted(known)
    if close := _closest(name, known):
        return close
    return f"known: {', '.join(known)}" if known and len(known) <= 12 else None


def _closest(name: str, known: Iterable[str]) -> str | None:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else None


def read_table(table: object, keys: tuple[Key, ...], path: str, complaints: Complaints) -> dict[str, Any] | None:
    """The values of a table by name, defaults filled in; None (and complaints) if anything is wrong with it."""
    before = len(complaints.all)
    values = read_values(table, keys, path, complaints)
    return values if len(complaints.all) == before else None


def read_values(table: object, keys: tuple[Key, ...], path: str, complaints: Complaints) -> dict[str, Any]:
    """What can be read of a table, defaults filled in, so that what is right can still be held against other tables."""
    if not isinstance(table, dict):
        complaints.add(path, "must be a table")
        return {}
    known = {key.name: key for key in keys}
    for name in table:
        if name not in known:
            complaints.add(_joined(path, name), "unknown key", nearest(name, known))
    values = {}
    for key in keys:
        if key.name in table:
            try:
                values[key.name] = key.read(table[key.name])
            except ValueError as wrong:
                complaints.add(_joined(path, key.name), str(wrong))
        elif key.default is REQUIRED:
            complaints.add(path or "the file", f"{key.name} is missing")
        else:
            values[key.name] = key.default
    return values


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\s-]+?)\s*\]\]?\s*(?:#.*)?$")
_ASSIGNED: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
_NOT_STRUCTURE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')  # strings and comments of one line


def lines_of(text: str) -> dict[str, int]:
    """Path to line for what stands plainly on lines of its own; empty for a text that this small scanner can't follow.

    Paths are those of complaints: `caller[0].models`, `model[1].price[0].input`.
    """
    if '"""' in text or "'''" in text:
        return {}
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    prefix, depth = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if depth == 0 and line.lstrip().startswith("["):
            header = _HEADER.match(line)
            if header is None:
                return {}  # a quoted name: from here on, whose key is whose can't be told
            prefix = _header_path(header[2], is_array=header[1] == "[[", counts=counts)
            lines.setdefault(prefix, number)
        elif depth == 0 and (assigned := _ASSIGNED.match(line)):
            lines.setdefault(_joined(prefix, assigned[1]), number)
        structure = _NOT_STRUCTURE.sub("", line)
        depth += structure.count("[") - structure.count("]")
    return lines


def _header_path(name: str, *, is_array: bool, counts: dict[str, int]) -> str:
    path = ""
    parts = [part.strip() for part in name.split(".")]
    for at, part in enumerate(parts):
        path = _joined(path, part)
        if is_array and at == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path


# --- readers ----------------------------------------------------------------------------------------------------


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value


def an_id(value: object) -> str:
    if not isinstance(value, str) or not is_id(value):
        raise ValueError("must be an id: 1 to 256 characters of printable ASCII without spaces")
    return value


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def whole(at_least: int, at_most: int) -> Callable[[object], int]:
    """A reader of whole numbers within these bounds."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("must be a whole number")
        if not at_least <= value <= at_most:
            raise ValueError(f"must be from {at_least} to {at_most}, not {_shown(value)}")
        return value

    return read


def seconds(at_least: float, at_most: float) -> Callable[[object], float]:
    """A reader of durations, whole or not."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("must be a number of seconds")
        if not at_least <= value <= at_most:
            raise ValueError(f"must be from {at_least:g} to {at_most:g} seconds, not {_shown(value)}")
        return value

    return read


def _shown(number: float) -> str:
    """A number as a person would look at it: one of thousands of digits can't be printed and needs not be."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"a number of {number.bit_length()} bits"
    return str(number)


def choice(*words: str) -> Callable[[object], str]:
    """A reader of one of these words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            hint = _closest(value, words) if isinstance(value, str) else None
            raise ValueError(f"must be one of {', '.join(words)}" + (f"; {hint}" if hint else ""))
        return value

    return read


def mode(value: object) -> int:
    """File permissions as an octal text, such as "0660"."""
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        raise ValueError('must be permissions as an octal text, such as "0660"')
    return int(value, 8)


def path_from(folder: Path) -> Callable[[object], Path]:
    """A reader of paths; relative ones are taken from `folder`."""

    def read(value: object) -> Path:
        path = text(value)
        if "\0" in path:
            raise ValueError("must be a path, which holds no NUL character")
        return folder / path

    return read


def list_of(read_one: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    """A reader of arrays; it complains of every item that is wrong."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("must be an array")
        items, wrongs = [], []
        for at, one in enumerate(value):
            try:
                items.append(read_one(one))
            except ValueError as wrong:
                wrongs.append(f"item [{at}] {wrong}")
        if wrongs:
            raise ValueError("; ".join(wrongs))
        return tuple(items)

    return read
