"""A secret never shows, however the text that holds it is cut; everything else does, and in its place."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.hiding import Hiding
from sidecar.connectors.messages import SHOWN
from sidecar.connectors.promise import Answer
from sidecar.contract.values import TransportEventPayload

SECRETS = st.text("ab", min_size=1, max_size=6)
PIECES = st.lists(st.text("abc", max_size=5), max_size=12)
KEY = "sk-abcabcabd"


@given(SECRETS, PIECES)
def test_the_pieces_add_up_to_the_whole_with_the_secret_replaced(secret: str, pieces: list[str]) -> None:
    hiding = Hiding(secret, "*")
    shown = [hiding.shown(piece) for piece in pieces]
    assert "".join([*shown, hiding.rest()]) == "".join(pieces).replace(secret, "*")


@given(SECRETS, PIECES)
def test_no_more_is_held_back_than_could_begin_the_secret(secret: str, pieces: list[str]) -> None:
    hiding = Hiding(secret, "*")
    shown = "".join([hiding.shown(piece) for piece in pieces])
    assert secret.startswith("".join(pieces).replace(secret, "*").removeprefix(shown))


def heard_of(said: str, cuts: list[int], *, listens_after: int = 0) -> tuple[list[tuple[int, str]], str]:
    """What was heard live of a text cut in pieces, and the joined text."""
    heard: list[tuple[int, str]] = []

    def hear(sequence: int, payload: TransportEventPayload) -> None:
        heard.append((sequence, payload.text_delta.text if payload.text_delta else "-"))

    answer = Answer(frozenset(), 10_000)
    answer.hide(KEY)
    edges = [0, *sorted(cuts), len(said)]
    for at, (start, end) in enumerate(pairwise(edges)):
        if at == listens_after:
            answer.listen(hear)
        answer.text(said[start:end])
    if len(edges) - 1 <= listens_after:
        answer.listen(hear)
    answer.tool_call("call_1", "look", "{}")
    answer.text("so")
    answer.complete("end_turn", None)
    first = answer.events()[0].text_delta
    return heard, first.text if first else ""


@given(st.lists(st.integers(0, 40), max_size=6))
def test_what_is_heard_live_adds_up_to_the_event_and_never_holds_the_key(cuts: list[int]) -> None:
    said = f"the key {KEY} is not sk-abcabcab"
    heard, joined = heard_of(said, [cut for cut in cuts if cut <= len(said)])
    assert joined == said.replace(KEY, SHOWN)
    assert "".join(text for sequence, text in heard if sequence == 0) == joined
    assert heard[-2:] == [(1, "-"), (2, "so")]


@given(st.lists(st.integers(0, 40), max_size=6), st.integers(0, 7))
def test_who_listens_late_hears_no_end_of_a_key_whose_beginning_has_passed(cuts: list[int], after: int) -> None:
    said = f"the key {KEY} is secret"
    heard, joined = heard_of(said, [cut for cut in cuts if cut <= len(said)], listens_after=after)
    late = "".join(text for sequence, text in heard if sequence == 0)
    assert joined.endswith(late)
    assert not any(KEY[at:] in late for at in range(1, len(KEY) - 3))


def test_who_listens_behind_a_key_whose_end_is_its_beginning_hears_nothing_of_it() -> None:
    heard: list[str] = []
    answer = Answer(frozenset(), 10_000)
    answer.hide("abcd-12-abcd")
    answer.text("key abcd-12-abcd")
    answer.listen(lambda _, payload: heard.append(payload.text_delta.text if payload.text_delta else "-"))
    answer.text(" and more")
    answer.complete("end_turn", None)
    assert heard == [" and more"]
