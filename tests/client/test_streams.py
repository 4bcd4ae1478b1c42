"""Streams: pieces that always add up to the result, whatever came live, and a stream that nobody reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit import daemon_says
from kit.daemon_says import text_event
from kit.fake_daemon import Peer, fake_daemon
from kit.three_clients import Way

from sidecar.client import CostBound, NotADaemon, RequestFailed, new_request
from sidecar.contract.values import Failed, TransportEvent


def asked(request_id: str = "r1") -> Any:
    return new_request("npc", "hello", request_id=request_id)


def streaming(*frames: bytes, then: Any = None) -> Any:
    def part(peer: Peer) -> None:
        hello = peer.welcome()
        assert hello["stream_events"] is True
        peer.request_id()
        peer.say(*frames)
        if then is not None:
            then(peer)
        peer.until_hung_up()

    return part


def pieces_of(events: list[TransportEvent]) -> list[Any]:
    return [(event.sequence, getattr(event.payload.chosen, "text", None)) for event in events]


async def told(client: Any, request: Any) -> tuple[list[Any], Any]:
    async with client.stream(request) as stream:
        events = [event async for event in stream]
        return pieces_of(events), stream.result


LIVE_AND_RESULTS: dict[str, tuple[list[TransportEvent], list[Any]]] = {
    "all_live": ([text_event("he"), text_event("llo")], [(0, "he"), (0, "llo")]),
    "nothing_live": ([], [(0, "hello")]),
    "the_end_is_missing": ([text_event("he")], [(0, "he"), (0, "llo")]),
    "joined_late": ([text_event("ignored", 3)], [(0, "hello")]),
    "a_gap": ([text_event("he"), text_event("far", 2)], [(0, "he"), (0, "llo")]),
}


@pytest.mark.parametrize("case", LIVE_AND_RESULTS)
def test_the_pieces_add_up_to_the_result(way: Way, path: Path, case: str) -> None:
    live, expected = LIVE_AND_RESULTS[case]

    async def body() -> None:
        async with way.client(path) as client:
            pieces, result = await told(client, asked())
        assert pieces == expected
        assert result.text == "hello"

    frames = [daemon_says.live("r1", event) for event in live]
    with fake_daemon(path, streaming(*frames, daemon_says.result("r1", "hello"))):
        way.run(body)


def test_tool_calls_are_told_between_texts(way: Way, path: Path) -> None:
    whole = [text_event("one"), daemon_says.call_event("look", 1), text_event("two", 2)]
    live = [text_event("o"), text_event("ne"), whole[1], text_event("t", 2)]

    async def body() -> None:
        async with way.client(path) as client:
            pieces, result = await told(client, asked())
        assert pieces == [(0, "o"), (0, "ne"), (1, None), (2, "t"), (2, "wo")]
        assert result.text == "onetwo"

    frames = [daemon_says.live("r1", event) for event in live]
    with fake_daemon(path, streaming(*frames, daemon_says.result("r1", *whole))):
        way.run(body)


def test_events_come_before_the_result_does(way: Way, path: Path) -> None:
    def after_status(peer: Peer) -> None:
        peer.expect("status")  # asked once the first piece is told
        peer.say(daemon_says.status_report(), daemon_says.result("r1", "hello"))

    async def body() -> None:
        async with way.client(path) as client, client.stream(asked()) as stream:
            texts = []
            with pytest.raises(RuntimeError, match="not ended"):
                _ = stream.result
            async for event in stream:
                texts.append(event.payload.chosen.text)
                if len(texts) == 1:
                    await client.status()
            assert texts == ["hel", "lo"]
            assert stream.result.text == "hello"

    with fake_daemon(path, streaming(daemon_says.live("r1", text_event("hel")), then=after_status)):
        way.run(body)


def test_a_stream_of_what_ran_already_hears_the_first_text_from_its_middle_and_says_so(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client, client.stream(asked()) as stream:
            texts = [event.payload.chosen.text async for event in stream]
            assert texts == ["ll", "o"]
            assert (stream.is_whole, stream.result.text) == (False, "hello")

    live = [daemon_says.live("r1", text_event(piece)) for piece in ("ll", "o")]
    with fake_daemon(path, streaming(*live, daemon_says.result("r1", "hello"))):
        way.run(body)


def test_live_events_that_the_result_does_not_hold_are_told_as_wrong(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            with pytest.raises(NotADaemon, match="live events"):
                await told(client, asked())

    with fake_daemon(path, streaming(daemon_says.live("r1", text_event("x")), daemon_says.result("r1", "hello"))):
        way.run(body)


def test_a_stream_raises_what_its_request_ends_with(way: Way, path: Path) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            with pytest.raises(CostBound):
                await told(client, asked())

    with fake_daemon(path, streaming(daemon_says.refusal("r1", "CostBound"))):
        way.run(body)


def test_a_stream_that_fails_after_some_pieces_raises_the_failure_with_what_is_on_record(way: Way, path: Path) -> None:
    failed = Failed(kind="unavailable", message="broke off")

    async def body() -> None:
        async with way.client(path) as client, client.stream(asked()) as stream:
            assert pieces_of([await stream.__anext__()]) == [(0, "he")]
            with pytest.raises(RequestFailed) as caught:
                await stream.__anext__()
        assert len(caught.value.events) == 1

    with fake_daemon(
        path, streaming(daemon_says.live("r1", text_event("he")), daemon_says.result("r1", "hell", failed=failed))
    ):
        way.run(body)


def test_live_events_are_asked_for_only_once_somebody_streams(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        assert peer.welcome()["stream_events"] is False
        peer.say(daemon_says.result(peer.request_id(), "plain"))
        assert peer.welcome()["stream_events"] is True
        assert peer.request_id() == "r2"
        peer.say(daemon_says.live("r2", text_event("li")), daemon_says.result("r2", "live"))
        peer.say(daemon_says.result(peer.request_id(), "streamed"))  # no third hello before it
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            assert (await client.invoke(asked("r1"))).text == "plain"
            assert (await told(client, asked("r2")))[0] == [(0, "li"), (0, "ve")]
            assert (await told(client, asked("r3")))[1].text == "streamed"

    with fake_daemon(path, part):
        way.run(body)


def test_a_stream_that_nobody_reads_holds_up_nobody_and_still_adds_up(way: Way, path: Path) -> None:
    piece, count = "x" * 1000, 3000

    def part(peer: Peer) -> None:
        peer.welcome()
        assert peer.request_id() == "unread"
        peer.say(*[daemon_says.live("unread", text_event(piece))] * count)
        while (said := peer.frame()) is not None:
            if "request" in said and said["request"]["request_id"] != "end":
                peer.say(daemon_says.result(said["request"]["request_id"], "meanwhile"))
            elif "request" in said:
                peer.say(daemon_says.result("unread", piece * count), daemon_says.result("end", "end"))

    async def body() -> None:
        async with way.client(path, unread_bytes_max=50_000) as client, client.stream(asked("unread")) as stream:
            for number in range(5):
                assert (await client.invoke(asked(f"r{number}"))).text == "meanwhile"
            await client.invoke(asked("end"))
            texts = [event.payload.chosen.text async for event in stream]
            assert "".join(texts) == piece * count
            assert stream.result.text == piece * count

    with fake_daemon(path, part):
        way.run(body)


def test_a_stream_that_is_left_early_leaves_the_connection_in_order(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.say(daemon_says.live("r1", text_event("he")))
        assert peer.request_id() == "r2"
        peer.say(daemon_says.live("r1", text_event("llo")), daemon_says.result("r1", "hello"))
        peer.say(daemon_says.result("r2", "next"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            async with client.stream(asked("r1")) as stream:
                async for _ in stream:
                    break
            assert (await client.invoke(asked("r2"))).text == "next"

    with fake_daemon(path, part):
        way.run(body)


def test_a_stream_whose_connection_was_lost_goes_on_from_the_result(way: Way, path: Path) -> None:
    def losing(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.say(daemon_says.live("r1", text_event("he")))

    def part(peer: Peer) -> None:
        assert peer.frame() is not None  # a hello: this time nobody needs live events
        peer.say(daemon_says.welcome(stream_events=True))
        peer.request_id()
        peer.say(daemon_says.result("r1", "hello"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            pieces, result = await told(client, asked())
        assert pieces == [(0, "he"), (0, "llo")]
        assert result.text == "hello"

    with fake_daemon(path, losing, part):
        way.run(body)


def test_a_second_stream_of_the_same_request_is_told_from_the_result(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        peer.request_id()
        peer.say(daemon_says.live("r1", text_event("he")))
        peer.expect("status")
        peer.say(daemon_says.live("r1", text_event("l")), daemon_says.result("r1", "hello"))
        peer.say(daemon_says.status_report())
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            invocation = client.prepare(asked())
            async with client.stream(invocation) as first:
                await first.__anext__()
                async with client.stream(invocation) as second:
                    await client.status()
                    assert [event.payload.chosen.text async for event in first] == ["l", "lo"]
                    assert [event.payload.chosen.text async for event in second] == ["hello"]

    with fake_daemon(path, part):
        way.run(body)


@pytest.mark.parametrize("wanted", ["invocation", "is_whole", "result"])
def test_what_a_stream_has_not_yet_is_told_before_its_block(way: Way, path: Path, wanted: str) -> None:
    async def body() -> None:
        async with way.client(path) as client:
            stream = client.stream(asked())
            with pytest.raises(RuntimeError, match="the stream has"):
                getattr(stream, wanted)
            with pytest.raises(RuntimeError, match="inside its `with`"):
                await anext(stream)

    way.run(body)


def test_a_stream_is_entered_once_and_its_invocation_makes_another(way: Way, path: Path) -> None:
    def part(peer: Peer) -> None:
        peer.welcome()
        for _ in range(2):
            peer.request_id()
            peer.say(daemon_says.result("r1", "hello"))
        peer.until_hung_up()

    async def body() -> None:
        async with way.client(path) as client:
            stream = client.stream(asked())
            async with stream:
                assert pieces_of([event async for event in stream]) == [(0, "hello")]
            with pytest.raises(RuntimeError, match="entered once"):
                async with stream:
                    pass
            assert stream.result.text == "hello"
            assert await told(client, stream.invocation) == ([(0, "hello")], stream.result)

    with fake_daemon(path, part):
        way.run(body)
