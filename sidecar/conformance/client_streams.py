"""Vectors about live events: handed over as they come, and together exactly what the result says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from sidecar.conformance.scenes import (
    EXPIRY_MS,
    ClientVector,
    Plain,
    Scene,
    end_of,
    event,
    invocation,
    live,
    request,
    result_to,
    stream,
    text_delta,
)
from sidecar.conformance.stage import Arrival, Stage
from sidecar.contract import canonical
from sidecar.contract import values as v

Serves = Callable[[Stage], Any]
_WHOLE: Final = "A staircase \U0001f409 leads down."
_PIECES: Final = ("A stair", "case \U0001f409 ", "leads down.")
_CALL: Final = v.TransportEventPayload(tool_call=v.ToolCall(call_id="call_1", name="look", arguments='{"at":"door"}'))
_STATE: Final = v.TransportEventPayload(reasoning_state=v.EmittedReasoningState(state=bytes(range(256))))
_FAILED: Final = v.TransportOutcome(failed=v.Failed(kind="unavailable", message="the stream was cut"))

_TOO_LARGE: Final = v.TransportOutcome(failed=v.Failed(kind="result_size", message="more than a result may have"))

_TEXT: Final = (event(0, text_delta(_WHOLE)),)
_MIXED: Final = (event(0, _STATE), event(1, text_delta(_WHOLE)), event(2, _CALL), event(3, text_delta("Go on.")))


def stream_vectors() -> Iterator[ClientVector]:
    for name, (claims, scene) in _SCENES.items():
        yield ClientVector(f"streams/{name}", frozenset({"stream", *claims}), scene)


def _one(events: tuple[v.TransportEvent, ...], serves: Serves, **terms: Any) -> Callable[[int], Scene]:
    """One streamed request whose result holds these events."""

    def scene(now_unix_ms: int) -> Scene:
        asked = invocation(request(), now_unix_ms + EXPIRY_MS)
        end = end_of(result_to(asked, *events, **terms))
        return Scene(actions=(stream(asked).ending(end),), serves=serves)

    return scene


def _asked(arrival: Arrival) -> v.TransportInvocation:
    assert arrival.action.invocation is not None
    return arrival.action.invocation


async def _send(arrival: Arrival, *events: v.TransportEvent) -> None:
    if not arrival.line.streams:
        return  # as a daemon does: after a lost connection a client may do without
    await arrival.line.send(*(live(_asked(arrival), one) for one in events))


async def _end(arrival: Arrival, events: tuple[v.TransportEvent, ...], **terms: Any) -> None:
    await arrival.line.send(canonical.encode(result_to(_asked(arrival), *events, **terms)))


def _piece(at: int, sequence: int = 0) -> v.TransportEvent:
    return event(sequence, text_delta(_PIECES[at]))


# --- one request ------------------------------------------------------------------------------------------------


async def _in_pieces(stage: Stage) -> None:
    """Each piece must have been told before the next is sent."""
    arrival = await stage.asked()
    for at in range(len(_PIECES)):
        await _send(arrival, _piece(at))
        await stage.handed(0, *map(_piece, range(at + 1)))
    await _end(arrival, _TEXT)


async def _each_kind(stage: Stage) -> None:
    arrival = await stage.asked()
    pieces = [event(0, _STATE), *(_piece(at, 1) for at in range(3)), event(2, _CALL), event(3, text_delta("Go on."))]
    await _send(arrival, *pieces)
    await stage.handed(0, *pieces)
    await _end(arrival, _MIXED)


async def _one_byte_at_a_time(stage: Stage) -> None:
    arrival = await stage.asked()
    sent = b"".join(len(one).to_bytes(4, "big") + one for one in (live(_asked(arrival), _piece(at)) for at in range(3)))
    await arrival.line.send_in_pieces(sent, range(1, len(sent)))
    await stage.handed(0, *map(_piece, range(3)))
    await _end(arrival, _TEXT)


async def _with_the_result(stage: Stage) -> None:
    """The events and the result in one write."""
    arrival = await stage.asked()
    frames = [live(_asked(arrival), _piece(at)) for at in range(3)]
    await arrival.line.send(*frames, canonical.encode(result_to(_asked(arrival), *_TEXT)))


async def _rest_dropped(stage: Stage) -> None:
    """A slow reader's events are dropped: the result has the rest of the text, and what came after it."""
    arrival = await stage.asked()
    await _send(arrival, event(0, _STATE), _piece(0, 1))
    await stage.handed(0, event(0, _STATE), _piece(0, 1))
    await _end(arrival, _MIXED)


async def _gap(stage: Stage) -> None:
    """Events between were dropped: what came after the gap may not be told before them."""
    arrival = await stage.asked()
    await _send(arrival, event(0, _STATE))
    await stage.handed(0, event(0, _STATE))
    await _send(arrival, event(2, _CALL))
    await _end(arrival, _MIXED)


async def _first_dropped(stage: Stage) -> None:
    arrival = await stage.asked()
    await _send(arrival, event(2, _CALL))
    await _end(arrival, _MIXED)


async def _none_live(stage: Stage) -> None:
    """A replay sends none."""
    await _end(await stage.asked(), _MIXED)


