"""Vectors about the connection: split frames, answers out of order, lost connections, and what is no daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from sidecar.conformance.scenes import (
    EXPIRY_MS,
    NO_ANSWER,
    SHORT_EXPIRY_MS,
    ClientVector,
    Plain,
    Scene,
    answer_to,
    end_of,
    error,
    event,
    invocation,
    invoke,
    live,
    request,
    text_delta,
)
from sidecar.conformance.stage import Line, Stage
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.rules.framing import framed

Serves = Callable[[Stage], Any]
_CUT: Final = (1, 2, 3, 4, 5, 6, 7, 40, 41)  # in the length, behind it, and in the middle of words


def wire_vectors() -> Iterator[ClientVector]:
    for name, (claims, scene) in _SCENES.items():
        yield ClientVector(name, frozenset(claims), scene)
    for name, garbage in _GARBAGE.items():
        yield ClientVector(f"no daemon/{name}, as the answer", frozenset(), _garbage_answer(garbage))
        yield ClientVector(f"no daemon/{name}, at once", frozenset(), _garbage_at_once(garbage))


def _one(now_unix_ms: int, serves: Serves, *ends: Plain, expiry_ms: int = EXPIRY_MS, **changes: Any) -> Scene:
    """A single request; without `ends` its answer is right."""
    asked = invocation(request(), now_unix_ms + expiry_ms)
    action = invoke(asked).ending(*(ends or (end_of(answer_to(asked)),)))
    return Scene(actions=(action,), serves=serves, **changes)


def _two(now_unix_ms: int, serves: Serves) -> Scene:
    asked = [invocation(request(f"turn-{at}"), now_unix_ms + EXPIRY_MS) for at in (1, 2)]
    actions = [invoke(one).ending(end_of(_answer(at, one))) for at, one in enumerate(asked)]
    return Scene(actions=tuple(actions), serves=serves)


def _answer(at: int, asked: v.TransportInvocation) -> v.TransportResult:
    return answer_to(asked, f"Answer {at}.")


def _bytes_of(stage: Stage, at: int, *, numbered: bool = False) -> bytes:
    """The right answer to an action."""
    asked = stage.scene.actions[at].invocation
    assert asked is not None
    return canonical.encode(_answer(at, asked) if numbered else answer_to(asked))


# --- frames -----------------------------------------------------------------------------------------------------


async def _byte_by_byte(stage: Stage) -> None:
    arrival = await stage.asked()
    answer = framed(_bytes_of(stage, 0))
    await arrival.line.send_in_pieces(answer, range(1, len(answer)))


async def _in_pieces(stage: Stage) -> None:
    arrival = await stage.asked()
    answer = framed(_bytes_of(stage, 0))
    await arrival.line.send_in_pieces(answer, [*_CUT, len(answer) - 1])


async def _in_one_write(stage: Stage) -> None:
    arrivals = [await stage.asked(at) for at in (0, 1)]
    if arrivals[0].line is arrivals[1].line:
        await arrivals[0].line.send(*(_bytes_of(stage, at, numbered=True) for at in (0, 1)))
        return
    for at, arrival in enumerate(arrivals):
        await arrival.line.send(_bytes_of(stage, at, numbered=True))


async def _out_of_order(stage: Stage) -> None:
    first, second = await stage.asked(0), await stage.asked(1)
    await second.line.send(_bytes_of(stage, 1, numbered=True))
    await first.line.send(_bytes_of(stage, 0, numbered=True))


async def _cut_across(stage: Stage) -> None:
    """One answer and the begin of the next in one write, the rest later."""
    arrivals = [await stage.asked(at) for at in (0, 1)]
    whole, other = (framed(_bytes_of(stage, at, numbered=True)) for at in (0, 1))
    if arrivals[0].line is arrivals[1].line:
        await arrivals[0].line.send_in_pieces(whole + other, [len(whole) + 2, len(whole) + 9])
        return
    for sent, arrival in zip((whole, other), arrivals, strict=True):
        await arrival.line.send_in_pieces(sent, [2, 9])


# --- answers that are not ours ----------------------------------------------------------------------------------


def _before_the_answer(stray: Callable[[v.TransportInvocation], bytes]) -> Callable[[int], Scene]:
    """A frame that is not for this request, then its answer: the client may be right or give up, but not be wrong."""

    async def serves(stage: Stage) -> None:
        asked = stage.scene.actions[0].invocation
        assert asked is not None
        while True:
            arrival = await stage.asked()
            await arrival.line.send(stray(asked), _bytes_of(stage, 0))

    def scene(now_unix_ms: int) -> Scene:
        asked = invocation(request(), now_unix_ms + SHORT_EXPIRY_MS)
        action = invoke(asked).ending(end_of(answer_to(asked)), NO_ANSWER)
        return Scene(actions=(action,), serves=serves, endless=True)

    return scene


def _to_another_request(asked: v.TransportInvocation) -> bytes:
    return canonical.encode(answer_to(_another(asked, "turn-9"), "Not for you."))


def _to_another_caller(asked: v.TransportInvocation) -> bytes:
    return canonical.encode(answer_to(structs.replace(asked, caller_runtime_id="tavern"), "Not for you."))


def _refused_to_another(asked: v.TransportInvocation) -> bytes:
    return canonical.encode(v.refused(asked.caller_runtime_id, "turn-9", "CostBound"))


def _error_of_another(asked: v.TransportInvocation) -> bytes:
    return error("internal", _another(asked, "turn-9"))


def _event_of_another(asked: v.TransportInvocation) -> bytes:
    return live(_another(asked, "turn-9"), event(0, text_delta("Not for you.")))


def _unknown_schema(_: v.TransportInvocation) -> bytes:
    return b"\x81\xa9schema_id\xbfgamecult.model.unheard_of.v1.xyz"


def _another(asked: v.TransportInvocation, request_id: str) -> v.TransportInvocation:
    return structs.replace(asked, request=structs.replace(asked.request, request_id=request_id))


# --- lost connections -------------------------------------------------------------------------------------------


async def _lost_once(stage: Stage) -> None:
    await (await stage.asked()).line.hang_up()
    await (await stage.asked()).line.send(_bytes_of(stage, 0))


async def _lost_thrice(stage: Stage) -> None:
    for _ in range(3):
        await (await stage.asked()).line.hang_up()
    await (await stage.asked()).line.send(_bytes_of(stage, 0))


async def _half_an_answer(stage: Stage) -> None:
    arrival = await stage.asked()
    answer = framed(_bytes_of(stage, 0))
    await arrival.line.send_raw(answer[: len(answer) // 2])
    await arrival.line.hang_up()
    await (await stage.asked()).line.send_raw(answer)


async def _lost_with_two(stage: Stage) -> None:
    """The first is answered, then the connection goes: only the second is sent again."""
    arrivals = [await stage.asked(at) for at in (0, 1)]
    await arrivals[0].line.send(_bytes_of(stage, 0, numbered=True))
    await arrivals[1].line.hang_up()
    await (await stage.asked(1)).line.send(_bytes_of(stage, 1, numbered=True))


async def _lost_with_both(stage: Stage) -> None:
    arrivals = [await stage.asked(at) for at in (0, 1)]
    for arrival in arrivals:
        await arrival.line.hang_up()
    for at in (1, 0):
        await (await stage.asked(at)).line.send(_bytes_of(stage, at, numbered=True))


async def _refused_the_second_time(stage: Stage) -> None:
    await (await stage.asked()).line.hang_up()
    await (await stage.asked()).line.send(canonical.encode(v.refused("dungeon", "turn-1", "Indeterminate")))


async def _always_lost(stage: Stage) -> None:
    while True:
        await (await stage.asked()).line.hang_up()


async def _answered(stage: Stage) -> None:
    await (await stage.asked()).line.send(_bytes_of(stage, 0))


async def _second_time_lucky(line: Line) -> bool:
    if line.number == 0:
        await line.hang_up()
    return line.number > 0


async def _not_admitted(line: Line) -> bool:
    await line.send(error("not_admitted"))
    await line.hang_up()
    return False


def _other_protocol(now_unix_ms: int) -> Scene:
    """Said to a hello; a client that says none is answered."""
    asked = invocation(request(), now_unix_ms + EXPIRY_MS)
    ends = ({"transport_error": "unsupported_protocol"}, end_of(answer_to(asked)))
    return _one(now_unix_ms, _answered, *ends, parting=error("unsupported_protocol"), endless=True)


def _nobody(now_unix_ms: int) -> Scene:
    scene = _one(now_unix_ms, _answered, NO_ANSWER, expiry_ms=SHORT_EXPIRY_MS, listens_after_ms=None)
    return structs.replace(scene, serves=None)


def _two_callers(now_unix_ms: int) -> Scene:
    """Which of them it is can't be known, so nothing is sent, and the program is told."""
    scene = _one(
        now_unix_ms, _answered, NO_ANSWER, expiry_ms=SHORT_EXPIRY_MS, caller=None, callers=("dungeon", "tavern")
    )
    return structs.replace(scene, serves=None)


