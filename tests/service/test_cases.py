"""Cases from the field that the road as a whole answers, each with its own numbers.

Prices here are zero but for output tokens at 100 micro-USD each, so that a
request's worst case is a hundred times its `max_output_tokens`, exactly.
"""

from __future__ import annotations

import random
import time
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import build, independent, mutate
from kit.memory_ledger import MemoryLedger
from kit.road import HeldConnector, Road, receipt, said
from msgspec import structs

from sidecar.connectors.promise import Answer, Lowered
from sidecar.connectors.script import Rule
from sidecar.connectors.scripted import Scripted
from sidecar.contract.values import PriceRow, Usage
from sidecar.rules.framing import framed
from sidecar.rules.pricing import DatedPrice, NoPrice, rows_in_force
from sidecar.service.decision import Admitted

OUTPUT_MICRO_USD = 100
DAY_MS = 86_400_000


def priced_road(**changes: Any) -> Road:
    road = Road(**changes)
    price_by_output(road, OUTPUT_MICRO_USD)
    return road


def price_by_output(road: Road, micro_usd_per_token: int) -> None:
    """The model npc costs this much per output token and nothing else."""
    row = PriceRow(
        input=0, cache_read=0, cache_write_short=0, cache_write_long=0, output=micro_usd_per_token * 1_000_000
    )
    model = structs.replace(road.config.models["npc"], prices=(DatedPrice(from_unix_ms=0, row=row),))
    road.config.models["npc"] = model


def asked(request_id: str, worst_case_micro_usd: int, **changes: Any) -> bytes:
    bound = worst_case_micro_usd // OUTPUT_MICRO_USD
    return build.frame(build.request(request_id=request_id, max_output_tokens=bound), **changes)


def spending(output_tokens: int) -> Scripted:
    usage = Usage(input_tokens=0, cache_read_tokens=0, cache_write_tokens=0, output_tokens=output_tokens)
    return Scripted((Rule(usage=usage),))


def money(road: Road, caller: str = "dungeon", at: int | None = None) -> tuple[int, int]:
    """(spent, reserved) of the window that holds `at`, or now."""
    account = road.accounts[caller]
    start = account.window_start(road.now if at is None else at)
    return account.spent(start), account.reserved(start)


# --- A: budget --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brand_new", [False, True], ids=["a1", "a2"])
async def test_a1_a2_eight_parallel_calls_of_4000_under_10000_are_two_admitted_and_six_refused(brand_new: bool) -> None:
    road = priced_road(ceiling=10_000)
    frames = [asked(f"r{number}", 4_000) for number in range(8)]
    if not brand_new:
        price_by_output(road, 0)
        road.connector.let_go.set()
        await road.answer(asked("before", 100))
        road.connector.let_go = trio.Event()
        price_by_output(road, OUTPUT_MICRO_USD)
    begun_before = len(road.ledger.begins)
    words: list[str] = []

    async def ask(frame: bytes) -> None:
        words.append(said(await road.answer(frame)))

    async with trio.open_nursery() as nursery:
        for frame in frames:
            nursery.start_soon(ask, frame)
        await trio.testing.wait_all_tasks_blocked()
        assert words == ["SpendCeiling"] * 6
        begun = [begin.reservation_micro_usd for begin in road.ledger.begins[begun_before:]]
        assert begun == [4_000, 4_000]
        assert all(sum(begun[:end]) <= 10_000 for end in range(3)), "at every prefix of the ledger"
        assert money(road)[1] == 8_000
        road.connector.let_go.set()


async def test_a3_no_output_bound_or_a_huge_one_reserves_nothing() -> None:
    road = priced_road()
    value = msgpack.unpackb(asked("r1", 100))
    del value["request"]["max_output_tokens"]
    assert road.refusal(bytes(msgpack.packb(value))) == "Malformed"
    assert road.refusal(build.frame(build.request(max_output_tokens=0))) == "Malformed"
    assert road.refusal(build.frame(build.request(max_output_tokens=999_999_999))) == "OutputBound"
    assert money(road) == (0, 0)
    assert not road.ledger.begins


async def test_a5_130_calls_of_100_under_a_bound_of_10000_and_a_ceiling_of_50000_are_none_refused() -> None:
    road = priced_road(ceiling=50_000, connector=spending(1))
    for number in range(130):
        answer = await road.answer(asked(f"r{number}", 10_000))
        assert receipt(answer)["cost_micro_usd"] == 100
        assert money(road) == (100 * (number + 1), 0)
    assert {begin.reservation_micro_usd for begin in road.ledger.begins} == {10_000}


async def test_a5_a_call_is_refused_only_where_settled_and_live_together_pass_the_ceiling() -> None:
    road = priced_road(ceiling=50_000)
    for number in range(5):
        decision = road.decide(asked(f"r{number}", 10_000))
        assert isinstance(decision, Admitted)
    assert road.refusal(asked("sixth", 100)) == "SpendCeiling"
    road.reservations.settle(decision.live, 100)
    assert road.refusal(asked("sixth", 10_000)) == "SpendCeiling"
    assert road.refusal(asked("sixth", 9_900)) is None


