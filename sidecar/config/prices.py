"""Prices that are hardly meant: they are warned of, since what a provider asks is the provider's business.

A price that is missing or no whole number is a mistake, and said elsewhere. What
stands here compares prices with their neighbours: the other prices of the
row, the rows of the model, the other models of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sidecar.config.keys import Complaint
from sidecar.config.values import Model
from sidecar.contract.values import PriceRow

_APART: Final = 10  # an order of magnitude
_READS_APART: Final = 25  # reading what is cached costs a half to a twentieth of plain input
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
    elif _are_apart(row.output, row.input):
        what = f"{row.output} is an order of magnitude away from the {row.input} of input"
        yield Complaint(f"{path}.output", what, hint="count the zeros")
    if row.cache_read > row.input:
        what = f"{row.cache_read} is above the {row.input} of input; reading what is cached is cheaper"
        yield Complaint(f"{path}.cache_read", what, hint=f"write {row.input:_} where the provider has no such price")
    elif 0 < row.cache_read * _READS_APART < row.input:
        what = f"{row.cache_read} is less than a {_READS_APART}th of the {row.input} of input"
        yield Complaint(f"{path}.cache_read", what, hint="count the zeros")
    for key in ("cache_write_short", "cache_write_long"):
        price = getattr(row, key)
        if _are_apart(price, row.input):
            what = f"{price} is an order of magnitude away from the {row.input} of input"
            yield Complaint(f"{path}.{key}", what, hint="count the zeros")
        elif 0 < price < row.input:
            what = f"{price} is below the {row.input} of input; what is written to a cache is input, and mostly dearer"
            yield Complaint(f"{path}.{key}", what, hint=f"write {row.input:_} where the provider has no such price")
    if 0 < row.cache_write_long < row.cache_write_short:
        what = (
            f"{row.cache_write_long} is below the {row.cache_write_short} of cache_write_short, which is kept shorter"
        )
        yield Complaint(f"{path}.cache_write_long", what, hint="look whether the two are exchanged")


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
            yield from _far(path, row, other.row, "of the base row")
        elif above == others_above and other.from_unix_ms < from_unix_ms:
            yield from _far(path, row, other.row, "of before")


def _far(path: str, row: PriceRow, other: PriceRow, whose: str) -> Iterator[Complaint]:
    far = [key for key in _KEYS if _are_apart(getattr(row, key), getattr(other, key))]
    if far:
        what = f"{getattr(row, far[0])} is an order of magnitude away from the {getattr(other, far[0])} {whose}"
        yield Complaint(f"{path}.{far[0]}", what, hint="count the zeros")


def _beside_other_models(models: Mapping[str, Model]) -> Iterator[Complaint]:
    """Its base row beside that of whichever other model is nearest; of two that are far apart, the dearer is told."""
    for key in ("input", "output"):
        prices = sorted((price, name) for name, model in models.items() if (price := _base(model, key)))
        for at, (own, name) in enumerate(prices):
            beside = [*prices[max(at - 1, 0) : at], *prices[at + 1 : at + 2]]
            is_cheaper_of_two = len(prices) == 2 and at == 0
            if beside and not is_cheaper_of_two and all(_are_apart(own, other) for other, _ in beside):
                other, whose = min(beside, key=lambda one: max(own, one[0]) / min(own, one[0]))
                what = f"{own} is an order of magnitude away from the nearest of other models, the {other} of {whose}"
                row = _base_row(models[name])
                yield Complaint(f'model "{name}".price[{row}].{key}', what, hint="count the zeros")


def _base_row(model: Model) -> int:
    return next(at for at, one in enumerate(model.prices) if one.row.above_input_tokens is None)


def _base(model: Model, key: str) -> int:
    return int(getattr(model.prices[_base_row(model)].row, key))


def _are_apart(one: int, other: int) -> bool:
    """By an order of magnitude, where both are prices at all."""
    return bool(one and other) and (one >= _APART * other or other >= _APART * one)


def _list(prices: Mapping[str, int]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in prices.items())
