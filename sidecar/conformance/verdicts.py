"""What came of each vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

State = Literal[
    "passed",
    "failed",
    "not_played",  # a vector that this run can't bring about; `why` says what it needs
    "not_claimed",  # the client says that it can't do this
]


class Verdict(Struct, frozen=True):
    """One vector's end; `why` is one readable line each: what was expected, what came, where they differ."""

    name: str
    state: State
    why: tuple[str, ...] = ()


def counted(verdicts: Iterable[Verdict]) -> Counter[State]:
    return Counter(verdict.state for verdict in verdicts)
