"""TOML text to a document, or what is no TOML in it, and the rest all the same where that can be told.

The standard parser stops at the first mistake. So the line of each is taken
out and the rest is parsed again: what is left is read as if those lines were
there and right. Where a line could not be taken out without moving others to
another table, or the rest still is no TOML, there is no document.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, structs

from sidecar.config.keys import Complaint
from sidecar.config.positions import Position, positions_of, statement_at, unclosed, written_twice

_BYTE_ORDER_MARK: Final = "\ufeff"
_MISTAKES_MAX: Final = 50  # told of one file; each is one more parse
_TOML_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_INDEX: Final = re.compile(r"\[\d+\]")
_ASSIGNED: Final = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"\\]*"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_-]+)*)\s*(=?)""")
_HEADER_BEGINS: Final = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\s*([^,=]*)$")
_HEADER: Final = re.compile(r"""\s*\[\[?[A-Za-z0-9_."' -]+\]\]?\s*(?:#.*)?$""")
_ADVICE: Final = (  # how the parser's words begin, and what to write instead
    ("Invalid value", "write texts in quotes, numbers without, and true or false in small letters"),
    (
        "Expected newline",
        "write one key and one value on a line: texts in quotes, only _ between the digits of a number",
    ),
    ("Expected '=' after a key", "write: key = value"),
    ("Illegal character '\\n'", "close the text with a quote on the same line"),
    ("Illegal character", "write it as an escape, such as \\t"),
    ("Unclosed array", "close it with ], with commas between its items"),
    ("Unclosed inline table", "close it with }, on the same line, with commas between its members"),
    ("Unescaped '\\'", "write \\\\ for a backslash, or put the text in single quotes"),
    ("Unterminated string", "close the text with the quotes that it begins with"),
    ('Expected "\'"', "close the text with a single quote on the same line"),
    ('Expected \'"""\'', "close the text with three quotes"),
    ("Expected \"'''\"", "close the text with three single quotes"),
    ("Expected ']", "write a header as [table], or [[table]] for one of several"),
    ("Invalid initial character for a key", "write: key = value"),
    ("Invalid statement", "write [table], [[table]] or key = value"),
    ("Invalid date", "write a date as 2026-12-01"),
    ("Exceeds the limit", "write a number within its bounds"),
)
_VALUES: Final = (  # how a value begins that is none, and what to write instead; never the text itself
    (re.compile(r"0[0-7]+\b"), 'write it without zeros before it, or permissions as a text: "0660"'),
    (re.compile(r"[\d_]+(?:,\d{3})+"), "write a number without commas: 1_000_000"),
    (re.compile(r"true\b|false\b|yes\b|no\b|on\b|off\b", re.IGNORECASE), "write true or false, in small letters"),
    (re.compile(r"\$?\d[\d_.]*\s*[A-Za-z$%]"), "write the number alone; its unit is in the name of the key"),
    (re.compile("[\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb]"), 'write straight quotes: "..."'),
    (re.compile(r"[A-Za-z/~.$]"), 'write a text in quotes: "...", a number in digits'),
    (re.compile(r"(?:#|$)"), "write a value behind the ="),
)
_OF_SEVERAL: Final = ("caller", "operator", "connector", "model", "model.price")
_MIXED: Final = "is one table here, and one of several elsewhere"
_ADVICE_ELSE: Final = "write it as the example configuration does"


class Parsed(Struct, frozen=True):
    """`document` is None where none could be made; `mistakes` say what is no TOML.

    `taken_out` holds the paths of keys that had a mistake: they are in the text, and not in the document; with a dot
    at its end, of a table some of whose keys are. `source` is the text that the document was made of, line for line.
    """

    source: str
    document: dict[str, Any] | None
    mistakes: tuple[Complaint, ...] = ()
    taken_out: frozenset[str] = frozenset()


def parsed(source: str) -> Parsed:
    """What this text says as TOML."""
    lines = source.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n").split("\n")
    mistakes: list[Complaint] = []
    if source.startswith(_BYTE_ORDER_MARK):
        hint = "save the file as UTF-8 without it"
        mistakes.append(Complaint("the file", "is no TOML: it begins with a byte order mark", 1, hint, 1))
    taken_out: set[str] = set()
    while len(mistakes) < _MISTAKES_MAX:
        text = "\n".join(lines)
        try:
            return Parsed(text, tomllib.loads(text), tuple(mistakes), frozenset(taken_out))
        except RecursionError:
            what = Complaint("the file", "is nested too deeply", hint="write no more than a few brackets in each other")
            return Parsed(text, None, (*mistakes, what))
        except ValueError as error:  # a syntax error, or a number too long to be read
            mistake = _mistake(text, error)
        at = mistake.line
        if at is None or at in (one.line for one in mistakes if one.path != "the file"):
            return Parsed(text, None, tuple(mistakes[:1] or [mistake]))  # the rest may only follow from the first
        start, last = statement_at(text, at)
        first = start.line
        if last is None and at >= len(lines):  # the parser ran to the end in search of what closes it
            mistake = structs.replace(mistake, line=first, column=start.column)
            at = first
        is_twice = mistake.path != "the file"
        if at > first and last is None and (_is_assignment(lines[at - 1]) or _HEADER.match(lines[at - 1])):
            mistake, at = _unclosed(text, mistake), first  # the parser took the next key for an item
        if mistake.what == _MIXED:
            mistakes.append(mistake)
            lines[first - 1] = f"[[{_INDEX.sub('', mistake.path)}]]"
            continue
        if header := _HEADER_BEGINS.match(lines[first - 1]):
            mistakes.append(mistake if is_twice else structs.replace(mistake, path=header[2]))
            left_out = f"left out {len(mistakes)}"  # what follows a second header of a table is looked at no further
            taken_out |= {left_out, f"{mistake.path}."} if is_twice else set()
            lines[first - 1] = f'["{left_out}"]' if is_twice else _closed(header)
            continue
        path = _path_at(lines, first)
        mistakes.append(mistake if is_twice or path is None else structs.replace(mistake, path=path))
        if path is None:
            return Parsed(text, None, tuple(mistakes))
        taken_out |= set() if is_twice else {path}
        for number in range(first, last or _end(lines, at)):
            lines[number] = ""
        lines[first - 1] = ""
    return Parsed(source, None, tuple(mistakes))


