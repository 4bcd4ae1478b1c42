"""The names that a program gives, checked in its own thread: what is none never reaches a connection that others share.

The daemon answers a frame that it can't read without ids, and that ends
everybody's waiting on the connection. Pure. Everything here raises TypeError
for what is no str, and ValueError for a str that can't be such a name.
"""

from __future__ import annotations

from typing import Final

from sidecar.contract.ids import is_id

CLIENT_NAME_CHARACTERS_MAX: Final = 80


def checked_id(what: str, given: str) -> str:
    """The id of a caller or a request; `what` says of which."""
    if not isinstance(given, str):
        raise TypeError(f"{what} is a str, not {type(given).__name__}")
    if not is_id(given):
        raise ValueError(f"{what} is 1 to 256 characters of printable ASCII without a space, not {_shown(given)}")
    return given


def checked_caller(given: str | None) -> str | None:
    """The caller that a client is made for; None is the only one that this user may be."""
    return None if given is None else checked_id("caller", given)


def checked_client_name(given: str) -> str:
    """What a client calls itself in its hello."""
    if not isinstance(given, str):
        raise TypeError(f"name is a str, not {type(given).__name__}")
    if not (0 < len(given) <= CLIENT_NAME_CHARACTERS_MAX and given.isprintable()):
        raise ValueError(f"name is 1 to {CLIENT_NAME_CHARACTERS_MAX} printable characters, not {_shown(given)}")
    return given


def _shown(given: str) -> str:
    return f"{given!a:.80}"  # no lone surrogate, which nothing could print
