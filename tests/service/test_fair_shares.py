"""However much one connection asks for, another's single request is not kept waiting: counted in turns of the loop.

In a turn every task that can run does so once. So two numbers bound a wait: the
turns until the answer is there, and how much of the flood is worked on in one turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import trio
from kit import build, crowd_story
from kit.crowd_story import Hello, Invoke, Quoted, Status
from kit.narrow_stream import NarrowStream, narrow_pair
from kit.road import Road, said

from sidecar.connectors.script import Rule
from sidecar.connectors.scripted import Scripted
from sidecar.contract import frames as contract_frames
from sidecar.rules.framing import framed
from sidecar.service import connection as connection_module
from sidecar.service.tasks import Tasks
from sidecar.service.turn import EndOfTurn

TURNS_MAX = 16  # from a request that is on its way to its answer; alone it takes 6 to 10
FRAMES_PER_TURN_MAX = 2 * 16  # of one connection: tasks run in any order within a turn


class Shared:
    """A daemon's connections, its turns counted, and the frames that each turn has parsed."""

    def __init__(self, road: Road, nursery: trio.Nursery) -> None:
        self.turns = 0
        self.parsed_by_turn: dict[int, int] = {}
        self._road = road
        self._nursery = nursery
        self._turn = EndOfTurn()
        self._tasks = Tasks(nursery, lambda: None)
        road.exchange._carrier.later = self._turn.later
        nursery.start_soon(self._turn.serve)
        nursery.start_soon(self._count)

    async def _count(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turns += 1

    def parsed(self) -> None:
        self.parsed_by_turn[self.turns] = self.parsed_by_turn.get(self.turns, 0) + 1

    def client(self) -> NarrowStream:
        theirs, ours = narrow_pair(up_bytes=1 << 20, down_bytes=1 << 18)
        starts = dict.fromkeys(("start_request", "start_replay", "start_writer"), self._tasks.start_soon)
        served = self._road.connection(ours, self._nursery, at_end_of_turn=self._turn.soon, **starts)
        self._nursery.start_soon(served.serve)
        return theirs

    async def turns_for(self, client: NarrowStream, frame: bytes) -> int:
        began = self.turns
        await client.send_all(framed(frame))
        received = b""
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            received += await client.receive_some()
        assert said(received[4:]) in ("end_turn", "malformed_frame")
        return self.turns - began

    async def read_all(self, client: NarrowStream) -> None:
        while await client.receive_some():
            pass


@asynccontextmanager
async def shared(monkeypatch: pytest.MonkeyPatch, connector: Any) -> AsyncIterator[Shared]:
    async with trio.open_nursery() as nursery:
        daemon = Shared(Road(connector=connector), nursery)

        def parse(frame: bytes) -> contract_frames.Parsed:
            daemon.parsed()
            return contract_frames.parse(frame)

        monkeypatch.setattr(connection_module, "parse", parse)
        yield daemon
        nursery.cancel_scope.cancel()


def fresh(number: int) -> bytes:
    return build.frame(build.request(request_id=f"flood-{number}"))


def single(number: int) -> bytes:
    return build.frame(build.request(request_id=f"single-{number}"))


SAME = Invoke("dungeon", 1)
FLOODS: dict[str, Callable[[], list[bytes]]] = {
    "junk": lambda: [b"\xc1"] * 5000,
    "quotes": lambda: [crowd_story.frame(Quoted(SAME))] * 2000,
    "statuses": lambda: [crowd_story.frame(Status())] * 3000,
    "hellos": lambda: [crowd_story.frame(Hello(stream=True, join=True))] * 3000,
    "replays": lambda: [crowd_story.frame(SAME)] * 2000,
    "refused": lambda: [crowd_story.frame(Invoke("dungeon", 2, "cheap"))] * 2000,
    "fresh requests": lambda: [fresh(number) for number in range(900)],
}


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_of_frames_keeps_no_other_request_waiting(
    flood: str, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared(monkeypatch, Scripted()) as daemon:
        other, flooding = daemon.client(), daemon.client()
        await daemon.turns_for(flooding, crowd_story.frame(SAME))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flooding.send_all, b"".join(map(framed, FLOODS[flood]())))
            if reads:
                nursery.start_soon(daemon.read_all, flooding)
            waited = [await daemon.turns_for(other, single(number)) for number in range(5)]
            nursery.cancel_scope.cancel()
        assert max(waited) <= TURNS_MAX
        assert max(daemon.parsed_by_turn.values()) <= FRAMES_PER_TURN_MAX + 1


async def test_64_streams_of_one_connection_keep_no_other_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them says a word in every turn, without an end."""

    class Endless(Scripted):
        async def exchange(self, lowered: Any, answer: Any) -> None:
            while True:
                answer.text("word ")
                await trio.lowlevel.checkpoint()

    flood = "flood"
    connector = Endless((Rule(text=flood, delay_ms=1),))
    async with shared(monkeypatch, connector) as daemon:
        other, flooding = daemon.client(), daemon.client()
        asked = [build.frame(build.request(build.text(flood), request_id=f"s{number}")) for number in range(64)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(daemon.read_all, flooding)
            await flooding.send_all(b"".join(map(framed, [crowd_story.frame(Hello(stream=True, join=True)), *asked])))
            for _ in range(50):
                await trio.lowlevel.checkpoint()
            waited = [await daemon.turns_for(other, single(number)) for number in range(5)]
            nursery.cancel_scope.cancel()
        assert max(waited) <= TURNS_MAX


async def test_a_thousand_joins_are_answered_and_keep_no_other_request_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    connector = Scripted((Rule(text="held", delay_ms=50),))
    held = build.frame(build.request(build.text("held"), request_id="joined"))
    async with shared(monkeypatch, connector) as daemon:
        other, flooding = daemon.client(), daemon.client()
        hello = crowd_story.frame(Hello(stream=True, join=True))
        answers = 0

        async def read() -> None:
            nonlocal answers
            received = b""
            while more := await flooding.receive_some():
                received += more
                while len(received) >= 4 and len(received) >= 4 + (length := int.from_bytes(received[:4], "big")):
                    answers += msgpack.unpackb(received[4 : 4 + length])["schema_id"].endswith("result.v1")
                    received = received[4 + length :]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await flooding.send_all(b"".join(map(framed, [hello, *[held] * 1000])))
            waited = []
            while answers < 1000:
                waited.append(await daemon.turns_for(other, single(len(waited))))
            nursery.cancel_scope.cancel()
        assert max(waited) <= TURNS_MAX
        assert max(daemon.parsed_by_turn.values()) <= FRAMES_PER_TURN_MAX + 1
