"""Instruments, and their text, read by a reader that shares no code with what writes it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.exposition import read_exposition

from sidecar.ops.metrics import ALL_OTHERS, Count, Family, Series, Spread, counts, exposed, read_samples

LABELLED = Family(name="x_spend_usd_total", kind="counter", what="Money.", labels=("caller",), decimals=6)


@given(st.integers(0, 2**80))
def test_money_is_printed_to_the_micro_dollar_however_much_it_is(micro_usd: int) -> None:
    text = exposed([(LABELLED, [(("a",), micro_usd)])])
    assert read_exposition(text)["x_spend_usd_total"].value(caller="a") == Decimal(micro_usd).scaleb(-6)
    assert "e" not in text.splitlines()[-1].split("} ")[1]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5, unique=True))
def test_any_label_value_is_read_as_it_was(values: list[str]) -> None:
    text = exposed([(LABELLED, [((value,), 1) for value in values])])
    assert [dict(labels)["caller"] for _, labels in read_exposition(text)["x_spend_usd_total"].samples] == values
    assert [labels["caller"] for _, labels, _ in read_samples(text)] == values


@given(st.lists(st.floats(0, 1e6) | st.sampled_from([0.5, 1.0, 2.0]), max_size=60), st.integers(0, 60))
def test_each_value_is_counted_in_each_bucket_whose_bound_it_does_not_pass(values: list[float], at_once: int) -> None:
    spread = Spread((0.5, 1.0, 2.0))
    for value in values[:at_once]:
        spread.take(value)
    spread.take_all(values[at_once:])
    family = Family(name="x_seconds", kind="histogram", what="How long.")
    read = read_exposition(exposed([(family, [((), spread)])]))["x_seconds"]
    for bound in ("0.5", "1", "2"):
        assert read.value(le=bound) == sum(value <= float(bound) for value in values)
    assert read.samples["x_seconds_count", ()] == len(values)
    assert float(read.samples["x_seconds_sum", ()]) == pytest.approx(sum(values))


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["ok", "no"])), max_size=80))
def test_label_sets_are_bounded_and_no_count_is_lost(counted: list[tuple[str, str]]) -> None:
    series = Series(Count, sets_max=5)
    for caller, result in counted:
        series.of(caller, result).value += 1
    told = dict(counts(series))
    assert len(told) <= 5 + 2  # and, of all others, one for each value of the closed set
    assert sum(told.values()) == len(counted)
    assert all(caller in "abcdefgh" or caller == ALL_OTHERS for caller, _ in told)


def test_help_is_escaped_and_a_family_without_a_value_is_left_out() -> None:
    text = exposed(
        [
            (Family(name="x_a", kind="gauge", what="one\\two\nthree"), [((), -1)]),
            (Family(name="x_b", kind="gauge", what="none"), []),
        ]
    )
    assert text == "# HELP x_a one\\\\two\\nthree\n# TYPE x_a gauge\nx_a -1\n"


def test_a_value_below_one_unit_and_a_negative_one_are_exact() -> None:
    gauge = Family(name="x_usd", kind="gauge", what="Money.", labels=("of",), decimals=6)
    said = exposed([(gauge, [(("a",), 1), (("b",), -1_500_000), (("c",), 0), (("d",), 2_000_000)])])
    assert [line.split(" ")[1] for line in said.splitlines()[2:]] == ["0.000001", "-1.5", "0", "2"]


def test_what_is_no_sample_is_not_read_as_one() -> None:
    with pytest.raises(ValueError, match="no sample"):
        list(read_samples("x_usd\n"))
