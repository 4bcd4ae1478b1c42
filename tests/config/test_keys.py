"""The readers of keys, the engine that reads a table, and the scanner that knows lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.instead import nearest
from sidecar.config.keys import (
    Complaint,
    Complaints,
    Key,
    choice,
    flag,
    list_of,
    located,
    mode,
    path_from,
    read_table,
    read_values,
    seconds,
    text,
    whole,
)
from sidecar.config.positions import Places, Position

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
        (choice("drop", "refuse"), "dorp", "must be one of drop, refuse"),
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
    complaints = Complaints()
    assert read_table(table, keys, "place", complaints) is None
    return [str(one) for one in complaints.all]


def test_a_table_is_read_with_its_defaults() -> None:
    complaints = Complaints()
    assert read_table({"needed": 3}, KEYS, "place", complaints) == {"needed": 3, "wanted": True, "named": None}
    assert complaints.all == []


def test_everything_that_is_wrong_with_a_table_is_said_at_once() -> None:
    assert told({"waned": True, "named": 7}) == [
        "place.waned: unknown key — did you mean wanted?",
        "place.needed: is missing — write: needed = ...",
        'place.named: must be a text that is not empty — write "7", in quotes',
    ]
    assert told([]) == ["place: must be a table — write it under a header: [place]"]


def test_what_is_right_in_a_broken_table_is_still_given() -> None:
    complaints = Complaints()
    assert read_values({"wanted": 5, "needed": 2}, KEYS, "place", complaints) == {"needed": 2, "named": None}
    assert len(complaints.all) == 1


def test_a_required_key_that_is_misspelt_is_one_fault() -> None:
    assert told({"neded": 3}) == ["place.neded: unknown key — did you mean needed?"]


def test_each_item_that_is_wrong_has_its_own_path() -> None:
    keys = (Key("needed", list_of(whole(0, 5))),)
    assert told({"needed": [1, 6, "4"]}, keys) == [
        "place.needed[1]: must be from 0 to 5, not 6 — write 5 or less",
        "place.needed[2]: must be a whole number — write 4, without quotes",
    ]


def test_a_name_like_no_other_is_answered_with_all_of_them_up_to_a_bound() -> None:
    assert nearest("zzz", ["beta", "alpha"]) == "known: alpha, beta"
    assert str(nearest("zzz", [f"model-{number}" for number in range(43)])).endswith("and 13 more")
    assert nearest("alhpa", ["beta", "alpha"]) == "did you mean alpha?"
    assert nearest("api_key", ["credential", "kind"]) == "did you mean credential?"
    assert nearest("zzz", []) is None


def test_a_complaint_is_one_line_with_place_path_fault_and_hint() -> None:
    whole_ = Complaint("daemon.socket", "is odd", 7, "try less", 3, "a.toml")
    assert str(whole_) == "a.toml:7:3: daemon.socket: is odd — try less"
    assert str(Complaint("daemon.socket", "is odd", 7, column=1)) == "7:1: daemon.socket: is odd"
    assert str(Complaint("daemon.socket", "is odd")) == "daemon.socket: is odd"
    assert str(Complaint("daemon.socket", "is odd", file="a.toml")) == "a.toml: daemon.socket: is odd"


def test_a_complaint_calls_a_table_by_its_name_and_finds_its_line_by_its_place() -> None:
    positions = {"": Position(1, 1), "caller": Position(3, 1), "caller[0]": Position(3, 1)}
    places = Places({**positions, "caller[0].models": Position(4, 2)}, {"caller[0]": 'caller "a.b"'}, "x.toml")
    complaints = Complaints(places)
    complaints.add("caller[0].models[1]", "is odd")
    complaints.add("caller[0].id", "is missing")
    complaints.add("ledger", "is missing")
    complaints.add("the file", "is odd")
    assert [str(one) for one in complaints.all] == [
        'x.toml:4:2: caller "a.b".models[1]: is odd',
        'x.toml:3:1: caller "a.b".id: is missing',
        "x.toml:1:1: ledger: is missing",
        "x.toml: the file: is odd",
    ]
    found = located(Complaint('caller "a.b".models', "is odd"), places)
    assert (found.line, found.column, found.path) == (4, 2, 'caller "a.b".models')
    assert located(Complaint('caller "other".models', "is odd"), places).line is None
    assert located(Complaint("x", "is odd"), Places()).line is None
