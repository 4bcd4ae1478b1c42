"""What must hold when a story of many peers is over, whatever they did. Each check says one thing."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import msgpack
from kit import build, crowd_story
from kit.crowd import BOUNDS, Played, Served
from kit.crowd_story import Hello, Invoke, Junk, Key, Quoted, Status
from kit.crowd_world import Said
from msgspec import Struct

SECOND = 1.0  # more than rounding, less than anything that is waited for
_CUT_CODES = {
    "length_0": "frame_size",
    "http": "frame_size",
    "too_large": "frame_size",
    "protocol": "unsupported_protocol",
    "half_frame": "frame_timeout",
}


class Heard(Struct, frozen=True):
    """One frame that a peer read; `kind` is its schema's name without what all have."""

    kind: str
    key: Key | None
    value: Any
    frame: bytes
    at_seconds: float

    @property
    def is_answer(self) -> bool:
        """To an invocation; perhaps to a quote, where it is an error."""
        return self.key is not None and self.kind in ("result", "error")

    @property
    def is_carried(self) -> bool:
        """It is what a request that ran was answered."""
        return self.kind == "result" and "Transported" in self.value["disposition"]


def check(played: Played) -> None:
    for served in played.served:
        heard = [read(frame, at) for frame, at in served.client.heard]
        bounds_were_kept(served)
        each_frame_has_one_answer(served, heard)
        only_what_was_asked_for_is_heard(served, heard)
        who_is_cut_off_is_told_why(served, heard)
        live_events_are_the_providers(played, served, heard)
        live_events_come_while_they_are_asked_for(played, served, heard)
        nobody_waits_for_another(played, served, heard)
    equal_bytes_have_equal_answers(played)
    results_hold_what_was_said(played)
    cancels_and_deadlines_end_requests(played)
    nothing_is_admitted_in_a_drain(played)
    money_is_where_it_belongs(played)
    nothing_is_left(played)


def read(frame: bytes, at_seconds: float) -> Heard:
    value = msgpack.unpackb(frame)
    kind = value["schema_id"].removeprefix("gamecult.model.transport_").removesuffix(".v1")
    caller, request_id = value.get("caller_runtime_id"), value.get("request_id")
    return Heard(kind, (caller, request_id) if request_id else None, value, frame, at_seconds)


def bounds_were_kept(served: Served) -> None:
    assert served.over is None, served.over
    cut_with = served.cut_with_unsent_bytes
    assert served.stream.hung_up == (cut_with is not None)
    assert cut_with is None or cut_with > BOUNDS["READ_ON_BYTES_MAX"], f"cut with only {cut_with} bytes unsent"
    peer = served.client.peer
    if peer.reading != "never" or peer.cut_off is not None:
        return
    if "close" not in peer.going:
        unsent = served.connection._outgoing.unsent_bytes
        assert cut_with is not None or unsent <= BOUNDS["READ_ON_BYTES_MAX"], "a client that reads nothing is not cut"
    if peer.down_bytes < 100:  # what is unsent never becomes less
        over = [one for one in served.exchange.decided if one.unsent_bytes > BOUNDS["READ_ON_BYTES_MAX"]]
        assert len(over) <= 1, "a client that reads nothing is read from"


# --- answers ------------------------------------------------------------------------------------------------------


def reads_all(served: Served) -> bool:
    """The peer read whatever was written to it until nothing more could come, and was not cut."""
    client = served.client
    stayed = client.peer.going == "stay" and client.peer.reading != "never" and client.peer.cut_off is None
    return not served.stream.hung_up and (client.ended == "end" or (client.ended == "left" and stayed))


def was_cut_off(served: Served) -> bool:
    return served.client.said_all and served.client.peer.cut_off is not None


def each_frame_has_one_answer(served: Served, heard: list[Heard]) -> None:
    client = served.client
    sent = [step for step, _ in client.sent]
    invoked = Counter(_key(step) for step in sent if isinstance(step, Invoke))
    decided = Counter(one.key for one in served.exchange.decided)
    quoted = Counter(_key(step.invoke) for step in sent if isinstance(step, Quoted))
    answered = Counter(one.key for one in heard if one.is_answer)
    quotes_answered = Counter(one.key for one in heard if one.kind == "quoted")
    assert not answered - (decided + quoted), "more is answered than was read"
    assert not quotes_answered - quoted
    if reads_all(served) and not was_cut_off(served):
        assert client.rest == b"", "the stream ends within a frame"
        assert answered + quotes_answered == decided + quoted
        if client.said_all:
            assert decided == invoked, "a frame that was written was not read"
            in_all = (("welcome", Hello), ("status_report", Status))
            for kind, step in in_all:
                assert sum(one.kind == kind for one in heard) == sum(isinstance(one, step) for one in sent)
            junk = sum(isinstance(one, Junk) for one in sent)
            assert sum(one.kind == "error" and one.key is None for one in heard) == junk


def _key(step: Invoke) -> Key:
    caller, request_id = crowd_story.key_of(step)
    return ("nobody" if step.variant == "stranger" else caller), request_id


