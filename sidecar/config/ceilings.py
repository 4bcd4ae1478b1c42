"""Whether a caller's spend window can hold what the caller may ask for: one request at least, and the largest one.

A ceiling below the worst case of the smallest request that there can be refuses
everything, for ever: that is a mistake. One below the worst case of the
largest that the bounds allow refuses some, which may be meant. Prices are
those of each instant from which rows count. Source: CONTRACT section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sidecar.config.keys import Complaint
from sidecar.config.values import Caller, Model
from sidecar.rules.pricing import rows_in_force, worst_case_micro_usd

_DOLLARS_BELOW: Final = 1000  # micro-USD: a tenth of a cent
_SMALLEST_REQUEST_BYTES: Final = 189  # a canonical one with ids of a character each; a test encodes it


def too_low(callers: Iterable[tuple[str, Caller]], models: Mapping[str, Model]) -> Iterator[Complaint]:
    """Ceilings that no request fits under, at a model that the caller may use; each caller with its path."""
    for path, caller in callers:
        for model in _models_of(caller, models):
            least = _least(model)
            if least > caller.spend_ceiling_micro_usd:
                ceiling = caller.spend_ceiling_micro_usd
                dollars = f"; {ceiling} USD would be {ceiling * 1_000_000:_}" if ceiling < _DOLLARS_BELOW else ""
                yield Complaint(
                    f"{path}.spend_ceiling_micro_usd",
                    f"{ceiling} can't hold one request to {model.name}: the smallest that there"
                    f" can be reserves {least}",
                    hint=f"write {_rounded_up(_greatest(caller, model))} for one of the largest that it may send,"
                    f" or take {model.name} from its models{dollars}",
                )


def rather_low(callers: Iterable[Caller], models: Mapping[str, Model]) -> Iterator[Complaint]:
    """Ceilings that the largest request which the caller may send doesn't fit under."""
    for caller in callers:
        if any(_least(model) > caller.spend_ceiling_micro_usd for model in _models_of(caller, models)):
            continue  # which is told by `too_low`
        greatest = [(_greatest(caller, model), model) for model in _models_of(caller, models)]
        over = [(amount, model) for amount, model in greatest if amount > caller.spend_ceiling_micro_usd]
        if not over:
            continue
        amount, model = max(over, key=lambda one: one[0])
        yield Complaint(
            f'caller "{caller.id}".spend_ceiling_micro_usd',
            f"{caller.spend_ceiling_micro_usd} can't hold one of the largest requests that it may send to {model.name}:"
            f" {caller.payload_bytes_max} bytes and {_output_tokens(caller, model)} output tokens reserve {amount}",
            hint=f"write {_rounded_up(amount)} or more, or lower payload_bytes_max or output_tokens_max",
        )


def _models_of(caller: Caller, models: Mapping[str, Model]) -> list[Model]:
    return [models[name] for name in sorted(caller.models) if name in models]


def _least(model: Model) -> int:
    """At the prices of whichever instant is the cheapest."""
    bound = _SMALLEST_REQUEST_BYTES + model.input_overhead_tokens + model.input_overhead_tokens_per_item
    return min(_worst_cases(model, bound, 1))


def _greatest(caller: Caller, model: Model) -> int:
    bound = caller.payload_bytes_max + model.input_overhead_tokens + model.input_overhead_tokens_per_item
    return max(_worst_cases(model, bound, _output_tokens(caller, model)))


def _output_tokens(caller: Caller, model: Model) -> int:
    return min(caller.output_tokens_max, model.output_tokens_max)


def _worst_cases(model: Model, input_bound_tokens: int, max_output_tokens: int) -> Iterator[int]:
    for instant in {price.from_unix_ms for price in model.prices}:
        yield worst_case_micro_usd(
            rows_in_force(model.prices, instant),
            input_bound_tokens=input_bound_tokens,
            max_output_tokens=max_output_tokens,
            retention=None,
        )


def _rounded_up(amount_micro_usd: int) -> str:
    """To two digits, as a person would write it."""
    step = 10 ** max(0, len(str(amount_micro_usd)) - 2)
    return f"{-(-amount_micro_usd // step) * step:_}"
