"""The end of accepting: what was taken is heard out, what was not is left for whoever listens next."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from kit import road
from kit.service_manager import listening_at

from sidecar.ops.log import Log
from sidecar.service.accepting import Accepting
from sidecar.service.arrivals import Arrivals
from sidecar.service.in_force import InForce
from sidecar.service.listener import Doorkeeper
from sidecar.service.listening import Inherited
from sidecar.service.peer import Standing
from sidecar.service.stream import SocketStream


class House:
    """Answers each piece with the same piece in capitals; what it has heard, by the end of each guest."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self.heard: list[bytes] = []
        self.taken = 0
        self.accepting: Accepting
        self.doorkeeper = Doorkeeper(InForce(road.config(), {}), Log(io.StringIO(), "text"), self.serve, os.getuid())

    async def serve(self, stream: trio.SocketStream, standing: Standing) -> None:
        self.taken += 1
        ours = SocketStream.taken_from(stream, self._arrivals)
        heard = b""

        def take(piece: bytes) -> bool:
            nonlocal heard
            heard += piece
            if piece:
                ours.send_now(piece.upper())
            return bool(piece)

        try:
            with self.accepting.hearing(ours):
                await ours.receive_each(take)
            self.heard.append(heard)
        finally:
            await ours.aclose()


@asynccontextmanager
async def house(held: socket.socket) -> AsyncIterator[House]:
    """Serves a copy of this socket."""
    with Arrivals() as arrivals:
        made = House(arrivals)
        async with trio.open_nursery() as nursery:
            made.accepting = Accepting(Inherited(held.dup()), made.doorkeeper, nursery)
            nursery.start_soon(arrivals.serve)
            await nursery.start(made.accepting.serve)
            yield made
            nursery.cancel_scope.cancel()


def guest(path: Path) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX)
    connected.settimeout(20)
    connected.connect(str(path))
    return connected


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.001)


def read_to_the_end(connected: socket.socket) -> bytes:
    """All that still comes. Raises ConnectionResetError where the other end was torn off."""
    received = b""
    while more := connected.recv(65_536):
        received += more
    return received


async def test_what_was_sent_before_the_end_is_answered_and_what_is_sent_later_is_refused(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s") as held:
        async with house(held) as served:
            with guest(tmp_path / "s") as idle, guest(tmp_path / "s") as busy:
                await until(lambda: served.taken == 2)
                busy.sendall(b"said in time")  # nobody has read it when the end comes
                await served.accepting.end()
                for late in (idle, busy):
                    with pytest.raises(BrokenPipeError):
                        late.sendall(b"too late")
                await until(lambda: served.doorkeeper.connections == 0)
                assert read_to_the_end(idle) == b""
                assert read_to_the_end(busy) == b"SAID IN TIME"
                assert sorted(served.heard) == [b"", b"said in time"]


async def test_a_connection_that_comes_after_the_end_waits_for_the_next_that_listens(tmp_path: Path) -> None:
    with listening_at(tmp_path / "s") as held:
        async with house(held) as first:
            await first.accepting.end()
            await first.accepting.end()
            with guest(tmp_path / "s") as patient:
                patient.sendall(b"hello")
                assert first.taken == 0
                async with house(held) as second:
                    await until(lambda: second.taken == 1)
                    assert await trio.to_thread.run_sync(patient.recv, 100) == b"HELLO"
                assert first.taken == 0


async def test_one_that_is_taken_in_the_last_moment_is_heard_out_too(tmp_path: Path) -> None:
    """It lies in the queue when the end is called for, so that either it is taken and answered, or left there."""
    with listening_at(tmp_path / "s") as held:
        for _ in range(50):
            async with house(held) as served:
                with guest(tmp_path / "s") as last:
                    last.sendall(b"hello")
                    await served.accepting.end()
                    taken = served.taken == 1
                    if taken:
                        await until(lambda: served.doorkeeper.connections == 0)
                        assert read_to_the_end(last) == b"HELLO"
                    else:
                        held.accept()[0].close()
