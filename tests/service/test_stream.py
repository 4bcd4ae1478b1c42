"""The daemon's own socket stream, over a real pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from sidecar.service.arrivals import Arrivals
from sidecar.service.stream import SocketStream

Pair = tuple[SocketStream, socket.socket]


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    with Arrivals() as made:
        yield made


@pytest.fixture
def pair(arrivals: Arrivals) -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield SocketStream(ours, arrivals), theirs


async def test_small_things_are_taken_at_once_and_large_ones_in_part(pair: Pair) -> None:
    stream, theirs = pair
    assert stream.send_now(b"answer") == 6
    assert theirs.recv(100) == b"answer"
    large = bytes(1 << 22)
    taken = stream.send_now(large)
    assert 0 < taken < len(large)
    assert stream.send_now(large) == 0


async def test_send_all_waits_for_a_reader_that_is_late(pair: Pair) -> None:
    stream, theirs = pair
    sent = bytes(range(256)) * (1 << 13)
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, sent)
        await trio.testing.wait_all_tasks_blocked()
        while len(received) < len(sent):
            received += await trio.to_thread.run_sync(theirs.recv, 1 << 16)
    assert bytes(received) == sent


async def test_what_comes_is_received_and_an_end_is_empty(pair: Pair) -> None:
    stream, theirs = pair
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await stream.receive_some() == b"late"
            assert await stream.receive_some() == b""

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        theirs.sendall(b"late")
        await trio.testing.wait_all_tasks_blocked()
        theirs.shutdown(socket.SHUT_WR)
    assert stream.send_now(b"still") == 5, "a client that has said all may still be answered"


async def test_an_end_is_listeners_of_the_other_side(pair: Pair) -> None:
    stream, theirs = pair
    await stream.send_eof()
    assert theirs.recv(1) == b""


async def test_a_peer_that_is_gone_is_a_broken_stream(pair: Pair) -> None:
    stream, theirs = pair
    stream.send_now(b"unread")
    theirs.send(b"unread as well")
    theirs.close()
    with pytest.raises(trio.BrokenResourceError):
        stream.send_now(b"answer")
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"answer")


async def test_closing_wakes_who_reads_and_can_be_done_twice(pair: Pair) -> None:
    stream, _ = pair
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await stream.aclose()
    with pytest.raises(trio.BrokenResourceError):
        stream.send_now(b"answer")


async def test_a_connection_taken_from_a_trio_stream_stays_open_when_that_one_is_closed(arrivals: Arrivals) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        held = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        stream = SocketStream.taken_from(held, arrivals)
        await held.aclose()
        assert stream.send_now(b"answer") == 6
        assert theirs.recv(100) == b"answer"
        await stream.aclose()
        assert theirs.recv(1) == b""


other_pair = pair  # one more of the same


async def test_idle_streams_share_one_wait_and_each_hears_what_is_its_own(
    pair: Pair, other_pair: Pair, arrivals: Arrivals
) -> None:
    pairs = {"a": pair, "b": other_pair}
    heard: dict[str, list[bytes]] = {"a": [], "b": []}

    async def listen(name: str) -> None:
        def take(received: bytes) -> bool:
            heard[name].append(received)
            return received not in (b"enough", b"")

        await pairs[name][0].receive_each(take)
        heard[name].append(b"(left)")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.serve)
        for name in pairs:
            nursery.start_soon(listen, name)
        for said in (b"one", b"two"):
            for name, (_, end) in pairs.items():
                end.sendall(name.encode() + said)
            await trio.testing.wait_all_tasks_blocked()
        pair[1].sendall(b"enough")
        other_pair[1].close()
        await trio.testing.wait_all_tasks_blocked()
        pair[1].sendall(b"unheard")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert heard == {"a": [b"aone", b"atwo", b"enough", b"(left)"], "b": [b"bone", b"btwo", b"", b"(left)"]}


async def test_what_a_listener_raises_is_raised_where_it_listens(pair: Pair, arrivals: Arrivals) -> None:
    stream, theirs = pair

    def take(_: bytes) -> bool:
        raise ValueError("not this")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.serve)
        theirs.sendall(b"that")
        with pytest.raises(ValueError, match="not this"):
            await stream.receive_each(take)
        theirs.sendall(b"more")
        assert await stream.receive_some() == b"more", "nobody listens any more, so it is still there"
        nursery.cancel_scope.cancel()


async def test_who_is_cancelled_while_it_listens_leaves_nothing_behind(pair: Pair, arrivals: Arrivals) -> None:
    stream, theirs = pair
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.serve)
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.receive_each(lambda _: True)
        theirs.sendall(b"late")
        assert await stream.receive_some() == b"late"
        theirs.sendall(b"again")
        heard: list[bytes] = []
        await stream.receive_each(lambda received: bool(heard.append(received)))
        assert heard == [b"again"]
        nursery.cancel_scope.cancel()


async def test_closing_wakes_who_listens(pair: Pair) -> None:
    stream, _ = pair
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_each(lambda _: True)

        nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()


async def test_a_hang_up_is_told_once_and_the_end_of_sending_is_none(pair: Pair, arrivals: Arrivals) -> None:
    stream, theirs = pair
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.serve)
        theirs.shutdown(socket.SHUT_WR)
        assert await stream.receive_some() == b""
        with stream.telling_hang_up(lambda: told.append("gone")):
            await trio.sleep(0)
            stream.send_now(b"an answer to who has said all")
            assert theirs.recv(100) == b"an answer to who has said all"
            assert told == []
            theirs.close()
            while not told:
                await trio.lowlevel.checkpoint()
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        assert told == ["gone"]
        nursery.cancel_scope.cancel()


async def test_a_hang_up_is_not_told_to_who_has_stopped_listening(pair: Pair, arrivals: Arrivals) -> None:
    stream, theirs = pair
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(arrivals.serve)
        with stream.telling_hang_up(lambda: told.append("gone")):
            pass
        theirs.close()
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        await stream.aclose()
        nursery.cancel_scope.cancel()
    assert told == []
