"""How a TOML table is read: by a tuple of keys, with every complaint at once.

A `Key` names what may stand in a table, how its value is read (a reader raises
ValueError with what is wrong), and its default. Connector kinds bring tables of
their own in the same form. A complaint has a path, its place in the file where
that is surely known, what is wrong, and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from sidecar.config import instead
from sidecar.config.instead import closest, nearest
from sidecar.config.positions import Places
from sidecar.contract.ids import is_id

REQUIRED: Final = object()
_INDEX: Final = re.compile(r"\[\d+\]")


class Complaint(Struct, frozen=True):
    """One thing that is wrong, as one line; `line` and `column` only where they are surely known."""

    path: str
    what: str
    line: int | None = None
    hint: str | None = None
    column: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        """`sidecar.toml:12:3: caller "dungeon".models[0]: what is wrong — what to write instead`"""
        place = ":".join(str(one) for one in (self.file, self.line, self.column) if one is not None)
        hint = f" — {self.hint}" if self.hint else ""
        said = f"{place}: {self.path}: {self.what}{hint}" if place else f"{self.path}: {self.what}{hint}"
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in said)


class ConfigFaults(Exception):
    """Everything that is wrong with a configuration."""

    def __init__(self, complaints: Iterable[Complaint]) -> None:
        self.complaints = tuple(complaints)
        super().__init__("\n".join(map(str, self.complaints)))


class Wrong(ValueError):
    """What is wrong with a value, and what to write instead. `at` is where in it: "[1]" is an item, "" all."""

    def __init__(self, what: str, hint: str | None = None, at: str = "") -> None:
        super().__init__(what)
        self.what, self.hint, self.at = what, hint, at


class Wrongs(ValueError):
    """More than one thing is wrong with a value."""

    def __init__(self, wrongs: Iterable[Wrong]) -> None:
        self.wrongs = tuple(wrongs)
        super().__init__("; ".join(f"item {one.at} {one.what}" for one in self.wrongs))


def wrongs_in(raised: ValueError) -> tuple[Wrong, ...]:
    """What a reader raised, as one or more."""
    if isinstance(raised, Wrongs):
        return raised.wrongs
    return (raised if isinstance(raised, Wrong) else Wrong(str(raised)),)


class Key(Struct, frozen=True):
    """One key of a table: `read` turns the TOML value into ours, or raises ValueError.

    `example` is what to write where the key must be there and is not; left out, an ellipsis stands for its value.
    """

    name: str
    read: Callable[[Any], Any]
    default: Any = REQUIRED
    example: str | None = None


Fault = tuple[str, str]  # a key, and what is wrong with it; after a semicolon, what to write instead


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
    """Collects complaints, each with its place in the text, as far as that is known."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places()
        self.all: list[Complaint] = []

    def add(self, path: str, what: str, hint: str | None = None) -> None:
        self.all.append(located(Complaint(path, what, hint=hint), self.places))

    def add_wrong(self, path: str, wrong: ValueError) -> None:
        """What a reader raised."""
        for one in wrongs_in(wrong):
            self.add(path + one.at, one.what, one.hint)


def located(complaint: Complaint, places: Places) -> Complaint:
    """The same with its file, line and column, and the table's own name. One that knows its line is left at that."""
    path = places.with_indices(complaint.path)
    position = places.position(path) if complaint.line is None else None
    return structs.replace(
        complaint,
        path=places.with_names(path),
        line=position.line if position else complaint.line,
        column=position.column if position else complaint.column,
        file=complaint.file or places.file,
    )


def in_order(complaints: Iterable[Complaint]) -> tuple[Complaint, ...]:
    """As they stand in the file; those without a line first."""
    return tuple(sorted(complaints, key=lambda one: (one.line or 0, one.column or 0)))


def read_table(table: object, keys: tuple[Key, ...], path: str, complaints: Complaints) -> dict[str, Any] | None:
    """The values of a table by name, defaults filled in; None (and complaints) if anything is wrong with it."""
    before = len(complaints.all)
    values = read_values(table, keys, path, complaints)
    return values if len(complaints.all) == before else None


