"""Plays a story of many peers against one daemon's connections, in virtual time, and keeps what each of them heard.

The parts are the daemon's own (exchange, carrier, connections, tasks, the end
of the turn), over narrow streams, a ledger in memory and a provider that does as
the story says. The bounds of what is unsent are made small, so that a short
story reaches them all. What must hold in the end is in `kit.crowd_verdict`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, cycle
from typing import Any

import pytest
import trio
import trio.testing
from kit import build, crowd_story
from kit.crowd_story import Invoke, Key, Pause, Peer, Step, Story
from kit.crowd_world import Provider, TroubledLedger
from kit.narrow_stream import NarrowStream, narrow_pair
from kit.road import Road
from msgspec import Struct, structs

from sidecar.contract import frames
from sidecar.rules.framing import framed
from sidecar.service import connection, outgoing
from sidecar.service.backlogs import Backlogs
from sidecar.service.connection import Connection
from sidecar.service.held import HeldBytes
from sidecar.service.tasks import Tasks
from sidecar.service.turn import EndOfTurn

WORLD_SECONDS = 5000.0  # then who is still there hangs up
GONE_SECONDS = 200.0  # all deadlines, and every wait for a disk, are over so long after the last peer
BOUNDS = {"LIVE_BYTES_MAX": 1000, "READ_ON_BYTES_MAX": 2000, "STALL_BYTES_MAX": 4000}
ALL_BYTES_MAX = 30_000  # unsent to all of them together
RESPONSE_BYTES_MAX = 4000  # so that some answers are too large


class CrowdRoad(Road):
    """Its wall clock is the virtual one."""

    @property
    def now(self) -> int:
        return build.NOW + round(1000 * trio.current_time())

    @now.setter
    def now(self, _: int) -> None:
        """The road starts where the clock does."""


class Decided(Struct, frozen=True):
    """One frame that reached the exchange: an invocation with its decision, or a cancel."""

    key: Key
    how: str
    at_seconds: float
    streams: bool  # whether the connection's hello asked for live events then
    identity: bytes | None  # None for what is no invocation
    unsent_bytes: int  # when it was decided


class WatchedExchange:
    """One connection's view of the exchange: it decides as ever, and what it decides is kept."""

    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self.decided: list[Decided] = []
        self.cancelled: list[tuple[Key, float, bool]] = []  # whether it ran, and this peer may cancel it
        self.streams: Callable[[], bool] = lambda: False
        self.unsent_bytes: Callable[[], int] = lambda: 0

    def decide(self, frame: Any, callers: frozenset[str], *, joins: bool = False, connection: int = 0) -> Any:
        unsent_bytes = self.unsent_bytes()
        decision = self._exchange.decide(frame, callers, joins=joins, connection=connection)
        identity = frame.identity if isinstance(frame, frames.Invocation) else None
        now, how = trio.current_time(), type(decision).__name__
        self.decided.append(Decided(_frame_key(frame), how, now, self.streams(), identity, unsent_bytes))
        return decision

    def cancel(self, cancel: Any, callers: frozenset[str]) -> None:
        key = cancel.caller_runtime_id, cancel.request_id
        runs = cancel.caller_runtime_id in callers and self._exchange._reservations.live(*key) is not None
        self.cancelled.append((key, trio.current_time(), runs))
        self._exchange.cancel(cancel, callers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)


def _frame_key(frame: Any) -> Key:
    if isinstance(frame, frames.BrokenInvocation):
        return frame.caller_runtime_id, frame.request_id
    return frame.value.caller_runtime_id, frame.value.request.request_id