async def test_a8_an_explicit_price_of_zero_counts_zero_and_one_that_is_not_there_is_no_zero() -> None:
    road = priced_road(ceiling=1, connector=spending(5))
    price_by_output(road, 0)
    for number in range(3):
        assert receipt(await road.answer(asked(f"r{number}", 10_000)))["cost_micro_usd"] == 0
    assert [begin.reservation_micro_usd for begin in road.ledger.begins] == [0] * 3
    assert road.ledger.begins[0].prices[0].output == 0, "the record tells a zero from nothing"
    with pytest.raises(NoPrice):
        rows_in_force((), road.now)


FRAME_KINDS = [
    "transport_invocation", "transport_hello", "transport_quote", "transport_cancel", "transport_status",
    "transport_result", "transport_event", "transport_receipt", "provider_request",
    "operator_resolve", "operator_reload", "operator_metrics", "pass_through",
]  # fmt: skip


@st.composite
def any_frame(draw: st.DrawFn) -> bytes:
    """A frame of any kind around an invocation: as it is, inside a quote, under another name, or mutated."""
    name = draw(st.sampled_from(["r1", "r2", "r3"]))
    invocation = msgpack.unpackb(build.frame(build.request(request_id=name), max_cost_micro_usd=10**6))
    kind = draw(st.sampled_from(FRAME_KINDS))
    value = {
        **draw(st.sampled_from([invocation, invocation["request"], {"invocation": invocation}])),
        **draw(
            st.sampled_from([{}, {"caller_runtime_id": "dungeon", "request_id": name}, {"protocol": 1, "join": True}])
        ),
        "schema_id": f"gamecult.model.{kind}.v1",
    }
    frame = bytes(msgpack.packb(draw(st.sampled_from([value, invocation]))))
    chance = random.Random(draw(st.integers(0, 2**32)))
    return mutate.mutated(frame, chance) if draw(st.booleans()) else frame