_SCENES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[int], Scene]]]] = {
    "frames/the answer, one byte at a time": ((), lambda now: _one(now, _byte_by_byte)),
    "frames/the answer in pieces": ((), lambda now: _one(now, _in_pieces)),
    "frames/two answers in one write": (("concurrent",), lambda now: _two(now, _in_one_write)),
    "frames/one answer and the begin of the next": (("concurrent",), lambda now: _two(now, _cut_across)),
    "order/the second answer first": (("concurrent",), lambda now: _two(now, _out_of_order)),
    "strays/an answer to another request": ((), _before_the_answer(_to_another_request)),
    "strays/an answer to another caller": ((), _before_the_answer(_to_another_caller)),
    "strays/a refusal of another request": ((), _before_the_answer(_refused_to_another)),
    "strays/an error of another request": ((), _before_the_answer(_error_of_another)),
    "strays/a live event of another request": ((), _before_the_answer(_event_of_another)),
    "strays/a frame of an unknown schema": ((), _before_the_answer(_unknown_schema)),
    "lost/in mid-request": (("resend",), lambda now: _one(now, _lost_once)),
    "lost/in mid-request, three times": (("resend",), lambda now: _one(now, _lost_thrice)),
    "lost/before anything is read": (("resend",), lambda now: _one(now, _answered, greets=_second_time_lucky)),
    "lost/in the middle of the answer": (("resend",), lambda now: _one(now, _half_an_answer)),
    "lost/with one of two answered": (("resend", "concurrent"), lambda now: _two(now, _lost_with_two)),
    "lost/with two requests": (("resend", "concurrent"), lambda now: _two(now, _lost_with_both)),
    "lost/and refused then": (
        ("resend",),
        lambda now: _one(now, _refused_the_second_time, {"refused": "Indeterminate"}),
    ),
    "lost/again and again": (
        (),
        lambda now: _one(now, _always_lost, NO_ANSWER, expiry_ms=SHORT_EXPIRY_MS, endless=True),
    ),
    "lost/nobody listens": ((), _nobody),
    "lost/nobody listens yet": (("resend",), lambda now: _one(now, _answered, listens_after_ms=300)),
    "lost/not admitted": (
        (),
        lambda now: _one(now, _answered, {"transport_error": "not_admitted"}, greets=_not_admitted, endless=True),
    ),
    "welcome/another protocol is spoken": ((), _other_protocol),
    "welcome/many callers, and ours is named": (
        (),
        lambda now: _one(now, _answered, callers=tuple(sorted([*(f"caller-{at}" for at in range(20)), "dungeon"]))),
    ),
    "welcome/a server in any script": (
        (),
        lambda now: _one(now, _answered, server="\u05e9\u05dc\u05d5\u05dd \U0001f409"),
    ),
    "welcome/the only caller": (("welcome",), lambda now: _one(now, _answered, caller=None)),
    "welcome/two callers": (("welcome",), _two_callers),
}


