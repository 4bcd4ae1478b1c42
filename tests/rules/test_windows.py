"""Windows, accounts and reservations: integers that never lose or invent a micro-USD."""

from __future__ import annotations

import os
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rules.reservations import Limits, Live, Reservations
from sidecar.rules.windows import WINDOWS_KEPT, Account

DAY = 86_400


def live(number: int, caller: str = "a", amount: int = 10, at: int = 0, connector: str = "c") -> Live:
    return Live(
        caller=caller, request_id=f"r{number}", connector=connector, identity=b"", reservation_micro_usd=amount,
        admitted_at_unix_ms=at,
    )  # fmt: skip


def reservations(ceiling: int = 100, daemon: int = 100, caller: int = 100, connector: int = 100) -> Reservations:
    accounts = {"a": Account(DAY, ceiling), "b": Account(DAY, ceiling)}
    return Reservations(
        Limits(daemon=daemon, callers={"a": caller, "b": caller}, connectors={"c": connector}), accounts
    )


def test_b1_windows_are_aligned_to_the_epoch_whatever_the_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "Asia/Tokyo")
    time.tzset()
    assert Account(DAY, 0).window_start(86_399_999) == 0
    assert Account(DAY, 0).window_start(86_400_000) == 86_400_000
    monkeypatch.undo()
    time.tzset()


def test_b2_a_charge_belongs_to_the_window_of_admission() -> None:
    account = Account(DAY, 1000)
    account.reserve(86_399_000, 500)
    account.settle(86_399_000, 500, 400)
    assert (account.spent(0), account.reserved(0)) == (400, 0)
    assert (account.spent(86_400_000), account.reserved(86_400_000)) == (0, 0)


def test_b6_a_clock_that_steps_back_gives_no_window_its_spend_back() -> None:
    account = Account(DAY, 1000)
    account.reserve(86_400_000, 900)
    account.reserve(86_280_000, 800)  # 120 s earlier, in the window before
    assert not account.allows(86_400_000, 200)
    assert not account.allows(86_280_000, 300)
    account.settle(86_400_000, 900, 900)
    assert account.spent(86_400_000) == 900
    assert account.reserved(0) == 800


def test_exactly_at_the_ceiling_is_allowed() -> None:
    held = reservations(ceiling=20)
    held.take(live(1))
    assert held.over_ceiling("a", 0, 10) is None
    assert "11 micro-USD are needed, 0 spent and 10 reserved of 20" in (held.over_ceiling("a", 0, 11) or "")
    held.take(live(2))
    assert held.over_ceiling("a", 0, 1) is not None


def test_a14_a_full_slot_leaves_the_account_as_it_was() -> None:
    held = reservations(caller=1)
    held.take(live(1))
    assert "caller a has 1 of 1" in (held.full("a", "c") or "")
    assert held.over_ceiling("a", 0, 90) is None
    assert held.full("b", "c") is None


@pytest.mark.parametrize(("limits", "who"), [({"daemon": 1}, "daemon"), ({"connector": 1}, "connector")])
def test_each_limit_says_whose_it_is(limits: dict[str, int], who: str) -> None:
    held = reservations(**limits)
    held.take(live(1))
    assert who in (held.full("b", "c") or "")


def test_more_than_was_reserved_can_not_be_released_or_settled() -> None:
    account = Account(DAY, 100)
    account.reserve(5, 10)
    for wrong in (lambda: account.release(5, 11), lambda: account.settle(86_400_000, 10, 1)):
        with pytest.raises(AssertionError):
            wrong()
    with pytest.raises(AssertionError):
        account.reserve(5, -1)
    with pytest.raises(AssertionError):
        account.settle(5, 10, -1)
    assert (account.spent(0), account.reserved(0)) == (0, 10)


def test_a_charge_above_the_ceiling_stands_and_closes_the_window() -> None:
    account = Account(DAY, 100)
    account.reserve(0, 10)
    account.settle(0, 10, 250)
    assert account.spent(0) == 250
    assert not account.allows(0, 0)
    assert account.allows(86_400_000, 100)


@given(st.integers(0, 2**64), st.integers(1, 10**9))
def test_every_instant_lies_in_one_window(now_unix_ms: int, window_seconds: int) -> None:
    start = Account(window_seconds, 0).window_start(now_unix_ms)
    assert start % (window_seconds * 1000) == 0
    assert start <= now_unix_ms < start + window_seconds * 1000
    assert Account(window_seconds, 0).window_start(start) == start


REQUESTS = st.lists(
    st.tuples(st.integers(0, 4 * DAY * 1000), st.integers(0, 50), st.none() | st.integers(0, 90)), max_size=30
)


