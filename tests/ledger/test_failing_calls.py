"""The nth file call fails, for every n, once and for ever, having done its work or not."""

from __future__ import annotations

import pytest
from kit.failing_calls import Left, left_cleanly, left_nothing, left_torn, whichever_call_fails


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("done", [False, True], ids=["undone", "done all the same"])
@pytest.mark.parametrize("left", [left_torn, left_cleanly])
def test_whichever_call_fails_the_answers_are_the_contracts_and_nothing_is_lost(
    left: Left, done: bool, for_good: bool
) -> None:
    assert whichever_call_fails(left, done=done, for_good=for_good) > 100


def test_whichever_call_of_the_very_first_open_fails_the_next_one_goes_on() -> None:
    assert whichever_call_fails(left_nothing, done=False, for_good=False) > 100
