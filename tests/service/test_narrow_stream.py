"""The stream that property tests run over behaves as a socket does: both are held to the same."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from kit.narrow_stream import NarrowStream, narrow_pair

from sidecar.service.arrivals import Arrivals
from sidecar.service.stream import SocketStream, Stream

Check = Callable[[Stream, Stream], Awaitable[None]]


@asynccontextmanager
async def narrow() -> AsyncIterator[tuple[Stream, Stream]]:
    theirs, ours = narrow_pair(up_bytes=1 << 16, down_bytes=1 << 16)
    yield theirs, ours


@asynccontextmanager
async def sockets() -> AsyncIterator[tuple[Stream, Stream]]:
    with Arrivals() as arrivals:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, ours:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(arrivals.serve)
                yield SocketStream(theirs, arrivals), SocketStream(ours, arrivals)
                nursery.cancel_scope.cancel()


async def is_read_before_its_end(theirs: Stream, ours: Stream) -> None:
    assert theirs.send_now(b"all") == 3
    await theirs.send_eof()
    assert await ours.receive_some(2) == b"al"
    assert await ours.receive_some(9) == b"l"
    assert await ours.receive_some(9) == b""
    assert ours.send_now(b"answer") == 6, "the other way is open still"
    assert await theirs.receive_some(9) == b"answer"


async def is_taken_in_part_when_full(theirs: Stream, ours: Stream) -> None:
    large = bytes(1 << 20)
    taken = ours.send_now(large)
    assert 0 < taken < len(large)
    assert ours.send_now(large) == 0
    assert await theirs.receive_some(1 << 10)


async def breaks_who_writes_to_nobody(theirs: Stream, ours: Stream) -> None:
    await theirs.aclose()
    with pytest.raises(trio.BrokenResourceError):
        ours.send_now(b"answer")
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(b"answer")
    assert await ours.receive_some(9) == b""


async def is_reset_by_who_leaves_something_unread(theirs: Stream, ours: Stream) -> None:
    ours.send_now(b"answer")
    theirs.send_now(b"last")
    await theirs.aclose()
    assert await ours.receive_some(9) == b"last"
    with pytest.raises(trio.BrokenResourceError):
        await ours.receive_some(9)


async def ends_both_ways_when_it_hangs_up(theirs: Stream, ours: Stream) -> None:
    ours.send_now(b"answer")
    ours.hang_up()
    assert await ours.receive_some(9) == b""
    with pytest.raises(trio.BrokenResourceError):
        ours.send_now(b"more")
    assert await theirs.receive_some(9) == b"answer"
    assert await theirs.receive_some(9) == b""
    with pytest.raises(trio.BrokenResourceError):
        theirs.send_now(b"more")


async def wakes_a_writer_when_it_hangs_up(theirs: Stream, ours: Stream) -> None:
    async def write() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(bytes(1 << 22))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        ours.hang_up()


async def wakes_a_listener_when_it_hangs_up(theirs: Stream, ours: Stream) -> None:
    heard: list[bytes] = []

    def take(received: bytes) -> bool:
        heard.append(received)
        return bool(received)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.receive_each, take)
        await trio.testing.wait_all_tasks_blocked()
        theirs.send_now(b"frame")
        while not heard:
            await trio.lowlevel.checkpoint()
        ours.hang_up()
    assert heard == [b"frame", b""]


async def is_of_no_use_once_closed(theirs: Stream, ours: Stream) -> None:
    await ours.aclose()
    await ours.aclose()
    with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
        ours.send_now(b"answer")
    assert await theirs.receive_some(9) == b""


CHECKS: list[Check] = [
    is_read_before_its_end,
    is_taken_in_part_when_full,
    breaks_who_writes_to_nobody,
    is_reset_by_who_leaves_something_unread,
    ends_both_ways_when_it_hangs_up,
    wakes_a_writer_when_it_hangs_up,
    wakes_a_listener_when_it_hangs_up,
    is_of_no_use_once_closed,
]


@pytest.mark.parametrize("kind", [narrow, sockets])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_stream(check: Check, kind: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    with trio.fail_after(20):
        async with kind() as (theirs, ours):
            await check(theirs, ours)


def test_the_narrow_stream_has_all_that_a_connection_wants() -> None:
    wanted = {name for name in vars(Stream) if not name.startswith("_")}
    assert wanted <= set(dir(NarrowStream))
