"""The socket's file from its first moment, and who is let in or told why not, over a real socket."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from kit import road
from msgspec import structs

from sidecar.config.values import Config, PeerRule
from sidecar.ops.log import Log
from sidecar.service import listener
from sidecar.service.in_force import InForce
from sidecar.service.listener import Bound, Doorkeeper, SocketUnavailable, bind
from sidecar.service.peer import Peer, Standing, read_peer


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# --- bind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666, 0o700])
def test_the_socket_has_exactly_its_mode_from_its_first_moment(
    tmp_path: Path, mode: int, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Watched(socket.socket):
        def bind(self, address: Any) -> None:
            super().bind(address)
            seen.append(mode_of(Path(address)))

    monkeypatch.setattr(listener.socket, "socket", Watched)
    before = os.umask(umask)
    try:
        with bind(tmp_path / "s.sock", mode):
            assert seen == [mode]
            assert mode_of(tmp_path / "s.sock") == mode
        assert os.umask(umask) == umask, "the umask is put back"
    finally:
        os.umask(before)


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    with bind(tmp_path / "a/b/s.sock", 0o660):
        assert (tmp_path / "a/b/s.sock").is_socket()


def test_a_stale_socket_is_replaced_whatever_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    bind(path, 0o666).close()
    assert path.is_socket()
    with bind(path, 0o600), socket.socket(socket.AF_UNIX) as client:
        assert mode_of(path) == 0o600
        client.connect(str(path))


def test_a_socket_on_which_another_process_listens_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with bind(path, 0o660) as first:
        before = os.lstat(path)
        with pytest.raises(SocketUnavailable, match=r"another process listens on .*s\.sock"):
            bind(path, 0o660)
        assert os.lstat(path) == before
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            first.accept()[0].close()


def test_a_socket_whose_queue_is_full_is_alive_too(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waits:
        busy.bind(str(path))
        busy.listen(0)
        waits.connect(str(path))
        with pytest.raises(SocketUnavailable, match="another process listens"):
            bind(path, 0o660)


def test_a_socket_of_another_type_is_alive_as_long_as_it_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(str(path))
        with pytest.raises(SocketUnavailable, match="another process listens"):
            bind(path, 0o660)
    bind(path, 0o660).close()


@pytest.mark.parametrize("made", ["file", "folder", "link", "fifo"])
def test_what_is_no_socket_is_left_alone_with_a_clear_error(tmp_path: Path, made: str) -> None:
    path = tmp_path / "s.sock"
    if made == "file":
        path.write_text("precious")
    elif made == "folder":
        path.mkdir()
    elif made == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    before = os.lstat(path)
    with pytest.raises(SocketUnavailable, match=r"s\.sock is there and is no socket; it is left alone"):
        bind(path, 0o660)
    assert os.lstat(path) == before


def test_a_path_that_is_too_long_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SocketUnavailable, match="path too long"):
        bind(tmp_path / ("x" * 150), 0o660)


def test_a_bind_that_fails_puts_the_umask_back(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with pytest.raises(SocketUnavailable, match=r"xxx: "):
            bind(tmp_path / ("x" * 150), 0o660)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_folder_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SocketUnavailable, match=r"file/s\.sock: (Not a directory|File exists)"):
        bind(tmp_path / "file/s.sock", 0o660)


def test_only_our_own_file_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    Bound(path, 0o660).remove()
    assert not path.exists()
    first = Bound(path, 0o660)
    path.unlink()
    second = Bound(path, 0o660)
    first.remove()
    assert path.is_socket()
    second.remove()
    second.remove()


# --- the door ---------------------------------------------------------------------------------------------------


class House:
    """Whom the doorkeeper let in, as what; each guest stays until it hangs up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = StringIO()
        self.let_in: list[frozenset[str]] = []
        self.operators: list[Peer | None] = []
        self.left = 0

    async def serve(self, stream: trio.SocketStream, standing: Standing) -> None:
        self.let_in.append(standing.callers)
        self.operators.append(standing.peer if standing.is_operator else None)
        while await stream.receive_some():
            pass
        await stream.aclose()
        self.left += 1

    async def connect(self) -> trio.SocketStream:
        return await trio.open_unix_socket(str(self.path))


@asynccontextmanager
async def door(path: Path, config: Config, own_uid: int | None = None) -> AsyncIterator[House]:
    house = House(path / "s.sock")
    in_force, uid = InForce(config, {}), os.getuid() if own_uid is None else own_uid
    each_a_second_later = count(0, 1000).__next__
    doorkeeper = Doorkeeper(in_force, Log(house.log, "text"), house.serve, uid, each_a_second_later)
    listening = trio.SocketListener(trio.socket.from_stdlib_socket(bind(house.path, 0o600)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, doorkeeper.welcome, [listening])
        yield house
        nursery.cancel_scope.cancel()


async def farewell(stream: trio.SocketStream) -> tuple[str, str]:
    """The error that the daemon said, which must be all that it said."""
    received = b""
    while more := await stream.receive_some():
        received += more
    await stream.aclose()
    assert int.from_bytes(received[:4], "big") == len(received) - 4
    error = msgpack.unpackb(received[4:])
    assert set(error) == {"schema_id", "code", "message"}
    assert error["schema_id"] == "gamecult.model.transport_error.v1"
    return error["code"], error["message"]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.001)


