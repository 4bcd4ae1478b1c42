"""What one daemon counts while it runs: its `Meter`, which whoever does a thing adds to where it is done.

All of it is known to the event loop's thread alone. What the ledger's threads
measure comes over with what they have done (`ledger.watch`), so nothing here
is locked. A request is counted once, when its end has landed: by then all of
it is known, and sums over the counters are sums over the ledger's records. What
a counter would only repeat (accounts, slots, the disk) is read at each scrape
instead: `sidecar.service.exposition`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Final, Literal

from sidecar.contract.values import BeginRecord, CompletedRecord, Refusal, TransportErrorCode, Usage
from sidecar.ledger.report import Recovery
from sidecar.ledger.watch import Job, Watch
from sidecar.ops.metrics import (
    ALL_OTHERS,
    LABEL_SETS_MAX,
    SPREAD_SETS_MAX,
    Count,
    Labels,
    Read,
    Series,
    Spread,
    counts,
)
from sidecar.service import families as f
from sidecar.service.decision import Admitted

NO_CALLER: Final = "no caller"  # whom the configuration doesn't name: what a frame calls itself is no label
_KEPT_MAX: Final = 512
_TOKENS: Final = {
    direction: attrgetter(f"{direction}_tokens")
    for direction in ("input", "cache_read", "cache_write", "output", "reasoning")
}
RESOLVED: Final = "resolved"
now_seconds = perf_counter  # the clock of every duration here


# Of one request: outcome, charge, usage, seconds to the answer, of the exchange, to the first event, to the begin on
# disk, from the end to the record on disk, bytes of the request, of the answer.
Ended = tuple[str, int, Usage | None, float, float, float | None, float, float, int, int]


class Route:
    """What requests of one caller came to, at one connector, for one model.

    `kept` are those that have ended and are not added up yet: of many at once that costs a fraction, and nothing
    that is as large as an answer is kept alive by it.
    """

    __slots__ = (
        "_answer_seconds",
        "_exchange_seconds",
        "_first_event_seconds",
        "_request_bytes",
        "_response_bytes",
        "charge_micro_usd",
        "kept",
        "notes",
        "outcomes",
        "over_runs",
        "tokens",
    )

    def __init__(
        self, answer: Spread, exchange: Spread, first_event: Spread, request: Spread, response: Spread
    ) -> None:
        self.kept: list[Ended] = []
        self.outcomes: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.tokens = dict.fromkeys(_TOKENS, 0)
        self.charge_micro_usd = 0
        self.over_runs = 0
        self._answer_seconds = answer
        self._exchange_seconds = exchange
        self._first_event_seconds = first_event
        self._request_bytes = request
        self._response_bytes = response

    def noted(self, begin: BeginRecord, record: CompletedRecord) -> None:
        """A record with notes: an over-run always is one."""
        self.notes.update(record.notes)
        self.over_runs += record.charge_micro_usd > begin.reservation_micro_usd

    def add_up(self, begin_seconds: Spread, complete_seconds: Spread) -> None:
        """Those that are kept."""
        outcomes, charges, usages, answer, exchange, first, begin, complete, request, response = zip(
            *self.kept, strict=True
        )
        self.kept.clear()
        self.settled(outcomes, charges, usages)
        self._answer_seconds.take_all(answer)
        self._exchange_seconds.take_all(exchange)
        self._first_event_seconds.take_all([seconds for seconds in first if seconds is not None])
        begin_seconds.take_all(begin)
        complete_seconds.take_all(complete)
        self._request_bytes.take_all(request)
        self._response_bytes.take_all(response)

    def settled(self, outcomes: Sequence[str], charges: Sequence[int], usages: Sequence[Usage | None]) -> None:
        """So many records, each at its place in all three."""
        self.outcomes.update(outcomes)
        self.charge_micro_usd += sum(charges)
        known = [usage for usage in usages if usage is not None]
        for direction, of in _TOKENS.items():
            self.tokens[direction] += sum([count for count in map(of, known) if count])


def _spreads(bounds: tuple[float, ...], open_labels: int = 1) -> Series[Spread]:
    return Series(lambda: Spread(bounds), open_labels=open_labels, sets_max=SPREAD_SETS_MAX)


class Meter:
    """Counts for one daemon; the plain numbers are for whoever does the thing to add to."""

    def __init__(self) -> None:
        self._routes: dict[Labels, Route] = {}
        self._answer_seconds = _spreads(f.ANSWER_SECONDS, open_labels=2)
        self._exchange_seconds = _spreads(f.ANSWER_SECONDS, open_labels=2)
        self._first_event_seconds = _spreads(f.ANSWER_SECONDS, open_labels=2)
        self._request_bytes = _spreads(f.SIZE_BYTES)
        self._response_bytes = _spreads(f.SIZE_BYTES)
        self._begin_seconds = Spread(f.DISK_SECONDS)
        self._complete_seconds = Spread(f.DISK_SECONDS)
        self._queue_seconds = Spread(f.DISK_SECONDS)
        self._write_seconds = Spread(f.DISK_SECONDS)
        self._sync_seconds = Spread(f.DISK_SECONDS)
        self._batch_records = Spread(f.BATCH_RECORDS)
        self._batch_bytes = Spread(f.SIZE_BYTES)
        self._spare_seconds = Spread(f.DISK_SECONDS)
        self._upkeep_seconds = _spreads(f.ANSWER_SECONDS, open_labels=0)
        self._unrecorded = Series(Count)
        self._refusals = Series(Count)
        self._quoted_refusals = Series(Count)
        self._replays = Series(Count)
        self._joins = Series(Count)
        self._cancels = Series(Count)
        self._transport_errors = Series(Count, open_labels=0)
        self._turned_away = Series(Count, open_labels=0)
        self._reloads = Series(Count, open_labels=0)
        self._kept = 0  # by all routes together
        self.quotes = 0
        self.connections_accepted = 0
        self.slow_readers_cut = 0
        self.live_events_dropped = 0
        self.pressures = 0
        self.upkeep_failures = 0
        self.recovery: Recovery | None = None
        self.recovery_seconds = 0.0
        self.config_since_unix_ms: int | None = None  # None: since the start

    def route(self, caller: str, connector: str, model: str) -> Route:
        """Beyond the bound of label sets, that of all others."""
        labels = caller, connector, model
        return self._routes.get(labels) or self._new_route(labels)

    def _new_route(self, labels: Labels) -> Route:
        if len(self._routes) >= LABEL_SETS_MAX:
            labels = (ALL_OTHERS,) * len(labels)
            if (found := self._routes.get(labels)) is not None:
                return found
        caller, connector, model = labels
        route = self._routes[labels] = Route(
            self._answer_seconds.of(caller, connector),
            self._exchange_seconds.of(connector, model),
            self._first_event_seconds.of(connector, model),
            self._request_bytes.of(connector),
            self._response_bytes.of(connector),
        )
        return route

    # --- what is told of ------------------------------------------------------------------------------------------

    def ended(
        self,
        admitted: Admitted,
        record: CompletedRecord,
        outcome: str,
        *,
        admitted_at: float,
        begun_at: float,
        ended_at: float,
        first_event_at: float | None,
    ) -> float:
        """A request's end has landed, now. How many seconds it took. Once a request, so it calls little."""
        now = perf_counter()
        begin = admitted.begin
        labels = begin.caller_runtime_id, begin.provider, begin.model
        route = self._routes.get(labels) or self._new_route(labels)
        route.kept.append(
            (
                outcome,
                record.charge_micro_usd,
                record.usage,
                now - admitted_at,
                ended_at - begun_at,
                None if first_event_at is None else first_event_at - admitted_at,
                begun_at - admitted_at,
                now - ended_at,
                admitted.frame_bytes,
                len(record.response) - 1,  # without the flag before it
            )
        )
        if record.notes:
            route.noted(begin, record)
        self._kept += 1
        if self._kept >= _KEPT_MAX:
            self._add_up()
        return now - admitted_at

    def _add_up(self) -> None:
        self._kept = 0
        for route in self._routes.values():
            if route.kept:
                route.add_up(self._begin_seconds, self._complete_seconds)

    def resolved(self, begin: BeginRecord, record: CompletedRecord) -> None:
        """An operator's decision has landed."""
        route = self.route(begin.caller_runtime_id, begin.provider, begin.model)
        route.settled([RESOLVED], [record.charge_micro_usd], [record.usage])

    def unrecorded(self, caller: str, record: Literal["begin", "completed"]) -> None:
        self._unrecorded.of(caller, record).value += 1

    def refused(self, caller: str, refusal: Refusal) -> None:
        self._refusals.of(caller, refusal).value += 1

    def quoted(self, caller: str, refusal: Refusal | None) -> None:
        self.quotes += 1
        if refusal is not None:
            self._quoted_refusals.of(caller, refusal).value += 1

    def replayed(self, caller: str) -> None:
        self._replays.of(caller).value += 1

    def joined(self, caller: str) -> None:
        self._joins.of(caller).value += 1

    def cancelled(self, caller: str) -> None:
        self._cancels.of(caller).value += 1

    def told_error(self, code: TransportErrorCode) -> None:
        self._transport_errors.of(code).value += 1

    def turned_away(self, code: TransportErrorCode) -> None:
        self._turned_away.of(code).value += 1

    def recovered(self, found: Recovery, seconds: float) -> None:
        """What the opening of the ledger came to, and how long it took."""
        self.recovery, self.recovery_seconds = found, seconds

    def reloaded(self, result: Literal["ok", "refused"], at_unix_ms: int) -> None:
        self._reloads.of(result).value += 1
        if result == "ok":
            self.config_since_unix_ms = at_unix_ms

    @property
    def requests(self) -> int:
        """How many have ended on record since the start, those that operators settled included."""
        self._add_up()
        return sum(sum(route.outcomes.values()) for route in self._routes.values())

    @property
    def charged_micro_usd(self) -> int:
        """What they came to."""
        self._add_up()
        return sum(route.charge_micro_usd for route in self._routes.values())

    # --- the ledger's side ----------------------------------------------------------------------------------------

    @property
    def watch(self) -> Watch:
        """For the ledger to tell."""
        return Watch(on_batch=self._batch, on_spare=self._spare_seconds.take, on_upkeep=self._upkeep)

    def _batch(self, records: int, size_bytes: int, waited: float, written: float, synced: float) -> None:
        self._queue_seconds.take(waited)
        self._write_seconds.take(written)
        self._sync_seconds.take(synced)
        self._batch_records.take(records)
        self._batch_bytes.take(size_bytes)

    def _upkeep(self, job: Job, seconds: float) -> None:
        self._upkeep_seconds.of(job).take(seconds)

    # --- what it has come to --------------------------------------------------------------------------------------

    def read(self) -> Iterator[Read]:
        """Every family that is counted here, with its values."""
        self._add_up()
        routes = sorted(self._routes.items())
        yield (
            f.REQUESTS,
            [((*key, outcome), count) for key, route in routes for outcome, count in sorted(route.outcomes.items())],
        )
        yield f.SPEND, [(key, route.charge_micro_usd) for key, route in routes]
        yield (
            f.TOKENS,
            [((*key, direction), count) for key, route in routes for direction, count in route.tokens.items()],
        )
        yield f.OVER_RUNS, [(key, route.over_runs) for key, route in routes]
        yield f.NOTES, [((*key, note), count) for key, route in routes for note, count in sorted(route.notes.items())]
        yield from self._read_spreads()
        yield from self._read_counts()

    def _read_spreads(self) -> Iterator[Read]:
        yield f.REQUEST_SECONDS, self._answer_seconds
        yield f.EXCHANGE_SECONDS, self._exchange_seconds
        yield f.FIRST_EVENT_SECONDS, self._first_event_seconds
        yield f.BEGIN_SECONDS, [((), self._begin_seconds)]
        yield f.COMPLETE_SECONDS, [((), self._complete_seconds)]
        yield f.REQUEST_BYTES, self._request_bytes
        yield f.RESPONSE_BYTES, self._response_bytes
        yield f.QUEUE_SECONDS, [((), self._queue_seconds)]
        yield f.WRITE_SECONDS, [((), self._write_seconds)]
        yield f.SYNC_SECONDS, [((), self._sync_seconds)]
        yield f.BATCH_RECORDS_SPREAD, [((), self._batch_records)]
        yield f.BATCH_BYTES_SPREAD, [((), self._batch_bytes)]
        yield f.SPARE_SECONDS, [((), self._spare_seconds)]
        yield f.UPKEEP_SECONDS, self._upkeep_seconds

    def _read_counts(self) -> Iterator[Read]:
        yield f.UNRECORDED, counts(self._unrecorded)
        yield f.REFUSALS, counts(self._refusals)
        yield f.QUOTED_REFUSALS, counts(self._quoted_refusals)
        yield f.QUOTES, [((), self.quotes)]
        yield f.REPLAYS, counts(self._replays)
        yield f.JOINS, counts(self._joins)
        yield f.CANCELS, counts(self._cancels)
        yield f.TRANSPORT_ERRORS, counts(self._transport_errors)
        yield f.ACCEPTED, [((), self.connections_accepted)]
        yield f.TURNED_AWAY, counts(self._turned_away)
        yield f.SLOW_READERS, [((), self.slow_readers_cut)]
        yield f.EVENTS_DROPPED, [((), self.live_events_dropped)]
        yield f.UPKEEP_FAILURES, [((), self.upkeep_failures)]
        yield f.PRESSURES, [((), self.pressures)]
        yield f.RELOADS, counts(self._reloads)
        if (found := self.recovery) is not None:
            yield f.RECOVERY_SECONDS, [((), self.recovery_seconds)]
            yield f.RECOVERY_RECORDS, [((), found.records)]
            yield f.RECOVERY_READ, [((), found.records_read)]
            yield f.RECOVERY_SEGMENTS, [((), found.segments)]
            yield f.RECOVERY_SET_ASIDE, [((), found.set_aside_bytes)]
            yield f.RECOVERY_CLEAN, [((), int(found.clean))]
