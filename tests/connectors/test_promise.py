"""The Answer: events in order, ids that are usable, one end that stands, and a bound on all of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.promise import Answer, Ended, ResponseTooLarge
from sidecar.contract.ids import is_id
from sidecar.contract.values import NOTHING_USED, Usage

USED = Usage(input_tokens=1, cache_read_tokens=0, cache_write_tokens=0, output_tokens=1)


def kinds_of(answer: Answer) -> list[str]:
    return ["text" if event.text_delta else "call" if event.tool_call else "state" for event in answer.events()]


def test_neighbouring_text_is_one_event_and_empty_text_is_none() -> None:
    answer = Answer(frozenset(), 1000)
    for piece in ("", "a", "", "b"):
        answer.text(piece)
    answer.tool_call("c1", "look", "")
    answer.text("")
    answer.reasoning_state(b"s")
    answer.text("c")
    assert kinds_of(answer) == ["text", "call", "state", "text"]
    assert answer.events() == answer.events()
    first, call = answer.events()[:2]
    assert first.text_delta
    assert call.tool_call
    assert (first.text_delta.text, call.tool_call.arguments) == ("ab", "{}")


@given(
    st.lists(st.sampled_from(["", "c1", "c2", "two words", "é", "x" * 257, "old"]) | st.text(max_size=4), max_size=12)
)
def test_every_call_id_is_usable_and_stands_once(said: list[str]) -> None:
    answer = Answer(frozenset({"old"}), 100_000)
    for call_id in said:
        answer.tool_call(call_id, "look", "{}")
    ids = [event.tool_call.call_id for event in answer.events() if event.tool_call]
    assert len(set(ids) | {"old"}) == len(said) + 1
    assert all(is_id(call_id) for call_id in ids)
    assert (answer.notes == ["call_id_replaced"]) == (ids != said)


def test_the_first_end_stands_and_nothing_comes_behind_it() -> None:
    answer = Answer(frozenset(), 1000)
    answer.sent = True
    answer.text("a")
    answer.complete("end_turn", USED, "id")
    answer.fail("timeout", "late")
    answer.text("b")
    answer.tool_call("c", "look", "{}")
    answer.reasoning_state(b"s")
    assert answer.ended == Ended(stop_reason="end_turn", usage=USED, provider_response_id="id")
    assert kinds_of(answer) == ["text"]


@pytest.mark.parametrize(
    ("sent", "said", "usage"), [(False, None, NOTHING_USED), (True, None, None), (True, USED, USED)]
)
def test_a_failure_costs_nothing_before_sending_and_what_is_not_known_after_it(
    sent: bool, said: Usage | None, usage: Usage | None
) -> None:
    answer = Answer(frozenset(), 1000)
    answer.sent = sent
    answer.fail("unavailable", "gone", said)
    assert answer.ended is not None
    assert answer.ended.usage == usage


def test_the_bound_counts_bytes_of_text_of_calls_and_of_states() -> None:
    for fill in (
        lambda a: a.text("é" * 5),
        lambda a: a.tool_call("c1", "look", "{}??"),
        lambda a: a.reasoning_state(bytes(10)),
    ):
        at_bound, above = Answer(frozenset(), 10), Answer(frozenset(), 9)
        fill(at_bound)
        assert at_bound.ended is None
        with pytest.raises(ResponseTooLarge):
            fill(above)
        assert above.ended is not None
        assert above.ended.kind == "result_size"


def test_a_credential_that_the_provider_says_stands_in_no_event_also_where_it_came_in_pieces() -> None:
    heard: list[str] = []
    answer = Answer(frozenset(), 1000, on_event=lambda _, payload: heard.append(repr(payload)))
    answer.hide("sk-canary-123")
    for piece in ("your key is sk-can", "ary-123, keep it; sk-canary-123!"):
        answer.text(piece)
    answer.tool_call("sk-canary-123", "look", '{"key":"sk-canary-123"}')
    answer.reasoning_state(b'{"text":"sk-canary-123"}')
    answer.complete("end_turn", USED)
    text, call, state = answer.events()
    assert text.text_delta
    assert text.text_delta.text == "your key is <credential>, keep it; <credential>!"
    assert call.tool_call
    assert (call.tool_call.call_id, call.tool_call.arguments) == ("<credential>", '{"key":"<credential>"}')
    assert state.reasoning_state
    assert state.reasoning_state.state == b'{"text":"<credential>"}'
    assert not any("sk-canary-123" in said for said in heard)


def test_a_credential_that_could_be_a_word_changes_no_answer() -> None:
    answer = Answer(frozenset(), 1000)
    answer.hide("key")
    answer.text("the key is under the mat")
    assert answer.events()[0].text_delta
    assert answer.events()[0].text_delta.text == "the key is under the mat"


def test_whoever_overhears_an_answer_hears_all_of_it_whoever_listens_besides() -> None:
    heard: list[tuple[int, object]] = []
    overheard: list[tuple[int, object]] = []
    answer = Answer(frozenset(), 1000)
    answer.overhear(lambda sequence, payload: overheard.append((sequence, payload)))
    answer.text("one ")
    answer.listen(lambda sequence, payload: heard.append((sequence, payload)))
    answer.texts(["two ", "three"])
    answer.tool_call("c1", "look", "")
    assert [sequence for sequence, _ in overheard] == [0, 0, 0, 1]
    assert heard == overheard[1:]


def test_a_call_id_that_is_the_credential_is_used_once() -> None:
    key = "sk-0123456789"
    answer = Answer(frozenset({"<credential>"}), 1000, fresh_id=lambda: "call_fresh")
    answer.hide(key)
    answer.tool_call(key, "look", "{}")
    [event] = answer.events()
    assert event.tool_call
    assert event.tool_call.call_id == "call_fresh"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"k": "\\u0073k-012345\\u00367"}', '{"k": "<credential>"}'),
        ('{"k": "a \\"quoted\\" sk-01234567"}', '{"k": "a \\"quoted\\" <credential>"}'),
        ('{"k":  "a\\nb", "n": 1.50}', '{"k":  "a\\nb", "n": 1.50}'),
        ('{"sk-01234567": ["\\u0073k-01234567"]}', '{"<credential>": ["<credential>"]}'),
    ],
)
def test_no_spelling_of_the_credential_comes_through_a_calls_arguments(arguments: str, shown: str) -> None:
    answer = Answer(frozenset(), 1000)
    answer.hide("sk-01234567")
    answer.tool_call("call_1", "look", arguments)
    [event] = answer.events()
    assert event.tool_call
    assert event.tool_call.arguments == shown
