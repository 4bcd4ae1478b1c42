"""The pure session: any split of the bytes, any order of answers, any loss gives each waiter exactly its own answer."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kit import daemon_says

from sidecar.client import answers, daemon_frames, errors, meanings, patience, pieces, session, streaming, waiting
from sidecar.client.answers import result_of
from sidecar.client.asking import STATUS_FRAME, Terms, invocation_of, new_request, sealed, sealed_quote
from sidecar.client.errors import DaemonError, Disconnected, NotADaemon, SidecarError
from sidecar.client.pieces import LiveRun, Telling
from sidecar.client.session import ConnectionOver, Session
from sidecar.client.waiting import Sent, Waiter
from sidecar.contract.client_frames import TransportQuoted, TransportStatusReport
from sidecar.contract.values import TransportInvocation, TransportResult
from sidecar.rules.framing import FrameSplitter, framed

IDS = ("r0", "r1", "r2")
CALLER = daemon_says.CALLER
INVOCATIONS: dict[str, TransportInvocation] = {
    name: invocation_of(new_request("npc", name, request_id=name), CALLER, Terms()) for name in IDS
}
PURE = [answers, daemon_frames, errors, meanings, patience, pieces, session, streaming, waiting]


@pytest.mark.parametrize("module", PURE, ids=lambda module: module.__name__.rsplit(".", 1)[1])
def test_the_core_is_deaf(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in imports} & {"anyio", "socket", "os", "time", "secrets", "threading"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def a_session(**changes: Any) -> Session:
    return Session(**{"client": "test", "wait_for_restart": True, **changes})


def a_waiter(wake: Callable[[], None] = lambda: None, **changes: Any) -> Waiter:
    return Waiter(wake, send_by=1, answer_by=2, **changes)


def frames_of(outgoing: bytes) -> list[dict[str, Any]]:
    splitter = FrameSplitter(2**24 - 1)
    splitter.feed(outgoing)
    frames = []
    while (frame := splitter.next_frame()) is not None:
        frames.append(msgpack.unpackb(frame))
    return frames


def kind_of(frame: dict[str, Any]) -> str:
    return str(frame["schema_id"]).removeprefix("gamecult.model.transport_").removesuffix(".v1")


class Conversations(RuleBasedStateMachine):
    """A session, a daemon that answers in any order and any pieces, and connections that break at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.session = a_session()
        self.waiting: dict[Waiter, tuple[str, str]] = {}  # what each waits for
        self.left: set[Waiter] = set()
        self.is_connected = False
        self.sent: defaultdict[str, set[bytes]] = defaultdict(set)  # what went out under each id
        self.unanswered: list[tuple[str, str]] = []  # that the daemon has read on this connection
        self.on_the_way = b""
        self.streams = False  # the hello that the daemon has read last asks for live events
        self.may_run: set[str] = set()  # ids that the daemon may have begun before this connection
        self.told_live: dict[str, int] = {}  # how much of each text went out live on this connection

    # --- callers

    @rule(name=st.sampled_from(IDS), streams=st.booleans())
    def invoke(self, name: str, streams: bool) -> None:
        waiter = a_waiter(live=LiveRun(40) if streams else None)
        self.waiting[waiter] = ("invocation", name)
        self.session.invoke(sealed(INVOCATIONS[name]), CALLER, name, waiter)

    @rule(name=st.sampled_from(IDS))
    def quote(self, name: str) -> None:
        waiter = a_waiter()
        self.waiting[waiter] = ("quote", name)
        self.session.quote(sealed_quote(INVOCATIONS[name]), CALLER, name, waiter)

    @rule()
    def status(self) -> None:
        waiter = a_waiter()
        self.waiting[waiter] = ("status", "")
        self.session.status(STATUS_FRAME, waiter)

    @rule(name=st.sampled_from(IDS))
    def cancel(self, name: str) -> None:
        waiter = a_waiter()
        self.waiting[waiter] = ("cancel", name)
        self.session.cancel(CALLER, name, waiter)

    @precondition(lambda self: self.waiting)
    @rule(choice=st.randoms(use_true_random=False))
    def leave(self, choice: Any) -> None:
        waiter = choice.choice(list(self.waiting))
        self.session.leave(waiter)
        if waiter.answer is None:
            del self.waiting[waiter]
            self.left.add(waiter)

    # --- the connection

    @precondition(lambda self: not self.is_connected and self.session.wants_connection)
    @rule()
    def connect(self) -> None:
        self.is_connected = True
        self.unanswered, self.on_the_way = [], b""
        self.streams, self.told_live = False, {}
        self.session.connected()
        self.read()

    @precondition(lambda self: self.is_connected)
    @rule()
    def read(self) -> None:
        """The daemon reads what has been sent."""
        for frame in frames_of(self.session.outgoing()):
            kind = kind_of(frame)
            if kind == "hello":
                self.streams = frame["stream_events"]
                self.say(daemon_says.welcome(stream_events=frame["stream_events"]))
            elif kind == "status":
                self.unanswered.append(("status", ""))
            elif kind != "cancel":
                name = frame.get("request", frame.get("invocation", {}).get("request"))["request_id"]
                self.sent[f"{kind} {name}"].add(msgpack.packb(frame))
                self.unanswered.append((kind, name))

    @precondition(lambda self: self.streams and [1 for kind, _ in self.unanswered if kind == "invocation"])
    @rule(choice=st.randoms(use_true_random=False), length=st.integers(1, 3))
    def tell_live(self, choice: Any, length: int) -> None:
        """The next piece of a text; one that was joined in its midst begins in its midst."""
        name = choice.choice([name for kind, name in self.unanswered if kind == "invocation"])
        start = self.told_live.get(name, 2 if name in self.may_run else 0)
        piece = f"of {name}"[start : start + length]
        if piece:
            self.told_live[name] = start + length
            self.say(daemon_says.live(name, daemon_says.text_event(piece)))

    @precondition(lambda self: self.unanswered)
    @rule(choice=st.randoms(use_true_random=False), stops=st.booleans())
    def answer(self, choice: Any, stops: bool) -> None:
        """Any result, or the oldest of the quotes and status questions."""
        kind, name = asked = choice.choice(self.unanswered)
        self.unanswered.remove(asked)  # the oldest of its like
        if (
            kind == "invocation" and stops and name not in self.may_run and name not in self.told_live
        ):  # it runs nothing, and has run nothing
            self.say(daemon_says.error("shutting_down", name))
        else:
            self.say(ANSWERS[kind](name))

    def say(self, frame: bytes) -> None:
        self.on_the_way += framed(frame)

    @precondition(lambda self: self.is_connected and self.on_the_way)
    @rule(length=st.none() | st.integers(1, 400))
    def arrive(self, length: int | None) -> None:
        """All that is on the way, or some of it."""
        end = len(self.on_the_way) if length is None else length
        arrived, self.on_the_way = self.on_the_way[:end], self.on_the_way[end:]
        self.session.receive(arrived)
        self.read()

    @precondition(lambda self: self.is_connected)
    @rule()
    def lose(self) -> None:
        self.is_connected = False
        self.session.lost(Disconnected("lost"))
        self.may_run |= {name for kind, name in self.unanswered if kind == "invocation"}
        self.unanswered, self.on_the_way = [], b""

    # --- what must hold

    @invariant()
    def answers_are_ones_own(self) -> None:
        for waiter, (kind, name) in [*self.waiting.items()]:
            if waiter.answer is not None:
                check(kind, name, waiter.answer)
                if waiter.live is not None and isinstance(waiter.answer, TransportResult):
                    assert told(waiter.live, waiter.answer) == f"of {name}"
                del self.waiting[waiter]
        assert all(waiter.answer is None for waiter in self.left)

    @invariant()
    def bytes_are_the_same_each_time(self) -> None:
        assert all(len(frames) == 1 for frames in self.sent.values())

    @invariant()
    def whoever_waits_is_connected_for(self) -> None:
        assert self.session.wants_connection == bool([w for w in self.waiting if w.answer is None])

    def teardown(self) -> None:
        """Whatever happened before: a daemon that goes on answers everybody, and nothing is left."""
        if self.session.wants_connection and not self.is_connected:
            self.connect()
        if self.is_connected:
            self.read()
        while self.unanswered or self.on_the_way:
            for kind, name in self.unanswered:
                self.say(ANSWERS[kind](name))
            self.unanswered = []
            self.arrive(None)
        if self.session.wants_connection:
            assert all(asked.parked for asked in self.session._waiting), "it waits for nothing"
            self.lose()
            self.teardown()
        self.answers_are_ones_own()
        assert not self.waiting
        if self.is_connected:
            self.lose()
        for left in (self.session._waiting, self.session._invocations, self.session._unsent, self.session._due):
            assert not left


