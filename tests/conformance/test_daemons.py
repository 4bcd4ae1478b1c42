"""`--socket`: the real daemon passes, as often as it is asked; one that does one thing wrong is caught."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
from kit import wire
from kit.daemon_process import Process, running_daemon

from sidecar.conformance.configured import check_configured
from sidecar.conformance.daemon_play import NoDaemon, played, terms_of
from sidecar.conformance.daemon_vectors import conversations
from sidecar.conformance.goldens import found
from sidecar.conformance.verdicts import Verdict
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSplitter, framed

DEEP = b"\x91" * 100_000 + b"\xc0"
Alter = Callable[[dict[str, Any]], list[bytes]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder = tmp_path_factory.mktemp("d")
    for name, path in (("config.toml", "sidecar.toml"), ("script.toml", "script.toml")):
        (folder / path).write_text(found().text(f"daemon/{name}"))
    with running_daemon(folder) as process:
        yield process


async def verdicts(socket: Path, *names: str, timeout_seconds: float = 20) -> list[Verdict]:
    told: list[Verdict] = []
    terms = await terms_of(socket, timeout_seconds=timeout_seconds)
    playing = [one for one in conversations(found()) if not names or one.name in names]
    await played(playing, socket, terms, timeout_seconds=timeout_seconds, tell=told.append)
    return told


async def test_a_running_daemon_passes_everything_twice_on_one_ledger(daemon: Process) -> None:
    for _ in range(2):
        wrong = [one for one in await verdicts(daemon.socket_path) if one.state != "passed"]
        assert [(one.name, one.state) for one in wrong] == [("transcripts/resolve", "not_played")], wrong


# --- daemons that do one thing wrong ----------------------------------------------------------------------------


@asynccontextmanager
async def altered(daemon: Process, folder: Path, alter: Alter) -> AsyncIterator[Path]:
    """A socket on which everything is as the daemon says it, but for what `alter` makes of its frames."""
    path = folder / "p.s"
    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listening:
        await listening.bind(str(path))
        listening.listen(8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept, listening, daemon.socket_path, alter, nursery)
            yield path
            nursery.cancel_scope.cancel()


async def _accept(listening: Any, target: Path, alter: Alter, nursery: trio.Nursery) -> None:
    while True:
        accepted, _ = await listening.accept()
        nursery.start_soon(_between, trio.SocketStream(accepted), target, alter)


async def _between(client: trio.SocketStream, target: Path, alter: Alter) -> None:
    async with client, await trio.open_unix_socket(str(target)) as daemon, trio.open_nursery() as nursery:
        nursery.start_soon(_forward, client, daemon)
        splitter = FrameSplitter(FRAME_BYTES_LIMIT)
        try:
            while received := await daemon.receive_some(65_536):
                splitter.feed(received)
                while (frame := splitter.next_frame()) is not None:
                    for sent in alter(msgpack.unpackb(frame)):
                        await client.send_all(framed(sent))
            await client.send_eof()
        except trio.BrokenResourceError:
            nursery.cancel_scope.cancel()


async def _forward(client: trio.SocketStream, daemon: trio.SocketStream) -> None:
    try:
        while received := await client.receive_some(65_536):
            await daemon.send_all(received)
        await daemon.send_eof()
    except trio.BrokenResourceError:
        return


def on(schema: str, change: Callable[[dict[str, Any]], list[bytes]]) -> Alter:
    """Changes frames of this schema only."""
    schema_id = f"gamecult.model.transport_{schema}.v1"
    return lambda value: change(value) if value["schema_id"] == schema_id else [wire.write(value)]


def put(value: Any, path: tuple[Any, ...], inner: Any) -> Any:
    if not path:
        return inner
    return {**value, path[0]: put(value[path[0]], path[1:], inner)} if path[0] in value else value


def changed(*path: Any, to: Any) -> Callable[[dict[str, Any]], list[bytes]]:
    return lambda value: [wire.write(put(value, path, to))]


def piece_of(value: dict[str, Any]) -> list[bytes]:
    text = value["event"]["payload"].get("TextDelta", {}).get("text")
    return [] if text == "another, " else [wire.write(value)]


RECEIPT = ("disposition", "Transported", "receipt")
FAULTS: dict[str, tuple[str, Alter, str]] = {
    "another charge": (
        "transcripts/text",
        on("result", changed(*RECEIPT, "cost_micro_usd", to=7)),
        "cost_micro_usd is 7 in place of",
    ),
    "no provider_response_id": (
        "transcripts/text",
        on("result", changed(*RECEIPT, "outcome", "Completed", "provider_response_id", to="x")),
        'provider_response_id is "x" in place of "scripted-hello-1.',
    ),
    "another digest in the receipt": (
        "transcripts/text",
        on("result", changed(*RECEIPT, "provider_request_sha256", to=[9] * 32)),
        ".provider_request_sha256[",
    ),
    "another refusal": (
        "transcripts/refusals",
        on("result", changed("disposition", "Refused", to="Malformed")),
        'Refused is "Malformed" in place of "IdentitySubstitution"',
    ),
    "another request": (
        "transcripts/replay",
        on("result", changed("request_id", to="other")),
        "got:      ",
    ),
    "keys backwards": (
        "transcripts/text",
        on("result", lambda value: [wire.write(value, wire.BACKWARDS)]),
        "are not sorted",
    ),
    "nil members": (
        "transcripts/still_in_step",
        on("error", lambda value: [wire.write({**value, "caller_runtime_id": None})]),
        "caller_runtime_id is a nil that must be left out",
    ),
    "an answer twice": ("transcripts/text", on("result", lambda value: [wire.write(value)] * 2), "one frame more"),
    "no answer": ("frames/not_strict/ext 1", on("error", lambda _: []), "nothing more came within 1 s"),
    "another code": (
        "frames/not_dispatched/16 levels",
        on("error", changed("code", to="internal")),
        'code is "internal" in place of "unknown_schema"',
    ),
    "malformed is fine": (
        "frames/malformed_invocations/an unknown member",
        on("result", changed("disposition", "Refused", to="Expired")),
        'Refused is "Expired" in place of "Malformed"',
    ),
    "another code for a stray": (
        "streams/an HTTP request",
        on("error", changed("code", to="malformed_frame")),
        'code is "malformed_frame" in place of "frame_size"',
    ),
    "a piece is lost": ("transcripts/live_events", on("event", piece_of), "a third."),
    "events out of step": (
        "transcripts/live_events",
        on("event", changed("event", "sequence", to=4)),
        "event.sequence is 4 in place of 0",
    ),
    "a quote in passing": (
        "transcripts/quote",
        on("quoted", changed("worst_case_micro_usd", to=1)),
        "worst_case_micro_usd is 1 in place of",
    ),
    "does not join": ("transcripts/join", on("welcome", changed("join", to=False)), "join is false in place of true"),
    "another ceiling": (
        "transcripts/status",
        on("status_report", lambda value: [wire.write({**value, "callers": value["callers"][:1]})]),
        "callers has 1 items of 2",
    ),
    "a variant is malformed": (
        "layouts/keys backwards",
        on("result", changed(*RECEIPT, "model", to="other")),
        'model is "other" in place of "npc"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_daemon_that_does_one_thing_wrong_is_caught(daemon: Process, tmp_path: Path, fault: str) -> None:
    name, alter, words = FAULTS[fault]
    # terms_of is asked of the daemon itself, as a welcome may be what is altered
    async with altered(daemon, tmp_path, alter) as path:
        told: list[Verdict] = []
        terms = await terms_of(daemon.socket_path, timeout_seconds=10)
        playing = [one for one in conversations(found()) if one.name == name]
        seconds = 1 if "nothing more came" in words else 20
        await played(playing, path, terms, timeout_seconds=seconds, tell=told.append)
    assert [one.state for one in told] == ["failed"]
    assert words in "\n".join(told[0].why), told[0].why


async def test_what_is_not_compared_may_differ(daemon: Process, tmp_path: Path) -> None:
    def other_words(value: dict[str, Any]) -> list[bytes]:
        value = put(value, ("server",), "another daemon")
        value = put(value, ("message",), "other words")
        return [wire.write(put(value, ("daemon", "connections"), 77))]

    async with altered(daemon, tmp_path, other_words) as path:
        told = await verdicts(path, "transcripts/hello", "transcripts/status", "transcripts/stray_http")
    assert [one.state for one in told] == ["passed"] * 3


async def test_live_events_may_be_cut_elsewhere(daemon: Process, tmp_path: Path) -> None:
    def letters(value: dict[str, Any]) -> list[bytes]:
        text = value["event"]["payload"].get("TextDelta", {}).get("text", "")
        path = ("event", "payload", "TextDelta", "text")
        return [wire.write(put(value, path, letter)) for letter in text] or [wire.write(value)]

    async with altered(daemon, tmp_path, on("event", letters)) as path:
        told = await verdicts(path, "transcripts/live_events", "transcripts/cancel")
    assert [one.state for one in told] == ["passed"] * 2


@pytest.mark.parametrize("frame", [DEEP, b"\x91" * 100 + b"\xc0", b"\x81\x01\x02"])
async def test_an_answer_that_no_daemon_gives_fails_its_vector_and_no_other(
    daemon: Process, tmp_path: Path, frame: bytes
) -> None:
    async with altered(daemon, tmp_path, on("quoted", lambda _: [frame])) as path:
        told = await verdicts(path, "transcripts/quote", "transcripts/text")
    assert {one.name: one.state for one in told} == {"transcripts/quote": "failed", "transcripts/text": "passed"}
    assert "expected: a map" in told[[one.state for one in told].index("failed")].why


# --- what is no daemon ------------------------------------------------------------------------------------------


async def test_a_socket_that_nobody_listens_on_is_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon, match="no daemon on"):
        await terms_of(tmp_path / "none", timeout_seconds=1)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no daemon: what the daemon sends is no frame"),
        (b"", "does not answer a hello"),
        (framed(wire.write({"schema_id": "x"})), "answers a hello with"),
        (framed(DEEP), "answers a hello with"),
        (
            framed(
                wire.write(
                    {"schema_id": "gamecult.model.transport_welcome.v1", "protocol": 1, "server": "s", "callers": ["a"],
                     "frame_bytes_max": 1000, "stream_events": False, "join": False}
                )
            ),
            "does not let this user call as dungeon",
        ),
    ],
)  # fmt: skip
async def test_what_can_not_be_played_against_is_told_so(tmp_path: Path, answer: bytes, told: str) -> None:
    async def serve(listening: Any) -> None:
        accepted, _ = await listening.accept()
        async with trio.SocketStream(accepted) as stream:
            await stream.receive_some(1000)
            await stream.send_all(answer)

    with trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM) as listening:
        await listening.bind(str(tmp_path / "s"))
        listening.listen(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(serve, listening))
            with pytest.raises(NoDaemon, match=told):
                await terms_of(tmp_path / "s", timeout_seconds=5)


OTHERS = {
    "it serves this user no model npc": ('name = "npc"', 'name = "bard"'),
    "this user can't call as other": ('id = "other"', 'id = "another"'),
    "caller dungeon has another ceiling or window": (
        "spend_ceiling_micro_usd = 1000000000",
        "spend_ceiling_micro_usd = 7",
    ),
    "its model npc is echo-9, not echo-1": ('"echo-1"', '"echo-9"'),
    "its model npc-refusing has other prices": ("output = 1\n", "output = 2\n"),
}


@pytest.mark.parametrize("other", OTHERS)
async def test_a_daemon_on_another_configuration_is_told_so_and_how_to_get_the_right_one(
    tmp_path: Path, other: str
) -> None:
    old, new = OTHERS[other]
    config = found().text("daemon/config.toml")
    assert old in config
    config = config.replace('"npc"', '"bard"') if "bard" in new else config.replace(old, new)
    (tmp_path / "sidecar.toml").write_text(config)
    (tmp_path / "script.toml").write_text("")
    with running_daemon(tmp_path) as process, pytest.raises(NoDaemon) as told:
        await check_configured(process.socket_path, found(), timeout_seconds=20)
    assert str(told.value) == (
        f"the daemon on {process.socket_path} is not on the goldens' configuration ({other}): start one on what sidecar"
        " conformance --write-config DIR writes"
    )


async def test_the_right_one_and_one_that_knows_no_status_are_played_against(daemon: Process, tmp_path: Path) -> None:
    await check_configured(daemon.socket_path, found(), timeout_seconds=20)
    unknown = {"schema_id": "gamecult.model.transport_error.v1", "code": "unknown_schema"}
    async with altered(daemon, tmp_path, on("status_report", lambda _: [wire.write(unknown)])) as path:
        await check_configured(path, found(), timeout_seconds=20)
