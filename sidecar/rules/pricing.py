"""What a request can cost at worst, and what it did cost: integers, and one division per request, rounded up.

Amounts are micro-USD, prices are micro-USD per million tokens. A price row
without a threshold is the base row; a row with `above_input_tokens` reprices the
whole request when its total input (plain, read and written) is strictly more.
Source: CONTRACT section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from sidecar.contract.values import CacheRetention, PriceRow, Usage

TOKENS_PER_PRICE: Final = 1_000_000


class DatedPrice(Struct, frozen=True, kw_only=True):
    """A price row and the instant from which it is in force (0: always was)."""

    from_unix_ms: int
    row: PriceRow


class NoPrice(LookupError):
    """No base row is in force: the configuration was not checked."""


def rows_in_force(prices: Sequence[DatedPrice], now_unix_ms: int) -> tuple[PriceRow, ...]:
    """For each threshold the newest row that has begun; the base row first, then by rising threshold."""
    # Most models have one row.
    if len(prices) == 1 and prices[0].row.above_input_tokens is None and prices[0].from_unix_ms <= now_unix_ms:
        return (prices[0].row,)
    newest: dict[int | None, DatedPrice] = {}
    for price in prices:
        threshold = price.row.above_input_tokens
        begun = newest.get(threshold)
        if price.from_unix_ms <= now_unix_ms and (begun is None or begun.from_unix_ms <= price.from_unix_ms):
            newest[threshold] = price
    if None not in newest:
        raise NoPrice("no base price row is in force")
    base = newest.pop(None)
    tiers = sorted(newest.values(), key=lambda price: price.row.above_input_tokens or 0)
    return (base.row, *(price.row for price in tiers))


def input_bound_tokens(
    *,
    request_bytes: int,
    items: int,
    tools_bytes: int,
    overhead_tokens: int,
    overhead_tokens_per_item: int,
    tools_rendered_twice: bool,
) -> int:
    """The most input tokens a request can be billed: a token covers at least a byte, the margins cover the rest."""
    twice = tools_bytes if tools_rendered_twice else 0
    return request_bytes + overhead_tokens + overhead_tokens_per_item * items + twice


def worst_case_micro_usd(
    rows: Sequence[PriceRow], *, input_bound_tokens: int, max_output_tokens: int, retention: CacheRetention | None
) -> int:
    """The greatest charge over all rows that 0 to `input_bound_tokens` can select."""
    worst = 0
    for row in rows:
        if row.above_input_tokens is None or row.above_input_tokens < input_bound_tokens:
            dearest = max(row.input, row.cache_read, _write_price(row, retention))
            worst = max(worst, input_bound_tokens * dearest + max_output_tokens * row.output)
    return _rounded_up(worst)


def charge_micro_usd(rows: Sequence[PriceRow], usage: Usage, retention: CacheRetention | None) -> int:
    """What this usage costs under the rows of its admission. Reasoning is inside output. May exceed u64."""
    total_input = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    row = _selected(rows, total_input)
    return _rounded_up(
        usage.input_tokens * row.input
        + usage.cache_read_tokens * row.cache_read
        + usage.cache_write_tokens * _write_price(row, retention)
        + usage.output_tokens * row.output
    )


def _selected(rows: Sequence[PriceRow], total_input: int) -> PriceRow:
    selected = None
    for row in rows:
        if row.above_input_tokens is None or total_input > row.above_input_tokens:
            selected = row
    assert selected is not None, "the rows in force have no base row"
    return selected


def _write_price(row: PriceRow, retention: CacheRetention | None) -> int:
    return row.cache_write_long if retention == "long" else row.cache_write_short


def _rounded_up(token_prices: int) -> int:
    return -(-token_prices // TOKENS_PER_PRICE)