ANSWERS: dict[str, Callable[[str], bytes]] = {
    "status": lambda _: daemon_says.status_report(),
    "quote": lambda name: daemon_says.quoted(name, IDS.index(name)),
    "invocation": lambda name: daemon_says.result(name, f"of {name}"),
}


def told(run: LiveRun, answer: TransportResult) -> str:
    """What a stream of it tells, in all."""
    telling, events = Telling(run), []
    while (event := telling.next_live()) is not None:
        events.append(event)
    events += telling.rest(result_of(answer).events)
    return "".join(event.payload.chosen.text for event in events)


def check(kind: str, name: str, answer: Any) -> None:
    if kind == "cancel":
        assert isinstance(answer, Sent)
    elif kind == "status":
        assert isinstance(answer, TransportStatusReport)
    elif kind == "quote":
        assert isinstance(answer, TransportQuoted)
        assert (answer.request_id, answer.worst_case_micro_usd) == (name, IDS.index(name))
    elif isinstance(answer, SidecarError):  # only a cancel ends a request without its result
        assert isinstance(answer, DaemonError | Disconnected)
        assert getattr(answer, "fault", None) == "cancelled_unsent" or getattr(answer, "code", None) == "shutting_down"
    else:
        assert isinstance(answer, TransportResult)
        assert result_of(answer).text == f"of {name}"


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, report_multiple_bugs=False
)


