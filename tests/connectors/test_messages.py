"""What a person reads of a failure never holds a credential, a control character or more than 1,024 characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.connectors.messages import MESSAGE_CHARACTERS_MAX, SHOWN, clean_message, scrubbed, with_wait
from sidecar.contract.waits import wait_in

SECRET = "sk-Zq8xW3vNpL5tRy2KmB7d"


@given(st.text(max_size=1500), st.integers(0, 1500))
def test_the_credential_never_shows_wherever_it_stands(around: str, at: int) -> None:
    message = clean_message(around[:at] + SECRET + around[at:], SECRET)
    assert SECRET not in message
    assert len(message) <= MESSAGE_CHARACTERS_MAX
    assert message.isprintable()


@pytest.mark.parametrize("before", range(1000, 1025))
def test_a_credential_across_the_cut_is_scrubbed_before_the_cut(before: int) -> None:
    message = clean_message("x" * before + SECRET + "y" * 200, SECRET)
    assert not any(SECRET[:length] in message for length in range(2, len(SECRET)))


@pytest.mark.parametrize("length", range(4, len(SECRET)))
def test_a_credential_that_its_quoter_cut_is_scrubbed(length: int) -> None:
    assert clean_message(f"bad key {SECRET[:length]}", SECRET) == f"bad key {SHOWN}"


def test_a_piece_from_its_middle_is_scrubbed() -> None:
    assert clean_message(f"key ...{SECRET[6:18]}... is wrong", SECRET) == f"key ...{SHOWN}... is wrong"


def test_a_doubled_credential_leaves_nothing() -> None:
    assert clean_message(f"{SECRET}{SECRET} and {SECRET}", SECRET) == f"{SHOWN}{SHOWN} and {SHOWN}"


def test_a_masked_key_of_a_few_characters_may_stand() -> None:
    assert clean_message("Incorrect API key: sk-Zq8***B7d.", SECRET) == "Incorrect API key: sk-Zq8***B7d."


def test_a_short_credential_is_scrubbed_whole() -> None:
    assert clean_message("the key abc, twice: abcabc", "abc") == f"the key {SHOWN}, twice: {SHOWN}{SHOWN}"


@given(st.text(max_size=60))
def test_text_without_a_piece_of_the_credential_stands(text: str) -> None:
    assert scrubbed(text, "\x00" * 30) == text or "\x00" in text


def test_control_characters_and_lone_surrogates_become_spaces() -> None:
    assert clean_message("a\x00b\nc\x1b[31m\u2028d\ud83de") == "a b c [31m d e"


@pytest.mark.parametrize("nothing", ["", "   ", "\x00\n"])
def test_silence_is_said(nothing: str) -> None:
    assert clean_message(nothing) == "the provider gave no reason"


def test_a_huge_message_is_cut_before_it_is_cleaned_and_shows_no_secret() -> None:
    secret = "sk-canary-Zq8xW3vNpL5tRy2KmB7d"
    cleaned = clean_message("x" * 1010 + secret + "y" * 9_000_000 + secret, secret)
    assert len(cleaned) <= 1024
    assert secret[:8] not in cleaned


@given(st.text(max_size=1500).map(clean_message), st.floats(0, 1e9).map(lambda wait: float(f"{wait:.12g}")))
def test_the_wait_in_a_message_is_found_again_and_stands_whole(message: str, wait: float) -> None:
    told = with_wait(message, wait)
    assert len(told) <= MESSAGE_CHARACTERS_MAX
    assert wait_in(told) == wait


@pytest.mark.parametrize(
    "message", ["", "wait 3 s", "x (the provider asks to wait e-e s)", "(the provider asks to wait 3 s)"]
)
def test_a_message_without_a_wait_has_none(message: str) -> None:
    assert wait_in(message) is None
