"""Where in a TOML text each table, key and item stands; nothing rather than a wrong place.

The standard parser tells no positions, so the text is scanned a second time,
for structure alone. What the scanner finds is believed only if all its paths
are all the paths of the parsed document, no more and no fewer: a mistake of it
can lose the positions, and can't move one. Source: ECOSYSTEM section 5.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn

from msgspec import Struct

Path = tuple[str | int, ...]

_BLANK: Final = re.compile(r"[ \t]*")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\n]|#[^\n]*)*+")
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_BASIC: Final = re.compile(r'"(?:\\.|[^"\\\n])*+"')
_LITERAL: Final = re.compile(r"'[^'\n]*+'")
_KEY_PART: Final = re.compile(rf"[A-Za-z0-9_-]+|{_BASIC.pattern}|{_LITERAL.pattern}")
_BASIC_LINES: Final = re.compile(r'"""(?:\\.|"{1,2}(?!")|[^"\\])*"{3,5}', re.DOTALL)
_LITERAL_LINES: Final = re.compile(r"'''(?:'{1,2}(?!')|[^'])*'{3,5}", re.DOTALL)
_DATE_THEN_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:[^,\]}\s#]*")
_PLAIN: Final = re.compile(r"[^,\]}\[{\s#\"']+")
_TOP_NAME: Final = re.compile(r"[a-z_]+")
_LAST_STEP: Final = re.compile(r"(?:\[\d+\]|(?:^|\.)[^.\[\]]*)$")
_VALUES: Final = (_BASIC_LINES, _LITERAL_LINES, _BASIC, _LITERAL, _DATE_THEN_TIME, _PLAIN)


class Position(Struct, frozen=True, order=True):
    """As editors count: lines and characters from 1; a tab is one character."""

    line: int
    column: int


class Places(Struct, frozen=True):
    """Where the tables, keys and items of one text stand, and what a person calls its tables.

    With `caller[0]` named `caller "dungeon"`, a complaint about `caller[0].models` is shown as one about
    `caller "dungeon".models`.
    """

    positions: Mapping[str, Position] = {}
    names: Mapping[str, str] = {}
    file: str | None = None

    def position(self, path: str) -> Position | None:
        """Of what stands there; of what is not there, the table (or array) that it would stand in."""
        if path not in self.positions and _TOP_NAME.fullmatch(path):
            return self.positions.get("")
        while path and path not in self.positions:
            path, steps = _LAST_STEP.subn("", path)
            if not steps:
                return None
        return self.positions.get(path) if path else None

    def with_names(self, path: str) -> str:
        table, dot, rest = path.partition(".")
        return self.names.get(table, table) + dot + rest

    def with_indices(self, path: str) -> str:
        for table, name in self.names.items():
            if path == name or path.startswith(f"{name}."):
                return table + path[len(name) :]
        return path


class Twice(Struct, frozen=True):
    """A key that is written a second time, which TOML forbids."""

    path: str
    first: Position
    second: Position
    is_mixed: bool = False  # `second` is the header of one table, and elsewhere it is one of several


def positions_of(source: str, document: Mapping[str, Any]) -> dict[str, Position]:
    """Path to position for every table, key and item of this document, which was parsed from this text.

    Paths are those of complaints: `caller[0].models[1]`, `model[1].price[0].input`; the path of the document itself is
    empty. A table's position is its header's. Empty for a text that the scanner can't follow; a path that two different
    keys could be meant by (one of them holding a dot in quotes) is left out.
    """
    scanner = _Scanner(source)
    try:
        scanner.run()
        is_followed = scanner.found.keys() == set(_paths(document))
    except (_Lost, RecursionError):
        return {}
    if not is_followed:
        return {}
    told = [path_text(path) for path in scanner.found]
    often = Counter(told)
    places = zip(told, scanner.found.values(), strict=True)
    positions = {path: scanner.position(offset) for path, offset in places if path and often[path] == 1}
    return {"": Position(1, 1), **positions}


def written_twice(source: str) -> Twice | None:
    """The first key or table of a text that stands a second time where it may stand once, if the scanner sees one."""
    scanner = _Scanner(source)
    with suppress(_Lost, RecursionError):  # what was seen until then is right
        scanner.run()
    if not scanner.again:
        return None
    path, first, second, is_mixed = scanner.again[0]
    return Twice(path_text(path), scanner.position(first), scanner.position(second), is_mixed)


def unclosed(source: str) -> Position | None:
    """Where the innermost bracket stands that is open where the scanner can't go on."""
    scanner = _Scanner(source)
    try:
        scanner.run()
    except _Lost:
        return scanner.position(scanner.open[-1]) if scanner.open else None
    except RecursionError:
        pass
    return None


def statement_at(source: str, line: int) -> tuple[Position, int | None]:
    """Where the statement begins that this line is in, and its last line; None where it does not end."""
    scanner = _Scanner(source)
    with suppress(_Lost, RecursionError):
        scanner.run()
    starts = [scanner.position(offset) for offset in scanner.statements]
    at = bisect_right([start.line for start in starts], line) - 1
    if at < 0:
        return Position(line, 1), line
    if at == len(starts) - 1 and not scanner.is_whole:
        return starts[at], None
    return starts[at], max(line, starts[at + 1].line - 1 if at + 1 < len(starts) else len(source.split("\n")))


