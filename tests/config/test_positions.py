"""Where things stand in a TOML text: always the very key, or nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from sidecar.config.positions import Position, Twice, path_text, positions_of, written_twice


def positions(source: str) -> dict[str, Position]:
    return positions_of(source, tomllib.loads(source))


PLAIN = """
top = 1
[daemon]  # with a remark
  socket = "s"   # = [[caller]]
[[caller]]
id = "a"
models = [
    "x[",  # ] ]
\t'y]]',
]
window = 5
[[caller]]
id = "b"
[[model]]
[[model.price]]
input = 1
[[model.price]]
input = 2
[[model]]
[[model.price]]
input = 3
[model.more]
key = 4
"quoted \\u0041.b" = { inner = 1, deep = { "é" = [1, { x = 2 }] } } # {
'it''s' = 1
""".replace("'it''s'", "'its'")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_positions_are_known_for_tables_keys_and_items(newline: str) -> None:
    found = positions(PLAIN.replace("\n", newline))
    lines = PLAIN.split("\n")
    for path, there in {
        "top": "top = 1",
        "daemon": "[daemon]",
        "daemon.socket": 'socket = "s"',
        "caller": "[[caller]]",
        "caller[0]": "[[caller]]",
        "caller[0].id": 'id = "a"',
        "caller[0].models[0]": '"x["',
        "caller[0].models[1]": "'y]]'",
        "caller[0].window": "window = 5",
        "caller[1].id": 'id = "b"',
        "model[0].price[1].input": "input = 2",
        "model[1].price[0].input": "input = 3",
        "model[1].more.key": "key = 4",
        "model[1].more.quoted A.b": '"quoted \\u0041.b"',
        "model[1].more.quoted A.b.deep": "deep",
        "model[1].more.quoted A.b.deep.é": '"é"',
        "model[1].more.quoted A.b.deep.é[1]": "{ x = 2 }",
        "model[1].more.quoted A.b.deep.é[1].x": "x = 2",
        "model[1].more.its": "'its'",
    }.items():
        at = found[path]
        assert lines[at.line - 1][at.column - 1 :].startswith(there), path
    assert found[""] == Position(1, 1)


STRINGS = [
    '"""\n[[caller]]\nid = 1\n"""',
    "'''\n[[caller]]\nid = 1\n'''",
    '""""quoted" \\""""',
    '"""a""""',
    '"""a"""""',
    "''''a'''''",
    '"""\\\n  a"""',
    '"""\\\\"""',
    '"\\\\"',
    "'\\'",
    '""',
    "''",
    '""""""',
    "''''''",
    '"# \\" ["',
]


@pytest.mark.parametrize("value", STRINGS)
@pytest.mark.parametrize("form", ["a = {}\nb = 1\n", "a = [{}, 5] # ]\nb = 1", "a = {{ x = {}, y = 2 }}\nb = 1"])
def test_no_text_leads_the_scanner_astray(value: str, form: str) -> None:
    source = form.format(value)
    at = positions(source)["b"]
    assert (source.split("\n")[at.line - 1], at.column) == ("b = 1", 1)


def test_a_line_is_what_an_editor_counts_and_a_column_counts_characters() -> None:
    assert positions("# one\u2028two\x85three\na = 1\n")["a"] == Position(2, 1)
    assert positions('a = { "🎲é" = 1, b = 2 }')["a.b"] == Position(1, 17)


def test_a_path_that_two_keys_could_be_meant_by_has_no_position() -> None:
    found = positions('"a.b" = 1\na = { b = 2, c = 3 }\n')
    assert "a.b" not in found
    assert found["a.c"] == Position(2, 14)
    three = positions('"a.b.c" = 1\n"a.b" = { c = 2 }\n[a]\nb = { c = 3 }\n')
    assert "a.b" not in three
    assert "a.b.c" not in three


def test_a_text_that_is_not_the_document_s_has_no_positions() -> None:
    assert positions_of("a = 1\nb = 2\n", {"a": 1}) == {}
    assert positions_of("a = 1\n", {"a": 1, "b": 2}) == {}
    assert positions_of("a = [1]\n", {"a": [1, 2]}) == {}
    assert positions_of("a = \n", {"a": 1}) == {}


def test_dates_and_numbers_are_passed_whole() -> None:
    source = "a = [2026-12-01 10:00:00, 2026-12-01, -inf, 1_000, 0x1f, 1e-3,]\nb = 2026-12-01 10:00:00Z # x\nc = 1"
    found = positions(source)
    assert found["a[1]"] == Position(1, 27)
    assert found["a[5]"] == Position(1, 58)
    assert found["c"] == Position(3, 1)


@pytest.mark.parametrize(
    ("source", "twice"),
    [
        ("a = 1\nb = 2\na = [\n3]\n", Twice("a", Position(1, 1), Position(3, 1))),
        ("[t]\nx = 1\n\n[t]\ny = 1\n", Twice("t", Position(1, 1), Position(4, 1))),
        ("[t]\nx = 1\nx = {\n", Twice("t.x", Position(2, 1), Position(3, 1))),
        ("a = { b = 1, b = 2 }", Twice("a.b", Position(1, 7), Position(1, 14))),
        ("a.b = 1\na.b = 2", Twice("a.b", Position(1, 3), Position(2, 3))),
        ("[a.b]\n[a]\n[[c]]\nx = 1\n[[c]]\nx = 1\n", None),
    ],
)
def test_what_is_written_twice_is_found_at_its_second_place(source: str, twice: Twice | None) -> None:
    assert written_twice(source) == twice


def test_the_example_is_followed() -> None:
    source = (Path(__file__).resolve().parents[2] / "config.example.toml").read_text()
    whole = source.replace("\n#", "\n")
    assert positions(source)["caller[0].models[0]"].column == 11
    assert len(whole) < len(source)


# --- any document in any spelling -------------------------------------------------------------------------------
# Each key is unique in its document, so the text at its position shows whether it is the very key.

SCALARS = st.sampled_from(["1", "-1_000", "0.5", "true", "inf", "2026-12-01", "2026-12-01 01:02:03", *STRINGS])
NAME = st.sampled_from(["alpha", "be-ta", "g_3", "dé", "e f", "x.y", "", 'q"', "#", "[", "=", "1"])
KEYS_QUOTED: tuple[Callable[[str], str], ...] = (
    lambda name: name,
    lambda name: '"' + name.replace('"', '\\"') + '"',
    lambda name: f"'{name}'",
)
GAP = st.sampled_from(["", " ", "\t", "  "])
LINE_GAP = st.sampled_from(["", " ", "\n", "\n\t# é ] } ,\n  "])


class Spelling:
    """A document and its text, drawn together: `where` has the spelling that must stand at each path."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.where: dict[tuple[str | int, ...], str] = {}
        self.count = 0

    def name(self) -> tuple[str, str]:
        self.count += 1
        name = f"{self.draw(NAME)}_{self.count}"  # whatever is drawn, no two are the same
        is_bare = name.isascii() and all(c.isalnum() or c in "_-" for c in name)
        quoted = self.draw(st.sampled_from(KEYS_QUOTED if is_bare else KEYS_QUOTED[1:]))
        return name, quoted(name)

    def assignment(self, path: tuple[str | int, ...], depth: int) -> str:
        spelt = []
        for _ in range(self.draw(st.integers(1, 2))):
            name, key = self.name()
            path = (*path, name)
            self.where[path] = key
            spelt.append(key)
        dot = self.draw(GAP) + "." + self.draw(GAP)
        value = self.value(path, depth)
        return f"{dot.join(spelt)}{self.draw(GAP)}={self.draw(GAP)}{value}"

    def value(self, path: tuple[str | int, ...], depth: int) -> str:
        form = self.draw(st.sampled_from(["scalar", "array", "table"] if depth else ["scalar"]))
        if form == "scalar":
            return str(self.draw(SCALARS))
        count = self.draw(st.integers(0, 3))
        if form == "array":
            items = []
            for at in range(count):
                items.append(self.value((*path, at), depth - 1))
                self.where[*path, at] = items[-1]
            gap = self.draw(LINE_GAP)
            comma = "," if items and self.draw(st.booleans()) else ""
            return f"[{gap}{f'{gap},{gap}'.join(items)}{gap}{comma}{gap}]"
        gap = self.draw(GAP)
        inner = f"{gap},{gap}".join(self.assignment(path, depth - 1) for _ in range(count))
        return f"{{{gap}{inner}{gap}}}"

    def table(self, arrays: dict[str, int]) -> str:
        kind = self.draw(st.sampled_from(["[{}]", "[ {} ]", "[[{}]]"]))
        if kind == "[[{}]]":
            name = self.draw(st.sampled_from(["list", '"list"', "other"]))
            array = name.strip('"')
            arrays[array] = arrays.get(array, -1) + 1
            path: tuple[str | int, ...] = (array, arrays[array])
            key = name
            if self.draw(st.booleans()):  # a table of the newest item, which is made by it
                sub, spelt = self.name()
                self.where[path] = header = f"[[{key}]]"
                path, key, kind = (*path, sub), f"{key} . {spelt}", "[{}]"
                self.where[path] = f"[{key}]"
                return f"{header}\n{self.body(f'[{key}]', path)}"
        else:
            sub, key = self.name()
            path = (sub,)
        header = kind.format(key)
        self.where[path] = header
        return self.body(header, path)

    def body(self, header: str, path: tuple[str | int, ...]) -> str:
        lines = [self.draw(GAP) + header + self.draw(st.sampled_from(["", "  # [x]"]))]
        lines += [self.draw(GAP) + self.assignment(path, 2) for _ in range(self.draw(st.integers(0, 3)))]
        return "\n".join(lines)


@given(st.data())
def test_each_position_points_at_the_very_key_in_any_spelling(drawing: st.DataObject) -> None:
    spelling, arrays = Spelling(drawing.draw), dict[str, int]()
    parts = [spelling.assignment((), 2) for _ in range(drawing.draw(st.integers(0, 3)))]
    parts += [spelling.table(arrays) for _ in range(drawing.draw(st.integers(0, 4)))]
    source = "\n".join(parts)
    crlf = drawing.draw(st.booleans())
    try:
        found = positions(source.replace("\n", "\r\n") if crlf else source)
    except tomllib.TOMLDecodeError:
        reject()  # a table of one that was written in braces, say
    assert found, "the scanner follows whatever the parser does"
    lines = source.split("\n")
    told = [path_text(path) for path in spelling.where]
    for path, there in spelling.where.items():
        said = path_text(path)
        if told.count(said) == 1:
            at = found[said]
            rest = "\n".join([lines[at.line - 1][at.column - 1 :], *lines[at.line :]])
            assert rest.startswith(there), path
