"""What operators ask of the running daemon, and what it answers: resolve, check, reload and metrics.

A resolution is decided in the turn in which its frame is read, and settles the
account in the turn in which its record lands: no other record, reservation or
look-up comes in between. A check takes its picture of the accounts and the
number of the last batch that has landed in one turn too, without the
reservations whose begin has not; a worker thread then adds up exactly the
records up to that batch. So the two must be equal to the micro-USD whatever is
on its way, and the loop waits for nothing.

    a check finds             it is answered with     the daemon
    equal sums                operator_checked        goes on
    other sums                operator_checked        admits nothing from there on, drains, exits with 70
    a ledger it can't read    internal, with why      goes on: its own figures are not contradicted

Source: CONTRACT sections 1, 4 and 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import trio

from sidecar.audit.look import NoLedger
from sidecar.audit.tallying import GivenUp, Tallied, tallied
from sidecar.contract import canonical
from sidecar.contract.operator_frames import (
    OPERATOR_CHECKED,
    OPERATOR_METERED,
    OPERATOR_RESOLVED,
    Found,
    OperatorCheck,
    OperatorChecked,
    OperatorFrame,
    OperatorMetered,
    OperatorMetrics,
    OperatorReloaded,
    OperatorResolve,
    OperatorResolved,
)
from sidecar.contract.values import U64_MAX, BeginRecord, CompletedRecord, TransportErrorCode
from sidecar.ledger.face import LedgerFace, Recorded
from sidecar.ledger.faults import LedgerDamaged, LedgerUnavailable
from sidecar.ledger.landing import Landed
from sidecar.ops.log import Log
from sidecar.rules.conservation import Compared
from sidecar.rules.reservations import Reservations
from sidecar.service.carrier import GiveAnswer
from sidecar.service.conservation_lines import told_mismatches
from sidecar.service.errors import error_frame, unreadable
from sidecar.service.metrics import Meter
from sidecar.service.peer import Peer, Standing
from sidecar.service.reloading import Stopping
from sidecar.service.resolution import resolved_record, why_not
from sidecar.service.strangers import Strangers
from sidecar.service.tasks import Start

ReadAgain = Callable[..., Tallied]


class Operators:
    """Answers every operator of one daemon. `on_mismatch` is called once a check has found one."""

    def __init__(
        self,
        directory: Path,
        ledger: LedgerFace,
        reservations: Reservations,
        log: Log,
        clock_unix_ms: Callable[[], int],
        *,
        on_mismatch: Callable[[], None],
        reload: Callable[[str], Awaitable[OperatorReloaded]],
        meter: Meter,
        exposition: Callable[[], Awaitable[str]],
        on_end: Callable[[], None] = lambda: None,
        read_again: ReadAgain = tallied,
    ) -> None:
        self._directory = directory
        self._reload = reload
        self._ledger = ledger
        self._reservations = reservations
        self._log = log
        self._clock_unix_ms = clock_unix_ms
        self._on_mismatch = on_mismatch
        self._on_end = on_end
        self._read_again = read_again
        self._meter = meter
        self._exposition = exposition
        self._resolving: set[tuple[str, str]] = set()
        self._one_check = trio.Lock()
        self._stopped: str | None = None
        self._strangers = Strangers(log, clock_unix_ms)

    @property
    def resolving(self) -> int:
        """Decisions on their way to the disk."""
        return len(self._resolving)

    def stop(self, why: str) -> None:
        """A check under way is given up, and none begins."""
        self._stopped = why

    def take(self, standing: Standing, asked: OperatorFrame, start: Start, answer: GiveAnswer) -> None:
        """Decides one frame of this peer. `answer` is called once, perhaps at once."""
        peer = standing.peer
        if not standing.is_operator:
            why = "no [[operator]] means this peer"
            self._strangers.tell("operator_refused", **peer.for_the_log, why=why)
            answer(self._refused(asked, "not_admitted", "this peer is no operator here"))
        elif isinstance(asked, OperatorMetrics):
            start(partial(self._tell_metrics, answer))  # also of a ledger that has failed: that is when they are read
        elif self._ledger.poisoned is not None:
            answer(self._refused(asked, "ledger_unavailable", self._ledger.poisoned))
        elif isinstance(asked, OperatorResolve):
            self._resolve(peer, asked, answer)
        else:

            async def ask() -> None:
                if isinstance(asked, OperatorCheck):
                    answer(await self._checked(peer, asked))
                else:
                    answer(await self._reloaded(peer, asked))

            start(ask)

    # --- reload -----------------------------------------------------------------------------------------------

    async def _reloaded(self, peer: Peer, asked: OperatorFrame) -> bytes:
        try:
            return canonical.encode(await self._reload(f"uid {peer.uid}, pid {peer.pid}"))
        except Stopping:
            return self._refused(asked, "shutting_down", self._stopped or "the daemon is stopping")

    # --- metrics ----------------------------------------------------------------------------------------------

    async def _tell_metrics(self, answer: GiveAnswer) -> None:
        metered = OperatorMetered(schema_id=OPERATOR_METERED, exposition=await self._exposition())
        answer(canonical.encode(metered))

    # --- resolve ----------------------------------------------------------------------------------------------

    def _resolve(self, peer: Peer, asked: OperatorResolve, answer: GiveAnswer) -> None:
        key = asked.caller_runtime_id, asked.request_id
        try:
            recorded = self._ledger.find(*key)
        except LedgerUnavailable as fault:
            answer(unreadable(self._log, self._meter, fault, *key))
            return
        if (found := self._not_to_settle(key, recorded)) is not None:
            answer(_not_settled(asked, found))
            return
        begin = self._ledger.indeterminate(*key)
        if begin is None or recorded is None:  # it began in this run, and its end could not be recorded
            why = "the end of this request could not be recorded; it can be resolved after a restart"
            answer(self._refused(asked, "ledger_unavailable", why))
            return
        record = resolved_record(begin, recorded.begin, asked, self._clock_unix_ms())
        self._resolving.add(key)

        def landed(how: Landed) -> None:
            self._resolving.discard(key)
            answer(self._resolved(peer, asked, begin, record, how))
            self._on_end()

        self._ledger.complete(begin, record).then(landed)

    def _not_to_settle(self, key: tuple[str, str], recorded: Recorded | None) -> Found | None:
        """What a request is that there is nothing to decide about."""
        if self._reservations.live(*key) is not None:
            return "running"
        if recorded is None:
            return "unknown"
        if recorded.completed is not None:
            return "ended"
        return "being_resolved" if key in self._resolving else None

    def _resolved(
        self, peer: Peer, asked: OperatorResolve, begin: BeginRecord, record: CompletedRecord, how: Landed
    ) -> bytes:
        if isinstance(how, LedgerUnavailable):
            return self._refused(asked, "ledger_unavailable", f"not settled, as far as is known: {how}")
        charge = record.charge_micro_usd
        self._meter.resolved(begin, record)
        self._reservations.settle_left_open(
            begin.caller_runtime_id, begin.admitted_at_unix_ms, begin.reservation_micro_usd, charge
        )
        self._log.warning(
            "resolved",
            caller=asked.caller_runtime_id,
            request=asked.request_id,
            charge_micro_usd=charge,
            held_micro_usd=begin.reservation_micro_usd,
            uid=peer.uid,
            pid=peer.pid,
            who=asked.who,
            why=asked.why,
        )
        resolved = OperatorResolved(
            schema_id=OPERATOR_RESOLVED,
            caller_runtime_id=asked.caller_runtime_id,
            request_id=asked.request_id,
            found="settled",
            charge_micro_usd=charge,
            message=f"settled at {charge} micro-USD of {begin.reservation_micro_usd} reserved",
        )
        return canonical.encode(resolved)

    # --- check ------------------------------------------------------------------------------------------------

    async def _checked(self, peer: Peer, asked: OperatorCheck) -> bytes:
        """One at a time: each looks at the accounts as they are when its turn has come."""
        async with self._one_check:
            if self._stopped is not None:
                return self._refused(asked, "shutting_down", self._stopped)
            accounts, batch = self._reservations.on_record(), self._ledger.landed_batch  # in one turn
            window_seconds = self._reservations.window_seconds()
            try:
                again = await trio.to_thread.run_sync(self._read_up_to, batch, window_seconds)
            except GivenUp:
                return self._refused(asked, "shutting_down", self._stopped or "")
            except LedgerDamaged as damage:
                self._log.error(
                    "check_failed",
                    segment=damage.segment,
                    offset=damage.offset,
                    expected=damage.expected,
                    advice=damage.advice,
                )
                return self._refused(asked, "internal", f"the ledger can't be read again: {damage}")
            except (NoLedger, OSError, RuntimeError) as fault:  # the last one: no thread can be started
                self._log.error("check_failed", why=fault)
                return self._refused(asked, "internal", f"the ledger can't be read again: {fault}")
            compared = again.tally.compared(accounts)
            self._tell(peer, batch, compared)
            return _checked_frame(batch, again.head, compared)

    def _read_up_to(self, batch: int, window_seconds: Mapping[str, int]) -> Tallied:
        return self._read_again(
            self._directory, window_seconds, up_to_batch=batch, goes_on=lambda: self._stopped is None
        )

    def _tell(self, peer: Peer, batch: int, compared: Compared) -> None:
        if not compared.mismatches:
            self._log.info("checked", windows=compared.windows, batch=batch, uid=peer.uid, pid=peer.pid)
            return
        told_mismatches(self._log, compared.mismatches, now="no request is admitted, what runs is finished; then exit")
        self._on_mismatch()

    def _refused(self, asked: OperatorFrame, code: TransportErrorCode, why: str) -> bytes:
        self._meter.told_error(code)
        if isinstance(asked, OperatorResolve):
            return error_frame(code, why, asked.caller_runtime_id, asked.request_id)
        return error_frame(code, why)


def _checked_frame(batch: int, head: bytes, compared: Compared) -> bytes:
    """Sums above what a frame can say are the greatest that it can."""
    return canonical.encode(
        OperatorChecked(
            schema_id=OPERATOR_CHECKED,
            batch=batch,
            head_sha256=tuple(head),
            windows=compared.windows,
            settled_micro_usd=min(compared.settled_micro_usd, U64_MAX),
            open_micro_usd=min(compared.open_micro_usd, U64_MAX),
            mismatches=compared.sentences(),
        )
    )


def _not_settled(asked: OperatorResolve, found: Found) -> bytes:
    return canonical.encode(
        OperatorResolved(
            schema_id=OPERATOR_RESOLVED,
            caller_runtime_id=asked.caller_runtime_id,
            request_id=asked.request_id,
            found=found,
            message=why_not(found),
        )
    )
