"""What a ledger is opened with, all of it, ports included."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sidecar.ledger.index import WindowOf
from sidecar.ledger.threads import Threads


class Terms(Struct, frozen=True, kw_only=True):
    """As `Ledger.open` takes them; `retention_days` None keeps all."""

    segment_bytes: int
    requests_in_flight_max: int
    clock_unix_ms: Callable[[], int]
    randbytes: Callable[[int], bytes]
    threads: Threads
    window_of: WindowOf
    retention_days: int | None
    on_pressure: Callable[[str | None], None]
    on_trouble: Callable[[str], None]
