"""A reasoning state comes back as it was handed out, or it is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors import states

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=10,
)
MEMBERS = st.dictionaries(st.text("defghij", min_size=1, max_size=5), JSON, max_size=4)


@given(MEMBERS)
def test_what_was_encoded_comes_back_for_the_same_kind_and_model_only(members: dict[str, object]) -> None:
    state = states.encode("it", "tiny", members)
    assert states.decode(state, "it", "tiny") == members
    assert states.decode(state, "other", "tiny") is None
    assert states.decode(state, "it", "tiny-2") is None


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"k":"it","m":"tiny"}',
        b'{"k":"it","m":"tiny","v":2}',
        b'{"k":"it","m":"tiny","v":true}',
        b'{"k":"it","m":"tiny","v":1.0}',
        b'{"k": "it","m":"tiny","v":1}',
        b'{"v":1,"k":"it","m":"tiny"}',
        b'{"k":"it","k":"it","m":"tiny","v":1}',
        b'{"k":"it","m":"tiny","v":1,"x":NaN}',
        b'{"a":"\\ud800","k":"it","m":"tiny","v":1}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b',"k":"it","m":"tiny","v":1}',
    ],
)
def test_anything_but_the_exact_form_is_no_state(state: bytes) -> None:
    assert states.decode(state, "it", "tiny") is None


def test_the_form_is_compact_sorted_json_that_names_version_kind_and_model() -> None:
    state = states.encode("it", "tiny", {"z": "ü", "a": 1})
    assert state == '{"a":1,"k":"it","m":"tiny","v":1,"z":"ü"}'.encode()
    assert json.loads(state)["v"] == 1


def test_a_state_larger_than_any_frame_is_none() -> None:
    state = states.encode("it", "tiny", {"text": "x" * states.STATE_BYTES_MAX})
    assert states.decode(state, "it", "tiny") is None
