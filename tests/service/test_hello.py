"""A hello is optional, says what a connection speaks, and a second one stands in place of the first."""

from __future__ import annotations

import msgpack
import pytest
import trio
from kit import build, wire
from kit.connected import answering, asked, hello, served
from kit.narrow_stream import narrow_pair
from kit.road import Road, said

from sidecar.contract.client_frames import TRANSPORT_HELLO
from sidecar.rules.framing import framed

HELLO = {"client": "", "join": False, "protocol": 1, "schema_id": TRANSPORT_HELLO, "stream_events": False}


async def test_a_hello_is_answered_with_what_the_peer_may_be_and_what_it_gets() -> None:
    async with served(Road(), callers=frozenset({"other", "dungeon"})) as client:
        assert await client.greet(stream_events=True, join=True) == {
            "schema_id": "gamecult.model.transport_welcome.v1",
            "protocol": 1,
            "server": "sidecar test",
            "callers": ["dungeon", "other"],
            "frame_bytes_max": 1_000_000,
            "stream_events": True,
            "join": True,
        }


async def test_the_welcome_says_no_where_the_hello_does() -> None:
    async with served(Road()) as client:
        welcome = await client.greet()
        assert (welcome["stream_events"], welcome["join"]) == (False, False)


async def test_an_unknown_protocol_is_told_so_and_the_connection_is_closed() -> None:
    async with served(Road()) as client:
        await client.send(hello(protocol=2), asked("r1"))
        told = await client.value()
        assert (told["code"], told["message"]) == (
            "unsupported_protocol",
            "protocol 2 is asked for; this daemon speaks 1",
        )
        assert await client.receive() is None


async def test_what_was_decided_before_an_unknown_protocol_is_on_record() -> None:
    road = Road(connector=answering())
    async with served(road) as client:
        await client.send(asked("r1"), hello(protocol=7))
        heard = [await client.value(), await client.receive()]
    assert heard[0]["code"] == "unsupported_protocol" or heard[0]["request_id"] == "r1"
    assert [record.outcome for _, record in road.ledger.completes] == ["completed"]


@pytest.mark.parametrize(
    "change",
    [
        {"protocol": "1"},
        {"protocol": -1},
        {"protocol": 2**32},
        {"join": 1},
        {"stream_events": None},
        {"client": b"bytes"},
        {"extra": 1},
    ],
    ids=str,
)
async def test_a_hello_that_breaks_its_table_is_malformed_and_changes_nothing(change: dict[str, object]) -> None:
    async with served(Road()) as client:
        await client.greet(join=True)
        await client.send(hello(**change))
        assert (await client.value())["code"] == "malformed_frame"
        await client.send(asked("r1"), asked("r1"))
        client_road_is_held = wire.write({"schema_id": "gamecult.model.transport_status.v1"})
        await client.send(client_road_is_held)
        assert (await client.value())["schema_id"] == "gamecult.model.transport_status_report.v1", "it still joins"
        # both are waiting; the hang-up lets the daemon finish them
        await client.send(
            wire.write(
                {
                    "schema_id": "gamecult.model.transport_cancel.v1",
                    "caller_runtime_id": "dungeon",
                    "request_id": "r1",
                }
            )
        )
        assert await client.heard(2) == ["timeout", "timeout"]


async def test_a_missing_member_of_a_hello_is_named() -> None:
    async with served(Road()) as client:
        await client.send(wire.write({"schema_id": TRANSPORT_HELLO, "protocol": 1, "client": "x", "join": True}))
        told = await client.value()
        assert told["code"] == "malformed_frame"
        assert "stream_events" in told["message"]


async def test_without_a_hello_a_retry_of_what_runs_is_in_flight() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(asked("r1"), asked("r1"))
        assert await client.heard(1) == ["InFlight"]
        road.connector.let_go.set()
        assert await client.heard(1) == ["end_turn"]


async def test_a_second_hello_replaces_the_first() -> None:
    road = Road()
    async with served(road) as client:
        await client.greet(join=True)
        await client.greet()
        await client.send(asked("r1"), asked("r1"))
        assert await client.heard(1) == ["InFlight"]
        await client.greet(join=True)
        await client.send(asked("r1"))
        road.connector.let_go.set()
        assert await client.heard(2) == ["end_turn", "end_turn"]


async def test_frames_behind_a_hello_in_one_write_are_under_it() -> None:
    road = Road()
    async with served(road) as client:
        await client.send(hello(join=True), asked("r1"), asked("r1"))
        assert (await client.value())["join"] is True
        road.connector.let_go.set()
        frames = [await client.receive(), await client.receive()]
    assert frames[0] == frames[1]
    assert said(frames[0] or b"") == "end_turn"


async def test_an_operator_that_may_call_as_nobody_is_greeted_too() -> None:
    async with served(Road(), callers=frozenset()) as client:
        assert (await client.greet())["callers"] == []
        await client.send(build.frame())
        frame = await client.receive()
        assert frame is not None
        assert msgpack.unpackb(frame)["disposition"] == {"Refused": "IdentitySubstitution"}


@pytest.mark.parametrize(
    ("client", "kept"), [("x" * 900_000, "x" * 80), ("a\nb\x1b[1m", "a b [1m"), ("", "")], ids=["long", "odd", "none"]
)
async def test_of_a_clients_name_only_what_a_log_line_shows_is_kept(client: str, kept: str) -> None:
    """A connection may stay for ever, so what its hello said must not be megabytes."""
    theirs, ours = narrow_pair(up_bytes=1 << 20, down_bytes=1 << 20)
    road = Road()
    async with trio.open_nursery() as nursery:
        connection = road.connection(ours, nursery)
        nursery.start_soon(connection.serve)
        await theirs.send_all(framed(wire.write({**HELLO, "client": client})))
        await theirs.receive_some()
        assert connection._hello is not None
        assert connection._hello.client == kept
        connection._tell_cut(9)
        await theirs.send_eof()
    assert "the provider gave no reason" not in road.log.getvalue()
