"""The text of one daemon's metrics: what its meter has counted, and what accounts, ledger and process are now.

All of it but the disk is read in one turn of the loop, so that it fits
together: a request is either running or counted. The ledger's directory is
looked at in a thread before that; where the disk hangs, the text comes without
it after `LOOK_SECONDS_MAX`, and no second look is begun while one is under way.

The text is bounded, since label sets are: by `LABEL_SETS_MAX` and
`SPREAD_SETS_MAX`. With names of 32 characters it is below 4 MiB however many callers,
connectors and models there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio
from msgspec import Struct

from sidecar.config.values import Config
from sidecar.ledger.face import LedgerFace
from sidecar.ledger.footprint import Footprint, footprint
from sidecar.ops.log import Log
from sidecar.ops.metrics import ALL_OTHERS, LABEL_SETS_MAX, Labels, Read, exposed
from sidecar.ops.process import Takes, takes
from sidecar.ops.version import version_of_sidecar
from sidecar.rules.reservations import Reservations
from sidecar.service import families as f
from sidecar.service.backlogs import Backlogs
from sidecar.service.held import HeldBytes
from sidecar.service.metrics import Meter

LOOK_SECONDS_MAX: Final = 2.0


class Seen(Struct, frozen=True, kw_only=True):
    """The parts of a daemon whose state is told."""

    ledger: LedgerFace
    reservations: Reservations
    log: Log
    held: HeldBytes
    backlogs: Backlogs
    connections: Callable[[], int]
    draining: Callable[[], bool]


class Exposition:
    """Tells the metrics of one daemon. `config` gives the configuration that is in force."""

    def __init__(
        self,
        meter: Meter,
        seen: Seen,
        config: Callable[[], Config],
        clock_unix_ms: Callable[[], int],
        *,
        look: Callable[[Path], Footprint] = footprint,
        takes: Callable[[], Takes] = takes,
    ) -> None:
        self._meter = meter
        self._seen = seen
        self._config = config
        self._clock_unix_ms = clock_unix_ms
        self._look = look
        self._takes = takes
        self._started_at_unix_ms = clock_unix_ms()
        self._looking = False
        self._looks = trio.CapacityLimiter(1)  # its own, so that a look never waits for others' threads

    async def text(self) -> str:
        """As of now."""
        found = await self._footprint()
        return exposed([*self._meter.read(), *self._money(), *self._connections(), *self._ledger(found), *self._self()])

    async def _footprint(self) -> Footprint | None:
        """None where the disk doesn't say so in time, or can't."""
        if self._looking:
            return None
        found: list[Footprint] = []

        def look(directory: Path) -> None:
            try:
                found.append(self._look(directory))
            except OSError:
                return  # `ledger_directory_read` says so
            finally:
                self._looking = False

        self._looking = True
        with trio.move_on_after(LOOK_SECONDS_MAX):
            try:
                directory = self._config().ledger.directory
                await trio.to_thread.run_sync(look, directory, abandon_on_cancel=True, limiter=self._looks)
            except RuntimeError:  # no thread can be started
                self._looking = False
        return found[0] if found else None

    def _money(self) -> Iterator[Read]:
        reservations, now = self._seen.reservations, self._clock_unix_ms()
        callers = sorted(self._config().callers)
        told = callers[:LABEL_SETS_MAX]
        accounts = [((caller,), reservations.account(caller)) for caller in told]
        starts = [(labels, account, account.window_start(now)) for labels, account in accounts]
        yield f.IN_FLIGHT, _bounded(reservations.running())
        yield f.RESERVED, [(labels, account.reserved_in_all) for labels, account in accounts]
        live = reservations.live_of_caller
        yield f.OPEN_RESERVATIONS, [(labels, live(*labels) + account.left_open) for labels, account in accounts]
        yield f.INDETERMINATE, [(labels, account.left_open) for labels, account in accounts]
        yield f.WINDOW_SPENT, [(labels, account.spent(start)) for labels, account, start in starts]
        yield f.WINDOW_RESERVED, [(labels, account.reserved(start)) for labels, account, start in starts]
        yield f.WINDOW_CEILING, [(labels, account.ceiling_micro_usd) for labels, account in accounts]
        yield (
            f.WINDOW_END,
            [(labels, start + 1000 * account.window_seconds) for labels, account, start in starts],
        )
        yield f.CALLERS_LEFT_OUT, [((), len(callers) - len(told))]

    def _connections(self) -> Iterator[Read]:
        yield f.CONNECTIONS, [((), self._seen.connections())]
        yield f.CONNECTIONS_MAX, [((), self._config().daemon.connections_max)]
        yield f.HELD_BYTES, [((), self._seen.held.held_bytes)]
        yield f.UNSENT_BYTES, [((), self._seen.backlogs.unsent_bytes)]

    def _ledger(self, found: Footprint | None) -> Iterator[Read]:
        ledger = self._seen.ledger
        statistics = ledger.statistics()
        yield f.PRESSURE, [((), int(ledger.pressure is not None))]
        yield f.POISONED, [((), int(ledger.poisoned is not None))]
        yield f.QUEUED, [((), statistics.queued)]
        yield f.SETTLEMENTS, [((), statistics.settlements)]
        yield f.SPARES, [((), statistics.spares_ready)]
        yield f.LOW_WATER, [((), ledger.low_water_unix_ms)]
        yield f.DIRECTORY_READ, [((), int(found is not None))]
        if found is not None:
            yield f.SEGMENTS, [((), found.segments)]
            yield f.DIRECTORY_BYTES, [((), found.size_bytes)]
            yield f.FREE_BYTES, [((), found.free_bytes)]
            yield f.CHECKPOINT, [] if found.checkpoint_unix_ms is None else [((), found.checkpoint_unix_ms)]

    def _self(self) -> Iterator[Read]:
        takes, started = self._takes(), self._started_at_unix_ms
        since = self._meter.config_since_unix_ms
        yield f.RELOADED, [((), started if since is None else since)]
        yield f.LINES_LOST, [((), self._seen.log.lines_lost)]
        yield f.BUILD, [((version_of_sidecar(),), 1)]
        yield f.STARTED, [((), started)]
        yield f.DRAINING, [((), int(self._seen.draining()))]
        yield f.CPU, [((), takes.cpu_seconds)]
        yield f.RESIDENT, [] if takes.resident_bytes is None else [((), takes.resident_bytes)]
        yield f.DESCRIPTORS, [] if takes.open_descriptors is None else [((), takes.open_descriptors)]


def _bounded(counted: Counter[tuple[str, str]]) -> list[tuple[Labels, int]]:
    """So many pairs at most, and what the others come to."""
    pairs = sorted(counted.items())
    left_out = sum(count for _, count in pairs[LABEL_SETS_MAX:])
    others: list[tuple[Labels, int]] = [((ALL_OTHERS, ALL_OTHERS), left_out)] if left_out else []
    return [*pairs[:LABEL_SETS_MAX], *others]
