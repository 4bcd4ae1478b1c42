"""Prices that are hardly meant: they are warned of, since what a provider asks is the provider's business.

A price that is missing or no whole number is a mistake, and said elsewhere. What
stands here compares prices with their neighbours: the other prices of the
row, the rows of the model, the other models of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from sidecar.config.keys import Complaint
from sidecar.config.values import Model
from sidecar.contract.values import PriceRow

_APART: Final = 10  # an order of magnitude
_DOLLARS_BELOW: Final = 1000  # micro-USD a million tokens: whoever writes 3 or 15 means dollars
_KEYS: Final = ("input", "cache_read", "cache_write_short", "cache_write_long", "output")


def price_warnings(models: Mapping[str, Model]) -> Iterator[Complaint]:
    """What is an order of magnitude away from its neighbours, the wrong way round, or rather in dollars."""
    for model in models.values():
        for at, dated in enumerate(model.prices):
            path = f'model "{model.name}".price[{at}]'
            yield from _of_row(path, dated.row)
            yield from _beside_other_rows(path, model, dated.from_unix_ms, dated.row)
    yield from _beside_other_models(models)


def _of_row(path: str, row: PriceRow) -> Iterator[Complaint]:
    dollars = {key: getattr(row, key) for key in _KEYS if 0 < getattr(row, key) < _DOLLARS_BELOW}
    if dollars:
        key, value = next(iter(dollars.items()))
        what = f"{_list(dollars)} look like dollars: prices are micro-USD per million tokens"
        yield Complaint(f"{path}.{key}", what, hint=f"write {value * 1_000_000:_} for ${value} per million tokens")
        return
    if row.output < row.input:
        what = f"{row.output} is below the {row.input} of input; providers ask more for what they write"
        yield Complaint(f"{path}.output", what, hint="look whether the two are exchanged")
    elif row.input and _are_apart(row.output, row.input):
        what = f"{row.output} is more than {_APART} times the {row.input} of input"
        yield Complaint(f"{path}.output", what, hint="count the zeros")
    if row.cache_read > row.input:
        what = f"{row.cache_read} is above the {row.input} of input; reading what is cached is cheaper"
        yield Complaint(f"{path}.cache_read", what, hint=f"write {row.input:_} where the provider has no such price")
    for key in ("cache_write_short", "cache_write_long"):
        price = getattr(row, key)
        if row.input and (price > _APART * row.input or 0 < price * _APART < row.input):
            what = f"{price} is an order of magnitude away from the {row.input} of input"
            yield Complaint(f"{path}.{key}", what, hint="count the zeros")


def _beside_other_rows(path: str, model: Model, from_unix_ms: int, row: PriceRow) -> Iterator[Complaint]:
    for other in model.prices:
        if other.row is row:
            continue
        above, others_above = row.above_input_tokens, other.row.above_input_tokens
        if from_unix_ms == other.from_unix_ms and above is not None and others_above is None:
            lower = [key for key in _KEYS if getattr(row, key) < getattr(other.row, key)]
            if lower:
                what = f"is below that of the base row, though it is for requests above {above} tokens"
                yield Complaint(f"{path}.{lower[0]}", what, hint="look whether the two rows are exchanged")
                continue
            far = [key for key in _KEYS if _are_apart(getattr(row, key), getattr(other.row, key))]
            if far:
                base = getattr(other.row, far[0])
                what = f"{getattr(row, far[0])} is an order of magnitude away from the {base} of the base row"
                yield Complaint(f"{path}.{far[0]}", what, hint="count the zeros")
        elif above == others_above and other.from_unix_ms < from_unix_ms:
            far = [key for key in _KEYS if _are_apart(getattr(row, key), getattr(other.row, key))]
            if far:
                was = getattr(other.row, far[0])
                what = f"{getattr(row, far[0])} is an order of magnitude away from the {was} of before"
                yield Complaint(f"{path}.{far[0]}", what, hint="count the zeros")


def _beside_other_models(models: Mapping[str, Model]) -> Iterator[Complaint]:
    """Its base row beside the middle of the others of its connector, or of the file where it is the only one there."""
    for model in models.values():
        others_of_all = [other for other in models.values() if other is not model]
        peers = [other for other in others_of_all if other.connector == model.connector] or others_of_all
        for key in ("input", "output"):
            own = _base(model, key)
            others = [price for other in peers if (price := _base(other, key))]
            if own and others and _are_apart(own, round(median(others))):
                what = f"{own} is an order of magnitude away from the {round(median(others))} of its neighbours"
                yield Complaint(f'model "{model.name}".price[0].{key}', what, hint="count the zeros")


def _base(model: Model, key: str) -> int:
    return next(int(getattr(one.row, key)) for one in model.prices if one.row.above_input_tokens is None)


def _are_apart(one: int, other: int) -> bool:
    """By more than an order of magnitude, where both are prices at all."""
    return bool(one and other) and (one > _APART * other or other > _APART * one)


def _list(prices: Mapping[str, int]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in prices.items())
