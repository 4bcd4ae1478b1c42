"""What a client doesn't read, rule by rule: live events go first, then reading, then the connection, no request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest
import trio
import trio.testing
from kit import build, crowd_story
from kit.crowd import BOUNDS, small_bounds
from kit.crowd_story import Hello
from kit.narrow_stream import NarrowStream, narrow_pair
from kit.road import HeldConnector, Road, said

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.scripted import Scripted
from sidecar.contract.values import Usage
from sidecar.rules.framing import framed
from sidecar.service.outgoing import (
    CUT_BYTES_MAX,
    LIVE_BYTES_MAX,
    READ_ON_BYTES_MAX,
    SILENT_SECONDS_MAX,
    STALL_BYTES_MAX,
    STALL_SECONDS_MAX,
    Outgoing,
)

Clock = trio.testing.MockClock
MEBIBYTE = b"m" * (1 << 20)


class Sending:
    """An Outgoing to a client that has room for `down_bytes` and reads only when it is told to."""

    def __init__(self, nursery: trio.Nursery, down_bytes: int) -> None:
        self.client, self.stream = narrow_pair(up_bytes=1, down_bytes=down_bytes)
        self.cut_at: list[float] = []
        self.outgoing = Outgoing(
            self.stream,
            start_writer=nursery.start_soon,
            at_end_of_turn=lambda act: act(),
            on_change=lambda: None,
            on_cut=lambda _: self.cut_at.append(trio.current_time()),
        )

    def pile_up(self, size_bytes: int) -> None:
        while self.outgoing.unsent_bytes <= size_bytes:
            self.outgoing.send(MEBIBYTE)


@asynccontextmanager
async def sending(down_bytes: int = 65_536) -> AsyncIterator[Sending]:
    async with trio.open_nursery() as nursery:
        yield Sending(nursery, down_bytes)
        nursery.cancel_scope.cancel()


async def frames_of(client: NarrowStream) -> list[bytes]:
    """All frames until the stream ends; what is left of the last one is let go."""
    received, frames = b"", []
    while more := await client.receive_some():
        received += more
    while len(received) >= 4 and len(received) >= 4 + (length := int.from_bytes(received[:4], "big")):
        frames.append(received[4 : 4 + length])
        received = received[4 + length :]
    return frames


# --- live events --------------------------------------------------------------------------------------------------


async def test_live_events_above_their_bound_are_dropped_and_answers_are_not() -> None:
    async with sending(down_bytes=10) as to:
        taken = 0
        while to.outgoing.send_live(b"e" * 1000):
            taken += 1
        assert to.outgoing.unsent_bytes <= LIVE_BYTES_MAX + 4
        assert taken == pytest.approx(LIVE_BYTES_MAX / 1004, abs=2)
        to.outgoing.send(b"answer")
        expected = framed(b"e" * 1000) * taken + framed(b"answer")
        received = b""
        while len(received) < len(expected):
            received += await to.client.receive_some()
        assert received == expected
        await trio.testing.wait_all_tasks_blocked()
        assert to.outgoing.send_live(b"e"), "there is room again"
        assert to.cut_at == []


class Talkative(HeldConnector):
    """Says a hundred words when it is let go, then waits again."""

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        answer.sent = True
        await self.let_go.wait()
        for number in range(100):
            answer.text(f"{number} ")
        self.let_go = trio.Event()
        await self.let_go.wait()
        answer.complete("end_turn", Usage(input_tokens=1, cache_read_tokens=0, cache_write_tokens=0, output_tokens=1))


async def test_behind_a_dropped_live_event_none_is_sent_and_the_result_carries_them_all(autojump_clock: Clock) -> None:
    road = Road(connector=Talkative())
    client, ours = narrow_pair(up_bytes=65_536, down_bytes=10)
    with small_bounds():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(road.connection(ours, nursery).serve)
            await client.send_all(framed(crowd_story.frame(Hello(stream=True, join=False))) + framed(build.frame()))
            await trio.testing.wait_all_tasks_blocked()
            road.connector.let_go.set()
            await trio.testing.wait_all_tasks_blocked()
            heard: list[bytes] = []

            async def read() -> None:
                heard.extend(await frames_of(client))

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()  # everything is read, so there would be room again
            road.connector.let_go.set()
            await client.send_eof()
    _, *events, result = [msgpack.unpackb(frame) for frame in heard]
    pieces = [event["event"]["payload"]["TextDelta"]["text"] for event in events]
    assert 0 < len(pieces) < 100
    assert pieces == [f"{number} " for number in range(len(pieces))]
    whole = result["disposition"]["Transported"]["events"]
    assert [event["payload"]["TextDelta"]["text"] for event in whole] == ["".join(f"{n} " for n in range(100))]


# --- reading ------------------------------------------------------------------------------------------------------


async def test_a_connection_with_much_unsent_is_not_read_from_until_it_is_less(autojump_clock: Clock) -> None:
    road = Road(connector=Scripted())
    client, ours = narrow_pair(up_bytes=100, down_bytes=10)
    with small_bounds():
        async with trio.open_nursery() as nursery:
            connection = road.connection(ours, nursery)
            nursery.start_soon(connection.serve)
            sent = 0

            async def flood() -> None:
                nonlocal sent
                for _ in range(300):
                    await client.send_all(framed(b"\xc1"))
                    sent += 1
                await client.send_eof()

            nursery.start_soon(flood)
            await trio.sleep(SILENT_SECONDS_MAX - 1)
            unsent = connection._outgoing.unsent_bytes
            assert BOUNDS["READ_ON_BYTES_MAX"] < unsent < BOUNDS["READ_ON_BYTES_MAX"] + 300
            assert sent < 100
            words = [said(frame) for frame in await frames_of(client)]
    assert words == ["malformed_frame"] * 300
    assert not ours.hung_up


# --- the cut ------------------------------------------------------------------------------------------------------


async def test_a_client_that_takes_nothing_is_cut_only_above_the_bound_and_after_its_time(
    autojump_clock: Clock,
) -> None:
    async with sending() as to:
        to.outgoing.send(MEBIBYTE)
        await trio.sleep(80_000)
        assert to.cut_at == [], "a little may wait for ever"
        began = trio.current_time()
        to.pile_up(STALL_BYTES_MAX)
        await trio.sleep(2 * STALL_SECONDS_MAX)
        assert to.cut_at == [began + STALL_SECONDS_MAX]
        assert to.stream.hung_up
        assert to.outgoing.broken
        assert not to.outgoing.writing


async def test_more_that_piles_up_gives_a_stalled_client_no_more_time(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(STALL_BYTES_MAX)
        for _ in range(20):
            await trio.sleep(1)
            to.outgoing.send(b"one more")
        assert to.cut_at == [STALL_SECONDS_MAX]


async def test_progress_gives_new_patience_and_the_next_stall_ends_it(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(STALL_BYTES_MAX + 20 * 65_536)
        for _ in range(20):
            await trio.sleep(STALL_SECONDS_MAX - 1)
            await to.client.receive_some(65_536)
        assert to.cut_at == []
        assert to.outgoing.unsent_bytes > STALL_BYTES_MAX
        stalled_at = trio.current_time()
        await trio.sleep(2 * STALL_SECONDS_MAX)
        assert to.cut_at == [stalled_at + STALL_SECONDS_MAX]


async def test_a_client_that_has_caught_up_is_not_cut(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(STALL_BYTES_MAX)
        await trio.sleep(STALL_SECONDS_MAX - 1)
        while to.outgoing.unsent_bytes > READ_ON_BYTES_MAX:
            await to.client.receive_some(65_536)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(80_000)
        assert to.cut_at == []


async def test_above_the_last_bound_a_client_is_cut_at_once_and_nothing_more_is_kept(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(CUT_BYTES_MAX)
        assert to.cut_at == [0.0]
        assert to.outgoing.unsent_bytes <= CUT_BYTES_MAX + len(MEBIBYTE) + 4
        kept = to.outgoing.unsent_bytes
        to.outgoing.send(MEBIBYTE)
        assert not to.outgoing.send_live(b"event") or to.outgoing.unsent_bytes == kept
        assert to.outgoing.unsent_bytes == kept
        assert to.outgoing._frames is None
        await trio.testing.wait_all_tasks_blocked()
        assert not to.outgoing.writing
        assert to.cut_at == [0.0], "a connection is cut once"


async def test_the_requests_of_a_connection_that_was_cut_complete_and_are_replayed(autojump_clock: Clock) -> None:
    road = Road()
    frames = [build.frame(build.request(build.text("w" * 1500), request_id=f"r{number}")) for number in range(8)]
    client, ours = narrow_pair(up_bytes=1 << 20, down_bytes=10)
    with small_bounds():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(road.connection(ours, nursery).serve)
            await client.send_all(b"".join(map(framed, frames)))
            await trio.testing.wait_all_tasks_blocked()
            road.connector.let_go.set()
        assert ours.hung_up
        assert ours.closed
    assert (len(road.ledger.completes), len(road.reservations)) == (8, 0)
    assert "slow_reader_cut" in road.log.getvalue()
    client, ours = narrow_pair(up_bytes=1 << 20, down_bytes=1 << 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.connection(ours, nursery).serve)
        await client.send_all(b"".join(map(framed, frames)))
        await client.send_eof()
        again = await frames_of(client)
    assert sorted(again) == sorted(record.response[1:] for _, record in road.ledger.completes)
    assert len(road.connector.asked) == 8


async def test_a_silent_client_is_cut_in_a_minute_where_it_has_stopped_the_reading(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(READ_ON_BYTES_MAX + 300_000)
        began = trio.current_time()
        await trio.sleep(2 * SILENT_SECONDS_MAX)
        assert to.cut_at == [began + SILENT_SECONDS_MAX]


async def test_a_client_whose_backlog_grows_is_given_the_shorter_patience(autojump_clock: Clock) -> None:
    async with sending() as to:
        to.pile_up(READ_ON_BYTES_MAX + 300_000)
        await trio.sleep(10)
        to.pile_up(STALL_BYTES_MAX + 300_000)
        await trio.sleep(2 * STALL_SECONDS_MAX)
        assert to.cut_at == [10 + STALL_SECONDS_MAX]
