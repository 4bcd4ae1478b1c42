"""Calls from their pieces: what a hostile number of pieces costs, counted in steps and not in seconds."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from sidecar.connectors.tool_calls import CALLS_MAX, PIECES_MAX, BrokenCall, CallPieces

PIECES = 1_000


def named(arguments: str | None = None) -> dict[str, Any]:
    return {"function": {"name": "a", "arguments": arguments}}


def joins_and_lines(pieces: CallPieces, more: list[dict[str, Any]]) -> tuple[int, int]:
    """How often texts were joined, and how many lines of Python ran, while these pieces were taken."""
    joins = lines = 0

    def heard(_frame: object, event: str, called: Any) -> None:
        nonlocal joins
        joins += event == "c_call" and called.__name__ == "join"

    def traced(_frame: object, event: str, _said: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced

    profile, trace = sys.getprofile(), sys.gettrace()
    sys.setprofile(heard)
    sys.settrace(traced)
    try:
        for piece in more:
            pieces.take(piece)
    finally:
        sys.settrace(trace)
        sys.setprofile(profile)
    return joins, lines


@pytest.mark.parametrize("begun", [["x" * 5_000, " " * 5_000], ["x}", "y" * 5_000], ['{"a":', "}"], []])
def test_a_named_piece_joins_what_came_a_few_times_only(begun: list[str]) -> None:
    pieces = CallPieces(1_000_000)
    for arguments in begun:
        pieces.take({"function": {"arguments": arguments}})
    joins, _ = joins_and_lines(pieces, [named()] * PIECES)
    assert joins < 50


def test_a_named_piece_behind_blanks_of_any_number_begins_a_call_if_the_last_is_whole() -> None:
    pieces = CallPieces(1_000)
    for piece in (named('{"n":1}'), *[{"function": {"arguments": " "}}] * 5, named('{"n":2}')):
        pieces.take(piece)
    assert [call.arguments for call in pieces.whole()] == ['{"n":1}', '{"n":2}']


def test_a_piece_finds_its_call_by_its_id_without_looking_through_all_of_them() -> None:
    pieces = CallPieces(1_000)
    for at in range(CALLS_MAX):
        pieces.take({"id": f"c{at}"})
    _, lines = joins_and_lines(pieces, [{"id": f"c{CALLS_MAX - 1}"}] * PIECES)
    assert lines < 50 * PIECES


def test_an_id_means_the_first_call_that_has_it() -> None:
    pieces = CallPieces(1_000)
    for piece in (
        {"index": 0, "id": "a", "function": {"name": "first"}},
        {"index": 1, "id": "a", "function": {"name": "second"}},
        {"id": "a", "function": {"arguments": '{"n":1}'}},
    ):
        pieces.take(piece)
    assert [(call.name, call.arguments) for call in pieces.whole()] == [("first", '{"n":1}'), ("second", "{}")]


def test_the_pieces_of_one_event_are_bounded() -> None:
    pieces = CallPieces(1_000)
    pieces.take_all([{"index": 0, "function": {"name": "a"}}, None, 7] + [None] * (PIECES_MAX - 3))
    with pytest.raises(BrokenCall, match="pieces"):
        pieces.take_all([{"index": 0}] * (PIECES_MAX + 1))
    assert [call.name for call in pieces.whole()] == ["a"]
