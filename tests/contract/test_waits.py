"""The end of a failure's message that says how long to wait, written and read in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.contract.waits import wait_in, wait_said


@given(st.text(), st.floats(0, 1e9))
def test_what_is_said_is_found_again_behind_any_message(message: str, seconds: float) -> None:
    assert wait_in(message + wait_said(seconds)) == float(f"{seconds:.12g}")


@given(st.floats(0, 1e9))
def test_it_is_the_end_or_nothing(seconds: float) -> None:
    assert wait_in(wait_said(seconds) + ".") is None
    assert wait_in(wait_said(seconds).strip()) is None


@pytest.mark.parametrize("said", ["", "e", "1e", "+", "--1", "x", "1" * 25])
def test_what_is_no_number_says_nothing(said: str) -> None:
    assert wait_in(f"slow down (the provider asks to wait {said} s)") is None
