"""What the daemon holds, as a frame: each peer sees the callers that it may be, an operator sees all.

With them go the models that these callers may ask for, and the connectors
behind those. Source: CONTRACT section 1.
"""

from __future__ import annotations

from collections.abc import Callable

from sidecar.config.values import Caller
from sidecar.contract import canonical
from sidecar.contract.client_frames import (
    TRANSPORT_STATUS_REPORT,
    CallerStatus,
    ConnectorStatus,
    DaemonStatus,
    LedgerState,
    ModelStatus,
    TransportStatusReport,
)
from sidecar.contract.values import U64_MAX
from sidecar.ledger.face import LedgerFace
from sidecar.rules.pricing import rows_in_force
from sidecar.rules.reservations import Reservations
from sidecar.service.in_force import InForce
from sidecar.service.peer import Standing


class Status:
    """Reports on one daemon. `connections` and `draining` are asked at each report."""

    def __init__(
        self,
        in_force: InForce,
        ledger: LedgerFace,
        reservations: Reservations,
        clock_unix_ms: Callable[[], int],
        *,
        server: str,
        connections: Callable[[], int],
        draining: Callable[[], bool],
    ) -> None:
        self._in_force = in_force
        self._ledger = ledger
        self._reservations = reservations
        self._clock_unix_ms = clock_unix_ms
        self._server = server
        self._connections = connections
        self._draining = draining
        self._started_at_unix_ms = clock_unix_ms()

    def report(self, standing: Standing) -> bytes:
        """The report's frame for this peer, without its length prefix."""
        now_unix_ms = self._clock_unix_ms()
        seen = [
            caller
            for name, caller in sorted(self._in_force.config.callers.items())
            if standing.is_operator or name in standing.callers
        ]
        models = self._models(seen, now_unix_ms, all_of_them=standing.is_operator)
        report = TransportStatusReport(
            schema_id=TRANSPORT_STATUS_REPORT,
            daemon=self._daemon(now_unix_ms),
            callers=tuple([self._caller(caller, now_unix_ms) for caller in seen]),
            models=models,
            connectors=self._connectors({model.connector for model in models}, all_of_them=standing.is_operator),
        )
        return canonical.encode(report)

    def _daemon(self, now_unix_ms: int) -> DaemonStatus:
        terms = self._in_force.config.daemon
        return DaemonStatus(
            server=self._server,
            started_at_unix_ms=self._started_at_unix_ms,
            now_unix_ms=now_unix_ms,
            live_requests=len(self._reservations),
            requests_in_flight_max=terms.requests_in_flight_max,
            connections=self._connections(),
            connections_max=terms.connections_max,
            draining=self._draining(),
            ledger=self._ledger_state(),
        )

    def _ledger_state(self) -> LedgerState:
        if self._ledger.poisoned is not None:
            return "failed"
        return "ready" if self._ledger.pressure is None else "pressure"

    def _caller(self, caller: Caller, now_unix_ms: int) -> CallerStatus:
        account = self._reservations.account(caller.id)
        start = account.window_start(now_unix_ms)
        return CallerStatus(
            caller_runtime_id=caller.id,
            live_requests=self._reservations.live_of_caller(caller.id),
            window_start_unix_ms=start,
            window_seconds=account.window_seconds,
            spent_micro_usd=min(account.spent(start), U64_MAX),
            reserved_micro_usd=min(account.reserved(start), U64_MAX),
            ceiling_micro_usd=account.ceiling_micro_usd,
            over_runs=account.over_runs,
            indeterminate=account.left_open,
        )

    def _models(self, callers: list[Caller], now_unix_ms: int, *, all_of_them: bool) -> tuple[ModelStatus, ...]:
        seen = {name for caller in callers for name in caller.models}
        return tuple(
            [
                ModelStatus(
                    name=name,
                    connector=model.connector,
                    upstream=model.upstream,
                    output_tokens_max=model.output_tokens_max,
                    prices=rows_in_force(model.prices, now_unix_ms),
                )
                for name, model in sorted(self._in_force.config.models.items())
                if all_of_them or name in seen
            ]
        )

    def _connectors(self, seen: set[str], *, all_of_them: bool) -> tuple[ConnectorStatus, ...]:
        """One that only stands behind a recording one is asked under that one's name."""
        return tuple(
            [
                ConnectorStatus(
                    name=name,
                    kind=connector.kind,
                    live_requests=self._reservations.live_of_connector(name),
                    concurrent_requests_max=connector.concurrent_requests_max,
                )
                for name, connector in sorted(self._in_force.config.connectors.items())
                if name in seen or (all_of_them and name not in self._in_force.config.only_wrapped)
            ]
        )
