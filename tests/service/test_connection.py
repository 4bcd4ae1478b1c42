"""One connection over memory streams: frames in, decisions in order, answers as they finish, and nothing kept."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import build
from kit.connected import Client, Gated, answering, asked, request_id_of, served
from kit.memory_ledger import MemoryLedger
from kit.road import HeldConnector, Road, said

from sidecar.connectors.promise import Answer, Lowered
from sidecar.ledger.face import Recorded
from sidecar.rules.framing import framed
from sidecar.service.held import HeldBytes

Clock = trio.testing.MockClock


# --- order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece_bytes", [1, 3, 100, 10**6])
async def test_frames_come_in_pieces_of_any_size(piece_bytes: int) -> None:
    road = Road(connector=answering())
    stream = b"".join(framed(asked(f"r{number}")) for number in range(4))
    async with served(road) as client:
        for at in range(0, len(stream), piece_bytes):
            await client.stream.send_all(stream[at : at + piece_bytes])
            if piece_bytes > 1:
                await trio.testing.wait_all_tasks_blocked()
        assert await client.heard(4) == ["end_turn"] * 4
    assert sorted(begin.request_id for begin in road.ledger.begins) == ["r0", "r1", "r2", "r3"]


async def test_many_at_once_are_answered_as_they_finish() -> None:
    connector = Gated()
    road = Road(connector=connector)
    names = [f"r{number}" for number in range(100)]
    finishing = random.Random(1).sample(names, len(names))
    async with served(road) as client:
        await client.send(*map(asked, names))
        await trio.testing.wait_all_tasks_blocked()
        assert len(connector.asked) == 100, "they run at once"
        answers = []
        for name in finishing:
            connector.gates[name].set()
            answer = await client.receive()
            assert answer is not None
            answers.append(request_id_of(answer))
    assert answers == finishing


async def test_c8_frames_take_effect_in_order_so_the_second_of_two_equal_ones_is_in_flight() -> None:
    road = Road()
    frame = asked("r1")
    async with served(road) as client:
        await client.send(frame, frame, asked("r1", max_cost_micro_usd=999_999), asked("r2", max_cost_micro_usd=1))
        assert await client.heard(3) == ["InFlight", "ReplayConflict", "CostBound"]
        road.connector.let_go.set()
        first = await client.receive()
        await client.send(frame)
        assert await client.receive() == first
    assert len(road.connector.asked) == 1


async def test_a_frame_behind_a_waiting_ledger_is_decided_meanwhile(autojump_clock: Clock) -> None:
    ledger = MemoryLedger()
    ledger.delay_seconds = 5
    road = Road(ledger=ledger, connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"), asked("r2", max_cost_micro_usd=1))
        assert await client.heard(1) == ["CostBound"]
        assert trio.current_time() == 0
        assert await client.heard(1) == ["end_turn"]


async def test_others_run_between_the_frames_that_one_read_brings() -> None:
    turn = 0
    decided_in: list[int] = []

    class Watched(Road):
        def connection(self, stream: Any, nursery: trio.Nursery, **changes: Any) -> Any:
            decide = self.exchange.decide

            def watched(*arguments: Any, **terms: Any) -> Any:
                decided_in.append(turn)
                return decide(*arguments, **terms)

            self.exchange.decide = watched  # watched, not replaced: it decides as before
            return super().connection(stream, nursery, **changes)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            await trio.lowlevel.checkpoint()
            turn += 1

    async with served(Watched()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        await client.send(*[asked(f"r{number}", max_cost_micro_usd=1) for number in range(100)])
        assert await client.heard(100) == ["CostBound"] * 100
        nursery.cancel_scope.cancel()
    assert max(Counter(decided_in).values()) <= 2 * 16, "in a turn tasks run in any order"


async def test_a_malformed_frame_and_an_unknown_schema_leave_the_connection_in_step() -> None:
    road = Road(connector=answering())
    unknown = bytes(msgpack.packb({"schema_id": "gamecult.model.unheard_of.v1"}))
    async with served(road) as client:
        await client.send(b"\xc1", unknown, build.frame()[:-1], build.frame(), b"\x01", unknown)
        answers = await client.heard(6)
    refused = ["malformed_frame", "unknown_schema"]
    assert [word for word in answers if word != "end_turn"] == [
        *refused,
        "malformed_frame",
        "malformed_frame",
        refused[1],
    ]
    assert answers.count("end_turn") == 1


# --- what cuts a connection off ---------------------------------------------------------------------------------

STRAYS = {
    "http": (b"G", "HTTP"),
    "http_whole": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
    "tls_hello": (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
    "length_0": (b"\0\0\0\0", "a frame of 0 bytes"),
    "oversize": ((1_000_001).to_bytes(4, "big"), "a frame of 1000001 bytes"),
    "two_to_24": (b"\x01", "always zero"),
}


@pytest.mark.parametrize("name", STRAYS)
async def test_a_length_that_no_frame_has_is_told_and_cut_off(name: str, autojump_clock: Clock) -> None:
    stray, hint = STRAYS[name]
    async with served(Road()) as client:
        await client.stream.send_all(stray)
        why = await client.receive()
        assert why is not None
        assert said(why) == "frame_size"
        assert hint in msgpack.unpackb(why)["message"]
        assert await client.receive() is None
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.send_all(b"still sending")  # is discarded, so that the reason can be read
        await trio.sleep(2)
        with pytest.raises(trio.BrokenResourceError):
            await client.stream.send_all(b"and still")


async def test_what_was_decided_before_the_cut_is_answered_and_what_runs_is_kept_for_a_replay() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(asked("r1"), b"\xc1")
        await client.stream.send_all(b"GET")
        assert await client.heard(2) == ["malformed_frame", "frame_size"]
        assert await client.receive() is None
        road.connector.let_go.set()
    async with served(road) as client:
        await client.send(asked("r1"))
        assert await client.heard(1) == ["end_turn"]
    assert len(road.connector.asked) == 1


async def test_a_client_that_reads_nothing_is_cut_off_all_the_same(autojump_clock: Clock) -> None:
    """Its answers stand in the way of the reason, so it gets neither, and after a second its end."""
    theirs, ours = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Road().connection(ours, nursery).serve)
        await theirs.send_all(framed(b"\xc1"))
        await trio.testing.wait_all_tasks_blocked()
        await theirs.send_all(b"GET")
    assert trio.current_time() == pytest.approx(1)


def frames_in(stream: bytes, frame_bytes_max: int) -> tuple[int, bool]:
    """How many whole frames a stream has before it ends or breaks, and whether it breaks."""
    frames = 0
    while stream:
        length = int.from_bytes(stream[:4], "big")
        if stream[0] or (len(stream) >= 4 and not 0 < length <= frame_bytes_max):
            return frames, True
        if len(stream) < 4 + length or len(stream) < 4:
            return frames, False
        frames, stream = frames + 1, stream[4 + length :]
    return frames, False


PREFIXES = st.sampled_from([b"\0\0\0\0", b"\0\0\x07\xd1", b"\0\0\x07\xd0", b"\1", b"\0", b"G", b"\0\0\0\2\x81"])
PIECES = st.one_of(
    st.binary(min_size=1, max_size=20).map(framed), st.just(framed(build.frame())), PREFIXES, st.binary()
)


@given(st.lists(PIECES, max_size=12).map(b"".join), st.lists(st.integers(1, 600), max_size=8))
@settings(deadline=None, max_examples=200)
async def test_any_stream_is_answered_frame_by_frame_until_it_ends_or_breaks(stream: bytes, cuts: list[int]) -> None:
    frames, breaks = frames_in(stream, 2000)
    held = HeldBytes(5000)
    async with served(Road(connector=answering()), held=held, frame_bytes_max=2000) as client:
        for size in cuts:
            await client.stream.send_all(stream[:size])
            stream = stream[size:]
        await client.stream.send_all(stream)
        await client.stream.send_eof()
        words = []
        while (answer := await client.receive()) is not None:
            words.append(said(answer))
    assert words.count("frame_size") == breaks
    assert not breaks or words[-1] == "frame_size"
    # Where the stream breaks, what still runs is not waited for: it is on record.
    assert len(words) == frames + breaks or (breaks and len(words) >= 1)
    assert held._held == 0


async def test_a_frame_has_its_time_from_its_first_byte(autojump_clock: Clock) -> None:
    """Ten seconds, however often a byte comes in between; and the next frame has ten of its own."""
    road = Road(connector=answering())
    async with served(road) as client:
        await trio.sleep(80_000)  # an idle connection is left alone
        frame = framed(asked("r1"))
        await client.stream.send_all(frame[:9])
        await trio.sleep(9)
        await client.stream.send_all(frame[9:] + frame[:1])
        assert await client.heard(1) == ["end_turn"]
        began = trio.current_time()

        async def dribble() -> None:
            for at in range(1, 30):
                await trio.sleep(0.9)
                await client.stream.send_all(frame[at : at + 1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dribble)
            assert await client.heard(1) == ["frame_timeout"]
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == pytest.approx(10, abs=0.01)
        assert await client.receive() is None


async def test_time_in_which_the_daemon_does_not_read_is_not_counted(autojump_clock: Clock) -> None:
    road = Road()
    frame = asked("r1")
    held = HeldBytes(len(frame))
    other = framed(asked("r2"))
    async with served(road, held=held) as client, served(road, held=held) as waiting:
        await client.send(frame)
        await trio.testing.wait_all_tasks_blocked()
        await waiting.stream.send_all(other[:20])
        await trio.sleep(40)
        road.connector.let_go.set()
        assert await client.heard(1) == ["end_turn"]
        await trio.sleep(9)
        await waiting.stream.send_all(other[20:])
        assert await waiting.heard(1) == ["end_turn"]


async def test_after_the_pause_a_frame_has_the_rest_of_its_time(autojump_clock: Clock) -> None:
    road = Road()
    frame = asked("r1")
    held = HeldBytes(len(frame))
    async with served(road, held=held) as client, served(road, held=held) as waiting:
        await client.send(frame)
        await trio.testing.wait_all_tasks_blocked()
        await waiting.stream.send_all(framed(frame)[:2])
        await trio.sleep(4)
        await waiting.stream.send_all(framed(frame)[2:20])
        await trio.sleep(40)
        road.connector.let_go.set()
        assert await waiting.heard(1) == ["frame_timeout"]
        assert trio.current_time() == pytest.approx(50, abs=0.01)
    assert held._held == 0


# --- ends -------------------------------------------------------------------------------------------------------


async def test_after_end_of_file_the_answers_under_way_still_go_out() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(asked("r1"), asked("r2"))
        await client.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        road.connector.let_go.set()
        assert await client.heard(2) == ["end_turn"] * 2
        assert await client.receive() is None


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 50])
async def test_an_end_of_file_in_the_middle_of_a_frame_is_an_end(cut: int) -> None:
    road = Road(connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"))
        await client.stream.send_all(framed(asked("r2"))[:cut])
        await client.stream.send_eof()
        assert await client.heard(1) == ["end_turn"]
        assert await client.receive() is None
    assert len(road.ledger.begins) == 1


async def test_i1_a_caller_that_hangs_up_mid_request_gets_the_answer_by_sending_the_same_bytes_again() -> None:
    road = Road()
    frame = asked("r1")
    async with served(road) as client:
        await client.send(frame)
        await trio.testing.wait_all_tasks_blocked()
        await client.hang_up()
        await trio.testing.wait_all_tasks_blocked()
        async with served(road) as again:
            await again.send(frame)
            assert await again.heard(1) == ["InFlight"]
            road.connector.let_go.set()
            await trio.testing.wait_all_tasks_blocked()
            await again.send(frame)
            assert await again.receive() == road.ledger.completes[0][1].response[1:]
    assert len(road.connector.asked) == 1


async def test_i2_after_a_hang_up_the_ledger_has_a_settlement_and_the_account_its_charge() -> None:
    road = Road(connector=answering(delay_ms=1, usage=build.v.Usage(
        input_tokens=0, cache_read_tokens=0, cache_write_tokens=0, output_tokens=9)))  # fmt: skip
    for number in range(10):
        async with served(road) as client:
            await client.send(asked(f"r{number}"))
            await trio.testing.wait_all_tasks_blocked(0.0001)
            await client.hang_up()
    account = road.accounts["dungeon"]
    start = account.window_start(road.now)
    assert (account.spent(start), account.reserved(start)) == (1000, 0)
    assert [record.charge_micro_usd for _, record in road.ledger.completes] == [100] * 10


async def test_a15_a_thousand_hang_ups_hangs_and_broken_connectors_leak_no_slot(autojump_clock: Clock) -> None:
    """Cap 1: after each of them the next one is admitted."""

    class Troubled(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            self.asked.append(lowered)
            answer.sent = True
            if len(self.asked) % 4 == 0:
                raise ZeroDivisionError("a bug")
            await trio.sleep(1 if len(self.asked) % 4 == 1 else 10**6)

    road = Road(connector=Troubled(), concurrent=1, ceiling=10**15)
    words: list[str] = []
    for number in range(1000):
        async with served(road) as client:
            await client.send(asked(f"r{number}", expires_at_unix_ms=road.now + 5_000))
            if number % 2:
                await trio.testing.wait_all_tasks_blocked()
                await client.hang_up()
            else:
                words += await client.heard(1)
    assert set(words) == {"timeout", "provider"}
    assert len(road.connector.asked) == len(road.ledger.completes) == 1000
    assert len(road.reservations) == 0


# --- a client that does not read, and bytes that are held -------------------------------------------------------


async def test_a_client_that_never_reads_is_not_read_from_and_slows_nobody() -> None:
    road = Road(connector=answering(deltas=("x" * 1000,), repeat=300))
    frames = [asked(f"r{number}") for number in range(20)]

    async def send_them(client: Client) -> None:
        for frame in frames:
            await client.send(frame)
            await trio.testing.wait_all_tasks_blocked()  # so that each is answered before the next is sent

    pair = trio.testing.lockstep_stream_pair
    async with served(road, pair) as silent, served(road) as other, trio.open_nursery() as nursery:
        nursery.start_soon(send_them, silent)
        await trio.testing.wait_all_tasks_blocked(0.02)
        decided = len(road.ledger.begins)
        assert decided < 8, "a megabyte of answers is unread, so no more is taken"
        await other.send(asked("mine"))
        assert await other.heard(1) == ["end_turn"]
        assert len(road.ledger.begins) == decided + 1
        assert await silent.heard(20) == ["end_turn"] * 20


async def test_a_client_that_never_reads_its_replays_is_not_read_from() -> None:
    road = Road(connector=answering(deltas=("x" * 1000,), repeat=300))
    async with served(road) as client:
        await client.send(asked("r1"))
        answer = await client.receive()
    async with served(road, trio.testing.lockstep_stream_pair) as silent, trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(silent.send, asked("r1"))
            await trio.testing.wait_all_tasks_blocked()
            if nursery.child_tasks:
                break
        else:
            raise AssertionError("a hundred replays were taken and not one was read")
        assert await silent.receive() == answer
        nursery.cancel_scope.cancel()


async def test_frames_held_pauses_reading_and_refuses_nothing() -> None:
    connector = Gated()
    road = Road(connector=connector)
    frames = [asked(f"r{number}") for number in range(6)]
    held = HeldBytes(len(frames[0]) * 2)
    async with served(road, held=held) as one, served(road, held=held) as two:
        await one.send(*frames[:3])
        await trio.testing.wait_all_tasks_blocked()
        await two.send(*frames[3:])
        await trio.testing.wait_all_tasks_blocked()
        names = [lowered.request.request_id for lowered in connector.asked]
        assert sorted(names) == ["r0", "r1"]
        for turn in ("r0", "r1", "r2", "r3", "r4", "r5"):
            connector.gates[turn].set()
            await trio.testing.wait_all_tasks_blocked()
        assert await one.heard(3) == ["end_turn"] * 3
        assert await two.heard(3) == ["end_turn"] * 3
    assert held._held == 0


async def test_one_frame_above_the_bound_is_let_in_when_nothing_else_is_held() -> None:
    road = Road(connector=answering())
    held = HeldBytes(10)
    async with served(road, held=held) as client:
        await client.send(*[asked(f"r{number}") for number in range(5)])
        assert await client.heard(5) == ["end_turn"] * 5
    assert held._held == 0


async def end_refused(client: Client) -> None:
    await client.send(asked("r1", max_cost_micro_usd=1))
    await client.heard(1)


async def end_malformed(client: Client) -> None:
    await client.send(b"\xc1" * 500)
    await client.heard(1)


async def end_admitted_and_replayed(client: Client) -> None:
    await client.send(asked("r1"))
    await client.heard(1)
    await client.send(asked("r1"))
    await client.heard(1)


async def end_hung_up(client: Client) -> None:
    await client.send(asked("r1"))
    await client.hang_up()


async def end_of_file_mid_frame(client: Client) -> None:
    await client.stream.send_all(framed(asked("r1"))[:50])
    await client.stream.send_eof()
    await client.receive()


async def end_timeout(client: Client) -> None:
    await client.stream.send_all(framed(asked("r1"))[:50])
    await client.heard(1)


async def end_frame_size_behind_a_frame(client: Client) -> None:
    await client.send(asked("r1"))
    await client.stream.send_all(b"G")


ENDS = [
    end_refused,
    end_malformed,
    end_admitted_and_replayed,
    end_hung_up,
    end_of_file_mid_frame,
    end_timeout,
    end_frame_size_behind_a_frame,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_held_bytes_are_given_back_on_every_path(end: Any, autojump_clock: Clock) -> None:
    held = HeldBytes(1 << 20)
    async with served(Road(connector=answering(delay_ms=5)), held=held) as client:
        await end(client)
    assert held._held == 0


@pytest.mark.parametrize("waits_for_room", [False, True])
async def test_held_bytes_are_given_back_when_the_connection_is_cancelled(waits_for_room: bool) -> None:
    held = HeldBytes(100)
    others = 90 if waits_for_room else 0
    await held.take(others)
    theirs, ours = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Road().connection(ours, nursery, held=held).serve)
        await theirs.send_all((50).to_bytes(4, "big") + b"half")
        await trio.testing.wait_all_tasks_blocked()
        assert held._held == others or not waits_for_room
        nursery.cancel_scope.cancel()
    assert held._held == others
    assert not held._waiting


async def test_what_is_only_declared_holds_up_no_frame_that_is_whole() -> None:
    held = HeldBytes(10_000)
    async with served(Road(), held=held) as hoarder, served(Road(connector=answering()), held=held) as other:
        await hoarder.stream.send_all((10_000).to_bytes(4, "big"))
        await trio.testing.wait_all_tasks_blocked()
        await other.send(*[asked(f"r{number}") for number in range(5)])
        assert await other.heard(5) == ["end_turn"] * 5
    assert (held._held, held._coming) == (0, 0)


@pytest.mark.parametrize("give_back_too", [False, True])
async def test_a_cancelled_wait_lets_in_those_behind_it_and_keeps_nothing(give_back_too: bool) -> None:
    """Also when it is let in in the very moment in which it is cancelled."""
    held = HeldBytes(10)
    await held.take(6)
    cancelled = trio.CancelScope()

    async def wait_in_vain() -> None:
        with cancelled:
            await held.take(9)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_vain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(held.take, 4)
        await trio.testing.wait_all_tasks_blocked()
        assert held._held == 6
        cancelled.cancel()
        if give_back_too:
            held.give_back(6)
    assert held._held == (4 if give_back_too else 10)


Step = tuple[str, int]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("give back"), st.integers(0, 20)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("give back, cancel"), st.integers(0, 20)),
        st.tuples(st.just("cancel, give back"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(deadline=None, max_examples=300)
async def test_held_bytes_are_first_come_first_served_within_the_bound(steps: list[Step]) -> None:
    """Against a list: who waits, in order; who is in; never above the bound unless alone; all is given back."""
    bytes_max = 10
    held = HeldBytes(bytes_max)
    waiting: list[tuple[int, int, trio.CancelScope]] = []  # (number, size, scope)
    inside: dict[int, int] = {}
    entered: list[int] = []

    async def take(number: int, size: int, scope: trio.CancelScope) -> None:
        with scope:
            await held.take(size)
            entered.append(number)
            inside[number] = size
        waiting[:] = [turn for turn in waiting if turn[0] != number]

    def give_back(pick: int) -> None:
        if inside:
            held.give_back(inside.pop(sorted(inside)[pick % len(inside)]))

    def cancel(pick: int) -> None:
        if waiting:
            waiting[pick % len(waiting)][2].cancel()

    async with trio.open_nursery() as nursery:
        for number, (step, argument) in enumerate(steps):
            if step == "take":
                scope = trio.CancelScope()
                waiting.append((number, argument, scope))
                nursery.start_soon(take, number, argument, scope)
            for act in step.split(", "):
                if act != "take":
                    {"give back": give_back, "cancel": cancel}[act](argument)
            await trio.testing.wait_all_tasks_blocked()
            assert held._held == sum(inside.values())
            assert held._held <= bytes_max or len(inside) == 1
            assert all(turn[0] > max(entered, default=-1) for turn in waiting), "first come, first served"
            if waiting:
                assert inside, "nobody waits for nothing"
                assert held._held + waiting[0][1] > bytes_max
        while inside or waiting:
            give_back(0)
            await trio.testing.wait_all_tasks_blocked()
    assert held._held == 0


# --- replays ----------------------------------------------------------------------------------------------------


def money(road: Road) -> tuple[int, int]:
    account = road.accounts["dungeon"]
    start = account.window_start(road.now)
    return account.spent(start), account.reserved(start)


async def test_c7_a_replay_adds_no_record_and_no_micro_usd() -> None:
    road = Road(connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"))
        answer = await client.receive()
        before = money(road)
        await client.send(*[asked("r1")] * 50)
        assert [await client.receive() for _ in range(50)] == [answer] * 50
    assert money(road) == before
    assert before[0] > 0
    assert (len(road.ledger.begins), len(road.ledger.completes)) == (1, 1)


async def test_replays_are_pipelined_with_what_runs_and_with_refusals() -> None:
    road = Road()
    road.connector.let_go.set()
    frames = [asked(f"r{number}") for number in range(40)]
    async with served(road) as client:
        await client.send(*frames)
        answers = {await client.receive() for _ in frames}
        road.connector.let_go = trio.Event()
        await client.send(asked("slow"), *frames, b"\xc1")
        words = [await client.receive() for _ in range(41)]
        assert set(words) - answers == {word for word in words if word and said(word) == "malformed_frame"}
        assert len(set(words) & answers) == 40
        road.connector.let_go.set()
        assert await client.heard(1) == ["end_turn"]


async def test_at_most_sixteen_replays_of_one_connection_are_read_from_disk_at_once() -> None:
    class SlowDisk(MemoryLedger):
        reading = 0
        let_go = trio.Event()

        async def read_response(self, recorded: Recorded) -> bytes:
            self.reading += 1
            await self.let_go.wait()
            return await super().read_response(recorded)

    disk = SlowDisk()
    road = Road(connector=answering(), ledger=disk)
    async with served(road) as client, served(road) as other:
        await client.send(asked("r1"))
        answer = await client.receive()
        await client.send(*[asked("r1")] * 40)
        await trio.testing.wait_all_tasks_blocked()
        assert disk.reading == 16
        await other.send(asked("r2"))
        assert await other.heard(1) == ["end_turn"]
        disk.let_go.set()
        assert [await client.receive() for _ in range(40)] == [answer] * 40


async def test_c9_one_byte_changed_is_a_conflict_and_the_stored_reply_is_untouched() -> None:
    road = Road(connector=answering())
    frame = build.frame(build.request(build.text("hello there"), request_id="r1"))
    changed = build.frame(build.request(build.text("hello therf"), request_id="r1"))
    async with served(road) as client:
        await client.send(frame)
        answer = await client.receive()
        await client.send(changed, frame, changed)
        heard = [await client.receive() for _ in range(3)]
        assert heard.count(answer) == 1
        assert [said(other) for other in heard if other and other != answer] == ["ReplayConflict"] * 2
    assert len(road.ledger.begins) == 1


async def test_c11_a_retry_after_an_unknown_end_is_never_sent_again() -> None:
    road = Road()
    road.ledger.fail_complete_with = "the process is gone"
    road.connector.let_go.set()
    async with served(road) as client:
        await client.send(asked("r1"))
        assert await client.heard(1) == ["ledger_unavailable"]
        await client.send(asked("r1"))
        assert await client.heard(1) == ["Indeterminate"]
    restarted = Road(ledger=road.ledger)
    async with served(restarted) as client:
        await client.send(asked("r1"), asked("r1"))
        assert await client.heard(2) == ["Indeterminate"] * 2
    assert len(road.connector.asked) == 1
    assert not restarted.connector.asked
