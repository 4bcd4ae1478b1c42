"""Money: integers, one division, never above the worst case, equal to an independent computation."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.contract.values import U64_MAX, PriceRow, Usage
from sidecar.rules.pricing import (
    DatedPrice,
    NoPrice,
    charge_micro_usd,
    input_bound_tokens,
    rows_in_force,
    worst_case_micro_usd,
)
from sidecar.rules.usage import plain_usage, usage_from_parts
from sidecar.rules.windows import Account

PRICES = st.integers(0, 10**9)
COUNTS = st.integers(0, 10**7)
RETENTIONS = st.sampled_from([None, "short", "long"])


def row(
    input: Any, read: Any = 0, short: Any = 0, long: Any = 0, output: Any = 0, above: int | None = None
) -> PriceRow:
    """A row from USD per million tokens, as price lists give them."""
    amounts = [Fraction(str(amount)) * 1_000_000 for amount in (input, read, short, long, output)]
    assert all(amount.denominator == 1 for amount in amounts)
    names = ("input", "cache_read", "cache_write_short", "cache_write_long", "output")
    return PriceRow(
        **{name: int(amount) for name, amount in zip(names, amounts, strict=True)}, above_input_tokens=above
    )


def usage(input: int = 0, read: int = 0, write: int = 0, output: int = 0, reasoning: int | None = None) -> Usage:
    return Usage(
        input_tokens=input, cache_read_tokens=read, cache_write_tokens=write, output_tokens=output,
        reasoning_tokens=reasoning,
    )  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[PriceRow, ...]:
    thresholds = [None, *sorted(draw(st.sets(st.integers(1, 10**7), max_size=3)))]
    return tuple(
        PriceRow(
            input=draw(PRICES), cache_read=draw(PRICES), cache_write_short=draw(PRICES),
            cache_write_long=draw(PRICES), output=draw(PRICES), above_input_tokens=threshold,
        )
        for threshold in thresholds
    )  # fmt: skip


USAGES = st.builds(usage, COUNTS, COUNTS, COUNTS, COUNTS)


@given(tables(), USAGES, RETENTIONS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_charge_never_exceeds_the_worst_case_of_usage_within_its_bounds(
    rows: tuple[PriceRow, ...], used: Usage, retention: Any, more_input: int, more_output: int
) -> None:
    worst = worst_case_micro_usd(
        rows,
        input_bound_tokens=used.input_tokens + used.cache_read_tokens + used.cache_write_tokens + more_input,
        max_output_tokens=used.output_tokens + more_output,
        retention=retention,
    )
    assert 0 <= charge_micro_usd(rows, used, retention) <= worst


@given(tables(), USAGES, RETENTIONS)
def test_the_charge_equals_an_independent_rational_computation(
    rows: tuple[PriceRow, ...], used: Usage, retention: Any
) -> None:
    total = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    reached = [one for one in rows if one.above_input_tokens is not None and one.above_input_tokens < total]
    tier = max(reached, key=lambda one: one.above_input_tokens or 0, default=rows[0])
    write = {"long": tier.cache_write_long}.get(retention, tier.cache_write_short)
    exact = sum(
        (
            Fraction(used.input_tokens) * tier.input,
            Fraction(used.cache_read_tokens) * tier.cache_read,
            Fraction(used.cache_write_tokens) * write,
            Fraction(used.output_tokens) * tier.output,
        ),
        Fraction(0),
    )
    assert charge_micro_usd(rows, used, retention) == math.ceil(exact / 10**6)


@given(tables(), COUNTS, COUNTS, RETENTIONS)
def test_the_worst_case_equals_an_independent_rational_computation(
    rows: tuple[PriceRow, ...], bound: int, output: int, retention: Any
) -> None:
    """Every row whose interval of total inputs, (its threshold, the next), holds some number of 0 to bound counts."""
    candidates = []
    for one in rows:
        if one.above_input_tokens is not None and one.above_input_tokens + 1 > bound:
            continue
        write = one.cache_write_long if retention == "long" else one.cache_write_short
        dearest = sorted((one.input, one.cache_read, write))[-1]
        candidates.append(Fraction(bound * dearest, 10**6) + Fraction(output * one.output, 10**6))
    worst = worst_case_micro_usd(rows, input_bound_tokens=bound, max_output_tokens=output, retention=retention)
    assert worst == math.ceil(max(candidates))


@given(tables(), COUNTS, COUNTS, RETENTIONS, st.integers(0, 10**6), st.integers(0, 10**6))
def test_more_tokens_never_make_the_worst_case_less(
    rows: tuple[PriceRow, ...], bound: int, output: int, retention: Any, more_input: int, more_output: int
) -> None:
    fewer = worst_case_micro_usd(rows, input_bound_tokens=bound, max_output_tokens=output, retention=retention)
    more = worst_case_micro_usd(
        rows, input_bound_tokens=bound + more_input, max_output_tokens=output + more_output, retention=retention
    )
    assert fewer <= more


@given(tables(), USAGES, USAGES, RETENTIONS)
def test_more_tokens_never_cost_less_where_no_tier_is_cheaper_than_the_one_below(
    rows: tuple[PriceRow, ...], used: Usage, more: Usage, retention: Any
) -> None:
    """Tiers may fall as well: a price list that says so is charged as it says."""
    rising: list[PriceRow] = []
    for one in rows:
        below = rising[-1] if rising else one
        rising.append(
            PriceRow(
                input=max(one.input, below.input),
                cache_read=max(one.cache_read, below.cache_read),
                cache_write_short=max(one.cache_write_short, below.cache_write_short),
                cache_write_long=max(one.cache_write_long, below.cache_write_long),
                output=max(one.output, below.output),
                above_input_tokens=one.above_input_tokens,
            )
        )
    together = usage(
        used.input_tokens + more.input_tokens,
        used.cache_read_tokens + more.cache_read_tokens,
        used.cache_write_tokens + more.cache_write_tokens,
        used.output_tokens + more.output_tokens,
    )
    assert charge_micro_usd(rising, used, retention) <= charge_micro_usd(rising, together, retention)


def test_one_division_rounds_up_once_for_the_whole_request() -> None:
    rows = (PriceRow(input=1, cache_read=1, cache_write_short=1, cache_write_long=1, output=1),)
    assert charge_micro_usd(rows, usage(1, 1, 1, 1), None) == 1
    assert charge_micro_usd(rows, usage(999_997, 1, 1, 1), None) == 1
    assert charge_micro_usd(rows, usage(999_998, 1, 1, 1), None) == 2
    assert charge_micro_usd(rows, usage(), None) == 0


def test_five_prime_prices_tell_five_kinds_of_token_apart() -> None:
    rows = (PriceRow(input=2_000_003, cache_read=3_000_017, cache_write_short=5_000_011, cache_write_long=7_000_003,
                     output=11_000_027),)  # fmt: skip
    million = 1_000_000
    assert charge_micro_usd(rows, usage(input=million), None) == 2_000_003
    assert charge_micro_usd(rows, usage(read=million), None) == 3_000_017
    assert charge_micro_usd(rows, usage(write=million), None) == 5_000_011
    assert charge_micro_usd(rows, usage(write=million), "short") == 5_000_011
    assert charge_micro_usd(rows, usage(write=million), "long") == 7_000_003
    assert charge_micro_usd(rows, usage(output=million, reasoning=million), None) == 11_000_027


def test_a_row_above_a_threshold_reprices_the_whole_request_when_strictly_more() -> None:
    rows = (row(1, output=2), row(10, output=20, above=100))
    assert charge_micro_usd(rows, usage(input=60, read=0, write=40, output=5), None) == 60 + 10
    assert charge_micro_usd(rows, usage(input=61, write=40, output=5), None) == 610 + 100


def test_the_worst_case_takes_the_dearest_row_that_can_be_reached() -> None:
    rows = (row(9, output=9), row(1, output=1, above=100))
    assert worst_case_micro_usd(rows, input_bound_tokens=200, max_output_tokens=10, retention=None) == 210 * 9
    dear_above = (row(1, output=1), row(9, output=9, above=100))
    assert worst_case_micro_usd(dear_above, input_bound_tokens=100, max_output_tokens=10, retention=None) == 110
    assert worst_case_micro_usd(dear_above, input_bound_tokens=101, max_output_tokens=10, retention=None) == 111 * 9


def test_the_worst_case_knows_which_cache_write_is_meant() -> None:
    rows = (row(1, short=2, long=3),)
    for retention, expected in ((None, 20), ("short", 20), ("long", 30)):
        assert worst_case_micro_usd(rows, input_bound_tokens=10, max_output_tokens=0, retention=retention) == expected


def test_the_newest_begun_row_of_each_threshold_is_in_force() -> None:
    old, new, future = row(1), row(2), row(3)
    tier, tier_new = row(5, above=100), row(6, above=100)
    prices = (
        DatedPrice(from_unix_ms=2000, row=new),
        DatedPrice(from_unix_ms=0, row=old),
        DatedPrice(from_unix_ms=9000, row=future),
        DatedPrice(from_unix_ms=3000, row=tier_new),
        DatedPrice(from_unix_ms=0, row=tier),
    )
    assert rows_in_force(prices, 1999) == (old, tier)
    assert rows_in_force(prices, 2000) == (new, tier)
    assert rows_in_force(prices, 3000) == (new, tier_new)
    assert rows_in_force(prices, 9000) == (future, tier_new)
    with pytest.raises(NoPrice):
        rows_in_force((DatedPrice(from_unix_ms=10, row=old),), 9)


def test_the_input_bound_is_bytes_and_margins() -> None:
    margins = {"overhead_tokens": 1024, "overhead_tokens_per_item": 64}
    bound = input_bound_tokens(request_bytes=500, items=3, tools_bytes=70, tools_rendered_twice=False, **margins)
    assert bound == 500 + 1024 + 192
    assert (
        input_bound_tokens(request_bytes=500, items=3, tools_bytes=70, tools_rendered_twice=True, **margins)
        == bound + 70
    )


# --- what went wrong elsewhere ----------------------------------------------------------------------------------


def charged(rows: PriceRow, used: Usage, retention: Any = None) -> int:
    return charge_micro_usd((rows,), used, retention)


def test_d1_cache_writes_are_charged_once() -> None:
    assert charged(row(3, "0.30", "3.75", output=15), usage(input=3, write=12304, output=550)) == 54_399


def test_d3_cached_input_is_charged_as_a_read() -> None:
    used, _ = plain_usage(input_total=1_239_328, cache_read=1_188_096, output=12_909)
    assert charged(row("1.25", "0.125", output=10), used) == 341_642
    used, _ = plain_usage(input_total=2006, cache_read=1920, output=300)
    assert charged(row("2.5", "1.25", output=10), used) == 5_615


def test_d4_a_streamed_cache_read_costs_what_a_read_costs() -> None:
    used, _ = usage_from_parts(input_tokens=4, cache_read=2455, output=23)
    assert charged(row("0.80", "0.08", output=4), used) == 292


def test_d6_cached_above_the_prompt_is_clamped_and_noted() -> None:
    used, clamped = plain_usage(input_total=100, cache_read=120, output=1)
    assert (used.input_tokens, used.cache_read_tokens, clamped) == (0, 100, True)


def test_d7_an_hour_long_write_has_its_own_price() -> None:
    rows = row(5, short="6.25", long=10)
    short, long = usage(write=600_000), usage(write=400_000)
    assert charged(rows, short, "short") + charged(rows, long, "long") == 7_750_000


def test_d9_reasoning_is_inside_output() -> None:
    used, _ = plain_usage(input_total=14_746, output=1_944, reasoning=1_360)
    assert charged(row(30, output=180), used) == 792_300
    used, _ = usage_from_parts(input_tokens=51, output=136, reasoning=31)
    assert charged(row(3, output=15), used) == 2_193


def test_d14_the_bound_uses_the_dearest_tier_and_the_charge_the_tier_that_was_reached() -> None:
    rows = (row(2, "0.1", "2.5", 5, 10), row(4, "0.2", 5, 10, 15, above=272_000))
    used = usage(input=300_000, output=1_000)
    assert charge_micro_usd(rows, used, None) == 1_215_000
    assert worst_case_micro_usd(rows, input_bound_tokens=300_000, max_output_tokens=1_000, retention=None) == 1_515_000


def test_d19_small_charges_add_up_exactly() -> None:
    one = charged(row(4), usage(input=1000))
    account = Account(window_seconds=86_400, ceiling_micro_usd=10_000_000)
    for _ in range(2_500):
        assert account.allows(0, one)
        account.reserve(0, one)
        account.settle(0, one, one)
    assert (one, account.spent(0), account.reserved(0)) == (4_000, 10_000_000, 0)
    assert not account.allows(0, one)
    assert not account.allows(0, 1)


def test_a8_a_price_of_zero_counts_zero() -> None:
    assert charged(row(0), usage(input=10**6, output=10**6)) == 0
    assert rows_in_force((DatedPrice(from_unix_ms=0, row=row(0)),), 0) == (row(0),)


def test_a8_a_price_that_is_not_there_is_no_price_of_zero() -> None:
    with pytest.raises(NoPrice):
        rows_in_force((), 0)
    with pytest.raises(NoPrice):
        rows_in_force((DatedPrice(from_unix_ms=0, row=row(0, above=100)),), 0)


def test_a_charge_may_pass_u64_and_says_so_by_being_an_integer() -> None:
    assert charged(row(10**13), usage(input=U64_MAX)) > U64_MAX
