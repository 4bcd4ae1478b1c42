"""What a connector promises, and the answer that it builds.

A connector has four parts. `lower` is pure: one request in, what will be
sent out, or `Rejected` for what its provider can't take, known without sending
a byte. `exchange` carries what was lowered to the provider exactly once and
writes what comes back into an `Answer`, under a deadline that its caller sets
by cancelling it; where there is nothing to wait for, `at_once` does it without
a task. What lifts provider bytes into the Answer is pure too, and
lives in each connector's own file.

The outcome stands from the moment the provider's terminal event is read:
`Answer.complete` and `Answer.fail` take the first word and ignore later ones, so
a deadline that strikes while a connection is being closed changes nothing.

Source: CONTRACT sections 5 and 6, WIRE section 1.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import trio
from msgspec import Struct

from sidecar.connectors.hiding import Hiding
from sidecar.connectors.messages import SHOWN
from sidecar.contract.ids import is_id
from sidecar.contract.values import (
    NOTHING_USED,
    EmittedReasoningState,
    FailureKind,
    Note,
    ProviderRequest,
    StopReason,
    TextDelta,
    ToolCall,
    TransportEventPayload,
    Usage,
)
from sidecar.ops.log import Log

HIDDEN_CHARACTERS_MIN: Final = 8
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
OnEvent = Callable[[int, TransportEventPayload], None]


class Rejected(Exception):
    """This provider can't take this request; nothing was sent. The message says why, for a person."""


class Lowered(Struct, frozen=True, kw_only=True):
    """What will be sent for one request.

    `body`: the connector's own form (an HTTP body's bytes, or any value that its exchange reads).
    `states_dropped`: reasoning states of this provider left out because this model can't use them.
    `call_ids`: every tool call id of the request, so that an answer's ids can be kept apart from them.
    `notes`: what of the request its provider has no place for, and so was left out; they go into the record.
    """

    request: ProviderRequest
    upstream: str
    body: Any
    states_dropped: int
    call_ids: frozenset[str]
    notes: tuple[Note, ...] = ()


class Ended(Struct, frozen=True, kw_only=True):
    """How the provider's part ended.

    Completed when `stop_reason` is set, else failed with `kind` and `message`.
    `usage` None means that it is not known. `claimed_cost_micro_usd` is what
    the backend says it costs, where it says so: settling holds it against the
    derived charge, and it never is one itself.
    """

    stop_reason: StopReason | None = None
    kind: FailureKind | None = None
    message: str = ""
    usage: Usage | None = None
    provider_response_id: str | None = None
    claimed_cost_micro_usd: int | None = None


class ResponseTooLarge(Exception):
    """The lifted answer has grown above the connector's `response_bytes_max`; the Answer has failed already."""


