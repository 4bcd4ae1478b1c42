"""Text that JSON brought in pieces, where a piece may end in half a character. Pure.

A JSON escape can name half of a surrogate pair, and a server that cuts its text
between the halves sends one in each delta. The halves are put together; a half
that finds no other is no text, and is never replaced by another character.
"""

from __future__ import annotations


class NotUnicode(ValueError):
    """Half of a surrogate pair stood alone."""


class UnicodePieces:
    """Joins halves across pieces; what `feed` returns can always be encoded."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, piece: str) -> str:
        """Everything that is whole by now. Raises NotUnicode."""
        if not piece:
            return ""
        piece, self._half = self._half + piece, ""
        if "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return joined(piece)

    def close(self) -> None:
        """The text has ended. Raises NotUnicode where half a character is left."""
        if self._half:
            raise NotUnicode("the provider's text ends in half a character")


def joined(text: str) -> str:
    """The text with each pair of halves as its one character. Raises NotUnicode."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise NotUnicode("the provider's text holds half a character") from None