class Client:
    """One peer while it plays its part. What it heard is kept frame by frame, with the instant."""

    def __init__(self, peer: Peer, stream: NarrowStream, until_seconds: float) -> None:
        self.peer = peer
        self.sent: list[tuple[Step, float]] = []  # frames that were written whole, and when
        self.heard: list[tuple[bytes, float]] = []
        self.rest = b""  # of a frame, when the stream ended
        self.ended: str | None = None  # "end", "reset", "left"
        self.said_all = False
        self._stream = stream
        self._until_seconds = until_seconds

    async def play(self) -> None:
        await trio.sleep(self.peer.begins_seconds)
        with trio.move_on_at(self._until_seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._say)
                await self._hear()
        self.ended = self.ended or "left"
        self._stream.close()

    async def _say(self) -> None:
        try:
            await self._say_all()
            self.said_all = True
            if self.peer.cut_off is not None:
                await self._write(crowd_story.cutting(self.peer.cut_off))
            else:
                await self._go()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _say_all(self) -> None:
        together: list[Step] = []
        for step in (*self.peer.steps, Pause(0)):
            if not isinstance(step, Pause):
                together.append(step)
                continue
            await self._write(b"".join(framed(crowd_story.frame(said)) for said in together), together)
            together = []
            await trio.sleep(step.seconds)

    async def _write(self, outgoing: bytes, steps: Sequence[Step] = ()) -> None:
        """In pieces as the peer writes; each frame counts as sent with its last byte."""
        ends = deque(zip(accumulate(4 + len(crowd_story.frame(step)) for step in steps), steps, strict=True))
        at = 0
        for size in cycle(self.peer.write_bytes):
            if at >= len(outgoing):
                return
            if self.peer.write_pause_seconds:
                await trio.sleep(self.peer.write_pause_seconds)
            piece = outgoing[at : at + size]
            await self._stream.send_all(piece)
            at += len(piece)
            while ends and ends[0][0] <= at:
                self.sent.append((ends.popleft()[1], trio.current_time()))

    async def _go(self) -> None:
        going = self.peer.going
        if going.startswith("half_frame"):
            await self._write(crowd_story.HALF_FRAME)
        if going in ("finish", "half_frame_and_end"):
            await self._stream.send_eof()
        elif going != "stay":
            self.ended = "left"
            self._stream.close()

    async def _hear(self) -> None:
        reading = self.peer.reading
        if reading == "never":
            await trio.sleep_forever()
        if reading == "late":
            await trio.sleep(40)
        try:
            while more := await self._stream.receive_some(300 if reading == "slow" else 65_536):
                self._take(more)
                if reading == "slow":
                    await trio.sleep(0.5)
            self.ended = "end"
        except trio.BrokenResourceError:
            self.ended = "reset"
        except trio.ClosedResourceError:
            assert self.ended == "left"

    def _take(self, more: bytes) -> None:
        self.rest += more
        while len(self.rest) >= 4 and len(self.rest) >= 4 + (length := int.from_bytes(self.rest[:4], "big")):
            self.heard.append((self.rest[4 : 4 + length], trio.current_time()))
            self.rest = self.rest[4 + length :]


class Served:
    """One connection of the daemon, and the client at its other end."""

    def __init__(self, client: Client, stream: NarrowStream, exchange: WatchedExchange) -> None:
        self.client = client
        self.stream = stream
        self.exchange = exchange
        self.dropped_live = False
        self.cut_with_unsent_bytes: int | None = None
        self.cut_for_all = False  # because all together had too much unsent
        self.over: str | None = None
        self.connection: Connection

    def watch(self, connection: Connection) -> None:
        self.connection = connection
        out = connection._outgoing
        send, send_live, on_cut = out.send, out.send_live, out._on_cut

        def sent(frame: bytes) -> None:
            send(frame)
            together = out._backlogs
            if together.unsent_bytes > ALL_BYTES_MAX and together._behind:
                self.over = f"{together.unsent_bytes} bytes are unsent to all together"

        def sent_live(frame: bytes) -> bool:
            before_bytes = out.unsent_bytes
            taken = send_live(frame)
            self.dropped_live |= not taken
            if taken and before_bytes and not out.broken and out.unsent_bytes > BOUNDS["LIVE_BYTES_MAX"] + 4:
                self.over = f"a live event is taken, and {out.unsent_bytes} bytes are unsent"
            return taken

        def cut(unsent_bytes: int) -> None:
            self.cut_with_unsent_bytes = unsent_bytes
            self.cut_for_all = out._backlogs.unsent_bytes + unsent_bytes > ALL_BYTES_MAX
            on_cut(unsent_bytes)

        out.send, out.send_live, out._on_cut = sent, sent_live, cut  # watched, not replaced
        self.exchange.unsent_bytes = lambda: out.unsent_bytes
        self.exchange.streams = lambda: connection._hello is not None and connection._hello.stream_events