def with_bounds(**bounds: int) -> Config:
    config = road.config()
    return structs.replace(config, daemon=structs.replace(config.daemon, **bounds))


async def test_i10_a_peer_that_may_call_as_nobody_is_not_admitted_on_connect(tmp_path: Path) -> None:
    """Said at once, without a frame; also to a client that talks first; and nothing of it is served."""
    async with door(tmp_path, road.config(), own_uid=os.getuid() + 1) as house:
        code, message = await farewell(await house.connect())
        assert (code, message) == ("not_admitted", f"uid {os.getuid()} may call as nobody here")
        hasty = await house.connect()
        await hasty.send_all(bytes(100_000))
        assert (await farewell(hasty))[0] == "not_admitted"
        assert house.let_in == []
        assert "not_admitted" in house.log.getvalue()


@pytest.mark.parametrize("nobody", [Peer(pid=0, uid=0, gids=frozenset({0})), Peer(pid=5, uid=65534, gids=frozenset())])
async def test_i10_pid_0_and_uid_65534_are_not_admitted_even_where_they_would_be_the_owner(
    tmp_path: Path, nobody: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "read_peer", lambda _: nobody)
    async with door(tmp_path, road.config(), own_uid=nobody.uid) as house:
        assert (await farewell(await house.connect()))[0] == "not_admitted"
        assert house.let_in == []


async def test_i10_credentials_are_read_once_per_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def reading(connected: Any) -> Peer:
        read.append(read_peer(connected))
        return read[-1]

    monkeypatch.setattr(listener, "read_peer", reading)
    async with door(tmp_path, road.config()) as house:
        guest = await house.connect()
        await until(lambda: len(house.let_in) == 1)
        for _ in range(5):
            await guest.send_all(b"more")
        await guest.aclose()
    assert len(read) == 1
    assert read[0].pid == os.getpid()


async def test_a_peer_that_the_kernel_does_not_vouch_for_is_not_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: Any) -> Peer:
        raise OSError(92, "Protocol not available")

    monkeypatch.setattr(listener, "read_peer", silent)
    async with door(tmp_path, road.config()) as house:
        assert (await farewell(await house.connect()))[0] == "not_admitted"


async def test_a_peer_is_let_in_as_the_callers_that_it_may_be(tmp_path: Path) -> None:
    config = road.config()
    own, other = config.callers["dungeon"], config.callers["other"]
    stranger = structs.replace(other, peer=PeerRule(uid=os.getuid() + 1))
    config = structs.replace(config, callers={"dungeon": own, "other": stranger})
    async with door(tmp_path, config) as house, await house.connect():
        await until(lambda: house.let_in == [frozenset({"dungeon"})])


async def test_an_operator_is_let_in_though_it_may_call_as_nobody(tmp_path: Path) -> None:
    config = structs.replace(road.config(), callers={}, operators=(PeerRule(uid=os.getuid()),))
    async with door(tmp_path, config) as house, await house.connect():
        await until(lambda: house.let_in == [frozenset()])
        assert [operator and operator.uid for operator in house.operators] == [os.getuid()]


async def test_a_peer_may_be_caller_and_operator_and_a_caller_alone_is_no_operator(tmp_path: Path) -> None:
    both = structs.replace(road.config(), operators=(PeerRule(uid=os.getuid() + 1), PeerRule()))
    for config, is_operator in ((both, True), (road.config(), False)):
        async with door(tmp_path, config) as house, await house.connect():
            await until(lambda: house.let_in == [frozenset({"dungeon", "other"})])
            assert [operator is not None for operator in house.operators] == [is_operator]


@pytest.mark.parametrize("bound", ["connections_max", "connections_per_user_max"])
async def test_one_connection_too_many_is_told_so_and_its_place_is_free_again_later(tmp_path: Path, bound: str) -> None:
    async with door(tmp_path, with_bounds(**{bound: 2})) as house:
        first, second = await house.connect(), await house.connect()
        await until(lambda: len(house.let_in) == 2)
        code, message = await farewell(await house.connect())
        assert code == "too_many_connections"
        assert bound in message
        assert message.startswith("2 connections")
        await first.aclose()
        await until(lambda: house.left == 1)
        async with await house.connect(), second:
            await until(lambda: len(house.let_in) == 3)
            assert (await farewell(await house.connect()))[0] == "too_many_connections"


async def test_those_who_are_turned_away_take_no_place(tmp_path: Path) -> None:
    async with door(tmp_path, with_bounds(connections_max=1), own_uid=os.getuid() + 1) as house:
        for _ in range(5):
            assert (await farewell(await house.connect()))[0] == "not_admitted"


async def test_no_more_than_16_are_told_why_at_a_time_and_further_ones_are_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "_FAREWELL_SECONDS", 60)
    async with door(tmp_path, road.config(), own_uid=os.getuid() + 1) as house:
        told = [await house.connect() for _ in range(listener.FAREWELLS_MAX)]
        for guest in told:
            assert await guest.receive_some(4)
        for _ in range(40):
            further = await house.connect()
            assert await further.receive_some() == b""
            await further.aclose()
        for guest in told:
            await guest.aclose()
        await until(lambda: house.log.getvalue().count("not_admitted") == 56)

        async def is_told_again() -> bool:
            async with await house.connect() as guest:
                return bool(await guest.receive_some(4))

        with trio.fail_after(20):
            while not await is_told_again():
                pass
