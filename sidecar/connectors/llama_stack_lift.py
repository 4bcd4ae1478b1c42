"""From the body of a Llama Stack answer, in pieces, to an Answer. Pure.

On the native route the complete event is the terminal one. Text goes to the
Answer as it comes; calls wait for that event, because only it says whether one
that the server could not parse was cut off. Its metrics are guesses of the
server (its own tokenizer, whatever the model; no tool is counted), so they are
usage only where the operator takes estimates. On the OpenAI route the body is a
Chat Completions one but for its errors. Source: WIRE sections 5.5 and 5.6.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from sidecar.connectors import openai_chat_lift
from sidecar.connectors.body_lift import BodyLift, Clean, an_object
from sidecar.connectors.failures import error_in
from sidecar.connectors.promise import Answer, ResponseTooLarge
from sidecar.connectors.tool_calls import (
    CALLS_MAX,
    BrokenCall,
    WholeCall,
    a_text,
    as_json,
    whole_call,
)
from sidecar.connectors.unicode_pieces import NotUnicode
from sidecar.contract.values import StopReason, Usage
from sidecar.rules.usage import UnusableUsage, plain_usage

STOP_REASONS: Final[dict[str | None, StopReason]] = {
    "end_of_turn": "end_turn",
    "end_of_message": "end_turn",  # without a call: the server is known to err here
    "out_of_tokens": "max_output_tokens",
    None: "end_turn",
}
_ERROR: Final = re.compile(r"([3-5][0-9]{2}): (.*)", re.DOTALL)  # the status that the stream had no other place for
_CALL_WITHOUT_ARGUMENTS: Final = re.compile(r"([A-Za-z0-9_-]{1,64})\(\)")
_METRICS_MAX: Final = 64


def with_status(error: dict[str, Any]) -> dict[str, Any]:
    """An error with its status as its code, which may stand beside its words, or before them in its message."""
    if isinstance(error.get("status"), int):
        error = {"code": error["status"], **error}
    message = error.get("message")
    prefixed = _ERROR.fullmatch(message) if isinstance(message, str) else None
    if prefixed is None:
        return error
    return {**error, "code": error.get("code") or int(prefixed[1]), "message": prefixed[2]}


class Lift(BodyLift):
    """One answer of the native route. `tool_names`: the declared tools, one of which a failed parse may still name."""

    _terminal = "complete event"
    _kind_of_answer = "chat completion of Llama Stack"

    def __init__(
        self,
        answer: Answer,
        clean: Clean,
        *,
        upstream: str,
        document_bytes_max: int,
        tool_names: frozenset[str],
        takes_estimates: bool,
    ) -> None:
        super().__init__(answer, clean, upstream=upstream, document_bytes_max=document_bytes_max)
        self._tool_names = tool_names
        self._takes_estimates = takes_estimates
        self._calls: list[WholeCall | BrokenCall | str] = []  # a text is the name of a call without arguments
        self._calls_bytes = 0

    def settle(self) -> None:
        """Nothing is left to do: the terminal event has ended the answer at once."""

    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        message = said.get("completion_message")
        error = said.get("error")
        if is_document and not error and not isinstance(message, dict):
            error = said
        if error:
            self._error(with_status(error_in(error)))
            return
        try:
            if isinstance(message, dict):
                self._message(message)
                self._complete(message.get("stop_reason"), said.get("metrics"))
            else:
                self._event(an_object(said.get("event")), said.get("metrics"))
        except NotUnicode as fault:
            self._break("provider", str(fault))

    def _event(self, event: dict[str, Any], metrics: object) -> None:
        delta = an_object(event.get("delta"))
        if delta.get("type") == "text":
            self._say(delta.get("text"))
        elif delta.get("type") == "tool_call":
            self._call(delta.get("tool_call"), delta.get("parse_status"))
        if event.get("event_type") == "complete" and not self.is_over:
            self._complete(event.get("stop_reason"), metrics)

    def _message(self, message: dict[str, Any]) -> None:
        """The message of an answer that was not streamed: its text, then its calls."""
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            self._say(an_object(part).get("text") if isinstance(part, dict) else part)
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            self._call(call, "succeeded")

    def _call(self, call: object, parse_status: object) -> None:
        """Pieces of a call are passed over: they are no JSON, and the call comes whole behind them."""
        if self.is_over or parse_status not in ("succeeded", "failed"):
            return
        if len(self._calls) == CALLS_MAX:
            self._break("provider", f"the provider made more than {CALLS_MAX} tool calls")
            return
        made = self._parsed(call) if isinstance(call, dict) else self._unparsed(call)
        if isinstance(made, WholeCall):
            self._calls_bytes += len(made.arguments.encode())
            if self._calls_bytes > self._document_bytes_max:
                self._break("result_size", f"the tool calls are larger than {self._document_bytes_max} bytes")
        self._calls.append(made)

    def _parsed(self, call: dict[str, Any]) -> WholeCall | BrokenCall:
        arguments = call.get("arguments_json")
        if not isinstance(arguments, str):
            arguments = call.get("arguments")
        call_id, name = call.get("call_id"), call.get("tool_name")
        try:
            if not isinstance(arguments, str):
                arguments = "" if arguments is None else as_json(arguments)
            return whole_call(a_text(call_id), a_text(name), arguments)
        except BrokenCall as fault:
            return fault

    def _unparsed(self, call: object) -> str | BrokenCall:
        """The name of a declared tool that was called without arguments, which the server fails to parse."""
        named = _CALL_WITHOUT_ARGUMENTS.fullmatch(call) if isinstance(call, str) else None
        if named and named[1] in self._tool_names:
            return named[1]
        return BrokenCall(f"the provider made a tool call that it could not read itself: {call!r:.80}")

    # --- the end ----------------------------------------------------------------------------------------------

    def _complete(self, stop_reason: object, metrics: object) -> None:
        try:
            usage = self._usage(metrics)
        except UnusableUsage as fault:
            self._emit([call for call in self._calls if isinstance(call, WholeCall)])
            self._break("provider", f"the provider's usage can't be used: {fault}")
            return
        stop = STOP_REASONS.get(stop_reason) if isinstance(stop_reason, str | None) else None
        if stop is None:
            why = f"the provider stopped for a reason that is not known here: {stop_reason!r:.80}"
            self._break("provider", why, usage)
            return
        try:
            if stop != "max_output_tokens":
                self._text.close()
            calls = self._whole_calls(is_cut=stop == "max_output_tokens")
        except (BrokenCall, NotUnicode) as fault:
            self._break("provider", str(fault), usage)
            return
        self.is_over = True
        self._answer.final_usage = usage
        self._emit(calls)
        if calls and len(calls) == len(self._calls):
            stop = "tool_use"  # also where it says that tokens ran out, which it says of what it does not know too
        self._answer.complete(stop, usage)

    def _whole_calls(self, *, is_cut: bool) -> list[WholeCall]:
        """Every call; of a turn that was cut off, those that the server had read. Raises BrokenCall."""
        whole = []
        for call in self._calls:
            if isinstance(call, WholeCall):
                whole.append(call)
            elif is_cut:
                continue
            elif isinstance(call, BrokenCall):
                raise call
            else:
                whole.append(WholeCall("", call, "{}"))
        return whole

    def _emit(self, calls: list[WholeCall]) -> None:
        with suppress(ResponseTooLarge):  # the answer has failed by itself
            for call in calls:
                self._answer.tool_call(call.call_id, call.name, call.arguments)

    def _usage(self, metrics: object) -> Usage | None:
        """The server's estimate, where it is taken; a prompt of no tokens was not counted at all."""
        if not self._takes_estimates or not isinstance(metrics, list):
            return None
        told = [an_object(metric) for metric in metrics[:_METRICS_MAX]]
        counts = {metric["metric"]: metric.get("value") for metric in told if isinstance(metric.get("metric"), str)}
        if counts.get("prompt_tokens") in (None, 0):
            return None
        usage, _ = plain_usage(input_total=counts["prompt_tokens"], output=counts.get("completion_tokens"))
        return usage


class OpenAILift(openai_chat_lift.Lift):
    """One answer of the OpenAI route."""

    def _error(self, error: dict[str, Any], usage: Usage | None = None) -> None:
        super()._error(with_status(error), usage)
