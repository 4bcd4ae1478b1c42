"""A mismatch between ledger and accounts, as the log has it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from sidecar.ops.log import Log
from sidecar.rules.conservation import TOLD_MAX, Mismatch


def told_mismatches(log: Log, mismatches: Sequence[Mismatch], *, now: str) -> None:
    """A line each, up to a bound, and what is done about it; amounts in micro-USD."""
    for mismatch in mismatches[:TOLD_MAX]:
        log.critical("not_conserved", **structs.asdict(mismatch))
    log.critical("not_conserved_in_all", windows=len(mismatches), now=now)