# --- single claims ------------------------------------------------------------------------------------------------


def connected(session: Session, **welcome: Any) -> list[dict[str, Any]]:
    """Through the hello, to what goes out after it."""
    session.connected()
    assert [kind_of(frame) for frame in frames_of(session.outgoing())] == ["hello"]
    session.receive(framed(daemon_says.welcome(**welcome)))
    return frames_of(session.outgoing())


def test_nothing_goes_out_before_the_welcome() -> None:
    session = a_session()
    session.status(STATUS_FRAME, a_waiter())
    session.connected()
    assert [kind_of(frame) for frame in frames_of(session.outgoing())] == ["hello"]
    assert session.outgoing() == b""
    session.receive(framed(daemon_says.welcome()))
    assert [kind_of(frame) for frame in frames_of(session.outgoing())] == ["status"]
    assert session.outgoing() == b""


def test_the_hello_asks_to_join_and_for_no_live_events() -> None:
    session = a_session()
    session.connected()
    (hello,) = frames_of(session.outgoing())
    assert (hello["protocol"], hello["join"], hello["stream_events"], hello["client"]) == (1, True, False, "test")


def test_an_error_that_names_an_id_for_which_both_wait_is_told_to_both() -> None:
    session = a_session()
    invoked, quoted = a_waiter(), a_waiter()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", invoked)
    session.quote(sealed_quote(INVOCATIONS["r0"]), CALLER, "r0", quoted)
    assert len(connected(session)) == 2
    with pytest.raises(ConnectionOver):
        session.receive(framed(daemon_says.error("internal", "r0")))
    assert [getattr(waiter.answer, "code", None) for waiter in (invoked, quoted)] == ["internal", "internal"]


@pytest.mark.parametrize("code", ["malformed_frame", "unknown_schema", "internal", "ledger_unavailable", "frame_size"])
def test_an_error_without_ids_fails_all_that_waits(code: Any) -> None:
    session = a_session()
    waiters = [a_waiter(), a_waiter()]
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiters[0])
    session.status(STATUS_FRAME, waiters[1])
    connected(session)
    with pytest.raises(ConnectionOver):
        session.receive(framed(daemon_says.error(code)))
    assert [getattr(waiter.answer, "code", None) for waiter in waiters] == [code, code]


def test_an_error_for_what_nobody_asked_means_that_this_is_no_daemon() -> None:
    session = a_session()
    session.status(STATUS_FRAME, waiter := a_waiter())
    connected(session)
    with pytest.raises(ConnectionOver) as over:
        session.receive(framed(daemon_says.error("internal", "r9")))
    assert isinstance(over.value.trouble, NotADaemon)
    assert isinstance(waiter.answer, NotADaemon)