def only_what_was_asked_for_is_heard(served: Served, heard: list[Heard]) -> None:
    may_be = served.client.peer.callers
    for one in heard:
        if one.kind == "welcome":
            assert set(one.value["callers"]) == may_be
        elif one.kind == "status_report":
            assert {caller["caller_runtime_id"] for caller in one.value["callers"]} == may_be
        elif one.kind == "event" or one.is_carried:
            assert one.key is not None
            assert one.key[0] in may_be, "a peer hears of a caller that it may not be"


def who_is_cut_off_is_told_why(served: Served, heard: list[Heard]) -> None:
    peer = served.client.peer
    closing = [one for one in heard if one.kind == "error" and one.value["code"] in _CUT_CODES.values()]
    assert len(closing) <= 1
    assert not closing or heard[-1] is closing[0], "something follows the reason of a cut"
    if was_cut_off(served) and peer.reading == "eager" and not served.stream.hung_up:
        assert peer.cut_off is not None
        assert [one.value["code"] for one in closing] == [_CUT_CODES[peer.cut_off.kind]]


# --- live events --------------------------------------------------------------------------------------------------


def live_events_are_the_providers(played: Played, served: Served, heard: list[Heard]) -> None:
    live = [one for one in heard if one.kind == "event"]
    steps = served.client.peer.steps
    asked_at_all = any(isinstance(step, Hello) and step.stream for step in steps)
    assert asked_at_all or not live, "live events come that nobody asked for"
    ever_off = any(isinstance(step, Hello) and not step.stream for step in steps)
    runs = {one.key: one for one in served.exchange.decided if one.how in ("Admitted", "Joined")}
    assert {one.key for one in live} <= runs.keys(), "live events of another connection's request"
    for key, decided in runs.items():
        mine = [one for one in live if one.key == key]
        at = [heard.index(one) for one in mine]
        ends = [number for number, one in enumerate(heard) if one.key == key and one.is_carried]
        assert not at or not ends or at[-1] < ends[0], "a live event behind its result"
        pieces = [(one.value["event"]["sequence"], _piece(one.value["event"]["payload"])) for one in mine]
        said = numbered(played.provider.said[key])
        if ever_off:
            rest = iter(said)
            assert all(piece in rest for piece in pieces), "live events out of order"
            continue
        first = said.index(pieces[0]) if pieces else 0
        assert pieces == said[first : first + len(pieces)], "a gap in the live events"
        from_the_start = decided.how == "Admitted" and decided.streams
        assert not from_the_start or first == 0, "the first live events are missing"
        if from_the_start and reads_all(served) and not was_cut_off(served) and not served.dropped_live:
            assert pieces == said, "live events were lost"


def live_events_come_while_they_are_asked_for(played: Played, served: Served, heard: list[Heard]) -> None:
    """Of a peer that reads what comes: what is said in the very instant of a hello may be either."""
    client = served.client
    if client.peer.reading != "eager" or played.story.held_bytes_max < 1 << 20 or served.stream.hung_up:
        return
    hellos = [(at, step.stream) for step, at in client.sent if isinstance(step, Hello)]

    def streams(at_seconds: float) -> bool | None:
        if any(at == at_seconds for at, _ in hellos):
            return None
        return next((stream for at, stream in reversed(hellos) if at < at_seconds), False)

    live = [one for one in heard if one.kind == "event"]
    assert all(streams(one.at_seconds) is not False for one in live), "a live event after a hello that wants none"
    if served.dropped_live or was_cut_off(served) or not reads_all(served):
        return
    runs_from = {one.key: one.at_seconds for one in served.exchange.decided if one.how in ("Admitted", "Joined")}
    for key, begins in runs_from.items():
        wanted = [at for at, _ in played.provider.said[key] if at > begins and streams(at)]
        assert not Counter(wanted) - Counter(one.at_seconds for one in live if one.key == key), (
            "a live event is missing"
        )


def _piece(payload: dict[str, Any]) -> str:
    return str(payload["TextDelta"]["text"] if "TextDelta" in payload else payload["ToolCall"]["call_id"])


def numbered(said: list[Said]) -> list[tuple[int, str]]:
    """What the provider said, piece by piece, each with the sequence of its event."""
    sequence, numbers, before = -1, [], "call"
    for _, piece in said:
        sequence += before.startswith("call") or piece.startswith("call")
        numbers.append((sequence, piece))
        before = piece
    return numbers


def results_hold_what_was_said(played: Played) -> None:
    for begin, record in played.ledger.completes:
        transported = msgpack.unpackb(record.response[1:])["disposition"]["Transported"]
        events = [(event["sequence"], _piece(event["payload"])) for event in transported["events"]]
        said = numbered(played.provider.said[begin.caller_runtime_id, begin.request_id])
        joined = [
            (sequence, "".join(piece for _, piece in pieces))
            for sequence, pieces in groupby(said, key=lambda piece: piece[0])
        ]
        assert events == ([] if record.outcome == "result_size" else joined)


