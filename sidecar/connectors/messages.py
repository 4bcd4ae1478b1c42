"""What a person reads of a failure: short, one line, and never a credential. Pure.

Source: CONTRACT section 6.
"""

from __future__ import annotations

from typing import Final

MESSAGE_CHARACTERS_MAX: Final = 1024
_SHOWN_PREFIX_MAX: Final = 4  # a shorter piece of a key at a cut tells nothing


def clean_message(text: str, secret: str | None = None, *, was_cut: bool = False) -> str:
    """The text without control characters and without the secret, cut to what a message may hold.

    `was_cut` says that the text ended at a bound of ours: then a piece of the
    secret that stands at its very end is removed too.
    """
    if secret:
        text = text.replace(secret, "<credential>")
        if was_cut:
            text = _without_cut_secret(text, secret)
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[: MESSAGE_CHARACTERS_MAX - 3] + "..."
    return text or "the provider gave no reason"


def _without_cut_secret(text: str, secret: str) -> str:
    for length in range(len(secret) - 1, _SHOWN_PREFIX_MAX - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + "<credential>"
    return text