async def _failed(stage: Stage) -> None:
    arrival = await stage.asked()
    await _send(arrival, _piece(0))
    await stage.handed(0, _piece(0))
    await _end(arrival, (_piece(0),), outcome=_FAILED)


async def _failed_with_nothing(stage: Stage) -> None:
    """The whole was too large to be recorded, so the result has no events; what was told is told."""
    arrival = await stage.asked()
    await _send(arrival, event(0, _STATE), _piece(0, 1))
    await stage.handed(0, event(0, _STATE), _piece(0, 1))
    await _end(arrival, (), outcome=_TOO_LARGE)


def _too_large(now_unix_ms: int) -> Scene:
    asked = invocation(request(), now_unix_ms + EXPIRY_MS)
    action = stream(asked).ending(end_of(result_to(asked, outcome=_TOO_LARGE)))
    told = (event(0, _STATE), _piece(0, 1))
    return Scene(actions=(structs.replace(action, told=told),), serves=_failed_with_nothing)


async def _refused(stage: Stage) -> None:
    arrival = await stage.asked()
    await arrival.line.send(canonical.encode(v.refused("dungeon", "turn-1", "Capacity")))


def _refusal(now_unix_ms: int) -> Scene:
    asked = invocation(request(), now_unix_ms + EXPIRY_MS)
    return Scene(actions=(stream(asked).ending({"refused": "Capacity"}),), serves=_refused)


# --- lost connections -------------------------------------------------------------------------------------------


async def _then_replayed(stage: Stage) -> None:
    arrival = await stage.asked()
    await _send(arrival, _piece(0))
    await stage.handed(0, _piece(0))
    await arrival.line.hang_up()
    await _end(await stage.asked(), _TEXT)


async def _then_joined(stage: Stage) -> None:
    """The request went on meanwhile: what comes live from here on begins in the middle."""
    arrival = await stage.asked()
    await _send(arrival, _piece(0))
    await stage.handed(0, _piece(0))
    await arrival.line.hang_up()
    again = await stage.asked()
    await _send(again, _piece(2))
    await _end(again, _TEXT)


async def _then_indeterminate(stage: Stage) -> None:
    """The daemon was killed in mid-stream: after its restart it can't know what the provider did."""
    arrival = await stage.asked()
    await _send(arrival, _piece(0))
    await stage.handed(0, _piece(0))
    await arrival.line.hang_up()
    again = await stage.asked()
    await again.line.send(canonical.encode(v.refused("dungeon", "turn-1", "Indeterminate")))


def _restarted(now_unix_ms: int) -> Scene:
    action = stream(invocation(request(), now_unix_ms + EXPIRY_MS)).ending({"refused": "Indeterminate"})
    return Scene(actions=(structs.replace(action, told=(_piece(0),)),), serves=_then_indeterminate)


# --- two requests -----------------------------------------------------------------------------------------------

_PAIR: Final = (("One ", "after ", "one."), ("Two ", "at ", "once."))


def _both(now_unix_ms: int) -> Scene:
    def streamed(at: int) -> Any:
        asked = invocation(request(f"turn-{at + 1}"), now_unix_ms + EXPIRY_MS)
        end: Plain = end_of(result_to(asked, event(0, text_delta("".join(_PAIR[at])))))
        return stream(asked).ending(end)

    return Scene(actions=(streamed(0), streamed(1)), serves=_interleaved)


async def _interleaved(stage: Stage) -> None:
    """A piece of each in turn; the second is answered first."""
    arrivals = [await stage.asked(at) for at in (0, 1)]
    for number in range(3):
        for at in (0, 1):
            await _send(arrivals[at], event(0, text_delta(_PAIR[at][number])))
            await stage.handed(at, *(event(0, text_delta(text)) for text in _PAIR[at][: number + 1]))
    for at in (1, 0):
        await _end(arrivals[at], (event(0, text_delta("".join(_PAIR[at]))),))


_SCENES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[int], Scene]]]] = {
    "a text in pieces": ((), _one(_TEXT, _in_pieces)),
    "every kind of event": ((), _one(_MIXED, _each_kind)),
    "one byte at a time": ((), _one(_TEXT, _one_byte_at_a_time)),
    "events and result in one write": ((), _one(_TEXT, _with_the_result)),
    "the rest was dropped": ((), _one(_MIXED, _rest_dropped)),
    "some in between were dropped": ((), _one(_MIXED, _gap)),
    "the first were dropped": ((), _one(_MIXED, _first_dropped)),
    "none came live": ((), _one(_MIXED, _none_live)),
    "a failed outcome": ((), _one((_piece(0),), _failed, outcome=_FAILED)),
    "a failed outcome without the events that came live": ((), _too_large),
    "a refusal": ((), _refusal),
    "the connection is lost, and the request has ended": (("resend",), _one(_TEXT, _then_replayed)),
    "the connection is lost, and the request runs on": (("resend",), _one(_TEXT, _then_joined)),
    "the connection is lost, and the daemon has crashed": (("resend",), _restarted),
    "two requests interleaved": (("concurrent",), _both),
}
