"""Live pieces and the result: whatever part of them came, and however fast they are read, they add up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.daemon_says import call_event, text_event

from sidecar.client.errors import NotADaemon
from sidecar.client.pieces import LiveRun, Telling
from sidecar.contract.values import TextDelta, TransportEvent

texts = st.text("abé☃\U0001f409", min_size=1, max_size=12)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[TransportEvent], list[TransportEvent]]:
    """A result's events, and the same as they would all come live: texts in pieces."""
    whole: list[TransportEvent] = []
    live: list[TransportEvent] = []
    for sequence in range(draw(st.integers(0, 5))):
        if draw(st.booleans()) and not (whole and isinstance(whole[-1].payload.chosen, TextDelta)):
            text = draw(texts)
            whole.append(text_event(text, sequence))
            cuts = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)) - {len(text)})
            edges = [0, *cuts, len(text)]
            live += [text_event(text[start:end], sequence) for start, end in pairwise(edges)]
        else:
            whole.append(call_event(f"tool{sequence}", sequence))
            live.append(whole[-1])
    return whole, live


def joined(told: list[TransportEvent]) -> list[tuple[int, Any]]:
    """The told pieces as the result has them."""
    whole: list[tuple[int, Any]] = []
    for event in told:
        payload = event.payload.chosen
        if isinstance(payload, TextDelta) and whole and whole[-1][0] == event.sequence:
            whole[-1] = (event.sequence, whole[-1][1] + payload.text)
        else:
            whole.append((event.sequence, payload.text if isinstance(payload, TextDelta) else payload))
    return whole


@given(answers(), st.data())
def test_what_is_told_adds_up_to_the_result(
    answer: tuple[list[TransportEvent], list[TransportEvent]], data: st.DataObject
) -> None:
    """Live events come as one run that may end anywhere, or be cut, and are read now or later or not at all."""
    whole, live = answer
    run = LiveRun(unread_bytes_max=data.draw(st.integers(0, 60)))
    telling = Telling(run)
    told: list[TransportEvent] = []
    for event in live[: data.draw(st.integers(0, len(live)))]:
        run.offer(event, 10)
        if data.draw(st.booleans()):
            told += [read for read in [telling.next_live()] if read is not None]
        if data.draw(st.integers(0, 9)) == 0:
            run.end()
    while (read := telling.next_live()) is not None:
        told.append(read)
    told += telling.rest(tuple(whole))
    assert joined(told) == joined(whole)


@given(answers(), st.data())
def test_a_gap_between_events_ends_the_run_and_loses_nothing(
    answer: tuple[list[TransportEvent], list[TransportEvent]], data: st.DataObject
) -> None:
    whole, live = answer
    missing = data.draw(st.integers(0, 5))
    run = LiveRun(unread_bytes_max=10_000)
    telling = Telling(run)
    for event in live:
        if event.sequence != missing:
            run.offer(event, 10)
    told: list[TransportEvent] = []
    while (read := telling.next_live()) is not None:
        told.append(read)
    told += telling.rest(tuple(whole))
    assert joined(told) == joined(whole)


@given(st.lists(st.integers(1, 50)), st.integers(1, 100))
def test_never_more_is_unread_than_the_bound(lengths: list[int], unread_bytes_max: int) -> None:
    run = LiveRun(unread_bytes_max)
    for length_bytes in lengths:
        run.offer(text_event("x"), length_bytes)
        assert sum(queued for _, queued in run._unread) <= unread_bytes_max


@pytest.mark.parametrize(
    "live",
    [
        [text_event("he"), call_event("look", 1)],
        [text_event("hello"), call_event("other", 1)],
        [text_event("hello"), call_event("look", 1), text_event("more than there is", 2)],
        [call_event("look", 0)],
    ],
    ids=["a_text_without_its_end", "another_call", "too_much", "another_kind"],
)
def test_what_is_no_beginning_of_the_result_is_told_as_that(live: list[TransportEvent]) -> None:
    run = LiveRun(unread_bytes_max=10_000)
    telling = Telling(run)
    for event in live:
        run.offer(event, 10)
        assert telling.next_live() is event
    with pytest.raises(NotADaemon):
        telling.rest((text_event("hello"), call_event("look", 1)))


@given(st.integers(1, 3), st.integers(0, 2))
def test_a_join_in_mid_text_is_told_as_that_and_goes_on_with_what_follows(start: int, cut: int) -> None:
    run = LiveRun(unread_bytes_max=10_000)
    telling = Telling(run)
    run.offer(text_event("goblin"[start : 6 - cut]), 10)
    while telling.next_live() is not None:
        pass
    look = call_event("look", 1)
    assert telling.rest((text_event("goblin"), look)) == [look]
    assert not telling.is_whole