class Answer:
    """One answer while it is being lifted: events in order, then exactly one end.

    Neighbouring text deltas are joined into one event. `sent` turns true just
    before the first byte of the request may leave; from then on a failure
    without usage costs the whole reservation. `on_first` is called once, when the
    first piece comes; `on_event` hears every piece as it comes, with the sequence
    of its event: the pieces of one text have the same.
    """

    def __init__(
        self,
        call_ids: frozenset[str],
        response_bytes_max: int,
        notes: Sequence[Note] = (),
        *,
        fresh_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
        on_first: Callable[[], None] | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.sent = False
        self.ended: Ended | None = None
        self.final_usage: Usage | None = None  # set once it has come, for an answer that then proves too large
        self.notes: list[Note] = list(notes)
        self.tool_calls = 0
        self._call_ids = set(call_ids)
        self._response_bytes_max = response_bytes_max
        self._response_bytes = 0
        self._fresh_id = fresh_id
        self._on_first = on_first
        self._on_event = on_event
        self._overhearing: OnEvent | None = None
        self._secret: str | None = None
        self._hiding: Hiding | None = None  # of the text that `on_event` hears
        self._closed: list[TransportEventPayload] = []
        self._text: list[str] = []

    def hide(self, secret: str) -> None:
        """From now on no event holds this credential, should the provider say it, and no piece begins with its end.

        One so short that it could be a word is left alone.
        """
        if len(secret) >= HIDDEN_CHARACTERS_MIN:
            self._secret = secret
            self._hiding = Hiding(secret, SHOWN)

    def listen(self, on_event: OnEvent) -> None:
        """From now on this hears every piece as it comes."""
        if self._hiding is not None:
            self._hiding.begin_behind("".join(self._text))
        self._on_event = _both(self._overhearing, on_event)

    def overhear(self, on_event: OnEvent) -> None:
        """This, too, hears every piece, before whoever listens; for a connector that has another one answer, once."""
        self._overhearing = on_event
        self._on_event = _both(on_event, self._on_event)

    def _shown(self, said: str) -> str:
        return said if self._secret is None else said.replace(self._secret, SHOWN)

    def _shown_arguments(self, arguments: str) -> str:
        """JSON can spell a secret in many ways; where it does, the arguments are written anew, and it is replaced."""
        shown = self._shown(arguments)
        if self._secret is None or "\\" not in shown:
            return shown
        try:
            plain = json.dumps(json.loads(shown), ensure_ascii=False)
        except (ValueError, RecursionError):
            return shown  # what it is told to be elsewhere: arguments that no caller is given
        said = json.dumps(self._secret, ensure_ascii=False)[1:-1]
        return plain.replace(said, SHOWN) if said in plain else shown

    def text(self, text: str) -> None:
        """A piece of visible text; empty pieces are nothing."""
        if not text or self.ended:
            return
        self._grow(len(text) if text.isascii() else len(text.encode()))
        self._text.append(text)
        if self._on_event is not None:
            self._say(text if self._hiding is None else self._hiding.shown(text))

    def texts(self, pieces: Sequence[str]) -> None:
        """Pieces of visible text that have all come at once."""
        if self._on_event is None:
            self.text("".join(pieces))
            return
        for piece in pieces:
            self.text(piece)

    def tool_call(self, call_id: str, name: str, arguments: str) -> None:
        """One complete tool call. An unusable or used id is replaced by a fresh one; empty arguments mean `{}`."""
        if self.ended:
            return
        call_id = self._shown(call_id)
        if not is_id(call_id) or call_id in self._call_ids:
            call_id = self._fresh_id()
            self.note("call_id_replaced")
        self._call_ids.add(call_id)
        self.tool_calls += 1
        call = ToolCall(call_id=call_id, name=self._shown(name), arguments=self._shown_arguments(arguments) or "{}")
        self._grow(len(call.call_id) + len(call.name.encode()) + len(call.arguments.encode()))
        self._close(TransportEventPayload(tool_call=call))

    def reasoning_state(self, state: bytes) -> None:
        """One whole reasoning block of the provider, in its place."""
        if self.ended:
            return
        self._grow(len(state))
        if self._secret is not None:
            state = state.replace(self._secret.encode(), SHOWN.encode())
        self._close(TransportEventPayload(reasoning_state=EmittedReasoningState(state=state)))

    def note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def complete(
        self,
        stop_reason: StopReason,
        usage: Usage | None,
        provider_response_id: str | None = None,
        *,
        claimed_cost_micro_usd: int | None = None,
    ) -> None:
        """The provider ended well. Usage None: it sent none."""
        self._end(
            Ended(
                stop_reason=stop_reason,
                usage=usage,
                provider_response_id=provider_response_id,
                claimed_cost_micro_usd=claimed_cost_micro_usd,
            )
        )

    def fail(
        self, kind: FailureKind, message: str, usage: Usage | None = None, *, claimed_cost_micro_usd: int | None = None
    ) -> None:
        """The provider, or the way to it, failed. Usage None: zeros if nothing was sent, else not known."""
        if usage is None and not self.sent:
            usage = NOTHING_USED
        self._end(Ended(kind=kind, message=message, usage=usage, claimed_cost_micro_usd=claimed_cost_micro_usd))

    def events(self) -> tuple[TransportEventPayload, ...]:
        """What was emitted, in order, with neighbouring text joined."""
        self._join_text()
        return tuple(self._closed)

    def _grow(self, added_bytes: int) -> None:
        self._response_bytes += added_bytes
        if self._response_bytes > self._response_bytes_max:
            self.fail("result_size", f"the answer is larger than {self._response_bytes_max} bytes", self.final_usage)
            raise ResponseTooLarge
        if self._on_first is not None:
            self._on_first()
            self._on_first = None

    def _close(self, payload: TransportEventPayload) -> None:
        self._say_rest()
        self._join_text()
        self._closed.append(payload)
        if self._on_event is not None:
            self._on_event(len(self._closed) - 1, payload)

    def _say(self, text: str) -> None:
        """A piece of the text that is being said, which will be the next event."""
        if text and self._on_event is not None:
            self._on_event(len(self._closed), TransportEventPayload(text_delta=TextDelta(text=text)))

    def _say_rest(self) -> None:
        if self._hiding is not None:
            self._say(self._hiding.rest())

    def _join_text(self) -> None:
        if self._text:
            text = self._shown("".join(self._text))
            self._closed.append(TransportEventPayload(text_delta=TextDelta(text=text)))
            self._text.clear()

    def _end(self, ended: Ended) -> None:
        if self.ended is None:
            self._say_rest()
            self.ended = ended


def _both(first: OnEvent | None, second: OnEvent | None) -> OnEvent | None:
    if first is None or second is None:
        return first or second

    def hear(sequence: int, payload: TransportEventPayload) -> None:
        first(sequence, payload)
        second(sequence, payload)

    return hear


class Connector(Protocol):
    """One provider, ready to be asked. Safe for many exchanges at once."""

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        """Pure. Raises Rejected for what this provider can't take. States of other providers are gone already.

        `upstream` and `settings` (by the kind's own model keys) are the configuration's for the model that is asked.
        """
        ...

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        """Answers as `exchange` does if that takes no wait at all; if not, False, and nothing has happened.

        Runs on the loop, and nothing cancels it: it must be short. What `exchange` raises it may raise.
        """
        ...

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        """Asks the provider exactly once and returns when the answer has ended.

        Cancelled at the deadline: it drops the connection and lets the
        cancellation pass. Every other fault is an `answer.fail`; it raises
        only what is a bug of ours.
        """
        ...

    async def aclose(self) -> None:
        """Lets go of connections that are kept for reuse."""
        ...


@runtime_checkable
class Serving(Protocol):
    """What a connector with tasks of its own has besides."""

    async def serve(self, log: Log, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs those tasks, and tells `task_status` when it can be asked; returns after `aclose`.

        Cancelled, it leaves nothing behind that runs.
        """
        ...

    def kill(self) -> None:
        """Ends what runs for it outside of this process, now and from any thread: the process itself is about to go."""
        ...
