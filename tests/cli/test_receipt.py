"""What a person is shown can't drive a terminal, and money is exact."""

from __future__ import annotations

import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.cli.receipt import dollars, one_line, shown
from sidecar.contract.values import U64_MAX

DANGEROUS = "".join(
    map(chr, [*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
)


@given(st.text(st.one_of(st.sampled_from(DANGEROUS), st.characters(exclude_categories=["Cs"]))))
def test_nothing_shown_can_drive_a_terminal_and_a_second_look_changes_nothing(text: str) -> None:
    safe = shown(text)
    assert not set(safe) & set(DANGEROUS) - {"\n", "\t"}
    assert shown(safe) == safe
    assert "\n" not in one_line(text)
    assert "\t" not in one_line(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Cf"])))
def test_words_of_any_language_stand_as_they_are(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize("text", ["👩‍👩‍👧", "a\u200db", "soft\u00adhyphen", "\ttab\nline"])
def test_characters_that_only_join_or_space_stand(text: str) -> None:
    assert shown(text) == text


def test_a_line_of_windows_ends_as_a_line() -> None:
    assert shown("a\r\nb\rc") == "a\nb\ufffdc"
    assert all(unicodedata.category(character) != "Cc" for character in one_line(DANGEROUS))


@given(st.integers(0, U64_MAX))
def test_dollars_are_exact(micro_usd: int) -> None:
    assert Decimal(dollars(micro_usd).removeprefix("$")) * 1_000_000 == micro_usd