def path_text(path: Path) -> str:
    """A path as complaints have it."""
    said = ""
    for step in path:
        said += f"[{step}]" if isinstance(step, int) else f".{step}" if said else step
    return said


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Of everything in a parsed value, however deep."""
    rest: list[tuple[Path, Any]] = [(path, value)]
    while rest:
        path, value = rest.pop()
        if path:
            yield path
        if isinstance(value, dict):
            rest += [((*path, name), one) for name, one in value.items()]
        elif isinstance(value, list):
            rest += [((*path, at), one) for at, one in enumerate(value)]


class _Lost(Exception):
    """The text is not what the scanner can follow."""


class _Scanner:
    """One pass over a text. `found` has the offset of each path, `again` what was defined twice."""

    def __init__(self, source: str) -> None:
        self._text = source.replace("\r\n", "\n")
        self._at = 0
        self._line_ends = [match.start() for match in re.finditer("\n", self._text)]
        self._items: dict[Path, int] = {}  # of each array of tables, the index of its newest
        self._implied: set[Path] = set()  # tables that only stand in the headers or dotted keys of others
        self.found: dict[Path, int] = {}
        self.again: list[tuple[Path, int, int, bool]] = []
        self.open: list[int] = []
        self.statements: list[int] = []
        self.is_whole = False

    def position(self, offset: int) -> Position:
        before = bisect_left(self._line_ends, offset)
        return Position(before + 1, offset - (self._line_ends[before - 1] if before else -1))

    def run(self) -> None:
        table: Path = ()
        while self._skipped(_BLANK_LINES) < len(self._text):
            self.statements.append(self._at)
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            if (end := _REST_OF_LINE.match(self._text, self._at)) is None:
                self._lost()
            self._at = end.end()
        self.is_whole = True

    # --- statements -------------------------------------------------------------------------------------------

    def _header(self) -> Path:
        start = self._at
        is_array = self._text.startswith("[[", start)
        self._at += 2 if is_array else 1
        *outer, (last, _) = self._key()
        self._expect("]]" if is_array else "]")
        path: Path = ()
        for name, _ in outer:
            path = self._entered((*path, name), start)
        path = (*path, last)
        if not is_array:
            self._defined(path, start)
            return path
        if path in self.found and path not in self._items:
            self.again.append((path, start, self.found[path], True))
        self.found.setdefault(path, start)
        self._items[path] = self._items.get(path, -1) + 1
        path = (*path, self._items[path])
        self.found[path] = start
        return path

    def _entered(self, path: Path, offset: int) -> Path:
        """The table that a header goes through: of an array, its newest."""
        if path in self._items:
            return (*path, self._items[path])
        if path not in self.found:
            self._implied.add(path)
            self.found[path] = offset
        return path

    def _defined(self, path: Path, offset: int) -> None:
        if path in self.found and path not in self._implied:
            self.again.append((path, self.found[path], offset, path in self._items))
            return
        self._implied.discard(path)
        self.found[path] = offset

    def _assignment(self, table: Path) -> None:
        *outer, (last, offset) = self._key()
        self._expect("=")
        path = table
        for name, where in outer:
            path = (*path, name)
            if path not in self.found:
                self._implied.add(path)
                self.found[path] = where
        path = (*path, last)
        self._defined(path, offset)
        self._skipped(_BLANK)
        self._value(path)

    def _key(self) -> list[tuple[str, int]]:
        """The parts of a key, each with its offset."""
        parts = []
        while True:
            self._skipped(_BLANK)
            parts.append(self._key_part())
            self._skipped(_BLANK)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _key_part(self) -> tuple[str, int]:
        start = self._at
        match = _KEY_PART.match(self._text, start)
        if match is None:
            self._lost()
        self._at = match.end()
        raw = match[0]
        return _unquoted(raw) if raw.startswith('"') else raw.strip("'"), start

    # --- values -----------------------------------------------------------------------------------------------

    def _value(self, path: Path) -> None:
        if self._text.startswith("[", self._at):
            self._array(path)
        elif self._text.startswith("{", self._at):
            self._inline_table(path)
        else:
            for kind in _VALUES:
                if match := kind.match(self._text, self._at):
                    self._at = match.end()
                    return
            self._lost()

    def _array(self, path: Path) -> None:
        self.open.append(self._at)
        self._at += 1
        number = 0
        while not self._closed("]"):
            item = (*path, number)
            self.found[item] = self._at
            self._value(item)
            number += 1
            self._separated("]")
        self.open.pop()

    def _inline_table(self, path: Path) -> None:
        self.open.append(self._at)
        self._at += 1
        while not self._closed("}"):
            self._assignment(path)
            self._separated("}")
        self.open.pop()

    def _closed(self, bracket: str) -> bool:
        """Whether this bracket comes next, which is then passed."""
        self._skipped(_BLANK_LINES)
        if not self._text.startswith(bracket, self._at):
            return False
        self._at += 1
        return True

    def _separated(self, bracket: str) -> None:
        """A comma is passed; a bracket that closes is left."""
        self._skipped(_BLANK_LINES)
        if self._text.startswith(",", self._at):
            self._at += 1
        elif not self._text.startswith(bracket, self._at):
            self._lost()

    # --- characters -------------------------------------------------------------------------------------------

    def _skipped(self, what: re.Pattern[str]) -> int:
        match = what.match(self._text, self._at)
        assert match is not None, "a pattern that may be empty always matches"
        self._at = match.end()
        return self._at

    def _expect(self, text: str) -> None:
        self._skipped(_BLANK)
        if not self._text.startswith(text, self._at):
            self._lost()
        self._at += len(text)

    def _lost(self) -> NoReturn:
        raise _Lost(f"at {self._at}")


def _unquoted(key: str) -> str:
    """What a basic string says."""
    try:
        return str(tomllib.loads(f"key = {key}")["key"])
    except tomllib.TOMLDecodeError:
        raise _Lost(key) from None
