"""The nth file call fails, for every n, once and for ever, having done its work or not."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from kit import records
from kit.failing_calls import (
    BIG,
    Left,
    left_cleanly,
    left_due,
    left_in_a_dropping,
    left_nothing,
    left_torn,
    left_with_seals,
    whichever_call_fails,
)
from kit.sim_disk import Fault, SimDisk
from kit.sim_ledger import DIRECTORY, opened

from sidecar.ledger.faults import LedgerUnavailable

HOW: Final = {
    "once": {"done": False, "for_good": False},
    "once, done all the same": {"done": True, "for_good": False},
    "from then on": {"done": False, "for_good": True},
    "from then on, done all the same": {"done": True, "for_good": True},
}
LEFT: Final[dict[str, Left]] = {
    "torn": left_torn,
    "cleanly": left_cleanly,
    "with seals and open requests": left_with_seals,
    "with much that is to be dropped": left_due,
    "while a checkpoint was written": partial(left_in_a_dropping, "rename"),
    "while segments were unlinked": partial(left_in_a_dropping, "unlink"),
}
# Of all combinations those in which the ordinary suite sees every way to fail and every state once.
ORDINARY: Final = (
    ("torn", "once"),
    ("torn", "from then on"),
    ("cleanly", "once, done all the same"),
    ("with seals and open requests", "from then on, done all the same"),
    ("with much that is to be dropped", "once"),
    ("while a checkpoint was written", "from then on"),
    ("while segments were unlinked", "once, done all the same"),
)
CALLS_OF_A_DROPPING: Final = 40


@pytest.mark.parametrize(("left", "how"), ORDINARY, ids=[f"{left}, {how}" for left, how in ORDINARY])
def test_whichever_call_fails_the_answers_are_the_contracts_and_nothing_is_lost(left: str, how: str) -> None:
    assert whichever_call_fails(LEFT[left], **HOW[how]) > 100


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("left", LEFT)
def test_whichever_call_fails_in_every_way_from_every_state(left: str, how: str) -> None:
    assert whichever_call_fails(LEFT[left], **HOW[how]) > 100


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("at", range(CALLS_OF_A_DROPPING))
def test_whichever_call_fails_behind_a_dropping_that_was_cut_at_any_call(at: int) -> None:
    assert whichever_call_fails(partial(left_in_a_dropping, at), done=False, for_good=False) > 100


def test_whichever_call_of_the_very_first_open_fails_the_next_one_goes_on() -> None:
    assert whichever_call_fails(left_nothing, done=False, for_good=False) > 100


@pytest.mark.parametrize("call", ["write_some", "sync", "rename", "sync_directory"])
async def test_segments_planned_ahead_are_given_back_when_the_writer_fails_before_it_came_to_them(
    call: str,
) -> None:
    disk = SimDisk()
    ledger = opened(disk)
    async with ledger.running():
        begins = [records.begin(number) for number in range(10)]
        places = [await ledger.begin(begin) for begin in begins]
        landings = []
        for begin, place in zip(begins, places, strict=True):
            end = records.completed(place, response=bytes(BIG))
            assert ledger.room_for(end)
            landings.append(ledger.complete(begin, end))
        assert ledger._room.current.number == 3
        disk.fault = lambda called, _: Fault() if called == call else None
        with pytest.raises(LedgerUnavailable, match="Input/output error"):
            await landings[-1]
        assert ledger.poisoned
    assert not disk.descriptors
    assert not [name for name in disk.names(DIRECTORY) if name.endswith(".spare")]
