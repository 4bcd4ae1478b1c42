"""The refusals that a daemon under test has given, from its log.

The daemon writes so many lines of them in a second and only counts the rest; a
list that may lack some is not given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from sidecar.contract.values import Refusal
from sidecar.service.few_lines import LINES_PER_SECOND_MAX
from sidecar.testing.faults import LogIncomplete
from sidecar.testing.log_lines import LogLine

_SECOND: Final = timedelta(seconds=1)


class RefusedRequest(Struct, frozen=True, kw_only=True):
    """One refusal. `why` is the daemon's own sentence, which callers are not told; long texts are cut as in the log."""

    refusal: Refusal
    caller_runtime_id: str
    request_id: str
    why: str


def refusals_in(lines: Sequence[LogLine], since: int = 0) -> list[RefusedRequest]:
    """Those that line `since` and later ones tell of, in order. Raises LogIncomplete where some may be left out."""
    lost = sum(line.values["count"] for line in lines[since:] if line.fact == "lines_lost")
    if lost:
        raise LogIncomplete(f"{lost} lines of the log were lost, because the test left no time to read them")
    if is_flooded(lines, since):
        raise LogIncomplete(
            f"{LINES_PER_SECOND_MAX} requests or more were refused within a second, and what is above that the daemon's"
            " log only counts; look at the answers instead"
        )
    return [
        RefusedRequest(
            refusal=line.values["refusal"],
            caller_runtime_id=line.values["caller"],
            request_id=line.values["request"],
            why=line.values["why"],
        )
        for line in lines[since:]
        if line.fact == "refused"
    ]


def is_flooded(lines: Sequence[LogLine], since: int) -> bool:
    """Whether as many lines as are written in a second came within one, so that there may have been more.

    A daemon that has just started owes nothing to what the one before it wrote.
    """
    instants: deque[datetime] = deque(maxlen=LINES_PER_SECOND_MAX)
    for at, line in enumerate(lines):
        if line.fact == "ready":
            instants.clear()
        elif line.fact == "refused_more" and at >= since:
            return True
        elif line.fact == "refused":
            instants.append(datetime.fromisoformat(line.values["time"]))
            is_full = len(instants) == LINES_PER_SECOND_MAX and instants[-1] - instants[0] <= _SECOND
            if is_full and at >= since:
                return True
    return False
