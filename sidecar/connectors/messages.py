"""What a person reads of a failure: short, one line, and never a credential. Pure.

Source: CONTRACT section 6.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.waits import wait_said

MESSAGE_CHARACTERS_MAX: Final = 1024
SHOWN: Final = "<credential>"
_PIECE: Final = 8  # so many characters in common with the credential are a piece of it
_END_PIECE: Final = 4  # and so many at the very end, where a cut may have hidden the rest


def clean_message(text: str, secret: str | None = None) -> str:
    """The text without control characters and without the secret, cut to what a message may hold.

    Pieces of the secret go too: whoever wrote the text may have cut it, or masked only part of it.
    """
    text = text[: MESSAGE_CHARACTERS_MAX + len(secret or "")]  # what can be shown at most; scrubbing all is slow
    if secret:
        text = scrubbed(text, secret)
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = text[: MESSAGE_CHARACTERS_MAX - 3] + "..."
    return text or "the provider gave no reason"


def with_wait(message: str, wait_seconds: float) -> str:
    """A clean message that ends with how long the provider asks to wait, and still is no longer than one may be."""
    waiting = wait_said(wait_seconds)
    return message[: MESSAGE_CHARACTERS_MAX - len(waiting)] + waiting


def scrubbed(text: str, secret: str) -> str:
    """The text with every piece of the secret of at least 8 characters replaced, and a shorter one at its end."""
    size = min(_PIECE, len(secret))
    pieces = {secret[at : at + size] for at in range(len(secret) - size + 1)}
    shown: list[str] = []
    at = 0
    while at < len(text):
        if text[at : at + size] not in pieces:
            shown.append(text[at])
            at += 1
            continue
        end = at + size
        while end < len(text) and text[end - size + 1 : end + 1] in pieces:
            end += 1
        shown.append(SHOWN)
        at = end
    return _without_end_piece("".join(shown), secret)


def _without_end_piece(text: str, secret: str) -> str:
    for length in range(min(_PIECE, len(secret)) - 1, _END_PIECE - 1, -1):
        if text.endswith(secret[:length]):
            return text[:-length] + SHOWN
    return text
