"""Records and accounts come to the same micro-USD, whatever is under way; and where they don't, it is said where."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.rules.conservation import TOLD_MAX, Tally
from sidecar.rules.reservations import Limits, Live, Reservations
from sidecar.rules.windows import WINDOWS_KEPT, Account

DAY = 86_400
DAY_MS = DAY * 1000


def test_what_was_settled_and_what_is_open_is_summed_by_window() -> None:
    tally, account = Tally({"a": DAY}), Account(DAY, 0)
    for at, reservation, charge in ((5, 100, 60), (DAY_MS - 1, 50, None), (DAY_MS, 70, 90)):
        tally.begun("a", at, reservation)
        account.reserve(at, reservation)
        if charge is not None:
            tally.ended("a", at, reservation, charge)
            account.settle(at, reservation, charge)
    compared = tally.compared({"a": account.figures()})
    assert (compared.windows, compared.settled_micro_usd, compared.open_micro_usd) == (2, 150, 50)
    assert compared.mismatches == ()
    assert compared.sentences() == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda account: account.settle(0, 0, 1), "60 micro-USD are settled and 50 open, by the account 61 and 50"),
        (lambda account: account.reserve(0, 1), "60 micro-USD are settled and 50 open, by the account 60 and 51"),
        (lambda account: account.release(0, 50), "60 micro-USD are settled and 50 open, by the account 60 and 0"),
        (
            lambda account: account.settle(DAY_MS, 0, 3),
            f"caller a, window of {DAY} s from {DAY_MS}: by the ledger 0 micro-USD are settled and 0 open,"
            " by the account 3 and 0",
        ),
    ],
)
def test_each_way_to_differ_names_caller_window_and_both_figures(wrong: Callable[[Account], None], said: str) -> None:
    tally, account = Tally({"a": DAY, "b": DAY}), Account(DAY, 0)
    for reservation, charge in ((100, 60), (50, None)):
        tally.begun("a", 0, reservation)
        account.reserve(0, reservation)
        if charge is not None:
            tally.ended("a", 0, reservation, charge)
            account.settle(0, reservation, charge)
    wrong(account)
    [sentence] = tally.compared({"a": account.figures(), "b": Account(DAY, 0).figures()}).sentences()
    assert sentence.startswith("caller a, window of 86400 s from ")
    assert said in sentence


def test_a_window_that_only_the_records_know_is_a_mismatch() -> None:
    tally = Tally({"a": DAY})
    tally.begun("a", 0, 5)
    [mismatch] = tally.compared({"a": Account(DAY, 0).figures()}).mismatches
    assert (mismatch.ledger_open, mismatch.account_open) == (5, 0)


def test_records_of_a_caller_that_the_configuration_no_longer_has_are_left_out() -> None:
    tally = Tally({"a": DAY})
    tally.begun("gone", 0, 5)
    tally.ended("gone", 0, 5, 3)
    assert tally.compared({"a": Account(DAY, 0).figures()}).windows == 0


def test_mismatches_are_told_up_to_a_bound_and_then_counted() -> None:
    account = Account(1, 0)
    for second in range(TOLD_MAX + 5):
        account.reserve(second * 1000, 1)
    compared = Tally({"a": 1}).compared({"a": account.figures()})
    assert len(compared.mismatches) == TOLD_MAX + 5
    assert len(compared.sentences()) == TOLD_MAX + 1
    assert compared.sentences()[-1] == "and 5 windows more"


@given(st.integers(0, 2**32), st.sampled_from([0, 3, 100, 3000]))
@settings(max_examples=40, deadline=None)
def test_what_either_has_forgotten_is_no_mismatch_and_nothing_open_is_ever_forgotten(seed: int, spread: int) -> None:
    """Windows of a second, about in order; each forgets in its own way."""
    chance = random.Random(seed)
    tally, account = Tally({"a": 1}), Account(1, 0)
    opened = 0
    for at in range(1500):
        admitted_at = max(0, at + chance.randint(-spread, spread)) * 1000
        reservation = chance.randint(0, 50)
        tally.begun("a", admitted_at, reservation)
        account.reserve(admitted_at, reservation)
        if chance.random() < 0.1:
            opened += reservation
        else:
            charge = chance.randint(0, 90)
            tally.ended("a", admitted_at, reservation, charge)
            account.settle(admitted_at, reservation, charge)
    assert account.kept_from_unix_ms > 0
    compared = tally.compared({"a": account.figures()})
    assert compared.mismatches == ()
    assert compared.open_micro_usd == opened


def test_a_long_life_in_short_windows_is_summed_in_bounded_memory() -> None:
    tally, account = Tally({"a": 1}), Account(1, 0)
    for second in range(5000):
        tally.begun("a", second * 1000, 7)
        account.reserve(second * 1000, 7)
        if second != 3:
            tally.ended("a", second * 1000, 7, 5)
            account.settle(second * 1000, 7, 5)
    assert len(tally._callers["a"]._windows) <= 8 * WINDOWS_KEPT + 1
    compared = tally.compared({"a": account.figures()})
    assert compared.mismatches == ()
    assert compared.open_micro_usd == 7
    account.settle(4_999_000, 0, 1)
    assert len(tally.compared({"a": account.figures()}).mismatches) == 1


STEPS = st.lists(
    st.tuples(st.sampled_from(["take", "begun", "settle", "release", "strand"]), st.integers(0, 7), st.integers(0, 40)),
    max_size=60,
)


@given(STEPS)
def test_what_is_on_record_is_what_has_landed_after_every_step(steps: list[tuple[str, int, int]]) -> None:
    """A begin is tallied where it lands, an end where it lands; reservations are taken before."""
    account, tally = Account(DAY, 10**9), Tally({"a": DAY})
    held = Reservations(Limits(daemon=9, callers={"a": 9}, connectors={"c": 9}), {"a": account})
    taken: dict[int, Live] = {}
    begun: dict[int, Live] = {}
    for step, number, amount in steps:
        if step == "take" and number not in {**taken, **begun}:
            taken[number] = Live(
                caller="a", request_id=f"r{number}", connector="c", identity=b"", reservation_micro_usd=amount,
                admitted_at_unix_ms=number % 2 * DAY_MS,
            )  # fmt: skip
            held.take(taken[number])
        elif step == "begun" and number in taken:
            begun[number] = one = taken.pop(number)
            tally.begun("a", one.admitted_at_unix_ms, one.reservation_micro_usd)
            held.begun(one)
        elif step == "release" and number in taken:
            held.release(taken.pop(number))
        elif step == "settle" and number in begun:
            one = begun.pop(number)
            tally.ended("a", one.admitted_at_unix_ms, one.reservation_micro_usd, amount)
            held.settle(one, amount)
        elif step == "strand" and number in begun:
            held.strand(begun.pop(number))
        assert tally.compared(held.on_record()).mismatches == ()


def test_a_request_left_open_is_settled_in_the_window_of_its_admission() -> None:
    account = Account(DAY, 100)
    held = Reservations(Limits(daemon=1, callers={"a": 1}, connectors={}), {"a": account})
    account.reserve(5, 40)
    held.settle_left_open("gone", 5, 40, 40)
    assert (account.spent(0), account.reserved(0)) == (0, 40)
    held.settle_left_open("a", 5, 40, 0)
    assert (account.spent(0), account.reserved(0)) == (0, 0)
