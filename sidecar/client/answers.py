"""What a caller gets back: the answer of a request that completed, a quote, or what it raises. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from sidecar.client.errors import REFUSED, Refused, RequestFailed, SidecarError, WhichCaller
from sidecar.client.waiting import Answer
from sidecar.contract.client_frames import TransportQuoted, TransportStatusReport, TransportWelcome
from sidecar.contract.values import (
    AssistantText,
    Completed,
    EmittedReasoningState,
    InputItem,
    ReasoningState,
    Refusal,
    StopReason,
    TextDelta,
    ToolCall,
    Transported,
    TransportEvent,
    TransportInvocation,
    TransportReceipt,
    TransportResult,
    Usage,
)


class Result(Struct, frozen=True):
    """The answer of a request that completed, as it is on record."""

    events: tuple[TransportEvent, ...]
    receipt: TransportReceipt

    @property
    def text(self) -> str:
        """All text of it, joined."""
        payloads = (event.payload.text_delta for event in self.events)
        return "".join(payload.text for payload in payloads if isinstance(payload, TextDelta))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        payloads = (event.payload.tool_call for event in self.events)
        return tuple(payload for payload in payloads if isinstance(payload, ToolCall))

    @property
    def input_items(self) -> tuple[InputItem, ...]:
        """The answer as the next request's input has it: the turn that goes after the one that was asked."""
        return tuple(self._as_input(event) for event in self.events)

    @property
    def completed(self) -> Completed:
        completed = self.receipt.outcome.completed
        assert isinstance(completed, Completed)
        return completed

    @property
    def stop_reason(self) -> StopReason:
        return self.completed.stop_reason

    @property
    def usage(self) -> Usage:
        return self.completed.usage

    @property
    def charge_micro_usd(self) -> int:
        return self.receipt.cost_micro_usd

    @property
    def request_id(self) -> str:
        return self.receipt.request_id

    def _as_input(self, event: TransportEvent) -> InputItem:
        payload = event.payload.chosen
        if isinstance(payload, TextDelta):
            return InputItem(assistant_text=AssistantText(text=payload.text))
        if isinstance(payload, ToolCall):
            return InputItem(tool_call=payload)
        assert isinstance(payload, EmittedReasoningState)
        state = ReasoningState(provider=self.receipt.provider, model=self.receipt.model, state=payload.state)
        return InputItem(reasoning_state=state)


class Quote(Struct, frozen=True):
    """What this very invocation would be answered now. Without a refusal it would run, or be joined or replayed."""

    invocation: TransportInvocation
    worst_case_micro_usd: int | None
    refusal: Refusal | None

    @property
    def refused(self) -> Refused | None:
        """The refusal as the exception that invoke() would raise, with what to do."""
        if self.refusal is None:
            return None
        return REFUSED[self.refusal](self.invocation.caller_runtime_id, self.invocation.request.request_id)


def transported_by(answer: Answer | SidecarError) -> Transported:
    """What the provider made of it, completed or failed. Raises Refused and whatever else came in place of a result."""
    if isinstance(answer, SidecarError):
        raise answer
    assert isinstance(answer, TransportResult)
    disposition = answer.disposition
    if isinstance(disposition.transported, Transported):
        return disposition.transported
    refusal: Refusal = disposition.chosen
    raise REFUSED[refusal](answer.caller_runtime_id, answer.request_id)


def result_of(answer: Answer | SidecarError) -> Result:
    """The result of a request that completed. Raises the SidecarError that it is otherwise."""
    transported = transported_by(answer)
    if isinstance(transported.receipt.outcome.completed, Completed):
        return Result(events=transported.events, receipt=transported.receipt)
    raise RequestFailed(transported)


def quote_of(answer: Answer | SidecarError, invocation: TransportInvocation) -> Quote:
    if isinstance(answer, SidecarError):
        raise answer
    assert isinstance(answer, TransportQuoted)
    return Quote(invocation=invocation, worst_case_micro_usd=answer.worst_case_micro_usd, refusal=answer.refusal)


def report_of(answer: Answer | SidecarError) -> TransportStatusReport:
    if isinstance(answer, SidecarError):
        raise answer
    assert isinstance(answer, TransportStatusReport)
    return answer


def welcome_of(answer: Answer | SidecarError) -> TransportWelcome:
    if isinstance(answer, SidecarError):
        raise answer
    assert isinstance(answer, TransportWelcome)
    return answer


def only_caller(welcome: TransportWelcome) -> str:
    """The one caller that this user may be. Raises WhichCaller, which lists them."""
    if len(welcome.callers) != 1:
        raise WhichCaller(welcome.callers)
    return welcome.callers[0]


@contextmanager
def told_of(invocation: TransportInvocation) -> Iterator[None]:
    """What goes wrong in this block is told as wrong with this invocation, so that it can be sent again."""
    try:
        yield
    except SidecarError as error:
        raise error.about(invocation) from None


def not_ended() -> RuntimeError:
    """For whoever wants a stream's result before its end."""
    return RuntimeError("the stream has not ended: iterate it first, its result comes last")
