"""A text in pieces in which a secret never shows, also where it is split over two of them. Pure."""

from __future__ import annotations


class Hiding:
    """Pieces in, what may be shown of them out; what comes out adds up to the whole text with the secret replaced.

    What could be the beginning of the secret is held back until the next piece says whether it is.
    """

    def __init__(self, secret: str, shown_instead: str) -> None:
        assert secret, "there is nothing to hide"
        self._secret = secret
        self._shown_instead = shown_instead
        self._held = ""

    def begin_behind(self, said: str) -> None:
        """The next pieces follow this text, which is not given out, but for what of it could begin the secret."""
        self._held = self._beginning_in(said.replace(self._secret, self._shown_instead))

    def shown(self, piece: str) -> str:
        """What can be shown once this piece has come, perhaps nothing."""
        said = (self._held + piece).replace(self._secret, self._shown_instead)
        self._held = self._beginning_in(said)
        return said[: len(said) - len(self._held)]

    def rest(self) -> str:
        """What was held back, once the text has ended."""
        held, self._held = self._held, ""
        return held

    def _beginning_in(self, said: str) -> str:
        """The longest end of this text that the secret begins with."""
        for length in range(min(len(said), len(self._secret) - 1), 0, -1):
            if said.endswith(self._secret[:length]):
                return said[-length:]
        return ""
