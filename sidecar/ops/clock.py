"""The wall clock, in the one unit that the wire and the ledger use."""

from __future__ import annotations

import time


def unix_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000