def _end(lines: list[str], line: int) -> int:
    """The last line of what begins before or in this line and does not end: the next key or header is not of it."""
    rest = enumerate(lines[line:], start=line)
    return next((number for number, text in rest if _HEADER.match(text) or _is_assignment(text)), len(lines))


def _is_header(text: str, line: int) -> bool:
    return text.split("\n")[line - 1].lstrip().startswith("[")


def _is_assignment(text: str) -> bool:
    assigned = _ASSIGNED.match(text)
    return assigned is not None and assigned[2] == "="


def _closed(header: re.Match[str]) -> str:
    """The header that this line was hardly meant to be anything else than."""
    return f"[[{header[2]}]]" if header[1] == "[[" or "]]" in header[3] else f"[{header[2]}]"


def _mistake(text: str, error: ValueError) -> Complaint:
    what = str(error)
    place = _TOML_PLACE.search(what)
    what = what[: place.start()] if place else what
    position = _position(text, error, place)
    if what.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate")) and (
        twice := written_twice(text)
    ):
        position, header = twice.second, _INDEX.sub("", twice.path)
        if twice.is_mixed and header in _OF_SEVERAL and _is_header(text, position.line):
            hint = f"write [[{header}]], as on line {twice.first.line}"
            return Complaint(twice.path, _MIXED, position.line, hint, position.column)
        first, position = sorted((twice.first, twice.second))
        said = f"stands twice; first on line {first.line}"
        return Complaint(twice.path, said, position.line, "leave one of the two out", position.column)
    if what.startswith("Unclosed"):
        return _unclosed(
            text, Complaint("the file", f"is no TOML: {what}", position.line if position else None, _ADVICE_ELSE)
        )
    hint = next((advice for words, advice in _ADVICE if what.startswith(words)), _ADVICE_ELSE)
    if position and what.startswith(("Invalid value", "Expected newline", "Invalid date")):
        _, is_assigned, value = text.split("\n")[position.line - 1].partition("=")
        advice_of_value = (advice for begin, advice in _VALUES if is_assigned and begin.match(value.strip()))
        hint = next(advice_of_value, hint)
    line, column = (position.line, position.column) if position else (None, None)
    return Complaint("the file", f"is no TOML: {what}", line, hint, column)


def _unclosed(text: str, mistake: Complaint) -> Complaint:
    """The mistake at the bracket that is open where the parser stopped."""
    begin = unclosed(text)
    if begin is None:
        return mistake
    is_array = text.split("\n")[begin.line - 1][begin.column - 1 :].startswith("[")
    what = "Unclosed array" if is_array else "Unclosed inline table"
    hint = next(advice for words, advice in _ADVICE if what.startswith(words))
    return Complaint(mistake.path, f"is no TOML: {what}", begin.line, hint, begin.column)


def _position(text: str, error: ValueError, place: re.Match[str] | None) -> Position | None:
    """Where the parser stopped: in its words until Python 3.14, as attributes since."""
    line, column = getattr(error, "lineno", None), getattr(error, "colno", None)
    if isinstance(line, int) and isinstance(column, int):
        return Position(line, column)
    if place is None:
        return None
    if place[1] is not None:
        return Position(int(place[1]), int(place[2]))
    *before, last = text.split("\n")
    return Position(len(before) + 1, len(last) + 1)


def _path_at(lines: list[str], line: int) -> str | None:
    """The path of the key that this line assigns; None where it is no such line, or stands within a longer value."""
    assigned = _ASSIGNED.match(lines[line - 1])
    if assigned is None:
        return None
    until = "\n".join([*lines[: line - 1], f"{assigned[1]} = 0"])
    try:
        document: Mapping[str, Any] = tomllib.loads(until)
    except ValueError:
        if not (twice := written_twice(until)) or twice.second.line != line:
            return None
        return twice.path
    except RecursionError:
        return None
    at = [path for path, position in positions_of(until, document).items() if path and position.line == line]
    return at[-1] if at else None
