"""One exchange: what is decided about a read frame. Only this module knows the order of the rules.

`decide` is rules 1 to 13 in the contract's order and awaits nothing, so that a
replay look-up, a slot and a reservation are one decision. `quote` asks the same
rules and takes nothing. What follows for an admitted request is
`sidecar.service.carrier`. Source: CONTRACT sections 1 and 3.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from msgspec import Struct

from sidecar.config.values import Caller, Model
from sidecar.connectors.promise import Lowered, Rejected
from sidecar.contract import canonical
from sidecar.contract.client_frames import TRANSPORT_QUOTED, TransportCancel, TransportQuoted
from sidecar.contract.frames import BrokenInvocation, Invocation, Quote
from sidecar.contract.values import (
    BeginRecord,
    PriceRow,
    ProviderRequest,
    Refusal,
    TransportErrorCode,
    refused,
)
from sidecar.ledger.face import LedgerFace, Recorded
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.recovery import segment_path
from sidecar.ops.log import Log
from sidecar.ops.tracebacks import in_a_word
from sidecar.rules import admission, invocation
from sidecar.rules.pricing import rows_in_force, worst_case_micro_usd
from sidecar.rules.reservations import Live, Reservations
from sidecar.service.carrier import Carrier, GiveAnswer, Hear
from sidecar.service.decision import Admitted, Answered, Decision, Joined, Replay
from sidecar.service.errors import error_frame, unreadable
from sidecar.service.few_lines import FewLines
from sidecar.service.in_force import InForce
from sidecar.service.metrics import NO_CALLER, Meter
from sidecar.service.tasks import Start
from sidecar.service.turn import Act


class Refused(Exception):
    """A rule applies: its refusal, and for the log what was needed. From rule 8 on the worst case is known."""

    worst_case_micro_usd: int | None = None

    def __init__(self, refusal: Refusal, why: str) -> None:
        super().__init__(why)
        self.refusal = refusal


class _Terms(Struct, frozen=True):
    """Under which a request is admitted: its model, the price rows of the instant, its bounds."""

    model: Model
    rows: tuple[PriceRow, ...]
    input_bound_tokens: int
    worst_case_micro_usd: int


class _Ready(Struct, frozen=True):
    """No rule applies: what is reserved and sent."""

    terms: _Terms
    lowered: Lowered
    states_dropped: int


def _refuse(refusal: Refusal, why: str | None) -> None:
    if why is not None:
        raise Refused(refusal, why)


class Exchange:
    """Decides and carries every invocation of one daemon."""

    def __init__(
        self,
        in_force: InForce,
        ledger: LedgerFace,
        reservations: Reservations,
        log: Log,
        clock_unix_ms: Callable[[], int],
        on_end: Callable[[], None] = lambda: None,
        later: Callable[[Act], None] = lambda act: act(),
        meter: Meter | None = None,
    ) -> None:
        self._in_force = in_force
        self._ledger = ledger
        self._reservations = reservations
        self._log = log
        self._refusals = FewLines(log, clock_unix_ms, "refused")
        self._quoted_refusals = FewLines(log, clock_unix_ms, "quoted_refusal")
        self._clock_unix_ms = clock_unix_ms
        self._meter = meter = meter or Meter()
        self._carrier = Carrier(ledger, reservations, log, clock_unix_ms, on_end, later, meter)
        self.draining = False

    # --- rules 1 to 13 and the reservation: one decision, nothing awaited -------------------------------------

    def decide(
        self,
        frame: Invocation | BrokenInvocation,
        callers: frozenset[str],
        *,
        joins: bool = False,
        connection: int = 0,
    ) -> Decision:
        """The first rule of section 3 that applies, for a peer that may call as `callers`, and may join.

        `connection` is its number, for the log.
        """
        caller_id, request_id = _ids(frame)
        try:
            now_unix_ms = self._clock_unix_ms()
            _, weighed = self._weighed(frame, callers, joins, now_unix_ms)
            if not isinstance(weighed, _Ready):
                return weighed
            if self.draining:
                return Answered(self._error("shutting_down", "the daemon is stopping", caller_id, request_id))
            assert isinstance(frame, Invocation), "what is no invocation is Malformed"
            return self._reserve(frame, weighed, now_unix_ms, connection)  # 14 begins here, in memory
        except Refused as refusal:
            self._meter.refused(self._known(caller_id), refusal.refusal)
            self._tell(self._refusals, refusal, connection, caller_id, request_id)
            return Answered(canonical.encode(refused(caller_id, request_id, refusal.refusal)))
        except Exception as fault:
            return Answered(self._fault(fault, connection, caller_id, request_id))

    def quote(self, quote: Quote, callers: frozenset[str], *, joins: bool, connection: int = 0) -> bytes:
        """The frame that says what `decide` would, but for a ledger or a drain that takes no begin."""
        caller_id, request_id = _ids(quote.invocation)
        refusal: Refusal | None = None
        worst_case: int | None
        try:
            worst_case, _ = self._weighed(quote.invocation, callers, joins, self._clock_unix_ms())
        except Refused as refused_it:
            refusal, worst_case = refused_it.refusal, refused_it.worst_case_micro_usd
            self._tell(self._quoted_refusals, refused_it, connection, caller_id, request_id)
        except Exception as fault:
            return self._fault(fault, connection, caller_id, request_id)
        self._meter.quoted(self._known(caller_id), refusal)
        quoted = TransportQuoted(
            schema_id=TRANSPORT_QUOTED,
            caller_runtime_id=caller_id,
            request_id=request_id,
            refusal=refusal,
            worst_case_micro_usd=worst_case,
        )
        return canonical.encode(quoted)

    @staticmethod
    def _tell(lines: FewLines, refused_it: Refused, connection: int, caller_id: str, request_id: str) -> None:
        lines.tell(
            refusal=refused_it.refusal, caller=caller_id, request=request_id, connection=connection, why=str(refused_it)
        )

    def _fault(self, fault: Exception, connection: int, caller_id: str, request_id: str) -> bytes:
        """What can't be decided, as a transport error; a broken invariant ends the daemon."""
        if isinstance(fault, LedgerUnavailable):
            return unreadable(self._log, self._meter, fault, caller_id, request_id)
        if isinstance(fault, AssertionError):
            raise fault
        # Nothing is reserved yet.
        self._log.error("internal", connection=connection, caller=caller_id, request=request_id, bug=in_a_word(fault))
        return self._error("internal", f"a bug in the daemon: {type(fault).__name__}", caller_id, request_id)

    def _error(self, code: TransportErrorCode, why: str, caller_id: str, request_id: str) -> bytes:
        self._meter.told_error(code)
        return error_frame(code, why, caller_id, request_id)

    def _known(self, caller_id: str) -> str:
        """As a label: what a frame calls itself is none."""
        return caller_id if caller_id in self._in_force.config.callers else NO_CALLER

    def _weighed(
        self, frame: Invocation | BrokenInvocation, callers: frozenset[str], joins: bool, now_unix_ms: int
    ) -> tuple[int, Replay | Joined | _Ready]:
        """The worst case in micro-USD, and what no rule stands against. Raises Refused. Takes nothing."""
        caller_id, request_id = _ids(frame)
        caller = self._in_force.config.callers.get(caller_id)
        if caller is None or caller_id not in callers:
            raise Refused("IdentitySubstitution", "this peer may not call as this caller")  # 1
        on_record = self._on_record(caller_id, request_id)
        reserved = _reserved_before(frame, on_record)
        if reserved is None and frame.frame_bytes > caller.payload_bytes_max:
            raise Refused("PayloadBound", f"{frame.frame_bytes} bytes, at most {caller.payload_bytes_max}")  # 2
        if isinstance(frame, BrokenInvocation):
            raise Refused("Malformed", frame.complaint)  # 3
        asked = frame.value
        _refuse("Malformed", invocation.complaint(asked))
        terms = None
        if reserved is None:
            model = self._rules_4_to_7(frame, caller, now_unix_ms)
            terms = _terms(frame, model, now_unix_ms)
            reserved = terms.worst_case_micro_usd
        try:
            _refuse("CostBound", admission.over_cost(reserved, max_cost_micro_usd=asked.max_cost_micro_usd))  # 8
            if on_record is not None:
                return reserved, _rule_9(frame.identity, on_record, caller_id, request_id, joins)
            assert terms is not None, "a request on record is answered by rule 9"
            ready = self._rules_10_and_11(asked.request, caller, terms)
            _refuse("Capacity", self._reservations.full(caller_id, terms.model.connector))  # 12
            _refuse("SpendCeiling", self._reservations.over_ceiling(caller_id, now_unix_ms, reserved))  # 13
        except Refused as refusal:
            refusal.worst_case_micro_usd = reserved
            raise
        return reserved, ready

    def _on_record(self, caller_id: str, request_id: str) -> Live | Recorded | None:
        """What there is under this id, from its reservation in memory on; nothing changes it while we decide."""
        return self._reservations.live(caller_id, request_id) or self._ledger.find(caller_id, request_id)

    def _rules_4_to_7(self, frame: Invocation, caller: Caller, now_unix_ms: int) -> Model:
        asked, request, in_force = frame.value, frame.value.request, self._in_force
        late = admission.expired(
            asked.expires_at_unix_ms,
            now_unix_ms=now_unix_ms,
            expiry_skew_seconds_max=self._in_force.config.daemon.expiry_skew_seconds_max,
            low_water_unix_ms=self._ledger.low_water_unix_ms,
        )
        _refuse("Expired", late)  # 4
        _refuse("ProviderDigestSubstitution", admission.wrong_digest(frame))  # 5
        model = in_force.config.models.get(request.model)
        if model is None or request.model not in caller.models or model.connector not in in_force.connectors:
            raise Refused("ModelNotAllowed", f"{request.model!r:.80} is not served to this caller")  # 6
        over = admission.over_output(
            request.max_output_tokens, caller_max=caller.output_tokens_max, model_max=model.output_tokens_max
        )
        _refuse("OutputBound", over)  # 7
        return model

    def _rules_10_and_11(self, request: ProviderRequest, caller: Caller, terms: _Terms) -> _Ready:
        model = terms.model
        usable, dropped = admission.without_foreign_states(request, model.connector)
        if dropped and caller.foreign_reasoning == "refuse":
            raise Refused("ForeignReasoningState", f"{dropped} reasoning states are not of {model.connector}")  # 10
        if not usable.input:
            raise Refused("ProviderRejected", "nothing is left of the input without foreign reasoning states")
        try:
            lowered = self._in_force.connectors[model.connector].lower(usable, model.upstream, model.settings)
        except Rejected as rejected:
            raise Refused("ProviderRejected", str(rejected)) from rejected  # 11
        return _Ready(terms, lowered, dropped + lowered.states_dropped)

    def _reserve(self, frame: Invocation, ready: _Ready, now_unix_ms: int, connection: int) -> Admitted:
        asked, request, terms = frame.value, frame.value.request, ready.terms
        model, config = terms.model, self._in_force.config
        connector = config.connectors[model.connector]
        live = Live(
            caller=asked.caller_runtime_id,
            request_id=request.request_id,
            connector=connector.name,
            identity=frame.identity,
            reservation_micro_usd=terms.worst_case_micro_usd,
            admitted_at_unix_ms=now_unix_ms,
        )
        begin = BeginRecord(
            caller_runtime_id=live.caller,
            request_id=live.request_id,
            identity_sha256=tuple(frame.identity),
            native_request_sha256=asked.native_request_sha256,
            provider_request_sha256=asked.provider_request_sha256,
            model=model.name,
            upstream=model.upstream,
            provider=connector.name,
            admitted_at_unix_ms=now_unix_ms,
            expires_at_unix_ms=asked.expires_at_unix_ms,
            input_bound_tokens=terms.input_bound_tokens,
            max_output_tokens=request.max_output_tokens,
            reservation_micro_usd=terms.worst_case_micro_usd,
            foreign_reasoning_dropped=ready.states_dropped,
            prices=terms.rows,
            cache_retention=request.cache_retention,
        )
        self._reservations.take(live)
        left_seconds = min((asked.expires_at_unix_ms - now_unix_ms) / 1000, connector.time_limit_seconds)
        return Admitted(
            live=live,
            begin=begin,
            lowered=ready.lowered,
            connector=self._in_force.connectors[connector.name],
            connector_terms=connector,
            frame_bytes_max=config.daemon.frame_bytes_max,
            deadline=trio.current_time() + left_seconds,
            frame_bytes=frame.frame_bytes,
            connection=connection,
        )

    # --- step 14 and after ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests that have been admitted and have not ended."""
        return len(self._reservations)

    def carry(self, admitted: Admitted, start: Start, answer: GiveAnswer) -> None:
        """From begin to answer, as `Carrier.carry` says."""
        self._carrier.carry(admitted, start, answer)

    def join(self, joined: Joined, who: object, answer: GiveAnswer) -> None:
        """`answer` is given what the request that runs will be answered, as `Carrier.join` says."""
        self._meter.joined(joined.caller)
        self._carrier.join((joined.caller, joined.request_id), who, answer)

    def hear(self, caller: str, request_id: str, who: object, hear: Hear) -> None:
        """The live events of a running request from here on, as `Carrier.hear` says."""
        self._carrier.hear((caller, request_id), who, hear)

    def leave(self, caller: str, request_id: str, who: object) -> int:
        """Who is gone waits for nothing, as `Carrier.leave` says."""
        return self._carrier.leave((caller, request_id), who)

    def cancel(self, cancel: TransportCancel, callers: frozenset[str]) -> None:
        """Nothing, where it does not run or the peer may not call as its caller."""
        if cancel.caller_runtime_id in callers:
            self._carrier.cancel((cancel.caller_runtime_id, cancel.request_id))

    # --- replay and stopping ----------------------------------------------------------------------------------

    async def replay(self, replay: Replay) -> bytes:
        """The recorded frame, byte for byte, read back from disk."""
        try:
            answer = await self._ledger.read_response(replay.recorded)
        except LedgerUnavailable as fault:
            place = replay.recorded.completed
            file = segment_path(self._in_force.config.ledger.directory, place.segment) if place else None
            at = place.offset if place else None
            return unreadable(self._log, self._meter, fault, replay.caller, replay.request_id, file, at)
        self._meter.replayed(replay.caller)
        return answer

    def stop(self, why: str) -> None:
        """Every running upstream call is dropped now; what is admitted later ends the same way."""
        self._refusals.settle()
        self._quoted_refusals.settle()
        self._carrier.stop(why)


