"""Reasoning states: what was encoded comes back, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.states import STATE_BYTES_MAX, decode, encode

text = st.text(st.characters(codec="utf-8"))
members = st.dictionaries(
    text.filter(lambda name: name not in ("v", "k", "m")), st.one_of(text, st.integers(), st.none()), max_size=4
)


@given(members, text, text)
def test_what_was_encoded_comes_back_for_its_kind_and_model_alone(
    said: dict[str, object], kind: str, model: str
) -> None:
    state = encode(kind, model, said)
    assert decode(state, kind, model) == said
    assert decode(state, kind + "x", model) is None
    assert decode(state, kind, model + "x") is None


@given(members, st.data())
def test_a_state_that_was_touched_is_none(said: dict[str, object], data: st.DataObject) -> None:
    state = encode("a.block", "tiny", said)
    at = data.draw(st.integers(0, len(state)))
    assert decode(state[:at] + b" " + state[at:], "a.block", "tiny") != said
    assert decode(state[:at], "a.block", "tiny") in (None, said if at == len(state) else None)


@pytest.mark.parametrize("state", [b"", b"null", b"[]", b"\xff", b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}", b"{}"])
def test_what_is_no_state_at_all_is_none(state: bytes) -> None:
    assert decode(state, "a.block", "tiny") is None


def test_a_state_larger_than_any_frame_is_none() -> None:
    assert decode(encode("a", "m", {"t": "x" * STATE_BYTES_MAX}), "a", "m") is None