def read_values(table: object, keys: tuple[Key, ...], path: str, complaints: Complaints) -> dict[str, Any]:
    """What can be read of a table, defaults filled in, so that what is right can still be held against other tables."""
    if not isinstance(table, dict):
        header = _INDEX.sub("", path)
        brackets = "[{}]" if header == path else "[[{}]]"
        complaints.add(path, "must be a table", f"write it under a header: {brackets.format(header)}")
        return {}
    known = {key.name: key for key in keys}
    missing = {key.name for key in keys if key.default is REQUIRED and key.name not in table}
    misspelt = set()  # a required key under another name is one fault and not two
    for name in table:
        if name not in known:
            free = known.keys() - table.keys()  # whoever wrote the key itself as well hardly meant it twice
            among = next((some for some in (missing, free) if closest(name, some)), set(known))
            complaints.add(_joined(path, name), "unknown key", nearest(name, among))
            misspelt.add(closest(name, among))
    values = {}
    for key in keys:
        if key.name in table:
            try:
                values[key.name] = key.read(table[key.name])
            except ValueError as wrong:
                complaints.add_wrong(_joined(path, key.name), wrong)
        elif key.default is not REQUIRED:
            values[key.name] = key.default
        elif key.name not in misspelt:
            complaints.add(_joined(path, key.name), "is missing", f"write: {key.example or f'{key.name} = ...'}")
    return values


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- readers ----------------------------------------------------------------------------------------------------

Read = TypeVar("Read", bound=Callable[..., Any])


def shaped(**shape: Any) -> Callable[[Read], Read]:
    """A reader that says what it takes, as JSON Schema, for editors; what it does not say, it may still refuse."""

    def with_shape(read: Read) -> Read:
        read.__dict__["shape"] = shape
        return read

    return with_shape


def shape_of(read: Callable[..., Any]) -> Mapping[str, Any]:
    """What a reader says of what it takes; nothing where it says nothing."""
    shape: Mapping[str, Any] = getattr(read, "shape", {})
    return shape


@shaped(type="string", minLength=1)
def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Wrong("must be a text that is not empty", instead.for_text(value))
    return value


@shaped(type="string", pattern="^[!-~]{1,256}$")
def an_id(value: object) -> str:
    if not isinstance(value, str) or not is_id(value):
        what = "must be an id: 1 to 256 characters of printable ASCII without spaces"
        raise Wrong(what, instead.for_id(value))
    return value


@shaped(type="boolean")
def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong("must be true or false", instead.for_flag(value))
    return value


def whole(at_least: int, at_most: int, unit: instead.Unit = "") -> Callable[[object], int]:
    """A reader of whole numbers within these bounds; the unit is for what is said of a wrong one."""

    @shaped(type="integer", minimum=at_least, maximum=at_most)
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            hint = instead.for_number(value, at_least, at_most, unit, whole=True)
            raise Wrong("must be a whole number", hint)
        if not at_least <= value <= at_most:
            what = f"must be from {at_least} to {at_most}, not {_shown(value)}"
            raise Wrong(what, instead.for_bounds(value, at_least, at_most, unit))
        return value

    return read


def seconds(at_least: float, at_most: float) -> Callable[[object], float]:
    """A reader of durations, whole or not."""

    @shaped(type="number", minimum=at_least, maximum=at_most)
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = instead.for_number(value, at_least, at_most, "seconds", whole=False)
            raise Wrong("must be a number of seconds", hint)
        if not at_least <= value <= at_most:
            what = f"must be from {at_least:g} to {at_most:g} seconds, not {_shown(value)}"
            raise Wrong(what, instead.for_bounds(value, at_least, at_most, "seconds"))
        return value

    return read


def _shown(number: float) -> str:
    """A number as a person would look at it: one of thousands of digits can't be printed and needs not be."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"a number of {number.bit_length()} bits"
    return str(number)


def choice(*words: str) -> Callable[[object], str]:
    """A reader of one of these words."""

    @shaped(enum=list(words))
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise Wrong(f"must be one of {', '.join(words)}", instead.for_choice(value, words))
        return value

    return read


@shaped(type="string", pattern="^0?[0-7]{3}$")
def mode(value: object) -> int:
    """File permissions as an octal text, such as "0660"."""
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", value):
        hint = 'write "0660" for the user and the group, "0600" for the user alone, "0666" for all; in quotes'
        raise Wrong('must be permissions as an octal text, such as "0660"', hint)
    return int(value, 8)


def path_from(folder: Path) -> Callable[[object], Path]:
    """A reader of paths; relative ones are taken from `folder`."""

    @shaped(type="string", minLength=1)
    def read(value: object) -> Path:
        path = text(value)
        if "\0" in path:
            raise Wrong("must be a path, which holds no NUL character", "write it without \\u0000")
        return folder / path

    return read


def list_of(read_one: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    """A reader of arrays; it complains of every item that is wrong."""

    @shaped(type="array", items=shape_of(read_one))
    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Wrong("must be an array", instead.for_list(value))
        items, wrongs = [], []
        for at, one in enumerate(value):
            try:
                items.append(read_one(one))
            except ValueError as wrong:
                wrongs += [Wrong(one.what, one.hint, f"[{at}]{one.at}") for one in wrongs_in(wrong)]
        if wrongs:
            raise Wrongs(wrongs)
        return tuple(items)

    return read
