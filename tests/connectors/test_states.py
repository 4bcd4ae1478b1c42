"""A reasoning state is read back only for the kind and the model that it was emitted for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.states import decode, encode

VALUES = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
MEMBERS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4).filter(lambda name: name not in "vkm"),
    VALUES | st.lists(VALUES, max_size=2),
    max_size=3,
)


@given(MEMBERS)
def test_what_was_encoded_is_decoded_for_the_same_kind_and_model_alone(members: dict[str, Any]) -> None:
    state = encode("gemini.sig", "m-1", members)
    assert decode(state, "gemini.sig", "m-1") == members
    assert decode(state, "gemini.sig", "m-2") is None
    assert decode(state, "openai.reasoning", "m-1") is None
    assert state == encode("gemini.sig", "m-1", dict(reversed(members.items())))


def test_a_state_is_sorted_compact_json() -> None:
    assert encode("k.x", "m-1", {"sig": "é", "on": "call"}) == (
        '{"k":"k.x","m":"m-1","on":"call","sig":"é","v":1}'.encode()
    )


@pytest.mark.parametrize(
    "state",
    [b"", b"{}", b"[]", b"7", b"\xff", b'{"v":1', b"[" * 10_000,
     b'{"k":"k","m":"m","v":2}', b'{"k":"k","m":"m","v":true}', b'{"k":"k","m":"m","v":1.0}', b'{"k":"k","v":1}',
     b'{"k":["k"],"m":"m","v":1}'],
    ids=range(12),
)  # fmt: skip
def test_anything_else_is_no_state_of_ours(state: bytes) -> None:
    assert decode(state, "k", "m") is None
