"""Plays conversations against a running daemon, one connection and one verdict each.

Within one write the answers may come in any order of the requests, as they
finish; what belongs to one request comes in its order. Live events are compared
joined, for a text may be cut into pieces anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from sidecar.conformance.daemon_vectors import CALLER, NOT_COMPARED, Conversation, Plain, Terms, Write
from sidecar.conformance.differences import difference, shown, value_difference
from sidecar.conformance.fresh import canonical, decoded
from sidecar.conformance.verdicts import Verdict
from sidecar.contract.client_frames import PROTOCOL, TRANSPORT_EVENT, TRANSPORT_HELLO, TransportWelcome
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, framed

_RECEIVE_BYTES_MAX: Final = 65_536
_FRAME_BYTES_DEFAULT: Final = 4_194_304  # where the daemon knows no hello
_welcomes: Final = msgspec.msgpack.Decoder(TransportWelcome)


class NoDaemon(Exception):
    """Nothing that can be played against is on the socket; the message says why."""


class _Wrong(Exception):
    """A vector failed; the lines say how."""

    def __init__(self, *why: str) -> None:
        super().__init__(*why)
        self.why = why


class _Line:
    """One connection to the daemon."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._splitter = FrameSplitter(FRAME_BYTES_LIMIT)

    async def send(self, sent: bytes) -> None:
        with suppress(trio.BrokenResourceError):  # a daemon that cuts the connection has said why
            await self._stream.send_all(sent)

    async def end(self) -> None:
        with suppress(trio.BrokenResourceError, OSError):
            await self._stream.send_eof()

    async def frame(self) -> bytes | None:
        """The next frame; None where the daemon has closed."""
        while (frame := self._next()) is None:
            try:
                received = await self._stream.receive_some(_RECEIVE_BYTES_MAX)
            except trio.BrokenResourceError:
                received = b""
            if not received:
                if self._splitter.in_frame:
                    raise _Wrong("the daemon closed in the middle of a frame")
                return None
            self._splitter.feed(received)
        return frame

    def _next(self) -> bytes | None:
        try:
            return self._splitter.next_frame()
        except FrameSize as fault:
            raise _Wrong(f"what the daemon sends is no frame: {fault}") from None


async def first_answer(socket: Path, frame: bytes, *, timeout_seconds: float) -> bytes | None:
    """What the daemon answers to this first frame of a connection; None where nothing comes. Raises NoDaemon."""
    with trio.move_on_after(timeout_seconds):
        try:
            async with await trio.open_unix_socket(str(socket)) as stream:
                line = _Line(stream)
                await line.send(framed(frame))
                return await line.frame()
        except (OSError, ValueError) as error:
            raise NoDaemon(f"no daemon on {socket}: {error}") from None
        except _Wrong as wrong:
            raise NoDaemon(f"what listens on {socket} is no daemon: {wrong}") from None
    return None


async def terms_of(socket: Path, *, timeout_seconds: float) -> Terms:
    """What this daemon says of itself. Raises NoDaemon, also where the peer can't play the transcripts' caller."""
    hello = {"schema_id": TRANSPORT_HELLO, "client": "conformance", "join": False, "protocol": PROTOCOL,
             "stream_events": False}  # fmt: skip
    answer = await first_answer(socket, canonical(hello), timeout_seconds=timeout_seconds)
    if answer is None:
        raise NoDaemon(f"what listens on {socket} does not answer a hello within {timeout_seconds:g} s")
    now = time.time_ns() // 1_000_000
    try:
        welcome = _welcomes.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        value = decoded(answer)
        if isinstance(value, dict) and value.get("code") == "unknown_schema":
            return Terms(_FRAME_BYTES_DEFAULT, now)
        raise NoDaemon(
            f"what listens on {socket} answers a hello with {shown(answer if value is None else value)}"
        ) from None
    if CALLER not in welcome.callers:
        raise NoDaemon(
            f"the daemon on {socket} does not let this user call as {CALLER}: start one on what"
            " sidecar conformance --write-config DIR writes"
        )
    return Terms(welcome.frame_bytes_max, now)


async def played(
    conversations: Iterable[Conversation], socket: Path, terms: Terms, *, timeout_seconds: float,
    tell: Callable[[Verdict], None],
) -> None:  # fmt: skip
    """Every conversation, one after the other; each has `timeout_seconds`."""
    for conversation in conversations:
        now = time.time_ns() // 1_000_000
        tell(await _played(conversation, socket, Terms(terms.frame_bytes_max, now), timeout_seconds))


async def _played(conversation: Conversation, socket: Path, terms: Terms, timeout_seconds: float) -> Verdict:
    begun = conversation.begun(terms)
    if isinstance(begun, str):
        return Verdict(conversation.name, "not_played", (begun,))
    at = ["connecting"]
    with trio.move_on_after(timeout_seconds):
        try:
            async with await trio.open_unix_socket(str(socket)) as stream:
                await _conversed(_Line(stream), begun, at)
        except OSError as error:
            return Verdict(conversation.name, "failed", (f"no connection: {error}",))
        except _Wrong as wrong:
            return Verdict(conversation.name, "failed", (*at, *wrong.why))
        return Verdict(conversation.name, "passed")
    return Verdict(conversation.name, "failed", (*at, f"nothing more came within {timeout_seconds:g} s"))