class Played:
    """A story that is over, and what is left of the daemon."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.provider = Provider(
            {crowd_story.name_of(number): behaviour for number, behaviour in enumerate(story.behaviours)}
        )
        self.ledger = TroubledLedger()
        self.ledger.delay_seconds = story.disk_seconds
        self.road = CrowdRoad(
            connector=self.provider,
            ledger=self.ledger,
            concurrent=story.concurrent,
            response_bytes_max=RESPONSE_BYTES_MAX,
        )
        self.held = HeldBytes(story.held_bytes_max)
        self.backlogs = Backlogs(ALL_BYTES_MAX)
        self.served: list[Served] = []
        self.last: Served  # who asks for all again when everybody is gone
        self.open = 0  # connections that are served
        self.stuck: list[str] = []

    async def play(self) -> None:
        turn = EndOfTurn()
        if self.story.turns:
            self.road.exchange._carrier.later = turn.later
        async with trio.open_nursery() as daemon:
            tasks = [Tasks(daemon, lambda: None) for _ in range(3)]
            terms = {
                "held": self.held,
                "backlogs": self.backlogs,
                "start_request": tasks[0].start_soon,
                "start_replay": tasks[1].start_soon,
                "start_writer": tasks[2].start_soon,
                "at_end_of_turn": turn.soon,
            }
            if self.story.turns:
                daemon.start_soon(turn.serve)
            async with trio.open_nursery() as peers:
                peers.start_soon(self._trouble)
                for peer in self.story.peers:
                    peers.start_soon(self._connect(peer, daemon, terms).client.play)
            await trio.sleep(GONE_SECONDS)
            await self._ask_for_all_again(daemon, terms)
            kinds = ("requests", "replays", "writers")
            self.stuck = [f"{kind}: {of.count}" for kind, of in zip(kinds, tasks, strict=True) if of.count]
            daemon.cancel_scope.cancel()

    async def _ask_for_all_again(self, daemon: trio.Nursery, terms: Mapping[str, Any]) -> None:
        """Whoever was cut, or hung up, would find every answer: one more peer sends the bytes of all that completed."""
        self.ledger.fail_find_with = None
        again: list[Step] = []
        for begin, _ in self.ledger.completes:
            asked = Invoke(begin.caller_runtime_id, int(begin.request_id[1:]))
            dear = structs.replace(asked, variant="dear")
            identity = frames.parse(crowd_story.frame(asked)).identity
            again += [asked if identity == bytes(begin.identity_sha256) else dear, Pause(1)]
        peer = Peer(frozenset({"dungeon", "other"}), tuple(again))
        self.last = self._connect(peer, daemon, terms, until_seconds=trio.current_time() + WORLD_SECONDS)
        await self.last.client.play()
        await trio.sleep(GONE_SECONDS)

    def _connect(
        self, peer: Peer, daemon: trio.Nursery, terms: Mapping[str, Any], until_seconds: float = WORLD_SECONDS
    ) -> Served:
        theirs, ours = narrow_pair(up_bytes=peer.up_bytes, down_bytes=peer.down_bytes)
        exchange = WatchedExchange(self.road.exchange)
        served = Served(Client(peer, theirs, until_seconds), ours, exchange)
        served.watch(self.road.connection(ours, daemon, callers=peer.callers, exchange=exchange, **terms))
        self.served.append(served)
        daemon.start_soon(self._serve, served.connection)
        return served

    async def _serve(self, connection: Connection) -> None:
        self.open += 1
        await connection.serve()
        self.open -= 1

    async def _trouble(self) -> None:
        for at, trouble in self.story.troubles:
            await trio.sleep_until(at)
            if trouble == "drain":
                self.road.exchange.draining = True
            elif trouble == "stop":
                self.road.exchange.stop("the daemon is stopping")
            else:
                self.ledger.meet(trouble)


@contextmanager
def small_bounds() -> Iterator[None]:
    """What may be unsent, so that a short story reaches every bound."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in BOUNDS.items():
            patch.setattr(outgoing, name, size)
        patch.setattr(connection, "READ_ON_BYTES_MAX", BOUNDS["READ_ON_BYTES_MAX"])
        yield


def play(story: Story) -> Played:
    """The whole story in virtual time, from its first frame until nothing can happen any more."""
    played: list[Played] = []

    async def main() -> None:
        played.append(Played(story))  # a road wants a loop to be made in
        await played[0].play()

    with small_bounds():
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return played[0]
