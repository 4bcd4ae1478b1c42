"""What a vector for a client is made of: the actions that its driver is told, and what a daemon does meanwhile.

A scene is made when it is played, because invocations carry an expiry. The
bytes that a client must send are made here from the published values, so a
scene says what is right without asking any client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from sidecar.conformance.driver_lines import plain
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.contract.client_frames import (
    TRANSPORT_CANCEL,
    TRANSPORT_EVENT,
    TRANSPORT_QUOTE,
    TRANSPORT_STATUS,
    LiveEvent,
    TransportCancel,
    TransportQuote,
    TransportStatus,
)

if TYPE_CHECKING:
    from sidecar.conformance.stage import Line, Stage

CALLER: Final = "dungeon"
EXPIRY_MS: Final = 60_000
SHORT_EXPIRY_MS: Final = 1_000  # where a client is to give up
BUDGET_MICRO_USD: Final = 100_000
NO_ANSWER: Final = {"no_answer": "in the client's own words"}

Plain = dict[str, Any]


class Action(Struct, frozen=True, kw_only=True):
    """One thing that a client is to do.

    `said` is what the driver is told, `frame` what must come on the socket, and
    `ends` the outcomes that are right, any of them. `told` are the events that a
    stream must have told where they are not those of its result.
    """

    said: Plain
    frame: bytes
    ends: tuple[Plain, ...] = ()
    invocation: v.TransportInvocation | None = None
    told: tuple[v.TransportEvent, ...] | None = None

    @property
    def do(self) -> str:
        return str(self.said["do"])

    def ending(self, *ends: Plain) -> Action:
        return structs.replace(self, ends=ends)


class Scene(Struct, frozen=True, kw_only=True):
    """`serves` is what the daemon does, over when the vector's part of it is over; without it nothing is asked of it.

    `greets` sees every connection first, and says whether it is served at all.
    An `endless` one does the same for as long as the client likes. Nobody
    listens where `listens_after_ms` is None; `callers` are the welcome's.
    `parting` answers a hello in place of the welcome, and the connection ends.
    """

    actions: tuple[Action, ...]
    serves: Callable[[Stage], Awaitable[None]] | None = None
    greets: Callable[[Line], Awaitable[bool]] | None = None
    endless: bool = False
    listens_after_ms: int | None = 0
    callers: tuple[str, ...] = (CALLER,)
    server: str = "conformance"
    parting: bytes | None = None
    caller: str | None = CALLER


class ClientVector(Struct, frozen=True):
    """`claims` are what a client has to claim besides invoke; `scene` takes the wall clock in Unix milliseconds."""

    name: str
    claims: frozenset[str]
    scene: Callable[[int], Scene]


# --- values -----------------------------------------------------------------------------------------------------


def request(request_id: str = "turn-1", text: str = "Who goes there?", **changes: Any) -> v.ProviderRequest:
    members: dict[str, Any] = {
        "schema_id": v.PROVIDER_REQUEST,
        "request_id": request_id,
        "conversation_id": "tavern",
        "model": "npc-fast",
        "instructions": "",
        "input": (v.InputItem(user_text=v.UserText(text=text)),),
        "tools": (),
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 512,
    }
    return v.ProviderRequest(**{**members, **changes})


def invocation(
    asked: v.ProviderRequest, expires_at_unix_ms: int, *, caller: str = CALLER, native: v.Digest | None = None
) -> v.TransportInvocation:
    digest = canonical.digest(canonical.encode(asked))
    return v.TransportInvocation(
        schema_id=v.TRANSPORT_INVOCATION,
        caller_runtime_id=caller,
        expires_at_unix_ms=expires_at_unix_ms,
        max_cost_micro_usd=BUDGET_MICRO_USD,
        native_request_sha256=native or digest,
        provider_request_sha256=digest,
        request=asked,
    )


def said_of(do: str, asked: v.TransportInvocation, *, by_itself: bool = False) -> Plain:
    """What a driver is told; `by_itself` leaves the native digest to the client."""
    return {
        "do": do,
        "request": plain(asked.request),
        "expires_at_unix_ms": asked.expires_at_unix_ms,
        "max_cost_micro_usd": asked.max_cost_micro_usd,
        "native_request_sha256": None if by_itself else list(asked.native_request_sha256),
    }


def invoke(asked: v.TransportInvocation, *, do: str = "invoke") -> Action:
    by_itself = asked.native_request_sha256 == asked.provider_request_sha256
    return Action(said=said_of(do, asked, by_itself=by_itself), frame=canonical.encode(asked), invocation=asked)


def stream(asked: v.TransportInvocation) -> Action:
    return invoke(asked, do="stream")


def quote(asked: v.TransportInvocation) -> Action:
    frame = canonical.encode(TransportQuote(schema_id=TRANSPORT_QUOTE, invocation=asked))
    return Action(said=said_of("quote", asked), frame=frame, invocation=asked)


def status() -> Action:
    return Action(said={"do": "status"}, frame=canonical.encode(TransportStatus(schema_id=TRANSPORT_STATUS)))


def cancel(request_id: str, caller: str = CALLER, *, once_told: int | None = None) -> Action:
    """`once_told`: only when the driver has told of a live event of that action."""
    frame = TransportCancel(schema_id=TRANSPORT_CANCEL, caller_runtime_id=caller, request_id=request_id)
    said = {"do": "cancel", "request_id": request_id, **({} if once_told is None else {"once_told": once_told})}
    return Action(said=said, frame=canonical.encode(frame), ends=({"cancelled": True},))


# --- answers ----------------------------------------------------------------------------------------------------


def text_delta(text: str) -> v.TransportEventPayload:
    return v.TransportEventPayload(text_delta=v.TextDelta(text=text))


def event(sequence: int, payload: v.TransportEventPayload) -> v.TransportEvent:
    return v.TransportEvent(sequence=sequence, payload=payload)


COMPLETED: Final = v.TransportOutcome(
    completed=v.Completed(
        stop_reason="end_turn",
        usage=v.Usage(input_tokens=12, cache_read_tokens=0, cache_write_tokens=0, output_tokens=5),
        provider_response_id="answer-1",
    )
)


def result_to(
    asked: v.TransportInvocation, *events: v.TransportEvent, outcome: v.TransportOutcome = COMPLETED
) -> v.TransportResult:
    receipt = v.TransportReceipt(
        schema_id=v.TRANSPORT_RECEIPT,
        caller_runtime_id=asked.caller_runtime_id,
        cost_micro_usd=4104,
        foreign_reasoning_dropped=0,
        model=asked.request.model,
        native_request_sha256=asked.native_request_sha256,
        outcome=outcome,
        provider="echo",
        provider_request_sha256=asked.provider_request_sha256,
        request_id=asked.request.request_id,
    )
    return v.TransportResult(
        schema_id=v.TRANSPORT_RESULT,
        caller_runtime_id=asked.caller_runtime_id,
        request_id=asked.request.request_id,
        disposition=v.TransportDisposition(transported=v.Transported(events=events, receipt=receipt)),
    )


def answer_to(asked: v.TransportInvocation, text: str = "Only me. \U0001f409") -> v.TransportResult:
    return result_to(asked, event(0, text_delta(text)))


def end_of(result: v.TransportResult) -> Plain:
    """The outcome that a driver must give for this result."""
    disposition: Plain = plain(result.disposition)
    if "Refused" in disposition:
        return {"refused": disposition["Refused"]}
    return {"transported": disposition["Transported"]}


def live(asked: v.TransportInvocation, one: v.TransportEvent) -> bytes:
    return canonical.encode(
        LiveEvent(
            schema_id=TRANSPORT_EVENT,
            caller_runtime_id=asked.caller_runtime_id,
            request_id=asked.request.request_id,
            event=one,
        )
    )


def error(code: v.TransportErrorCode, asked: v.TransportInvocation | None = None) -> bytes:
    return canonical.encode(
        v.TransportError(
            schema_id=v.TRANSPORT_ERROR,
            code=code,
            message="a sentence for a person",
            caller_runtime_id=asked.caller_runtime_id if asked else None,
            request_id=asked.request.request_id if asked else None,
        )
    )


def joined(events: Sequence[Plain]) -> list[Plain]:
    """Plain events with the pieces of each text put together."""
    whole: list[Plain] = []
    for one in events:
        before = whole[-1] if whole else None
        if before and before["sequence"] == one["sequence"] and _is_text(before) and _is_text(one):
            text = before["payload"]["TextDelta"]["text"] + one["payload"]["TextDelta"]["text"]
            whole[-1] = {**before, "payload": {"TextDelta": {"text": text}}}
        else:
            whole.append(one)
    return whole


def _is_text(one: Plain) -> bool:
    return isinstance(one["payload"], dict) and "TextDelta" in one["payload"]