# --- one answer for one request -----------------------------------------------------------------------------------


def equal_bytes_have_equal_answers(played: Played) -> None:
    recorded = {
        (begin.caller_runtime_id, begin.request_id): record.response[1:] for begin, record in played.ledger.completes
    }
    for served in played.served:
        for frame, at in served.client.heard:
            one = read(frame, at)
            if one.is_carried:
                assert one.key is not None
                assert recorded.get(one.key) == frame, "an answer that is not the recorded one"
    again = [frame for frame, _ in played.last.client.heard]
    assert sorted(again) == sorted(recorded.values()), "an answer on record is not there to be replayed"
    assert max(played.provider.asked.values(), default=0) <= 1, "a provider is asked twice"
    begun = {
        (begin.caller_runtime_id, begin.request_id): bytes(begin.identity_sha256) for begin in played.ledger.begins
    }
    for served in played.served:
        for decided in served.exchange.decided:
            if decided.how in ("Joined", "Replay"):
                assert decided.identity == begun.get(decided.key, decided.identity), "another identity's answer"
    assert played.provider.asked.keys() <= begun.keys(), "a provider is asked for what is not on record"


def cancels_and_deadlines_end_requests(played: Played) -> None:
    slack = 2 * played.story.disk_seconds + SECOND / 2
    ended_at = played.ledger.ended_at
    cancelled = {key for served in played.served for key, _, runs in served.exchange.cancelled if runs}
    for served in played.served:
        for key, at, runs in served.exchange.cancelled:
            assert not runs or ended_at.get(key, 0) <= at + slack, "a cancelled request runs on"
    for begin, record in played.ledger.completes:
        key = begin.caller_runtime_id, begin.request_id
        assert ended_at[key] <= crowd_story.EXPIRY_SECONDS + slack, "a request runs past its deadline"
        if (stopped_at := trouble_at(played, "stop")) is not None:
            admitted_at = (begin.admitted_at_unix_ms - build.NOW) / 1000
            assert ended_at[key] <= max(stopped_at, admitted_at) + slack, "a stop ends all that runs"
        assert b"its caller cancelled it" not in record.response or key in cancelled, "cancelled by nobody"


def trouble_at(played: Played, kind: str) -> float | None:
    return next((at for at, trouble in played.story.troubles if trouble == kind), None)


def nothing_is_admitted_in_a_drain(played: Played) -> None:
    if (draining_from := trouble_at(played, "drain")) is not None:
        for served in played.served:
            for decided in served.exchange.decided:
                assert decided.how != "Admitted" or decided.at_seconds <= draining_from, "admitted in a drain"


def nobody_waits_for_another(played: Played, served: Served, heard: list[Heard]) -> None:
    """Who reads what comes gets it in the instant in which it is there, however the others behave."""
    client = served.client
    if client.peer.reading != "eager" or played.story.held_bytes_max < 1 << 20:
        return
    ended_at, said = played.ledger.ended_at, played.provider.said
    sent_at = [at for step, at in client.sent if isinstance(step, Invoke)]
    decided_at = [one.at_seconds for one in served.exchange.decided]
    assert decided_at[: len(sent_at)] == sent_at[: len(decided_at)], "a frame was read late"
    for one in heard:
        if one.kind == "event":
            assert one.key is not None
            assert one.at_seconds in [at for at, _ in said[one.key]], "a live event comes late"
        elif one.is_carried:
            assert one.key is not None
            assert one.at_seconds in [ended_at[one.key], *decided_at], "a result comes late"


# --- what is left -------------------------------------------------------------------------------------------------


def money_is_where_it_belongs(played: Played) -> None:
    ended = {(begin.caller_runtime_id, begin.request_id) for begin, _ in played.ledger.completes}
    for caller, account in played.road.accounts.items():
        open_begins = [
            begin
            for begin in played.ledger.begins
            if begin.caller_runtime_id == caller and (caller, begin.request_id) not in ended
        ]
        charges = [
            record.charge_micro_usd for begin, record in played.ledger.completes if begin.caller_runtime_id == caller
        ]
        figures = account.figures()
        assert sum(figures.reserved.values()) == sum(begin.reservation_micro_usd for begin in open_begins)
        assert sum(figures.spent.values()) == sum(charges)
        assert account.left_open == len(open_begins)


def nothing_is_left(played: Played) -> None:
    carrier = played.road.exchange._carrier
    assert played.stuck == []
    assert played.open == 0, "a connection is served whose peer is gone"
    assert len(played.road.reservations) == 0
    assert (carrier._carried, carrier.scopes) == ({}, set())
    assert (played.held._held, played.held._coming, len(played.held._waiting)) == (0, 0, 0)
    for served in played.served:
        outgoing = served.connection._outgoing
        assert served.stream.closed
        assert not outgoing.writing
        assert served.connection._under_way == served.connection._replaying == served.connection._coming_bytes == 0
        assert not served.connection._running