class Watching(HeldConnector):
    """Notes whatever reaches it that has no begin record of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger()
        self.unrecorded: list[str] = []

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        self.asked.append(lowered)
        begun = [begin.request_id for begin in self.ledger.begins]
        if begun.count(lowered.request.request_id) != 1:
            self.unrecorded.append(lowered.request.request_id)
        await Scripted().exchange(lowered, answer)


@given(st.lists(any_frame(), max_size=12))
@settings(max_examples=150, deadline=None)
async def test_a9_nothing_on_the_socket_reaches_a_provider_without_a_begin_record(frames: list[bytes]) -> None:
    connector = Watching()
    road = Road(connector=connector, ledger=connector.ledger)
    theirs, ours = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.connection(ours, nursery).serve)
        await theirs.send_all(b"".join(framed(frame or b"\xc0") for frame in frames))
        await theirs.send_eof()
        while await theirs.receive_some():
            pass
    assert not connector.unrecorded
    assert len(connector.asked) == len(road.ledger.begins) == len(road.ledger.completes)
    valid = {msgpack.unpackb(frame)["request"]["request_id"] for frame in frames if independent.accepts(frame)}
    assert {begin.request_id for begin in road.ledger.begins} <= valid


async def test_a12_a_call_whose_connection_dies_after_sending_costs_its_whole_reservation_in_the_record() -> None:
    class Lost(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            self.asked.append(lowered)
            answer.sent = True
            answer.text("half an ans")
            answer.fail("unavailable", "the connection was lost")

    road = priced_road(connector=Lost())
    answer = await road.answer(asked("r1", 7_700))
    assert receipt(answer)["outcome"]["Failed"] == {"kind": "unavailable", "message": "the connection was lost"}
    assert receipt(answer)["cost_micro_usd"] == road.ledger.completes[0][1].charge_micro_usd == 7_700
    assert money(road) == (7_700, 0)
    assert await road.answer(asked("r1", 7_700)) == answer
    assert len(road.connector.asked) == 1


async def test_a13_the_log_of_a_refusal_by_the_ceiling_says_what_was_needed_of_what() -> None:
    road = priced_road(ceiling=10_000, connector=spending(25))
    await road.answer(asked("r1", 4_000))
    assert isinstance(road.decide(asked("r2", 4_000)), Admitted)
    assert road.refusal(asked("r3", 3_600)) == "SpendCeiling"
    start = road.now - road.now % DAY_MS
    line = road.log.getvalue().splitlines()[-1]
    needed = f"3600 micro-USD are needed, 2500 spent and 4000 reserved of 10000 in the window of 86400 s from {start}"
    assert "refusal=SpendCeiling caller=dungeon request=r3" in line
    assert needed in line


@pytest.mark.parametrize("whose", [{"concurrent": 1}, {"connector_concurrent": 1}])
async def test_a14_a_refusal_for_capacity_leaves_everything_as_it_was(whose: dict[str, int]) -> None:
    road = priced_road(ceiling=10_000, **whose)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.answer, asked("r1", 4_000))
        await trio.testing.wait_all_tasks_blocked()
        before = (money(road), len(road.reservations), len(road.ledger.begins))
        for number in range(50):
            assert said(await road.answer(asked(f"more-{number}", 4_000))) == "Capacity"
        assert (money(road), len(road.reservations), len(road.ledger.begins)) == before == ((0, 4_000), 1, 1)
        road.connector.let_go.set()
    assert said(await road.answer(asked("more-0", 4_000))) != "Capacity"


# --- B: windows and clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
async def test_b1_the_day_ends_at_86400_s_of_utc_whatever_the_zone_and_its_summer_time(
    zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        road = priced_road(ceiling=10_000, connector=spending(100))
        for day in (0, 180 * DAY_MS, 360 * DAY_MS):
            for at, word in (
                (day + 86_399_000, "max_output_tokens"),
                (day + 86_399_999, "SpendCeiling"),
                (day + 86_400_000, "max_output_tokens"),
            ):
                road.now = at
                answer = await road.answer(asked(f"r{at}", 10_000, expires_at_unix_ms=at + 60_000))
                assert (said(answer) == "SpendCeiling") == (word == "SpendCeiling")
            assert money(road, at=day + 86_399_000) == (10_000, 0)
            assert money(road, at=day + 86_400_000) == (10_000, 0)
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_b2_a_reservation_of_86399_s_that_settles_at_86401_s_is_charged_to_window_0() -> None:
    road = priced_road()
    road.now = 86_399_000
    frame = asked("r1", 10_000, expires_at_unix_ms=road.now + 60_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(road.answer, frame)
        await trio.testing.wait_all_tasks_blocked()
        road.now = 86_401_000
        assert money(road) == (0, 0), "window 1 starts at nothing"
        assert money(road, at=0) == (0, 10_000)
        road.connector.let_go.set()
    assert money(road) == (0, 0)
    assert money(road, at=0) == (200, 0)


@pytest.mark.parametrize("edge_ms", [60_000, 3_600_000], ids=["over a window's edge", "within a window"])
async def test_b6_a_clock_that_steps_back_120_s_gives_nothing_back_and_loses_nothing(edge_ms: int) -> None:
    """Replays too are as they were; what is asked after the step belongs to the window that the clock then says."""
    road = priced_road(ceiling=10_000)
    road.now = 10 * DAY_MS + edge_ms
    late = road.now
    answers: list[bytes] = []

    async def ask(frame: bytes) -> None:
        answers.append(await road.answer(frame))

    first = asked("r1", 6_000, expires_at_unix_ms=late + 200_000)
    running = asked("r2", 4_000, expires_at_unix_ms=late + 200_000)
    async with trio.open_nursery() as nursery:
        road.connector.let_go.set()
        await ask(first)
        spent = money(road, at=late)[0]
        road.connector.let_go = trio.Event()
        nursery.start_soon(ask, running)
        await trio.testing.wait_all_tasks_blocked()
        road.now -= 120_000
        assert money(road, at=late) == (spent, 4_000)
        assert await road.answer(first) == answers[0]
        assert said(await road.answer(running)) == "InFlight"
        crosses = edge_ms < 120_000
        assert money(road) == ((0, 0) if crosses else (spent, 4_000))
        over = asked("r3", 10_000, expires_at_unix_ms=road.now + 60_000)
        assert road.refusal(over) == (None if crosses else "SpendCeiling")
        road.now = late
        assert road.refusal(asked("r4", 10_000, expires_at_unix_ms=late + 60_000)) == "SpendCeiling"
        road.connector.let_go.set()
    assert money(road, at=late)[1] == 0
    assert money(road, at=late)[0] == 2 * spent
    assert [begin.admitted_at_unix_ms for begin in road.ledger.begins] == [late, late]


# --- I: deadlines -----------------------------------------------------------------------------------------------


async def test_i4_a_deadline_in_mid_call_is_a_timeout_and_never_a_short_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow(HeldConnector):
        async def exchange(self, lowered: Lowered, answer: Answer) -> None:
            answer.sent = True
            for _ in range(100):
                answer.text("word ")
                await trio.sleep(1)

    road = priced_road(connector=Slow())
    answer = await road.answer(asked("r1", 10_000, expires_at_unix_ms=road.now + 5_500))
    assert trio.current_time() == pytest.approx(5.5)
    assert said(answer) == "timeout"
    assert receipt(answer)["cost_micro_usd"] == 10_000
    texts = [event["payload"]["TextDelta"]["text"] for event in events(answer)]
    assert "".join(texts) == "word " * 6


def events(answer: bytes) -> list[dict[str, Any]]:
    return list(msgpack.unpackb(answer)["disposition"]["Transported"]["events"])


async def test_i4_the_wait_for_the_ledger_is_part_of_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """Begin takes 4 of 5 seconds: the provider has one."""
    ledger = MemoryLedger()
    ledger.delay_seconds = 4
    road = priced_road(ledger=ledger)
    began = trio.current_time()

    def note() -> None:
        assert trio.current_time() - began == pytest.approx(4)
        ledger.delay_seconds = 0

    road.connector.on_ask = note
    answer = await road.answer(asked("r1", 10_000, expires_at_unix_ms=road.now + 5_000))
    assert said(answer) == "timeout"
    assert trio.current_time() - began == pytest.approx(5)
