"""Counts as providers report them: nonsense is refused, parts above their total are clamped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.contract.values import U64_MAX
from sidecar.rules.usage import UnusableUsage, plain_usage, usage_from_parts

COUNTS = st.integers(0, 10**9)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.none() | COUNTS)
def test_parts_always_add_up_to_the_total(
    total: int, read: int, write: int, output: int, reasoning: int | None
) -> None:
    used, clamped = plain_usage(
        input_total=total, cache_read=read, cache_write=write, output=output, reasoning=reasoning
    )
    assert used.input_tokens + used.cache_read_tokens + used.cache_write_tokens == total
    assert min(used.input_tokens, used.cache_read_tokens, used.cache_write_tokens) >= 0
    assert used.output_tokens == output
    assert (used.reasoning_tokens or 0) <= output
    assert clamped == (read + write > total or (reasoning or 0) > output)


@pytest.mark.parametrize("nonsense", [None, -1, 1.0, 1.5, "7", True, [], U64_MAX + 1])
@pytest.mark.parametrize("member", ["input_total", "output"])
def test_a_total_that_is_no_count_is_unusable(member: str, nonsense: Any) -> None:
    with pytest.raises(UnusableUsage):
        plain_usage(**{"input_total": 1, "output": 1, member: nonsense})


@pytest.mark.parametrize("nonsense", [-1, 1.5, "7", False, U64_MAX + 1])
@pytest.mark.parametrize("member", ["cache_read", "cache_write", "reasoning"])
def test_a_part_that_is_no_count_is_unusable(member: str, nonsense: Any) -> None:
    with pytest.raises(UnusableUsage):
        plain_usage(**{"input_total": 1, "output": 1, member: nonsense})
    with pytest.raises(UnusableUsage):
        usage_from_parts(**{"input_tokens": 1, "output": 1, member: nonsense})


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_thousands_of_digits_is_unusable_and_no_crash(sign: int) -> None:
    enormous = sign * (1 << 20_000)  # more digits than Python is willing to print
    for nonsense in (enormous, [enormous], "9" * 100_000):
        with pytest.raises(UnusableUsage) as raised:
            plain_usage(input_total=nonsense, output=1)
        assert len(str(raised.value)) < 80


def test_input_reported_in_parts_is_taken_as_it_is_and_only_reasoning_is_clamped() -> None:
    used, clamped = usage_from_parts(input_tokens=3, cache_read=500, cache_write=70, output=9, reasoning=10)
    assert (used.input_tokens, used.cache_read_tokens, used.cache_write_tokens) == (3, 500, 70)
    assert (used.output_tokens, used.reasoning_tokens, clamped) == (9, 9, True)


def test_absent_parts_are_nothing_and_absent_reasoning_stays_absent() -> None:
    used, clamped = plain_usage(input_total=5, cache_read=None, cache_write=None, output=7)
    assert (used.input_tokens, used.cache_read_tokens, used.reasoning_tokens, clamped) == (5, 0, None, False)