def test_a_closed_session_answers_at_once() -> None:
    session = a_session()
    session.close(closed := Disconnected("closed", "closed"))
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiter := a_waiter())
    assert waiter.answer is closed
    assert not session.wants_connection


def test_what_is_left_before_it_went_out_never_goes_out() -> None:
    session = a_session()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiter := a_waiter())
    session.status(STATUS_FRAME, a_waiter())
    session.leave(waiter)
    assert [kind_of(frame) for frame in connected(session)] == ["status"]


def test_who_is_long_overdue_and_unsent_never_goes_out() -> None:
    session = a_session()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", a_waiter())
    session.invoke(sealed(INVOCATIONS["r1"]), CALLER, "r1", Waiter(lambda: None, send_by=5, answer_by=6))
    session.drop_overdue(1)
    assert [frame["request"]["request_id"] for frame in connected(session)] == ["r1"]
    session.drop_overdue(5)  # what is sent waits for its answer
    assert session.wants_connection


def test_quotes_and_status_reports_are_answered_in_their_order() -> None:
    session = a_session()
    waiters = [a_waiter() for _ in range(4)]
    for waiter in waiters[:2]:
        session.status(STATUS_FRAME, waiter)
    for waiter in waiters[2:]:
        session.quote(sealed_quote(INVOCATIONS["r0"]), CALLER, "r0", waiter)
    connected(session)
    said = [daemon_says.quoted("r0", 1), daemon_says.status_report(1)]
    said += [daemon_says.status_report(2), daemon_says.quoted("r0", 2)]
    session.receive(b"".join(map(framed, said)))
    assert [waiter.answer.daemon.live_requests for waiter in waiters[:2]] == [1, 2]
    assert [waiter.answer.worst_case_micro_usd for waiter in waiters[2:]] == [1, 2]


def live_of(session: Session, name: str = "r0") -> tuple[Waiter, LiveRun]:
    waiter = a_waiter(live=(run := LiveRun(1000)))
    session.invoke(sealed(INVOCATIONS[name]), CALLER, name, waiter)
    return waiter, run


def test_after_a_lost_connection_live_events_begin_in_the_midst_and_are_not_told() -> None:
    session = a_session()
    _, run = live_of(session)
    connected(session)
    session.lost(Disconnected("lost"))
    late = live_of(session)[1]
    assert run.over
    assert late.over


def test_what_a_stopping_daemon_has_not_run_is_streamed_from_its_beginning() -> None:
    session = a_session()
    _, run = live_of(session)
    connected(session)
    session.receive(framed(daemon_says.error("shutting_down", "r0")))
    session.lost(Disconnected("lost"))
    assert not run.over


def test_an_abandoned_request_that_was_lost_is_asked_afresh() -> None:
    session = a_session()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiter := a_waiter())
    connected(session)
    session.leave(waiter)
    session.lost(Disconnected("lost"))
    assert connected(session) == []
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", a_waiter())
    assert [kind_of(frame) for frame in frames_of(session.outgoing())] == ["invocation"]


def test_an_abandoned_request_that_is_asked_again_is_sent_again_after_a_loss() -> None:
    session = a_session()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiter := a_waiter())
    connected(session)
    session.leave(waiter)
    assert not session.wants_connection
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", a_waiter())
    assert session.wants_connection
    session.lost(Disconnected("lost"))
    assert [kind_of(frame) for frame in connected(session)] == ["invocation"]


def test_what_was_parked_is_cancelled_like_any_other_once_it_is_out_again() -> None:
    session = a_session()
    session.invoke(sealed(INVOCATIONS["r0"]), CALLER, "r0", waiter := a_waiter())
    connected(session)
    session.receive(framed(daemon_says.error("shutting_down", "r0")))
    session.lost(Disconnected("lost"))
    assert [kind_of(frame) for frame in connected(session)] == ["invocation"]
    session.cancel(CALLER, "r0", a_waiter())
    assert [kind_of(frame) for frame in frames_of(session.outgoing())] == ["cancel"]
    assert waiter.answer is None
    error = session.gave_up(waiter)
    assert isinstance(error, Disconnected)
    assert error.fault == "no_answer"
