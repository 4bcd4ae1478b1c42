"""The readers of keys, the engine that reads a table, and the scanner that knows lines."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.keys import (
    Complaint,
    Complaints,
    Key,
    choice,
    flag,
    lines_of,
    list_of,
    mode,
    nearest,
    path_from,
    read_table,
    read_values,
    seconds,
    text,
    whole,
)

HUGE = 1 << 20_000  # more digits than Python is willing to print


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (text, "a b", "a b"),
        (flag, False, False),
        (whole(1, 9), 9, 9),
        (whole(0, 0), 0, 0),
        (seconds(0, 9), 0.5, 0.5),
        (seconds(0, 9), 9, 9),
        (choice("drop", "refuse"), "drop", "drop"),
        (mode, "0660", 0o660),
        (mode, "600", 0o600),
        (path_from(Path("/etc/game")), "run/s.sock", Path("/etc/game/run/s.sock")),
        (path_from(Path("/etc/game")), "/run/s.sock", Path("/run/s.sock")),
        (list_of(text), ["a", "b"], ("a", "b")),
    ],
)
def test_a_reader_takes_what_its_key_means(read: Any, value: Any, expected: Any) -> None:
    assert read(value) == expected


@pytest.mark.parametrize(
    ("read", "value", "what"),
    [
        (text, "", "must be a text that is not empty"),
        (text, 5, "must be a text that is not empty"),
        (flag, 1, "must be true or false"),
        (flag, "true", "must be true or false"),
        (whole(1, 9), True, "must be a whole number"),
        (whole(1, 9), 1.0, "must be a whole number"),
        (whole(1, 9), "1", "must be a whole number"),
        (whole(1, 9), 10, "must be from 1 to 9, not 10"),
        (whole(1, 9), -HUGE, "must be from 1 to 9, not a number of 20001 bits"),
        (seconds(0, 9), True, "must be a number of seconds"),
        (seconds(0, 9), math.nan, "must be from 0 to 9 seconds, not nan"),
        (seconds(0, 9), math.inf, "must be from 0 to 9 seconds, not inf"),
        (seconds(0, 9), HUGE, "must be from 0 to 9 seconds, not a number of 20001 bits"),
        (choice("drop", "refuse"), "dorp", "must be one of drop, refuse; did you mean drop?"),
        (choice("drop", "refuse"), "zzz", "must be one of drop, refuse"),
        (choice("drop", "refuse"), ["drop"], "must be one of drop, refuse"),
        (mode, 660, 'must be permissions as an octal text, such as "0660"'),
        (mode, "0888", 'must be permissions as an octal text, such as "0660"'),
        (mode, "4755", 'must be permissions as an octal text, such as "0660"'),
        (path_from(Path("/")), "a\0b", "must be a path, which holds no NUL character"),
        (list_of(text), "ab", "must be an array"),
        (list_of(whole(0, 5)), [1, 6, True], "item [1] must be from 0 to 5, not 6; item [2] must be a whole number"),
    ],
    ids=lambda value: "huge" if isinstance(value, int) and value.bit_length() > 64 else None,
)
def test_a_reader_says_what_is_wrong(read: Any, value: Any, what: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  # the whole text is compared
        read(value)
    assert str(raised.value) == what


KEYS = (Key("needed", whole(1, 9)), Key("wanted", flag, default=True), Key("named", text, None))


def told(table: Any, keys: tuple[Key, ...] = KEYS) -> list[str]:
    complaints = Complaints({})
    assert read_table(table, keys, "place", complaints) is None
    return [str(one) for one in complaints.all]


def test_a_table_is_read_with_its_defaults() -> None:
    complaints = Complaints({})
    assert read_table({"needed": 3}, KEYS, "place", complaints) == {"needed": 3, "wanted": True, "named": None}
    assert complaints.all == []


def test_everything_that_is_wrong_with_a_table_is_said_at_once() -> None:
    assert told({"waned": True, "named": 7}) == [
        "place.waned: unknown key (did you mean wanted?)",
        "place: needed is missing",
        "place.named: must be a text that is not empty",
    ]
    assert told([]) == ["place: must be a table"]


def test_what_is_right_in_a_broken_table_is_still_given() -> None:
    complaints = Complaints({})
    assert read_values({"wanted": 5, "needed": 2}, KEYS, "place", complaints) == {"needed": 2, "named": None}
    assert len(complaints.all) == 1


def test_a_name_like_no_other_is_answered_with_all_of_them_unless_they_are_many() -> None:
    assert nearest("zzz", ["beta", "alpha"]) == "known: alpha, beta"
    assert nearest("zzz", [f"model-{number}" for number in range(13)]) is None
    assert nearest("alhpa", ["beta", "alpha"]) == "did you mean alpha?"


def test_a_complaint_is_one_line_with_place_fault_and_hint() -> None:
    assert str(Complaint("daemon.socket", "is odd", 7, "try less")) == "line 7: daemon.socket: is odd (try less)"
    assert str(Complaint("daemon.socket", "is odd")) == "daemon.socket: is odd"


def test_a_complaint_calls_a_table_by_its_name_and_finds_its_line_by_its_place() -> None:
    complaints = Complaints({"caller[0].models": 4}, {"caller[0]": 'caller "dungeon"'})
    complaints.add("caller[0].models[1]", "is odd")
    complaints.add("caller[1].models", "is odd")
    assert [str(one) for one in complaints.all] == [
        'line 4: caller "dungeon".models[1]: is odd',
        "caller[1].models: is odd",
    ]


PLAIN = """
top = 1
[daemon]  # with a remark
socket = "s"   # = [[caller]]
[[caller]]
id = "a"
models = [
    "x[",  # ] ]
    'y]]',
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
"""


def test_lines_are_known_for_what_stands_plainly() -> None:
    lines = lines_of(PLAIN)
    said = PLAIN.split("\n")
    for path, expected in {
        "top": "top = 1",
        "daemon": "[daemon]  # with a remark",
        "daemon.socket": 'socket = "s"   # = [[caller]]',
        "caller[0].id": 'id = "a"',
        "caller[0].window": "window = 5",
        "caller[1].id": 'id = "b"',
        "model[0].price[1].input": "input = 2",
        "model[1].price[0].input": "input = 3",
        "model[1].more.key": "key = 4",
    }.items():
        assert said[lines[path] - 1] == expected, path


@pytest.mark.parametrize(
    "source",
    [
        'a = """\n[[caller]]\nid = 1\n"""\n[[caller]]\nid = 2\n',
        "a = '''\n[[caller]]\nid = 1\n'''\n[[caller]]\nid = 2\n",
        '[["caller"]]\nid = 1\n[[caller]]\nid = 2\n',
    ],
)
def test_no_line_is_told_where_the_scanner_could_be_led_astray(source: str) -> None:
    assert lines_of(source) == {}


def test_a_line_is_what_an_editor_counts() -> None:
    assert lines_of("# one\u2028two\x85three\na = 1\n")["a"] == 2


NAMES = st.sampled_from(["alpha", "beta", "gamma"])
VALUES = st.sampled_from(
    ["1", '"[["', "'] ]'", '"# \\" ["', "[1, 2]", '[\n  "]",\n  [1],\n]', "{ x = [1] }", '[{ x = "[" }, # ]\n]', "true"]
)


@given(st.lists(st.tuples(st.sampled_from(["[t{}]", "[[l]]", "[[l.m]]"]), st.dictionaries(NAMES, VALUES)), max_size=8))
def test_a_line_that_is_told_holds_the_very_key(tables: list[tuple[str, dict[str, str]]]) -> None:
    """Every value is unique to its place, so the line's own text shows whether it was the right one."""
    source = "[[l]]\n"
    for number, (header, members) in enumerate(tables):
        source += header.format(number) + "\n"
        for name, value in members.items():
            source += f"mark_{name}_{number} = 0\n{name} = {value}\n"
    document = tomllib.loads(source)
    said = source.split("\n")
    for path, line in lines_of(source).items():
        leaf = path.rpartition(".")[2]
        assert leaf.partition("[")[0] in said[line - 1]
        if leaf.startswith("mark_"):
            assert _at(document, path.rpartition(".")[0])[leaf] == 0
            assert said[line - 1] == f"{leaf} = 0"


def _at(document: Any, path: str) -> Any:
    for step in path.split("."):
        name, _, index = step.partition("[")
        document = document[name]
        if index:
            document = document[int(index.rstrip("]"))]
    return document
