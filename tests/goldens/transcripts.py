"""Transcripts of whole exchanges: what a client sends, byte by byte, and what the daemon answers.

They are made by the daemon's own connection, exchange and scripted connector,
over a stream in memory, a ledger in memory and a wall clock that stands at
one instant. `transcripts()` gives every file of goldens/transcripts by name.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import msgpack
import trio
import trio.testing
from kit import build, wire
from kit.memory_ledger import MemoryLedger
from kit.road import CONFIG, DEFAULTS, Road

from goldens import published_values
from sidecar.connectors.script import Rule, ScriptedCall, ScriptedFailure
from sidecar.connectors.scripted import Scripted
from sidecar.contract import client_frames as c
from sidecar.contract import values as v
from sidecar.rules.framing import framed
from sidecar.service.decision import Admitted
from sidecar.service.peer import Peer

RULES = (
    Rule(tool="look", deltas=("A staircase ", "leads down.")),
    Rule(text="behind the door", calls=(ScriptedCall("look", '{"at": "door"}', "call_1"),)),
    Rule(text="think first", reasoning=("a thought",), deltas=("Done thinking.",)),
    Rule(text="slowly", delay_ms=50, deltas=("At last.",)),
    Rule(text="fail", fail=ScriptedFailure("rate_limited", "slow down")),
    Rule(
        text="piece by piece",
        delta_delay_ms=20,
        reasoning=("a thought",),
        deltas=("One piece, ", "another, ", "a third."),
    ),
    Rule(text="never end", delta_delay_ms=1, deltas=("It goes on ",), hang=True),
    Rule(text="break off", deltas=("half an ans",), fail=ScriptedFailure("unavailable", "the stream was cut")),
)
LOOK = v.ToolDefinition(name="look", description="Looks.", parameters_json='{"type": "object"}')


OPERATOR = "\n[[operator]]\n"  # the daemon's own user, and so is the peer of the transcript


@dataclass
class Transcript:
    """What the client sends, one entry a write; a number of answers is awaited after each.

    `left_open` is an invocation of which a crash has left nothing but its begin.
    """

    what: str
    left_open: bytes | None = None
    writes: list[tuple[bytes, int, str]] = field(default_factory=list)

    def send(self, *frames: bytes, answers: int = 1, comment: str) -> Transcript:
        self.writes.append((b"".join(map(framed, frames)), answers, comment))
        return self

    def raw(self, received: bytes, *, answers: int = 1, comment: str) -> Transcript:
        self.writes.append((received, answers, comment))
        return self


def asked(request_id: str, *items: v.InputItem, **changes: Any) -> bytes:
    members = {name: changes.pop(name) for name in ("caller_runtime_id", "max_cost_micro_usd") if name in changes}
    return build.frame(build.request(*items, request_id=request_id, **changes), **members)


def decision(**changes: Any) -> bytes:
    return wire.write(published_values.resolve(**{"request_id": "lost-1", **changes}))


def broken(**changes: Any) -> bytes:
    return bytes(msgpack.packb({**msgpack.unpackb(asked("broken-1")), **changes}))


def hello(**changes: Any) -> bytes:
    return wire.write(published_values.hello(client="transcript", **{"stream_events": False, "join": False, **changes}))


def quote(frame: bytes) -> bytes:
    return wire.write({"schema_id": c.TRANSPORT_QUOTE, "invocation": wire.Raw(frame)})


def cancel(request_id: str) -> bytes:
    ids = {"caller_runtime_id": "dungeon", "request_id": request_id}
    return wire.write({"schema_id": c.TRANSPORT_CANCEL, **ids})


def _of_clients_frames() -> dict[str, Transcript]:
    """The frames of a client besides its invocations; none of them is needed for the others above."""
    slow = asked("slow-1", build.text("slowly"))
    pieces = asked("pieces-1", build.text("piece by piece"))
    endless = asked("endless-1", build.text("never end"))
    quoted = asked("quoted-1", build.text("What would it cost?"))
    return {
        "hello": Transcript("A hello is answered with a welcome; a second one replaces it; an unknown protocol closes.")
        .send(hello(stream_events=True, join=True), comment="a hello that asks for everything")
        .send(hello(), comment="another in its place, that asks for nothing")
        .send(asked("greeted-1", build.text("piece by piece")), comment="no live events: the last hello counts")
        .send(hello(protocol=2), comment="unsupported_protocol, and the connection is closed"),
        "in_flight": Transcript("The same bytes again while the request runs are refused.").send(
            slow, slow, answers=2, comment="the same invocation twice: InFlight for the second, then the first's answer"
        ),
        "join": Transcript("On a connection that asked to join, the same bytes again wait for the same result.")
        .send(hello(join=True), comment="a hello with join")
        .send(slow, slow, answers=2, comment="the same invocation twice: one result for each"),
        "live_events": Transcript("Events as they come, a text in pieces under one sequence; the result has them all.")
        .send(hello(stream_events=True), comment="a hello with stream_events")
        .send(pieces, answers=5, comment="a reasoning state, then a text in pieces")
        .send(pieces, comment="a replay sends no events"),
        "quote": Transcript("What an invocation would be answered, and cost at worst; nothing is written or held.")
        .send(quote(quoted), comment="it would be admitted")
        .send(quoted, comment="the same invocation; its reservation is what was quoted")
        .send(quote(quoted), comment="now it is on record: its reservation, and it would be replayed")
        .send(quote(asked("quoted-2", max_cost_micro_usd=1)), comment="CostBound, with the worst case")
        .send(quote(build.frame(expires_at_unix_ms=build.NOW)), comment="Expired, before the cost is looked at"),
        "cancel": Transcript("A cancelled request ends now, and its result says what it cost.")
        .send(cancel("endless-1"), answers=0, comment="cancel: ignored, for nothing of the kind runs")
        .send(hello(stream_events=True), comment="a hello with stream_events")
        .send(endless, comment="an answer that never ends: its first words come live")
        .send(cancel("endless-1"), comment="cancel: the result comes")
        .send(endless, comment="the same bytes again: it is on record"),
        "status": Transcript("What the daemon holds, as far as this peer may see it.").send(
            wire.write({"schema_id": c.TRANSPORT_STATUS}), comment="status"
        ),
    }  # fmt: skip


def _all() -> dict[str, Transcript]:
    question = build.text("What is behind the door?")
    seen = (question, build.call("call_1", "look", '{"at": "door"}'), build.result("call_1", "a dark staircase"))
    hello = asked("hello-1", build.text("Hello, goblin."))
    return {
        "text": Transcript("One question, one answer.").send(hello, comment="an invocation"),
        "replay": Transcript("The same bytes again get the same bytes; another request under the id gets none.")
        .send(hello, comment="an invocation")
        .send(hello, comment="the same bytes again")
        .send(asked("hello-1", build.text("Hello, orc.")), comment="another request under the same id"),
        "tool_call": Transcript("A tool is called, and its result is sent with the next request.")
        .send(asked("door-1", question, tools=(LOOK,)), comment="the answer calls a tool")
        .send(asked("door-2", *seen, tools=(LOOK,)), comment="the history with the tool's result"),
        "reasoning": Transcript("A reasoning state comes before the text; foreign ones are removed and counted.")
        .send(asked("think-1", build.text("Please think first.")), comment="the answer carries a reasoning state")
        .send(asked("think-2", build.text("Hi."), build.state(provider="another"), build.text("So?")),
              comment="a state of another provider is removed and counted"),
        "failures": Transcript("A failed outcome is an answer: with a charge, and recorded.")
        .send(asked("fail-1", build.text("Please fail.")), comment="rate_limited")
        .send(asked("fail-2", build.text("Please break off.")), comment="cut after half an answer"),
        "refusals": Transcript("Refusals that a client meets first.")
        .send(asked("refused-1", caller_runtime_id="stranger"), comment="IdentitySubstitution")
        .send(broken(extra=1), comment="Malformed: a member that the schema does not know")
        .send(build.frame(expires_at_unix_ms=build.NOW), comment="Expired: not after now")
        .send(build.frame(provider_request_sha256=(1,) * 32), comment="ProviderDigestSubstitution")
        .send(asked("refused-2", model="unknown"), comment="ModelNotAllowed")
        .send(asked("refused-3", max_output_tokens=501), comment="OutputBound")
        .send(asked("refused-4", max_cost_micro_usd=1), comment="CostBound"),
        "pipelined": Transcript("Two frames in one write.").send(
            asked("one", build.text("slowly")),
            asked("two"),
            answers=2,
            comment="answers come as they finish, matched by request_id",
        ),
        "still_in_step": Transcript("A whole frame that is no invocation leaves the connection open.")
        .send(b"\x80\x80", comment="malformed_frame: bytes behind the map")
        .send(b"\x93\x01\x02\x03", comment="malformed_frame: an array where a map belongs")
        .send(bytes(msgpack.packb({"schema_id": "gamecult.model.unheard_of.v1"})), comment="unknown_schema")
        .send(broken(caller_runtime_id="not an id"), comment="malformed_frame: an id that can't be read")
        .send(asked("after-all"), comment="and then an invocation"),
        "resolve": Transcript("An operator settles what a crash left open; the decision is replayed.", asked("lost-1"))
        .send(asked("lost-1"), comment="the bytes that were sent before the crash")
        .send(decision(), comment="operator_resolve")
        .send(decision(), comment="the same again: nothing is left to settle")
        .send(decision(request_id="never-1"), comment="a request that is not on record")
        .send(asked("lost-1"), comment="the bytes that were sent before the crash")
        .send(decision(why="two\nlines"), comment="malformed_frame: why is not on one line"),
        "stray_http": Transcript("An HTTP client is told so, and the connection is closed.").raw(
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", comment="frame_size"
        ),
        "stray_tls": Transcript("A TLS client is told so, and the connection is closed.").raw(
            bytes.fromhex("16030100c2010000be0303"), comment="frame_size"
        ),
        "length_zero": Transcript("A length of zero closes the connection.").raw(bytes(4), comment="frame_size"),
        "oversize": Transcript("A length above the bound closes the connection before anything of it is read.").raw(
            (1_000_001).to_bytes(4, "big"), comment="frame_size; here frame_bytes_max is 1000000"
        ),
    }  # fmt: skip


async def _played(transcript: Transcript) -> list[dict[str, Any]]:
    road = Road(connector=Scripted(RULES), ledger=await _left_open(transcript.left_open))
    ours, theirs = trio.testing.memory_stream_pair()
    steps: list[dict[str, Any]] = []
    async with trio.open_nursery() as nursery:
        operator = Peer(pid=1, uid=0, gids=frozenset({0})) if transcript.left_open else None
        nursery.start_soon(road.connection(theirs, nursery, operator=operator).serve)
        for sent, answers, comment in transcript.writes:
            steps.append(_step("client", sent, comment))
            await ours.send_all(sent)
            answered = [await _next_frame(ours) for _ in range(answers)]
            steps += [_step("server", frame, road_word(frame)) for frame in answered]
        await ours.send_eof()
        assert await ours.receive_some() == b"", "nothing more is said"
    return steps


async def _left_open(frame: bytes | None) -> MemoryLedger:
    """A ledger after a crash."""
    before = Road(connector=Scripted(RULES))
    if frame is not None:
        admitted = before.decide(frame)
        assert isinstance(admitted, Admitted)
        await before.ledger.begin(admitted.begin)
    before.ledger.reopen()
    return before.ledger


async def _next_frame(stream: Any) -> bytes:
    async def exactly(count: int) -> bytes:
        received = b""
        while len(received) < count:
            piece = await stream.receive_some(count - len(received))
            assert piece, "the daemon closed"
            received += piece
        return received

    prefix = await exactly(4)
    return prefix + await exactly(int.from_bytes(prefix, "big"))


_PLAIN_WORDS = {
    c.TRANSPORT_WELCOME: "transport_welcome",
    c.TRANSPORT_EVENT: "transport_event",
    c.TRANSPORT_STATUS_REPORT: "transport_status_report",
}


def road_word(frame: bytes) -> str:
    value = msgpack.unpackb(frame[4:])
    if value["schema_id"] in _PLAIN_WORDS:
        return _PLAIN_WORDS[value["schema_id"]]
    if value["schema_id"] == c.TRANSPORT_QUOTED:
        return f"transport_quoted, {value.get('refusal', 'without a refusal')}"
    if "code" in value:
        return f"transport_error {value['code']}"
    if "found" in value:
        return f"operator_resolved {value['found']}"
    disposition = value["disposition"]
    return f"Refused({disposition['Refused']})" if "Refused" in disposition else "Transported"


def _step(who: str, sent: bytes, comment: str) -> dict[str, Any]:
    return {"from": who, "bytes_base64": base64.b64encode(sent).decode(), "comment": comment}


def transcripts() -> dict[str, dict[str, Any]]:
    """Every transcript by its name, as the JSON value of its file."""
    made = {}
    for name, transcript in (_all() | _of_clients_frames()).items():
        made[name] = {
            "name": name,
            "what": transcript.what,
            "now_unix_ms": build.NOW,
            "config_toml": CONFIG.format(**DEFAULTS) + (OPERATOR if transcript.left_open else ""),
            "steps": trio.run(_played, transcript, clock=trio.testing.MockClock(autojump_threshold=0)),
        }
    return made
