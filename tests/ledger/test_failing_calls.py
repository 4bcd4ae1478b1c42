"""The nth file call fails, for every n, once and for ever, having done its work or not."""

from __future__ import annotations

import pytest
from kit import records
from kit.failing_calls import BIG, Left, left_cleanly, left_nothing, left_torn, whichever_call_fails
from kit.sim_disk import Fault, SimDisk
from kit.sim_ledger import DIRECTORY, opened

from sidecar.ledger.faults import LedgerUnavailable


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("done", [False, True], ids=["undone", "done all the same"])
@pytest.mark.parametrize("left", [left_torn, left_cleanly])
def test_whichever_call_fails_the_answers_are_the_contracts_and_nothing_is_lost(
    left: Left, done: bool, for_good: bool
) -> None:
    assert whichever_call_fails(left, done=done, for_good=for_good) > 100


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
