"""The protocol from a caller's side, as bytes in and bytes out. No sockets, no clock, no tasks.

A Session outlives its connections. Whatever is asked stays with it until it is
answered or nobody waits any more, and goes out again, the same bytes, on each
new connection: the daemon answers a request that it knows from its record, so
that costs nothing twice. Whoever drives it connects as long as
`wants_connection`, then moves bytes both ways, and says when the connection is
lost. On a connection the hello goes first and everything else waits for the
welcome, which says how large a frame may be. One hello asks for live events
once a stream is among what is asked; a second one replaces the first.

    nobody asks -> asked -> out -> answered
                     ^       |
                     +-------+  lost, or the daemon is stopping and has run nothing

Answers are matched: results by caller and request id; quotes and status
reports by that and their order. What nobody asked for means that this is no
daemon. An answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NoReturn

from sidecar.client import daemon_frames
from sidecar.client.errors import (
    DaemonError,
    Disconnected,
    IdentitySubstitution,
    NotADaemon,
    ReplayConflict,
    SidecarError,
)
from sidecar.client.waiting import Answer, Asked, Key, Kind, Sent, Waiter
from sidecar.contract import canonical
from sidecar.contract.client_frames import (
    PROTOCOL,
    TRANSPORT_CANCEL,
    TRANSPORT_HELLO,
    LiveEvent,
    TransportCancel,
    TransportHello,
    TransportQuoted,
    TransportStatusReport,
    TransportWelcome,
)
from sidecar.contract.values import TransportError, TransportErrorCode, TransportResult
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

_OUTGOING_BYTES: Final = 262_144  # about so much is handed out at once

# Without ids they say that this connection is over, not that anything is wrong with what was asked: the next may do.
_PASSING: Final[frozenset[TransportErrorCode]] = frozenset({"too_many_connections", "frame_timeout", "shutting_down"})

# A quote asks for neither the ledger nor whether the daemon is stopping.
_NEVER_OF_QUOTES: Final[frozenset[TransportErrorCode]] = frozenset({"ledger_unavailable", "shutting_down"})


class ConnectionOver(Exception):
    """The driver closes this connection and calls `lost` with the trouble."""

    def __init__(self, trouble: SidecarError) -> None:
        super().__init__(str(trouble))
        self.trouble = trouble


class Session:
    """Everything that one client has asked, over one connection after the other."""

    def __init__(self, *, client: str, wait_for_restart: bool) -> None:
        self._client = client
        self._wait_for_restart = wait_for_restart
        self._waiting: dict[Asked, None] = {}  # in the order in which it was asked
        self._invocations: dict[tuple[str, str], Asked] = {}  # waiting, or out and left by whoever waited
        self._unsent: dict[Asked, None] = {}  # those of them that go out next, in order
        self._due: dict[Key, deque[Asked | None]] = {}  # what this connection must still answer
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        self._hello_out = False
        self._events_out = False  # the last hello asked for live events
        self._closed: SidecarError | None = None
        self.welcome: TransportWelcome | None = None  # of this connection
        self.was_welcomed = False  # by any
        self.has_progressed = False  # an answer came on this connection
        self.trouble: SidecarError | None = None  # why there was no connection, or is none any more

    # --- what a client asks -----------------------------------------------------------------------------------

    def invoke(self, frame: bytes, caller: str, request_id: str, waiter: Waiter) -> None:
        """The answer is a TransportResult. The same bytes that wait already are asked once, and answered to both."""
        known = self._invocations.get((caller, request_id))
        if self._closed is not None:
            waiter.settle(self._closed)
        elif known is None:
            self._invocations[caller, request_id] = asked = Asked("invocation", frame, caller, request_id)
            self._ask(asked, waiter)
        elif known.frame == frame:
            known.join(waiter)
            self._waiting[known] = None
        else:
            waiter.settle(ReplayConflict(caller, request_id, "another request of this client waits under this id"))

    def quote(self, frame: bytes, caller: str, request_id: str, waiter: Waiter) -> None:
        """The answer is a TransportQuoted."""
        self._ask(Asked("quote", frame, caller, request_id), waiter)

    def status(self, frame: bytes, waiter: Waiter) -> None:
        """The answer is a TransportStatusReport."""
        self._ask(Asked("status", frame), waiter)

    def meet(self, waiter: Waiter) -> None:
        """The answer is the connection's TransportWelcome."""
        if self.welcome is not None and self._closed is None:
            waiter.settle(self.welcome)
        else:
            self._ask(Asked("welcome", b""), waiter)

    def cancel(self, caller: str, request_id: str, waiter: Waiter) -> None:
        """The answer is Sent, or IdentitySubstitution. What was not sent yet ends here and now."""
        asked = self._invocations.get((caller, request_id))
        if asked is not None and not asked.out:
            ended = Disconnected(f"{request_id} was cancelled before it was sent", "cancelled_unsent")
            self._settle(asked, ended)
            waiter.settle(Sent())
        elif asked is not None and asked.parked is not None:
            self._settle(asked, asked.parked)
            waiter.settle(Sent())
        else:
            if asked is not None:
                asked.cancelled = True
            self._ask(Asked("cancel", _cancel(caller, request_id), caller, request_id), waiter)

    def leave(self, waiter: Waiter) -> None:
        """It waits no more. What is out goes on, and its answer is dropped."""
        asked = waiter.asked
        if asked is None or waiter not in asked.waiters:
            return
        asked.waiters.remove(waiter)
        if not asked.waiters:
            self._waiting.pop(asked, None)
            self._unsent.pop(asked, None)
            if not asked.out:
                self._forget(asked)

    def drop_overdue(self, gave_up_by: float) -> None:
        """Lets go of whoever was to give up by then and has not left, so that nothing is sent and paid for nobody."""
        for asked in list(self._waiting):
            for waiter in [waiter for waiter in asked.waiters if waiter.give_up_at <= gave_up_by]:
                self.leave(waiter)

    def _ask(self, asked: Asked, waiter: Waiter) -> None:
        if self._closed is not None:
            waiter.settle(self._closed)
            return
        asked.join(waiter)
        self._waiting[asked] = None
        self._unsent[asked] = None

    # --- what a driver does -----------------------------------------------------------------------------------

    @property
    def wants_connection(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._waiting)

    def connected(self) -> None:
        """A new connection: the hello goes out first."""
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        self._hello_out = self._events_out = self.has_progressed = False

    def outgoing(self) -> bytes:
        """What is to be written next; empty when there is nothing. What is given out here counts as sent."""
        frames: list[bytes] = []
        if not self._hello_out:
            frames.append(self._hello(any(asked.wants_events for asked in self._waiting)))
        length_bytes = 0
        while self.welcome is not None and self._unsent and length_bytes < _OUTGOING_BYTES:
            for frame in self._outgoing_of(self._next_unsent(), self.welcome.frame_bytes_max):
                frames.append(frame)
                length_bytes += len(frame)
        return b"".join(frames)

    def receive(self, received: bytes) -> None:
        """Takes what arrived. Raises ConnectionOver when nothing more can come of this connection."""
        self._splitter.feed(received)
        try:
            while (frame := self._splitter.next_frame()) is not None:
                self._take(frame)
        except FrameSize as fault:
            self._over_for_all(NotADaemon(f"what listens there sent bytes that are no frame: {_looks_like(fault)}"))
        except NotADaemon as trouble:
            self._over_for_all(trouble)

    def lost(self, trouble: SidecarError) -> None:
        """The connection is gone: what is not answered goes out again on the next one."""
        self.trouble = trouble
        self.welcome = None
        self._due.clear()
        for asked in [asked for asked in self._invocations.values() if not asked.waiters]:
            self._forget(asked)
        for asked in self._waiting:
            asked.comes_back()
        self._unsent = dict(self._waiting)

    def unreachable(self, trouble: SidecarError, *, for_good: bool) -> None:
        """There was no connection to be had. What waits goes on waiting, unless it is for good."""
        self.trouble = trouble
        if for_good:
            self._fail_all(trouble)

    def close(self, trouble: SidecarError) -> None:
        """Nothing is asked any more; why is what it was closed with first."""
        self._closed = self._closed or trouble
        self._fail_all(trouble)
        self._invocations.clear()  # also those that were left: no answer of theirs will come

    def gave_up(self, waiter: Waiter) -> SidecarError:
        """Why a waiter that ran out of time has no answer, and how long it has waited."""
        trouble = self._why_unanswered(waiter)
        return trouble.after(waiter.give_up_at - waiter.since) if isinstance(trouble, Disconnected) else trouble

    def _why_unanswered(self, waiter: Waiter) -> SidecarError:
        if waiter.asked is not None and waiter.asked.parked is not None:
            return waiter.asked.parked
        if self.welcome is not None and waiter.sent:
            return Disconnected("the daemon has not answered in time", "no_answer")
        if self.trouble is not None:
            return self.trouble
        return Disconnected("what listens there has not answered the hello in time", "no_answer")

    # --- going out --------------------------------------------------------------------------------------------

    def _outgoing_of(self, asked: Asked, frame_bytes_max: int) -> list[bytes]:
        length_bytes = len(asked.frame)
        if length_bytes > frame_bytes_max:  # the daemon would close the connection over it, under everybody else
            why = f"the frame has {length_bytes} bytes; this daemon takes {frame_bytes_max}"
            self._settle(asked, DaemonError("frame_size", why))
            return []
        if asked.kind == "cancel" and (not_ours := self._not_ours(asked)) is not None:
            self._settle(asked, not_ours)
            return []
        hello = [self._hello(True)] if asked.wants_events and not self._events_out else []
        asked.goes_out()
        if asked.kind == "cancel":
            self._settle(asked, Sent())
        else:
            self._due.setdefault(asked.key, deque()).append(asked)
        cancel = [framed(_cancel(*asked.key[1:]))] if asked.cancelled else []
        return [*hello, framed(asked.frame), *cancel]

    def _not_ours(self, cancel: Asked) -> IdentitySubstitution | None:
        """Why this cancel would be ignored in silence. A request that is asked hears of its caller by itself."""
        _, caller, request_id = cancel.key
        callers = self.welcome.callers if self.welcome is not None else ()
        if caller in callers or (caller, request_id) in self._invocations:
            return None
        return IdentitySubstitution(caller, request_id, f"this user may call as {', '.join(callers) or 'nobody'}")

    def _next_unsent(self) -> Asked:
        asked = next(iter(self._unsent))
        del self._unsent[asked]
        return asked

    def _hello(self, stream_events: bool) -> bytes:
        self._hello_out, self._events_out = True, stream_events
        self._due.setdefault(_WELCOME, deque()).append(None)
        hello = TransportHello(
            schema_id=TRANSPORT_HELLO,
            protocol=PROTOCOL,
            client=self._client,
            stream_events=stream_events,
            join=True,
        )
        return framed(canonical.encode(hello))

    # --- coming in --------------------------------------------------------------------------------------------

    def _take(self, frame: bytes) -> None:
        said = daemon_frames.read(frame)
        if isinstance(said, LiveEvent):
            self._take_event(said, len(frame))
        elif isinstance(said, TransportResult):
            self._answered("invocation", said.caller_runtime_id, said.request_id, said)
        elif isinstance(said, TransportQuoted):
            self._answered("quote", said.caller_runtime_id, said.request_id, said)
        elif isinstance(said, TransportStatusReport):
            self._answered("status", "", "", said)
        elif isinstance(said, TransportWelcome):
            self._take_welcome(said)
        else:
            self._take_error(said)

    def _take_event(self, said: LiveEvent, length_bytes: int) -> None:
        due = self._due.get(("invocation", said.caller_runtime_id, said.request_id))
        if not due or not self._events_out:
            raise NotADaemon(f"what listens there sent a live event that nobody asked for, of {said.request_id:.80}")
        asked = due[0]
        assert asked is not None
        for waiter in asked.waiters:
            if waiter.live is not None:
                waiter.live.offer(said.event, length_bytes)
                waiter.wake()

    def _take_welcome(self, said: TransportWelcome) -> None:
        self._pop_due(*_WELCOME)
        self.welcome = said
        self.was_welcomed = True
        self.trouble = None
        for asked in [asked for asked in self._waiting if asked.kind == "welcome"]:
            self._settle(asked, said)

    def _take_error(self, said: TransportError) -> None:
        error = DaemonError(said.code, said.message)
        if said.caller_runtime_id is None or said.request_id is None:
            if said.code in _PASSING:
                raise ConnectionOver(error)
            self._over_for_all(error)
        ids = (said.caller_runtime_id, said.request_id)
        kinds = [kind for kind in _WITH_IDS if self._due.get((kind, *ids))]
        if len(kinds) > 1 and said.code in _NEVER_OF_QUOTES:
            kinds = ["invocation"]
        if not kinds:
            raise NotADaemon(f"what listens there sent an error that nobody asked for, of {ids[1]:.80}: {error}")
        if kinds == ["invocation"] and said.code == "shutting_down" and self._wait_for_restart:
            self._park(ids, error)
            return
        for kind in kinds:  # where both wait it doesn't say which, so it is told to both
            asked = self._pop_due(kind, *ids) if len(kinds) == 1 else self._due[kind, ids[0], ids[1]][0]
            assert asked is not None
            self._settle(asked, error)
        if len(kinds) > 1:
            raise ConnectionOver(error)  # the next connection has no answer of theirs to come

    def _park(self, ids: tuple[str, str], error: DaemonError) -> None:
        asked = self._pop_due("invocation", *ids)
        assert asked is not None
        if asked.cancelled or not asked.waiters:
            self._settle(asked, error)
        else:
            asked.parked = error

    def _answered(self, kind: Kind, caller: str, request_id: str, answer: Answer) -> None:
        asked = self._pop_due(kind, caller, request_id)
        assert asked is not None
        self.has_progressed = True
        self._settle(asked, answer)

    def _pop_due(self, kind: Kind, caller: str, request_id: str) -> Asked | None:
        key = (kind, caller, request_id)
        due = self._due.get(key)
        if not due:
            about = f" of {request_id:.80}" if request_id else ""
            raise NotADaemon(f"what listens there sent an answer that nobody asked for: {kind}{about}")
        asked = due.popleft()
        if not due:
            del self._due[key]
        return asked

    # --- settling ---------------------------------------------------------------------------------------------

    def _settle(self, asked: Asked, answer: Answer | SidecarError) -> None:
        self._waiting.pop(asked, None)
        self._unsent.pop(asked, None)
        self._forget(asked)
        asked.settle(answer)

    def _forget(self, asked: Asked) -> None:
        _, caller, request_id = asked.key
        if self._invocations.get((caller, request_id)) is asked:
            del self._invocations[caller, request_id]

    def _fail_all(self, trouble: SidecarError) -> None:
        for asked in list(self._waiting):
            self._settle(asked, trouble)

    def _over_for_all(self, trouble: SidecarError) -> NoReturn:
        self._fail_all(trouble)
        raise ConnectionOver(trouble) from None


_WELCOME: Final[Key] = ("welcome", "", "")
_WITH_IDS: Final[tuple[Kind, ...]] = ("invocation", "quote")


def _cancel(caller: str, request_id: str) -> bytes:
    return canonical.encode(
        TransportCancel(schema_id=TRANSPORT_CANCEL, caller_runtime_id=caller, request_id=request_id)
    )


def _looks_like(fault: FrameSize) -> str:
    return str(fault).split(";")[0]