# --- what is no daemon ------------------------------------------------------------------------------------------

_DEEP: Final = 50_000  # levels, which no stack has
_RESULT_SCHEMA: Final = b"\xa9schema_id\xd9" + bytes([len(v.TRANSPORT_RESULT)]) + v.TRANSPORT_RESULT.encode()
_GARBAGE: Final[Mapping[str, bytes]] = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "TLS": bytes.fromhex("15030100020246"),
    "a line of text": b"220 mail.example ESMTP\r\n",
    "a length of zero": bytes(4),
    "a length above every bound": b"\x01\x00\x00\x00" + bytes(64),
    "the greatest of lengths": b"\xff" * 64,
    "a frame that is no map": framed(b"\x93\x01\x02\x03"),
    "a frame that is nil": framed(b"\xc0"),
    "a frame that is no MessagePack": framed(b"\xc1\xc1\xc1\xc1"),
    "a frame that is cut inside": framed(b"\x82\xa9schema_id"),
    "a frame that is nested deeply": framed(b"\x91" * _DEEP + b"\xc0"),
    "maps that are nested deeply": framed(b"\x81\xa1x" * _DEEP + b"\xc0"),
    "a result that is nested deeply": framed(
        b"\x82\xabdisposition" + b"\x81\xabTransported" * _DEEP + b"\xc0" + _RESULT_SCHEMA
    ),
    "a map without schema_id": framed(b"\x80"),
    "a schema_id that is no string": framed(b"\x81\xa9schema_id\x01"),
}


def _garbage_answer(garbage: bytes) -> Callable[[int], Scene]:
    async def serves(stage: Stage) -> None:
        while True:
            arrival = await stage.asked()
            await arrival.line.send_raw(garbage)
            await arrival.line.hang_up()

    return lambda now: _one(now, serves, NO_ANSWER, expiry_ms=SHORT_EXPIRY_MS, endless=True)


def _garbage_at_once(garbage: bytes) -> Callable[[int], Scene]:
    async def greets(line: Line) -> bool:
        await line.send_raw(garbage)
        await line.hang_up()
        return False

    return lambda now: _one(now, _answered, NO_ANSWER, expiry_ms=SHORT_EXPIRY_MS, greets=greets, endless=True)