async def _conversed(line: _Line, writes: Iterable[Write], at: list[str]) -> None:
    for number, write in enumerate(writes, 1):
        at[:] = [f"write {number}: {write.comment}", f"sent: {_told(write.sent)}"]
        await line.send(write.sent)
        _compare(write.answers, await _answers(line, write.answers))
    at[:] = ["at the end: the daemon closes once the client has"]
    await line.end()
    more = await line.frame()
    if more is not None:
        raise _Wrong(f"got one frame more: {shown(decoded(more))}")


def _told(sent: bytes) -> str:
    whole = f"{len(sent)} bytes"
    return whole if len(sent) > 64 else f"{whole}, {sent.hex(' ', 4)}"


def _is_live(value: Any) -> bool:
    return isinstance(value, dict) and value.get("schema_id") == TRANSPORT_EVENT


async def _answers(line: _Line, expected: tuple[Plain, ...]) -> list[Plain]:
    """As many frames as are expected; live events may be cut otherwise, and end with their request's result."""
    answers: list[Plain] = []
    while not _are_all(expected, answers):
        frame = await line.frame()
        if frame is None:
            came = _all_shown(answers) if answers else "nothing"
            raise _Wrong(f"expected: {_all_shown(expected)}", f"got:      {came}, and then the daemon closed")
        value = decoded(frame)
        if not isinstance(value, dict):
            raise _Wrong("expected: a map", f"got: {shown(frame)}")
        if where := difference(canonical(value), frame):
            raise _Wrong(f"expected: canonical bytes of {shown(value)}", f"differs: {where}")
        answers.append(value)
    return answers


def _are_all(expected: tuple[Plain, ...], answers: list[Plain]) -> bool:
    """Whether nothing more is to be waited for before the two are compared."""
    left = sum(not _is_live(one) for one in expected) - sum(not _is_live(one) for one in answers)
    if left > 0 or not expected or not _is_live(expected[-1]):
        return left <= 0
    texts = [sum(len(one["event"]["payload"].get("TextDelta", {}).get("text", ".")) for one in these if _is_live(one))
             for these in (expected, answers)]  # fmt: skip
    return texts[1] >= texts[0]


def _compare(expected: tuple[Plain, ...], got: list[Plain]) -> None:
    wanted, there = _by_request(expected), _by_request(got)
    if wanted.keys() != there.keys():
        raise _Wrong(f"expected: {_all_shown(expected)}", f"got:      {_all_shown(got)}")
    for key, answers in wanted.items():
        for at, answer in enumerate(answers):
            came = there[key][at] if at < len(there[key]) else None
            where = value_difference(_compared(answer), _compared(came)) if came is not None else "it did not come"
            if where:
                raise _Wrong(f"expected: {shown_whole(answer)}", f"got:      {shown_whole(came)}", f"differs: {where}")
        if len(there[key]) > len(answers):
            raise _Wrong(f"got one answer more: {shown_whole(there[key][len(answers)])}")


def _all_shown(values: Iterable[Plain]) -> str:
    return " | ".join(shown_whole(one) for one in values)


def shown_whole(value: Any) -> str:
    """What a disposition or a code says, before the rest."""
    if isinstance(value, dict) and "disposition" in value and "Refused" in value["disposition"]:
        return f"Refused({value['disposition']['Refused']}) for {value.get('request_id')}"
    if isinstance(value, dict) and "code" in value:
        return f"transport_error {value['code']}" + (f" ({value['message']})" if value.get("message") else "")
    return shown(value)


def _by_request(values: Iterable[Plain]) -> dict[tuple[Any, Any], list[Plain]]:
    """The answers of each request in their order, the pieces of a live text joined."""
    grouped: dict[tuple[Any, Any], list[Plain]] = {}
    for value in values:
        answers = grouped.setdefault((value.get("caller_runtime_id"), value.get("request_id")), [])
        if answers and (joined := _joined(answers[-1], value)):
            answers[-1] = joined
        else:
            answers.append(value)
    return grouped


def _joined(before: Plain, value: Plain) -> Plain | None:
    if not (_is_live(before) and _is_live(value)) or before["event"]["sequence"] != value["event"]["sequence"]:
        return None
    pieces = [one["event"]["payload"].get("TextDelta", {}).get("text") for one in (before, value)]
    if None in pieces:
        return None
    return {**before, "event": {**before["event"], "payload": {"TextDelta": {"text": "".join(pieces)}}}}


def _compared(value: Plain) -> Any:
    left: Any = value
    for path in NOT_COMPARED.get(str(value.get("schema_id")), ()):
        left = _without(left, path)
    return left


def _without(value: Any, path: tuple[str, ...]) -> Any:
    if path[0] == "*":
        return [_without(inner, path[1:]) for inner in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: inner for key, inner in value.items() if key != path[0]}
    return {**value, path[0]: _without(value[path[0]], path[1:])}