@given(REQUESTS, st.randoms(use_true_random=False), st.sampled_from([3600, DAY, 7 * DAY]))
def test_b4_totals_read_from_the_records_equal_the_live_ones_whatever_the_order_of_settling(
    requests: list[tuple[int, int, int | None]], order: random.Random, window_seconds: int
) -> None:
    """A request without a charge has not ended. Live ones settle in any order, records are read begin by begin."""
    lived, replayed = Account(DAY, 0), Account(window_seconds, 0)
    for admitted_at, amount, _ in requests:
        lived.reserve(admitted_at, amount)
    for admitted_at, amount, charge in order.sample(requests, len(requests)):
        if charge is not None:
            lived.settle(admitted_at, amount, charge)
    for admitted_at, amount, charge in requests:
        replayed.reserve(admitted_at, amount)
        if charge is not None:
            replayed.settle(admitted_at, amount, charge)
    for account in (lived, replayed):
        starts = {account.window_start(admitted_at) for admitted_at, _, _ in requests}
        assert sum(map(account.spent, starts)) == sum(charge for _, _, charge in requests if charge is not None)
        assert sum(map(account.reserved, starts)) == sum(amount for _, amount, charge in requests if charge is None)
    if window_seconds == DAY:
        for admitted_at, _, _ in requests:
            start = Account(DAY, 0).window_start(admitted_at)
            assert lived.spent(start) == replayed.spent(start)
            assert lived.reserved(start) == replayed.reserved(start)


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "release", "strand"]), st.integers(0, 7), st.integers(0, 40)),
    max_size=60,
)


@given(STEPS)
def test_no_interleaving_passes_a_cap_or_loses_money(steps: list[tuple[str, int, int]]) -> None:
    account = Account(DAY, 100)
    held = Reservations(Limits(daemon=3, callers={"a": 3}, connectors={"c": 3}), {"a": account})
    running: dict[int, Live] = {}
    spent = stranded = 0
    for step, number, amount in steps:
        if step == "take":
            fits = held.full("a", "c") is None and held.over_ceiling("a", 0, amount) is None
            if fits and number not in running:
                running[number] = live(number, amount=amount)
                held.take(running[number])
        elif number in running:
            one = running.pop(number)
            if step == "settle":
                charge = min(amount, one.reservation_micro_usd)
                held.settle(one, charge)
                spent += charge
            elif step == "release":
                held.release(one)
            else:
                held.strand(one)
                stranded += one.reservation_micro_usd
        reserved = stranded + sum(one.reservation_micro_usd for one in running.values())
        assert (account.spent(0), account.reserved(0)) == (spent, reserved)
        assert spent + reserved <= 100
        assert len(held) == len(running) <= 3


def many_seconds(seed: int, spread: int) -> list[tuple[int, int, tuple[int, int] | None]]:
    """Requests in windows of a second, about in order; each ends some requests later, or never."""
    chance = random.Random(seed)
    return [
        (
            max(0, at + chance.randint(-spread, spread)),
            chance.randint(0, 50),
            None if chance.random() < 0.1 else (chance.randint(0, 90), chance.randint(0, 30)),
        )
        for at in range(500)
    ]


@given(st.integers(0, 2**32), st.sampled_from([0, 3, 100, 1000]))
@settings(max_examples=60, deadline=None)
def test_what_an_account_forgets_is_old_settled_and_never_admitted_to_again(seed: int, spread: int) -> None:
    """Against sums that forget nothing."""
    requests = many_seconds(seed, spread)
    account = Account(1, 100)
    spent: dict[int, int] = {}
    reserved: dict[int, int] = {}
    endings: list[tuple[int, int, int, int]] = []
    for at, (second, amount, end) in enumerate(requests):
        account.reserve(second * 1000, amount)
        reserved[second] = reserved.get(second, 0) + amount
        if end is not None:
            endings.append((at + end[1], second, amount, end[0]))
        for ending in [one for one in endings if one[0] <= at]:
            endings.remove(ending)
            _, window, reservation, charge = ending
            account.settle(window * 1000, reservation, charge)
            reserved[window] -= reservation
            spent[window] = spent.get(window, 0) + charge
    assert account.kept_from_unix_ms > 0
    figures, newest = account.figures(), sorted(spent)[-WINDOWS_KEPT:]
    assert len(figures.spent) <= 2 * WINDOWS_KEPT + len(figures.reserved) + 1
    for window in {*spent, *reserved}:
        held = spent.get(window, 0) + reserved.get(window, 0)
        assert account.reserved(window * 1000) == reserved.get(window, 0)
        if window * 1000 >= figures.kept_from_unix_ms:
            assert account.spent(window * 1000) == spent.get(window, 0)
            assert account.allows(window * 1000, 5) == (held + 5 <= 100)
        else:
            assert window not in newest
            assert not account.allows(window * 1000, 0)


def test_a_clock_that_steps_back_past_all_that_is_kept_is_refused_and_told_why() -> None:
    account = Account(1, 100)
    held = Reservations(Limits(daemon=1, callers={"a": 1}, connectors={}), {"a": account})
    for second in range(3 * WINDOWS_KEPT):
        account.reserve(second * 1000, 1)
        account.settle(second * 1000, 1, 1)
    assert held.over_ceiling("a", 10_000, 1) == (
        "what was spent in the window from 10000 is not known: the clock has stepped back"
    )
    assert held.over_ceiling("a", 3 * WINDOWS_KEPT * 1000, 1) is None


def test_a5_settled_requests_leave_nothing_reserved() -> None:
    held = reservations(ceiling=50_000)
    account = held._accounts["a"]
    for number in range(130):
        one = live(number, amount=10_000)
        assert held.over_ceiling("a", 0, 10_000) is None
        held.take(one)
        held.settle(one, 100)
    assert (account.spent(0), account.reserved(0)) == (13_000, 0)
