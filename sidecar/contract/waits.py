"""How a failure's message ends where the provider said how long to wait. Source: CONTRACT section 6."""

from __future__ import annotations

import re
from typing import Final

_WAIT: Final = re.compile(r" \(the provider asks to wait ([0-9.e+-]{1,24}) s\)\Z")


def wait_said(wait_seconds: float) -> str:
    """The end of a message that says so."""
    return f" (the provider asks to wait {wait_seconds:.12g} s)"


def wait_in(message: str) -> float | None:
    """The seconds that the end of a message says; None where it says none."""
    found = _WAIT.search(message)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None
