"""From an admitted request to its answer: begin, ask, complete, answer. Only this module knows that order.

Three promises: no spend without a begin on disk; no answer without a complete
on disk; every begin meets at most one complete.

Each step starts the next one when its record has landed, which nothing
cancels. Only a connector that must wait is asked in a task, under the
request's deadline. Whoever joins a request is given the same answer, and who
listens hears its events as they come. Source: CONTRACT sections 1 and 4 to 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import trio

from sidecar.connectors.promise import Answer, ResponseTooLarge
from sidecar.contract import canonical
from sidecar.contract.client_frames import CANCELLED, TRANSPORT_EVENT, LiveEvent
from sidecar.contract.values import STORED_AS_IS, CompletedRecord, StopReason, TransportEvent, TransportEventPayload
from sidecar.ledger.face import LedgerFace
from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ledger.landing import Landed, Place
from sidecar.ops.log import Log
from sidecar.ops.tracebacks import in_a_word
from sidecar.rules.reservations import Live, Reservations
from sidecar.service import settlement
from sidecar.service.decision import Admitted
from sidecar.service.end_lines import tell_end
from sidecar.service.errors import error_frame
from sidecar.service.metrics import Meter, now_seconds
from sidecar.service.settlement import Settled
from sidecar.service.tasks import Start
from sidecar.service.turn import Act

GiveAnswer = Callable[[bytes], None]
Hear = Callable[[bytes], None]


class Carrier:
    """Carries every admitted request of one daemon."""

    def __init__(
        self,
        ledger: LedgerFace,
        reservations: Reservations,
        log: Log,
        clock_unix_ms: Callable[[], int],
        on_end: Callable[[], None],
        later: Callable[[Act], None],
        meter: Meter,
    ) -> None:
        self.ledger = ledger
        self.reservations = reservations
        self.log = log
        self.clock_unix_ms = clock_unix_ms
        self.on_end = on_end
        self.later = later
        self.meter = meter
        self.scopes: set[trio.CancelScope] = set()  # of the connectors that are waited for
        self.stopped: str | None = None
        self._carried: dict[tuple[str, str], _Carried] = {}  # by caller and request id, while it holds its slot

    def carry(self, admitted: Admitted, start: Start, answer: GiveAnswer) -> None:
        """Queues the begin. `answer` is called once, with the frame (without prefix) of an end that is on disk, or
        of a transport error. `start` starts the task that waits for a connector."""
        live = admitted.live
        carried = self._carried[live.caller, live.request_id] = _Carried(self, admitted, start, answer)
        self.ledger.begin(admitted.begin).then(carried.begun)

    def join(self, key: tuple[str, str], who: object, answer: GiveAnswer) -> None:
        """`answer` is given what the running request of this key will be answered, unless `who` leaves before."""
        self._carried[key].join(who, answer)

    def hear(self, key: tuple[str, str], who: object, hear: Hear) -> None:
        """From here on `hear` is given the frame of each event of this running request; once for the same `who`."""
        self._carried[key].hear(who, hear)

    def leave(self, key: tuple[str, str], who: object) -> int:
        """`who` hears no more of the request of this key, and is not answered where it has joined: so many answers."""
        carried = self._carried.get(key)
        return carried.leave(who) if carried is not None else 0

    def cancel(self, key: tuple[str, str]) -> None:
        """The deadline of the request of this key is now, if it runs."""
        if (carried := self._carried.get(key)) is not None:
            self.meter.cancelled(key[0])
            carried.cancel()

    def ended(self, live: Live) -> None:
        """It holds its slot no longer, so nobody can join it."""
        del self._carried[live.caller, live.request_id]

    def stop(self, why: str) -> None:
        """Every running upstream call is dropped now; what is admitted later ends the same way."""
        self.stopped = why
        for scope in self.scopes:
            scope.cancel()

    def unavailable(
        self, admitted: Admitted, answer: GiveAnswer, fault: LedgerUnavailable, record: Literal["begin", "completed"]
    ) -> None:
        """The ledger has not taken this record."""
        live = admitted.live
        self.meter.unrecorded(live.caller, record)
        self.meter.told_error("ledger_unavailable")
        # What lasts (a failed ledger, pressure) has a line of its own, once; room until the next spare comes by itself.
        self.log.info(
            "ledger_unavailable",
            connection=admitted.connection,
            caller=live.caller,
            request=live.request_id,
            record=record,
            why=str(fault),
        )
        answer(error_frame("ledger_unavailable", str(fault), live.caller, live.request_id))
        self.on_end()


class _Carried:
    """One request on its way."""

    __slots__ = (
        "_admitted",
        "_admitted_at",
        "_answer_first",
        "_asked",
        "_begun_at",
        "_cancelled",
        "_carrier",
        "_ended_as",
        "_ended_at",
        "_first_event_at",
        "_first_event_at_unix_ms",
        "_joined",
        "_listeners",
        "_place",
        "_record",
        "_scope",
        "_start",
    )

    _place: Place  # of the begin
    _begun_at: float
    _ended_at: float
    _record: CompletedRecord

    def __init__(self, carrier: Carrier, admitted: Admitted, start: Start, answer: GiveAnswer) -> None:
        self._carrier = carrier
        self._admitted = admitted
        self._start = start
        self._answer_first = answer
        self._joined: list[tuple[object, GiveAnswer]] | None = None  # few requests have any, nor
        self._listeners: dict[object, Hear] | None = None
        self._asked: Answer | None = None
        self._scope: trio.CancelScope | None = None  # of the connector that is waited for
        self._cancelled = False
        self._first_event_at_unix_ms: int | None = None
        self._ended_as: StopReason | None = None
        self._first_event_at: float | None = None
        self._admitted_at = now_seconds()

    def join(self, who: object, answer: GiveAnswer) -> None:
        if self._joined is None:
            self._joined = []
        self._joined.append((who, answer))

    def leave(self, who: object) -> int:
        if self._listeners is not None:
            self._listeners.pop(who, None)
        before = self._joined or []
        self._joined = [joined for joined in before if joined[0] is not who]
        return len(before) - len(self._joined)

    def _answer(self, frame: bytes) -> None:
        """One frame for all, so that it is in memory once."""
        self._answer_first(frame)
        for _, answer in self._joined or ():
            answer(frame)

    # --- live events ------------------------------------------------------------------------------------------

    def hear(self, who: object, hear: Hear) -> None:
        if self._listeners is None:
            self._listeners = {}
            if self._asked is not None:
                self._asked.listen(self._heard)
        self._listeners.setdefault(who, hear)

    def _heard(self, sequence: int, payload: TransportEventPayload) -> None:
        if not self._listeners:
            return  # they have all left
        live = self._admitted.live
        event = LiveEvent(
            schema_id=TRANSPORT_EVENT,
            caller_runtime_id=live.caller,
            request_id=live.request_id,
            event=TransportEvent(sequence=sequence, payload=payload),
        )
        frame = canonical.encode(event)
        for hear in self._listeners.values():
            hear(frame)

    # --- begin ------------------------------------------------------------------------------------------------

    def begun(self, landed: Landed) -> None:
        if isinstance(landed, LedgerUnavailable):
            self._carrier.reservations.release(self._admitted.live)
            self._carrier.ended(self._admitted.live)
            self._carrier.unavailable(self._admitted, self._answer, landed, "begin")
            return
        self._begun_at = now_seconds()
        self._place = landed
        self._carrier.reservations.begun(self._admitted.live)
        self._carrier.later(self._ask)  # behind the answers that have landed with it

    def _ask(self) -> None:
        lowered, response_bytes_max = self._admitted.lowered, self._admitted.connector_terms.response_bytes_max
        asked = Answer(lowered.call_ids, response_bytes_max, lowered.notes, on_first=self._first_event)
        self._asked = asked
        if self._listeners is not None:
            asked.listen(self._heard)
        if (why := self._carrier.ledger.poisoned) is not None:
            self._lost(LedgerUnavailable(why))
        elif self._failed_unasked(asked) or self._answered_at_once(asked):
            self._complete(asked)
        else:
            self._start(self._wait)

    def _first_event(self) -> None:
        self._first_event_at = now_seconds()
        self._first_event_at_unix_ms = self._carrier.clock_unix_ms()

    # --- the connector ----------------------------------------------------------------------------------------

    def cancel(self) -> None:
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def _failed_unasked(self, asked: Answer) -> bool:
        """Whether it is too late to ask; then the answer has failed, and nothing was sent."""
        if self._carrier.stopped:
            asked.fail("unavailable", self._carrier.stopped)
        elif self._cancelled:
            asked.fail("timeout", f"{CANCELLED}; nothing was sent")
        elif trio.current_time() >= self._admitted.deadline:
            asked.fail("timeout", "the deadline passed while the request was being recorded; nothing was sent")
        return asked.ended is not None

    def _answered_at_once(self, asked: Answer) -> bool:
        try:
            return self._admitted.connector.at_once(self._admitted.lowered, asked)
        except ResponseTooLarge:
            assert asked.ended is not None
            return True
        except Exception as bug:
            self._broke(asked, bug)
            return True

    async def _wait(self) -> None:
        carrier, asked = self._carrier, self._asked
        assert asked is not None, "a request is asked before it is waited for"
        if (why := carrier.ledger.poisoned) is not None:
            self._lost(LedgerUnavailable(why))
            return
        if self._failed_unasked(asked):  # since this task was started
            self._complete(asked)
            return
        scope = self._scope = trio.CancelScope(deadline=self._admitted.deadline)
        carrier.scopes.add(scope)
        try:
            with scope:
                await self._admitted.connector.exchange(self._admitted.lowered, asked)
        except ResponseTooLarge:
            assert asked.ended is not None
        except Exception as bug:  # also one that comes in a group with the cancellation, which the scope takes out
            self._broke(asked, bug)
        finally:
            carrier.scopes.remove(scope)
        if scope.cancelled_caught and carrier.stopped:
            asked.fail("unavailable", carrier.stopped)
        elif scope.cancelled_caught and self._cancelled:
            asked.fail("timeout", f"{CANCELLED} before the provider had ended")
        elif scope.cancelled_caught:
            asked.fail("timeout", "the deadline passed before the provider had ended")
        self._complete(asked)

    def _broke(self, asked: Answer, bug: Exception) -> None:
        """A connector's bug must not take the daemon, or this request's slot and record, with it."""
        live, connection = self._admitted.live, self._admitted.connection
        self._carrier.log.error(
            "connector_bug",
            connection=connection,
            caller=live.caller,
            request=live.request_id,
            connector=live.connector,
            bug=in_a_word(bug),
        )
        asked.fail("provider", f"the connector broke: {type(bug).__name__}")

    # --- the end ----------------------------------------------------------------------------------------------

    def _complete(self, asked: Answer) -> None:
        asked.fail("provider", "the connector returned without an end")  # ignored where there is one
        self._asked = None  # it has said all; the two would keep each other, and the request, alive
        carrier, begin = self._carrier, self._admitted.begin
        assert asked.ended is not None
        self._ended_as = asked.ended.stop_reason
        self._ended_at = now_seconds()
        usage = self._admitted.connector_terms.usage
        settled = settlement.settle(begin, asked.ended, asked.events(), tuple(asked.notes), usage)
        self._record = self._fitting_record(settled)
        carrier.ledger.complete(begin, self._record).then(self._completed)

    def _fitting_record(self, settled: Settled) -> CompletedRecord:
        """With the whole answer, or with `result_size` where a bound or the ledger's room is too small."""
        begin, frame_bytes_max = self._admitted.begin, self._admitted.frame_bytes_max
        frame = settlement.result_frame(begin, settled)
        if len(frame) > frame_bytes_max:
            why = f"the result's frame is over {frame_bytes_max} bytes"
        else:
            record = self._record_of(settled, frame)
            if self._carrier.ledger.room_for(record):
                return record
            why = "the ledger has no room for the whole answer"
        settled = settlement.too_large(begin, settled, why)
        return self._record_of(settled, settlement.result_frame(begin, settled))

    def _record_of(self, settled: Settled, frame: bytes) -> CompletedRecord:
        return settlement.completed_record(
            settled,
            frame,
            begin_segment=self._place.segment,
            begin_offset=self._place.offset,
            completed_at_unix_ms=self._carrier.clock_unix_ms(),
            first_event_at_unix_ms=self._first_event_at_unix_ms,
        )

    def _completed(self, landed: Landed) -> None:
        if isinstance(landed, LedgerUnavailable):
            self._lost(landed)
            return
        carrier, record = self._carrier, self._record
        carrier.reservations.settle(self._admitted.live, record.charge_micro_usd)
        carrier.ended(self._admitted.live)
        self._answer(record.response[len(STORED_AS_IS) :])
        self._tell_end(landed)
        carrier.on_end()

    def _lost(self, fault: LedgerUnavailable) -> None:
        """It began, and its end can't be recorded: its reservation stays."""
        self._asked = None
        self._carrier.reservations.strand(self._admitted.live)
        self._carrier.ended(self._admitted.live)
        self._carrier.unavailable(self._admitted, self._answer, fault, "completed")

    def _tell_end(self, landed: Place) -> None:
        """To the metrics and to the log."""
        record, first_event_at = self._record, self._first_event_at
        stop_reason = self._ended_as if record.outcome == "completed" else None  # what ended well there may fail here
        took_seconds = self._carrier.meter.ended(
            self._admitted,
            record,
            stop_reason or record.outcome,
            admitted_at=self._admitted_at,
            begun_at=self._begun_at,
            ended_at=self._ended_at,
            first_event_at=first_event_at,
        )
        first_event_seconds = None if first_event_at is None else first_event_at - self._admitted_at
        tell_end(self._carrier.log, self._admitted, record, landed, stop_reason, took_seconds, first_event_seconds)
