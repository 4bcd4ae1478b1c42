"""What a ledger is opened with, all of it, ports included."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sidecar.ledger.checkpoint import Dropped
from sidecar.ledger.index import WindowOf
from sidecar.ledger.seal_format import End
from sidecar.ledger.threads import Threads
from sidecar.ledger.watch import Watch


class Terms(Struct, frozen=True, kw_only=True):
    """As `Ledger.open` takes them; `retention_days` None keeps all."""

    segment_bytes: int
    requests_in_flight_max: int
    clock_unix_ms: Callable[[], int]
    randbytes: Callable[[int], bytes]
    threads: Threads
    window_of: WindowOf
    makes_seals: bool
    retention_days: int | None
    on_pressure: Callable[[str | None], None]
    on_trouble: Callable[[str], None]
    on_dropped: Callable[[End, Dropped], None]
    watch: Watch
