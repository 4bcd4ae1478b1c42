"""Room to settle is never promised twice: for any order of begins, answers, landings and late spares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import records

from sidecar.connectors.promise import Ended
from sidecar.contract import values as v
from sidecar.ledger import format as on_disk
from sidecar.ledger.format import BATCH_HEADER_BYTES, BLOCK_BYTES, padded
from sidecar.ledger.ledger import SURE_RESPONSE_BYTES
from sidecar.ledger.room import SETTLE_BYTES, NoRoom, Room, Slot, spares_wanted
from sidecar.service import settlement

SEGMENT_BYTES = 16 * BLOCK_BYTES
SETTLEMENT_BYTES = SETTLE_BYTES - BATCH_HEADER_BYTES  # the longest record that counts as one


def a_room(spares: int) -> Room:
    room = Room(SEGMENT_BYTES, slot(), BLOCK_BYTES)
    room.spares.extend(slot() for _ in range(spares))
    return room


def slot() -> Slot:
    return Slot(Path("spare"), -1, b"s" * 16)


class Disk:
    """Follows the plan as the writer does: what was placed together and in one segment lands as one batch."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.placed: list[tuple[Slot, int]] = []
        self.ends: dict[Slot, int] = {}
        self.begins = 0

    def place(self, where: Slot, framed_bytes: int) -> None:
        self.placed.append((where, framed_bytes))

    def land(self) -> None:
        while self.placed:
            where = self.placed[0][0]
            sizes = [size for its_slot, size in self.placed if its_slot is where]
            del self.placed[: len(sizes)]
            end = self.ends.get(where, BLOCK_BYTES) + padded(BATCH_HEADER_BYTES + sum(sizes))
            assert end <= SEGMENT_BYTES, "a batch is planned past the end of its segment"
            self.ends[where] = end
            self.room.landed(where, end, sizes)


# Begins, and answers about as long as what is left, come often: only a ledger that is nearly full can break a promise.
STEP = st.one_of(
    st.tuples(st.just("begin"), st.integers(100, 5000)),
    st.tuples(st.just("begin"), st.just(400)),
    st.tuples(st.just("answer"), st.integers(100, 60_000)),
    st.tuples(st.just("resolve"), st.integers(100, SETTLEMENT_BYTES)),
    st.tuples(st.sampled_from(["land", "land", "spare"]), st.just(0)),
)
STEPS = st.lists(STEP, min_size=20, max_size=120)


@settings(max_examples=200, deadline=None)
@given(spares=st.integers(0, 3), steps=STEPS)
def test_whatever_happened_every_live_request_can_be_settled_and_the_ledger_closed(
    spares: int, steps: list[tuple[str, int]]
) -> None:
    room = a_room(spares)
    disk = Disk(room)
    for step, size in steps:
        take(room, disk, step, size)
    while room.live:
        assert room.has_room_for(SETTLEMENT_BYTES)
        disk.place(room.place_completion(SETTLEMENT_BYTES, live=True), SETTLEMENT_BYTES)
    if disk.begins:
        disk.place(room.place_closed(200), 200)
    disk.land()


def take(room: Room, disk: Disk, step: str, size: int) -> None:
    if step == "land":
        disk.land()
    elif step == "spare":
        room.spares.append(slot())
    elif step == "answer":
        if room.live:
            fitting = size if room.has_room_for(size) else SETTLEMENT_BYTES
            disk.place(room.place_completion(fitting, live=True), fitting)
    else:
        place: Any = room.place_begin if step == "begin" else lambda size: room.place_completion(size, live=False)
        live = room.live
        try:
            disk.place(place(size), size)
            disk.begins += step == "begin"
        except NoRoom:
            assert room.live == live, "what was refused takes no room"


def test_enough_spares_are_wanted_to_settle_everything_that_may_run() -> None:
    for segment_bytes in (282_624, 1 << 20, 64 << 20):
        per_spare = (segment_bytes - BLOCK_BYTES) // SETTLE_BYTES
        assert (spares_wanted(256, segment_bytes) - 1) * per_spare >= 256
    assert spares_wanted(256, 64 << 20) == 2


@pytest.mark.parametrize("stray", ["é", "\U0001f600"])
def test_the_longest_record_without_an_answer_is_a_settlement(stray: str) -> None:
    """Ids, names and usage at their longest, every note: what is written when there is no room for an answer."""
    usage = v.Usage(
        input_tokens=v.U64_MAX, cache_read_tokens=v.U64_MAX, cache_write_tokens=v.U64_MAX, output_tokens=v.U64_MAX,
        reasoning_tokens=v.U64_MAX,
    )  # fmt: skip
    begin = records.begin(
        caller="c" * 256, request_id="r" * 256, model="m" * 256, provider="p" * 256,
        native_request_sha256=(255,) * 32, provider_request_sha256=(255,) * 32, foreign_reasoning_dropped=2**32 - 1,
        reservation_micro_usd=v.U64_MAX, prices=(),
    )  # fmt: skip
    ended = Ended(stop_reason=None, kind="provider", message=stray * 1024, usage=None)
    settled = settlement.settle(begin, ended, (), tuple(v.Note.__args__), "required")
    whole = v.TransportOutcome(failed=v.Failed(kind="provider", message=stray * 1024, usage=usage))
    for end in (
        settlement.too_large(begin, settled, "the ledger has no room for the whole answer"),
        settlement.Settled(outcome=whole, events=(), charge_micro_usd=v.U64_MAX, notes=settled.notes),
    ):
        record = settlement.completed_record(
            end, settlement.result_frame(begin, end), begin_segment=v.U64_MAX, begin_offset=v.U64_MAX,
            completed_at_unix_ms=v.U64_MAX, first_event_at_unix_ms=v.U64_MAX,
        )  # fmt: skip
        framed = on_disk.encode_record(record)
        assert padded(BATCH_HEADER_BYTES + len(framed)) <= SETTLE_BYTES
        around = len(framed) - len(record.response)
        assert SURE_RESPONSE_BYTES + around <= SETTLEMENT_BYTES, "what is always taken fits whatever stands around it"