def _ids(frame: Invocation | BrokenInvocation) -> tuple[str, str]:
    if isinstance(frame, BrokenInvocation):
        return frame.caller_runtime_id, frame.request_id
    return frame.value.caller_runtime_id, frame.value.request.request_id


def _terms(frame: Invocation, model: Model, now_unix_ms: int) -> _Terms:
    request = frame.value.request
    rows = rows_in_force(model.prices, now_unix_ms)
    bound = admission.input_bound(frame, model)
    worst_case = worst_case_micro_usd(
        rows,
        input_bound_tokens=bound,
        max_output_tokens=request.max_output_tokens,
        retention=request.cache_retention,
    )
    return _Terms(model, rows, bound, worst_case)


def _reserved_before(frame: Invocation | BrokenInvocation, on_record: Live | Recorded | None) -> int | None:
    """What this very identity reserved when it was admitted; None if it never was."""
    if isinstance(frame, BrokenInvocation) or on_record is None or on_record.identity != frame.identity:
        return None
    return on_record.reservation_micro_usd


def _rule_9(identity: bytes, on_record: Live | Recorded, caller: str, request_id: str, joins: bool) -> Replay | Joined:
    """The completed request whose answer is to be replayed, or the running one to join; else it is refused."""
    if on_record.identity != identity:
        raise Refused("ReplayConflict", "another invocation is on record under this id")
    if isinstance(on_record, Live):
        if joins:
            return Joined(caller, request_id)
        raise Refused("InFlight", "this request is running")
    if on_record.completed is None:
        raise Refused("Indeterminate", "this request began, and how it ended is not known")
    return Replay(caller, request_id, on_record)
