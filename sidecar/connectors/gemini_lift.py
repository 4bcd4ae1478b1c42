"""From the body of a Gemini answer, in pieces, to an Answer. Pure.

Every event is a whole response with what is new of it. Calls come whole, so
that they go to the Answer in their place, each behind its signature. The finish
reason is the terminal event; the usage on every event counts all so far, and
what came with the finish reason or behind it is final. What came before it is
final only if nothing was said since and the body has ended by itself.
Source: WIRE sections 1.4 and 6.2 to 6.5.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.connectors import gemini_signatures
from sidecar.connectors.body_lift import BodyLift, Clean, TooManyValues, an_object, loaded, word
from sidecar.connectors.failures import error_in
from sidecar.connectors.gemini_signatures import Place, Signature, is_signature
from sidecar.connectors.promise import Answer
from sidecar.connectors.tool_calls import CALLS_MAX, BrokenCall, as_json, whole_call
from sidecar.connectors.unicode_pieces import NotUnicode
from sidecar.contract.values import FailureKind, StopReason, Usage
from sidecar.rules.usage import UnusableUsage, plain_usage

STOP_REASONS: Final[dict[str, StopReason]] = {
    "STOP": "end_turn",
    "MAX_TOKENS": "max_output_tokens",
    "CONTINUATION": "max_output_tokens",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION"),
        "refusal",
    ),
}  # fmt: skip
FAILED_FINISHES: Final[dict[str, FailureKind]] = {
    "PUP_LIMITED_DISABLED": "authentication",
    **dict.fromkeys(
        ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE",
         "MALFORMED_RESPONSE", "LANGUAGE", "OTHER", "NO_IMAGE", "FINISH_REASON_UNSPECIFIED"),
        "provider",
    ),
}  # fmt: skip
_IMAGE: Final = "IMAGE_"  # whatever is wrong with an image is a refusal as well
RESPONSES_MAX: Final = 65_536
SIGNATURES_MAX: Final = CALLS_MAX
_CANDIDATES_MAX: Final = 16  # one is asked for
_PARTS_MAX: Final = 4 * CALLS_MAX  # of one event, which is taken in one go


class Lift(BodyLift):
    """One generateContent answer."""

    _terminal = "finish reason"
    _kind_of_answer = "answer of Gemini"

    def __init__(self, answer: Answer, clean: Clean, *, upstream: str, document_bytes_max: int) -> None:
        super().__init__(answer, clean, upstream=upstream, document_bytes_max=document_bytes_max)
        self._finish: str | None = None
        self._finish_words = ""
        self._blocked = False
        self._has_candidate = False
        self._signatures = 0
        self._usage_said: dict[str, Any] | None = None  # that came with the end or behind it
        self._running: dict[str, Any] | None = None  # that came before it, and nothing was said since
        self._has_closed = False
        self._broken: BrokenCall | None = None

    @property
    def has_all_but_the_end(self) -> bool:
        return self._has_end() and self._usage_said is not None

    def close(self) -> None:
        self._has_closed = True  # nothing can come behind what was counted last
        super().close()

    def _has_end(self) -> bool:
        return self._finish is not None or (self._blocked and not self._has_candidate)

    # --- reading ----------------------------------------------------------------------------------------------

    def _whole(self, body: bytes) -> None:
        """One response, or all of them in one array, as the server sends them where nobody asked for events."""
        try:
            responses = loaded(body.decode()) if body.lstrip()[:1] == b"[" else None
        except (ValueError, RecursionError, TooManyValues):  # said below
            responses = None
        if not isinstance(responses, list) or len(responses) < 2 or not all(isinstance(r, dict) for r in responses):
            super()._whole(body)
            return
        if len(responses) > RESPONSES_MAX:
            self._break("provider", f"the provider sent more than {RESPONSES_MAX} responses in one array")
            return
        for response in responses:
            if not self.is_over:
                self._object(response, is_document=False)

    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        usage = said.get("usageMetadata")
        if said.get("error"):
            self._failed(said["error"], usage)
            return
        self._names(said.get("responseId"), said.get("modelVersion"))
        self._blocked = self._blocked or bool(an_object(said.get("promptFeedback")).get("blockReason"))
        try:
            self._candidates(said.get("candidates"))
        except NotUnicode as fault:
            self._break("provider", str(fault))
            return
        if isinstance(usage, dict) and self._has_end():
            self._usage_said = usage
        elif isinstance(usage, dict):
            self._running = usage

    def _candidates(self, candidates: object) -> None:
        for candidate in candidates[:_CANDIDATES_MAX] if isinstance(candidates, list) else []:
            if not isinstance(candidate, dict) or candidate.get("index") not in (0, None):
                continue
            self._has_candidate = True
            self._parts(an_object(candidate.get("content")).get("parts"))
            if candidate.get("finishReason"):
                self._finish = word(candidate["finishReason"]) or f"a {type(candidate['finishReason']).__name__}"
                self._finish_words = word(candidate.get("finishMessage"))

    def _parts(self, parts: object) -> None:
        if not isinstance(parts, list):
            return
        if len(parts) > _PARTS_MAX:
            self._break("provider", f"the provider sent more than {_PARTS_MAX} parts in one event")
            return
        for part in parts:
            if isinstance(part, dict) and part and part != {"text": ""} and not self.is_over:
                self._running = self._usage_said = None  # what was counted before this was not the last count
                self._part(part)

    def _part(self, part: dict[str, Any]) -> None:
        """Text and calls with their signatures; thoughts, code and images are nothing that can be told."""
        text = part.get("text")
        if isinstance(part.get("functionCall"), dict):
            self._sign("call", part)
            self._call(part["functionCall"])
        elif isinstance(text, str) and text and part.get("thought") is not True:
            self._sign("text", part, len(text))
            self._say(text)
        else:
            self._sign("empty", part)

    def _sign(self, on: Place, part: dict[str, Any], characters: int | None = None) -> None:
        sig = part.get("thoughtSignature")
        if isinstance(sig, str) and is_signature(sig):
            self._signatures += 1
            if self._signatures > SIGNATURES_MAX:
                self._break("provider", f"the provider signed more than {SIGNATURES_MAX} parts")
                return
            signature = Signature(on, sig, characters)
            self._answer.reasoning_state(gemini_signatures.encode(signature, self._upstream))

    def _call(self, said: dict[str, Any]) -> None:
        if self._answer.tool_calls == CALLS_MAX:
            self._break("provider", f"the provider made more than {CALLS_MAX} tool calls")
            return
        args = said.get("args")
        try:
            arguments = "" if args is None else as_json(args)
            call = whole_call(word(said.get("id")), word(said.get("name")), arguments)
        except BrokenCall as fault:
            self._broken = self._broken or fault
            return
        self._answer.tool_call(call.call_id, call.name, call.arguments)

    def _failed(self, said: object, usage_said: object) -> None:
        try:
            final = usage_said if isinstance(usage_said, dict) else self._usage_said
            usage = self._lifted(final) if final is not None else None
        except UnusableUsage:
            usage = None
        self._error(error_in(said), usage)

    # --- the end ----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Ends the answer if its finish reason has been read; else does nothing."""
        if not self._has_end() or self._answer.ended is not None:
            return
        self.is_over = True
        said = self._usage_said or (self._running if self._has_closed else None)
        try:
            usage = None if said is None else self._lifted(said)
        except UnusableUsage as fault:
            self._break("provider", f"the provider's usage can't be used: {fault}")
            return
        self._answer.final_usage = usage
        stop = "refusal" if self._finish is None else _stop_of(self._finish)
        if stop is None:
            why = self._finish_words or f"the provider ended with {self._finish:.80}"
            self._break(FAILED_FINISHES.get(self._finish or "", "provider"), why, usage)
            return
        if stop == "end_turn":
            if self._broken is not None:
                self._break("provider", str(self._broken), usage)
                return
            try:
                self._text.close()
            except NotUnicode as fault:
                self._break("provider", str(fault), usage)
                return
            if self._answer.tool_calls:
                stop = "tool_use"
        self._answer.complete(stop, usage, self._response_id)

    def _lifted(self, said: dict[str, Any]) -> Usage:
        return self._counted(*usage_of(said))


def _stop_of(finish: str) -> StopReason | None:
    return "refusal" if finish.startswith(_IMAGE) else STOP_REASONS.get(finish)


def usage_of(said: dict[str, Any]) -> tuple[Usage, bool]:
    """The usage of a response: what is none is left out, but a prompt always is some. Raises UnusableUsage."""
    return plain_usage(
        input_total=_sum(said.get("promptTokenCount"), _or_zero(said.get("toolUsePromptTokenCount"))),
        cache_read=said.get("cachedContentTokenCount"),
        output=_sum(_or_zero(said.get("candidatesTokenCount")), _or_zero(said.get("thoughtsTokenCount"))),
        reasoning=said.get("thoughtsTokenCount"),
    )


def _or_zero(count: object) -> object:
    return 0 if count is None else count


def _sum(*counts: object) -> object:
    """All of them together, or the first that is no count, to be refused as one."""
    total = 0
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            return count
        total += count
    return total
