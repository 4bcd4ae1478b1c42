"""From the body of a Chat Completions answer, in pieces, to an Answer. Pure.

Text goes to the Answer as it comes. Tool calls wait for the end, for
only the finish reason says whether they are whole. The end itself waits for
`[DONE]` or the body's end, because the usage comes behind the finish reason;
`settle` ends the answer earlier where the body breaks off after it. Counts in
front of the finish reason are running totals: the last of them is final only
if nothing was said behind it and `[DONE]` says that nothing more will come.
Source: WIRE sections 1.1, 1.4 and 3.4 to 3.6.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from sidecar.connectors.body_lift import (
    BodyLift,
    Clean,
    an_object,
    reason_in,
)
from sidecar.connectors.failures import error_in
from sidecar.connectors.openai_chat_dialects import Dialect
from sidecar.connectors.openai_chat_reasoning import ReasoningPieces, ReasoningTooLarge
from sidecar.connectors.promise import Answer, ResponseTooLarge
from sidecar.connectors.tool_calls import BrokenCall, CallPieces, CallsTooLarge, WholeCall
from sidecar.connectors.unicode_pieces import NotUnicode
from sidecar.contract.values import StopReason, Usage
from sidecar.rules.usage import UnusableUsage, plain_usage

STOP_REASONS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_output_tokens",
    "refusal": "refusal",  # gateways that pass on the word of the API behind them
    "content_filter": "refusal",
    "sensitive": "refusal",
    "model_length": "context_window",
    "model_context_window_exceeded": "context_window",
}
FAILED_FINISHES: Final = frozenset({"error", "insufficient_system_resource"})
_WHOLE_TURNS: Final = frozenset({"end_turn", "tool_use"})  # every call of such a turn is whole, or broken
_PLAIN: Final = Dialect()
_CHOICES_MAX: Final = 16  # one is asked for


class Lift(BodyLift):
    """One Chat Completions answer."""

    _terminal = "finish reason"
    _kind_of_answer = "chat completion"

    def __init__(
        self, answer: Answer, clean: Clean, *, upstream: str, document_bytes_max: int, dialect: Dialect = _PLAIN
    ) -> None:
        super().__init__(answer, clean, upstream=upstream, document_bytes_max=document_bytes_max)
        self._dialect = dialect
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None  # that came with the finish reason or behind it
        self._running: dict[str, Any] | None = None  # that came before it, and nothing was said since
        self._refused = False
        self._has_said = False
        self._calls = CallPieces(document_bytes_max)
        self._reasoning = ReasoningPieces(dialect.reasoning_replay, document_bytes_max)

    @property
    def has_all_but_the_end(self) -> bool:
        return self._finish is not None and self._usage is not None

    def settle(self) -> None:
        """Ends the answer if its finish reason has been read; else does nothing."""
        if self._finish is None or self._answer.ended is not None:
            return
        self.is_over = True
        try:
            usage = self._lifted_usage()
        except UnusableUsage as fault:
            self._emit(self._calls.what_is_whole())
            self._break("provider", f"the provider's usage can't be used: {fault}")
            return
        stop = STOP_REASONS.get(self._finish)
        if self._finish in FAILED_FINISHES:
            self._break("unavailable", f"the provider ended with {self._finish}", usage)
        elif stop is None:
            why = f"the provider stopped for a reason that is not known here: {self._finish:.80}"
            self._break("provider", why, usage)
        else:
            self._finished(stop, usage)

    def _finished(self, stop: StopReason, usage: Usage | None) -> None:
        is_whole = stop in _WHOLE_TURNS and not self._refused
        try:
            if is_whole:
                self._text.close()
            calls = self._calls.whole() if is_whole else self._calls.what_is_whole()
        except (BrokenCall, NotUnicode) as fault:
            self._break("provider", str(fault), usage)
            return
        if stop == "tool_use" and not calls and is_whole:
            self._break("provider", "the provider stopped for a tool call and made none", usage)
            return
        self._answer.final_usage = usage
        self._emit(calls, self._reasoning.state(self._upstream) if is_whole else None)
        if self._refused and stop in _WHOLE_TURNS:
            stop = "refusal"
        elif calls and stop == "end_turn":
            stop = "tool_use"
        self._answer.complete(stop, usage, self._response_id)

    def _emit(self, calls: list[WholeCall], state: bytes | None = None) -> None:
        with suppress(ResponseTooLarge):  # the answer has failed by itself
            if state is not None:
                self._answer.reasoning_state(state)
            for call in calls:
                self._answer.tool_call(call.call_id, call.name, call.arguments)

    def _lifted_usage(self) -> Usage | None:
        if self._usage is None:
            return None
        return self._counted(*usage_of(self._usage))

    def _done(self) -> None:
        self._usage = self._usage or self._running  # nothing can come behind it, so the last count is the final one
        if self._finish is None and self._dialect.done_is_an_end and self._has_said:
            self._finish = "stop"
        self.settle()
        self._break("unavailable", "the stream was done before its finish reason")

    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        self._chunk(said, "message" if is_document else "delta")

    def _chunk(self, chunk: dict[str, Any], part: str) -> None:
        usage = _usage_in(chunk)
        error = chunk if chunk.get("object") == "error" else chunk.get("error")
        if error:
            self._usage = usage or self._usage
            self._failed(error_in(error))
            return
        self._names(chunk.get("id"), chunk.get("model"))
        if self._dialect.service_tier is not None:
            self._tier(chunk.get("service_tier"))
        self._choices(chunk.get("choices"), part)
        if usage is not None and self._finish is not None:
            self._usage = usage
        elif usage is not None:
            self._running = usage

    def _choices(self, choices: object, part: str) -> None:
        if choices is None:
            return
        if isinstance(choices, list):
            choices = choices[:_CHOICES_MAX]
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            self._break("provider", "the choices of an event are no array of objects")
            return
        for choice in choices:
            if choice.get("index") in (0, None):
                self._choice(choice, choice.get(part))

    def _choice(self, choice: dict[str, Any], part: object) -> None:
        try:
            if isinstance(part, dict):
                self._part(part)
        except (CallsTooLarge, ReasoningTooLarge) as fault:
            self._break("result_size", str(fault))
            return
        except (BrokenCall, NotUnicode) as fault:
            self._break("provider", str(fault))
            return
        if choice.get("finish_reason") not in (None, ""):
            self._finish = reason_in(choice["finish_reason"])

    def _part(self, part: dict[str, Any]) -> None:
        if any(said for name, said in part.items() if name != "role"):
            self._running = self._usage = None  # what was counted before this was not the last count
            self._has_said = True
        self._reasoning.take(part)
        self._say(_text_in(part.get("content")))
        refusal = part.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refused = True
            self._say(refusal)
        calls = part.get("tool_calls")
        if isinstance(calls, list):
            self._calls.take_all(calls)

    def _failed(self, error: dict[str, Any]) -> None:
        try:
            usage = self._lifted_usage()
        except UnusableUsage:
            usage = None
        self._error(error, usage)


def _text_in(content: object) -> str:
    """Content is a text; Mistral sends parts, of which those of type text are visible."""
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _usage_in(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The counts of a chunk; those that older llama.cpp servers read from their cache stand beside them."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict):
        return None
    cached = an_object(chunk.get("timings")).get("cache_n")
    return usage if cached is None else {"cache_n": cached, **usage}


def usage_of(said: dict[str, Any]) -> tuple[Usage, bool]:
    """The usage object of a chunk; raises UnusableUsage."""
    prompt, completion = an_object(said.get("prompt_tokens_details")), an_object(said.get("completion_tokens_details"))
    output, reasoning = said.get("completion_tokens"), completion.get("reasoning_tokens")
    if _reports_reasoning_apart(said.get("prompt_tokens"), output, reasoning, said.get("total_tokens")):
        output += reasoning  # type: ignore[operator]
    cached = (
        prompt.get("cached_tokens"),
        said.get("prompt_cache_hit_tokens"),
        said.get("cache_n"),
    )  # DeepSeek's second
    return plain_usage(
        input_total=said.get("prompt_tokens"),
        cache_read=next((count for count in cached if count is not None), None),
        cache_write=prompt.get("cache_write_tokens"),
        output=output,
        reasoning=reasoning,
    )


def _reports_reasoning_apart(prompt: object, completion: object, reasoning: object, total: object) -> bool:
    """xAI counts reasoning beside the completion: then the total is the sum of all three."""
    counts = [count for count in (prompt, completion, reasoning) if isinstance(count, int) and count >= 0]
    return len(counts) == 3 and isinstance(reasoning, int) and reasoning > 0 and sum(counts) == total
