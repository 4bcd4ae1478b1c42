"""Every vector for a client: the published values first, then what only a whole conversation shows.

Encoding, requests on the socket, and every answer that a daemon can give, from
the goldens; `client_wire` and `client_streams` have the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from sidecar.conformance.client_streams import stream_vectors
from sidecar.conformance.client_wire import wire_vectors
from sidecar.conformance.driver_lines import plain
from sidecar.conformance.goldens import Goldens, NoGoldens, read_bytes, read_value
from sidecar.conformance.scenes import (
    EXPIRY_MS,
    NO_ANSWER,
    SHORT_EXPIRY_MS,
    Action,
    ClientVector,
    Plain,
    Scene,
    answer_to,
    cancel,
    end_of,
    event,
    invocation,
    invoke,
    live,
    quote,
    request,
    result_to,
    said_of,
    status,
    stream,
    text_delta,
)
from sidecar.conformance.stage import Stage
from sidecar.contract import canonical
from sidecar.contract import values as v
from sidecar.contract.client_frames import TransportCancel, TransportQuoted, TransportStatusReport

_INVOCATIONS: Final = "values/transport_invocation.v1.json"
_CLOSING: Final = frozenset(  # the daemon says this and closes
    {"not_admitted", "too_many_connections", "frame_size", "frame_timeout", "unsupported_protocol"}
)
_WITH_IDS: Final = frozenset({"ledger_unavailable", "shutting_down", "internal"})
_PASSING: Final = frozenset({"too_many_connections", "shutting_down", "frame_timeout", "ledger_unavailable"})


def client_vectors(goldens: Goldens) -> Iterator[ClientVector]:
    """All of them, simple ones first. Raises NoGoldens."""
    yield from _encodings(goldens)
    yield from _requests(goldens)
    yield from _results(goldens)
    yield from _errors(goldens)
    yield from wire_vectors()
    yield from stream_vectors()
    yield from _quotes(goldens)
    yield from _statuses(goldens)
    yield from _cancels(goldens)


def _typed(vector: Mapping[str, Any], type_: Any) -> Any:
    try:
        return msgspec.msgpack.decode(read_bytes(vector["canonical"]), type=type_)
    except msgspec.MsgspecError as error:
        raise NoGoldens(f"the golden {vector['name']!r} can't be read: {error}") from None


def answering(*answers: bytes) -> Callable[[Stage], Any]:
    """A daemon that gives these frames in one write, when the first action is asked."""

    async def serves(stage: Stage) -> None:
        arrival = await stage.asked(0)
        await arrival.line.send(*answers)

    return serves


# --- what a client sends ----------------------------------------------------------------------------------------


def _encodings(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors(_INVOCATIONS):
        value = read_value(vector["value"])
        yield _encoding(vector["name"], {**_members(value), "do": "encode"}, read_bytes(vector["canonical"]), value)
    asked = invocation(request(), 1_790_000_060_000)
    said = said_of("encode", asked, by_itself=True)
    value = plain(asked)
    yield _encoding("the native digest left to the client", said, canonical.encode(asked), value)


def _members(value: Plain) -> Plain:
    """What a driver is told of an invocation, nil members included."""
    names = ("request", "expires_at_unix_ms", "max_cost_micro_usd", "native_request_sha256")
    members: Plain = plain({name: value[name] for name in names})
    return members


def _encoding(name: str, said: Plain, frame: bytes, value: Plain) -> ClientVector:
    action = Action(said=said, frame=frame, ends=({"bytes": frame},))
    scene = Scene(actions=(action,), caller=value["caller_runtime_id"], listens_after_ms=None)
    return ClientVector(f"encode/{name}", frozenset({"encode"}), lambda _: scene)


_ON_THE_SOCKET: Final = (
    "the smallest",
    "every member",
    "optional members nil, which are left out",
    "text: emoji",
    "text: emoji of 65536 bytes",
    "state of 65536 bytes",
    "ids of every byte that they may hold",
    "max_cost_micro_usd 9007199254740993",
    "max_cost_micro_usd 18446744073709551615",
    "native digest 112 to 143, across the short integers",
)


def _requests(goldens: Goldens) -> Iterator[ClientVector]:
    by_name = {vector["name"]: vector for vector in goldens.vectors(_INVOCATIONS)}
    for name in _ON_THE_SOCKET:
        if name in by_name:
            yield ClientVector(f"requests/{name}", frozenset(), _asked_now(by_name[name]))


def _asked_now(vector: Mapping[str, Any]) -> Callable[[int], Scene]:
    value = read_value(vector["value"])
    recorded: v.TransportInvocation = _typed(vector, v.TransportInvocation)

    def scene(now_unix_ms: int) -> Scene:
        asked = structs.replace(recorded, expires_at_unix_ms=now_unix_ms + EXPIRY_MS)
        said = {**_members(value), "do": "invoke", "expires_at_unix_ms": asked.expires_at_unix_ms}
        answer = answer_to(asked)
        action = Action(said=said, frame=canonical.encode(asked), ends=(end_of(answer),))
        serves = answering(canonical.encode(answer))
        return Scene(
            actions=(action,), serves=serves, caller=asked.caller_runtime_id, callers=(asked.caller_runtime_id,)
        )

    return scene


# --- what a daemon answers --------------------------------------------------------------------------------------


def _results(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors("values/transport_result.v1.json"):
        yield ClientVector(f"results/{vector['name']}", frozenset(), _answered(_typed(vector, v.TransportResult)))
    for vector in goldens.vectors("values/transport_receipt.v1.json"):
        receipt: v.TransportReceipt = _typed(vector, v.TransportReceipt)
        result = v.TransportResult(
            schema_id=v.TRANSPORT_RESULT,
            caller_runtime_id=receipt.caller_runtime_id,
            request_id=receipt.request_id,
            disposition=v.TransportDisposition(transported=v.Transported(events=(), receipt=receipt)),
        )
        yield ClientVector(f"receipts/{vector['name']}", frozenset(), _answered(result))


def _answered(recorded: v.TransportResult) -> Callable[[int], Scene]:
    """The recorded result for a request of now: its digests are the only thing that changes."""
    caller = recorded.caller_runtime_id

    def scene(now_unix_ms: int) -> Scene:
        result, changes, native = recorded, {}, None
        if transported := recorded.disposition.transported:
            changes = {"model": transported.receipt.model}
            native = transported.receipt.native_request_sha256
        asked = invocation(
            request(recorded.request_id, **changes), now_unix_ms + EXPIRY_MS, caller=caller, native=native
        )
        if transported:
            receipt = structs.replace(transported.receipt, provider_request_sha256=asked.provider_request_sha256)
            whole = structs.replace(transported, receipt=receipt)
            result = structs.replace(recorded, disposition=v.TransportDisposition(transported=whole))
        action = invoke(asked).ending(end_of(result))
        return Scene(actions=(action,), serves=answering(canonical.encode(result)), caller=caller, callers=(caller,))

    return scene


def _errors(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors("values/transport_error.v1.json"):
        yield ClientVector(f"errors/{vector['name']}", frozenset(), _failing(_typed(vector, v.TransportError)))


def _failing(recorded: v.TransportError) -> Callable[[int], Scene]:
    """The same error each time, as the daemon gives it: with ids where it knows them, and the connection's end.

    A client may try again what passes by itself, so such an error may end as no answer, too.
    """
    code = recorded.code
    caller, request_id = recorded.caller_runtime_id or "dungeon", recorded.request_id or "turn-1"
    if code in _WITH_IDS:
        recorded = structs.replace(recorded, caller_runtime_id=caller, request_id=request_id)
    may_pass = code in _PASSING or (code not in _CLOSING and recorded.request_id is None)

    async def serves(stage: Stage) -> None:
        while True:
            arrival = await stage.asked(0)
            await arrival.line.send(canonical.encode(recorded))
            if code in _CLOSING:
                await arrival.line.hang_up()

    def scene(now_unix_ms: int) -> Scene:
        expiry_ms = SHORT_EXPIRY_MS if may_pass else EXPIRY_MS
        ends: tuple[Plain, ...] = ({"transport_error": code}, *([NO_ANSWER] if may_pass else []))
        action = invoke(invocation(request(request_id), now_unix_ms + expiry_ms, caller=caller)).ending(*ends)
        return Scene(actions=(action,), serves=serves, endless=True, caller=caller, callers=(caller,))

    return scene


# --- quote, status, cancel --------------------------------------------------------------------------------------


def _quotes(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors("values/transport_quoted.v1.json"):
        yield ClientVector(f"quotes/{vector['name']}", frozenset({"quote"}), _quoted(_typed(vector, TransportQuoted)))


def _quoted(quoted: TransportQuoted) -> Callable[[int], Scene]:
    caller = quoted.caller_runtime_id

    def scene(now_unix_ms: int) -> Scene:
        asked = invocation(request(quoted.request_id), now_unix_ms + EXPIRY_MS, caller=caller)
        end = {"quoted": {"worst_case_micro_usd": quoted.worst_case_micro_usd, "refusal": quoted.refusal}}
        action = quote(asked).ending(end)
        return Scene(actions=(action,), serves=answering(canonical.encode(quoted)), caller=caller, callers=(caller,))

    return scene


def _statuses(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors("values/transport_status_report.v1.json"):
        report: TransportStatusReport = _typed(vector, TransportStatusReport)
        scene = Scene(actions=(status().ending({"status": plain(report)}),), serves=answering(canonical.encode(report)))
        yield ClientVector(f"statuses/{vector['name']}", frozenset({"status"}), _always(scene))


def _cancels(goldens: Goldens) -> Iterator[ClientVector]:
    for vector in goldens.vectors("values/transport_cancel.v1.json"):
        recorded: TransportCancel = _typed(vector, TransportCancel)
        caller = recorded.caller_runtime_id
        action = cancel(recorded.request_id, caller)
        scene = Scene(actions=(action,), serves=_heard, caller=caller, callers=(caller,))
        yield ClientVector(f"cancels/{vector['name']}", frozenset({"cancel"}), _always(scene))
    yield ClientVector("cancels/of a running request", frozenset({"cancel", "concurrent", "stream"}), _cancelled)


def _always(scene: Scene) -> Callable[[int], Scene]:
    return lambda _: scene


async def _heard(stage: Stage) -> None:
    await stage.asked(0)


def _cancelled(now_unix_ms: int) -> Scene:
    """In mid-stream: the request ends with what there was, and what it has cost."""
    asked = invocation(request(), now_unix_ms + EXPIRY_MS)
    said = event(0, text_delta("It goes on "))
    timed_out = v.TransportOutcome(failed=v.Failed(kind="timeout", message="cancelled"))
    result = result_to(asked, said, outcome=timed_out)

    async def serves(stage: Stage) -> None:
        running = await stage.asked(0)
        await running.line.send(live(asked, said))
        await stage.handed(0, said)
        await stage.asked(1)
        await running.line.send(canonical.encode(result))

    actions = (stream(asked).ending(end_of(result)), cancel("turn-1", once_told=0))
    return Scene(actions=actions, serves=serves)
