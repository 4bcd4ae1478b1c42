"""Chat Completions, as OpenAI and many compatible servers speak it: plain text and usage.

`lower` makes one POST body of a request, `Lift` makes an answer of the stream's
events; both are pure. Tools, tool results and output schemas are refused
before sending until this connector speaks them. Source: WIRE section 3.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx2

from sidecar.connectors.event_stream import EventStream, StreamFault
from sidecar.connectors.failures import kind_of
from sidecar.connectors.http_exchange import ExchangeFault, Outgoing, post
from sidecar.connectors.messages import clean_message
from sidecar.connectors.promise import Answer, Lowered, Rejected
from sidecar.contract.values import AssistantText, ProviderRequest, ReasoningState, StopReason, Usage, UserText
from sidecar.rules.usage import UnusableUsage, plain_usage

LINE_BYTES_MAX: Final = 4 << 20
EVENT_BYTES_MAX: Final = 8 << 20
_PATH: Final = "/chat/completions"

STOP_REASONS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_output_tokens",
    "content_filter": "refusal",
    "sensitive": "refusal",
    "model_length": "context_window",
    "model_context_window_exceeded": "context_window",
}
FAILED_FINISHES: Final = frozenset({"error", "insufficient_system_resource"})


def endpoint(base_url: str) -> str:
    """The one URL that is posted to, whatever slashes the base has; a base without a path gets `/v1`."""
    split = urlsplit(base_url)
    path = split.path.rstrip("/")
    if not path.endswith(_PATH):
        path = (path or "/v1") + _PATH
    return urlunsplit((split.scheme, split.netloc, path, "", ""))


class OpenAIChat:
    """One Chat Completions server."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        *,
        base_url: str,
        secret: str | None,
        body_bytes_max: int,
        max_tokens_field: str,
        send_stream_options: bool,
    ) -> None:
        self._client = client
        self._url = endpoint(base_url)
        self._secret = secret
        self._body_bytes_max = body_bytes_max
        self._max_tokens_field = max_tokens_field
        self._send_stream_options = send_stream_options

    def lower(self, request: ProviderRequest, upstream: str) -> Lowered:
        """The POST's body. Reasoning states are none of this API: left out and counted."""
        if request.tools or request.output_schema_json is not None:
            raise Rejected("this connector carries plain text only: no tools and no output schema yet")
        messages = _messages(request)
        if not messages or messages[-1]["role"] == "system":
            raise Rejected("nothing is left of the input without reasoning states")
        body: dict[str, Any] = {
            "model": upstream,
            "messages": messages,
            "stream": True,
            self._max_tokens_field: request.max_output_tokens,
        }
        if self._send_stream_options:
            body["stream_options"] = {"include_usage": True}
        return Lowered(
            request=request,
            upstream=upstream,
            body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            states_dropped=sum(isinstance(item.chosen, ReasoningState) for item in request.input),
            call_ids=frozenset(),
        )

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        headers = {"accept": "text/event-stream"}
        if self._secret is not None:
            headers["authorization"] = f"Bearer {self._secret}"
        outgoing = Outgoing(url=self._url, headers=headers, body=lowered.body, secret=self._secret)
        lift = Lift(answer, lambda text: clean_message(text, self._secret))
        try:
            async with aclosing(post(self._client, outgoing, answer, self._body_bytes_max)) as pieces:
                async for piece in pieces:
                    lift.feed(piece)
                    if lift.is_over:
                        return
            lift.close()
        except StreamFault as fault:
            answer.fail("provider", f"the provider's stream can't be read: {fault}")
        except ExchangeFault as fault:
            lift.settle()
            answer.fail(fault.kind, str(fault))
        finally:
            lift.settle()  # also when the deadline strikes between the terminal event and the end of the body

    async def aclose(self) -> None:
        await self._client.aclose()


def _messages(request: ProviderRequest) -> list[dict[str, str]]:
    """Neighbouring texts of one side are one message, since many chat templates want the sides to alternate."""
    messages: list[dict[str, str]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    for item in request.input:
        chosen = item.chosen
        if isinstance(chosen, ReasoningState):
            continue
        if isinstance(chosen, UserText):
            role, joint = "user", "\n\n"
        elif isinstance(chosen, AssistantText):
            role, joint = "assistant", ""
        else:
            raise Rejected("this connector carries plain text only: no tool calls and no tool results yet")
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += joint + chosen.text
        else:
            messages.append({"role": role, "content": chosen.text})
    return messages


class Lift:
    """The body of a 200, in pieces, into an Answer. Pure.

    A body that begins with a brace is one JSON document (an error, or an answer
    that was not streamed), whatever its content type says; else it is an event
    stream.
    """

    def __init__(self, answer: Answer, clean: Callable[[str], str]) -> None:
        self._answer = answer
        self._clean = clean
        self._stream = EventStream(line_bytes_max=LINE_BYTES_MAX, event_bytes_max=EVENT_BYTES_MAX)
        self._document: bytearray | None = None
        self._begun = False
        self._finish: str | None = None
        self._usage: dict[str, Any] | None = None
        self._refused = False
        self._response_id: str | None = None
        self.is_over = False

    def feed(self, piece: bytes) -> None:
        if not self._begun and piece.strip():
            self._begun = True
            if piece.lstrip()[:1] in (b"{", b"["):
                self._document = bytearray()
        if self._document is not None:
            self._document += piece
            return
        for event in self._stream.feed(piece):
            self._take(event.data)

    def close(self) -> None:
        """The body has ended."""
        if self._document is not None:
            self._whole(bytes(self._document))
        else:
            for event in self._stream.close():
                self._take(event.data)
        self.settle()
        self._answer.fail("unavailable", "the stream ended before its terminal event")

    def settle(self) -> None:
        """Ends the answer if the terminal event has been read."""
        if self._finish is None or self._answer.ended is not None:
            return
        usage, finish = self._lifted_usage(), self._finish
        if self._answer.ended is not None:
            return
        if finish in FAILED_FINISHES:
            self._answer.fail("unavailable", f"the provider ended with {finish}", usage)
        elif finish not in STOP_REASONS:
            why = f"the provider stopped for a reason that is not known here: {finish!r:.80}"
            self._answer.fail("provider", self._clean(why), usage)
        else:
            stop = "refusal" if self._refused and finish == "stop" else STOP_REASONS[finish]
            self._answer.complete(stop, usage, self._response_id)

    def _lifted_usage(self) -> Usage | None:
        if self._usage is None:
            return None
        try:
            usage, clamped = usage_of(self._usage)
        except UnusableUsage as fault:
            self._answer.fail("provider", self._clean(f"the provider's usage can't be used: {fault}"))
            return None
        if clamped:
            self._answer.note("usage_clamped")
        return usage

    def _take(self, data: str) -> None:
        if self.is_over or not data.strip() or data.startswith(":"):
            return  # keep-alives: `data:` alone, and `data: : keepalive`
        if data.strip() == "[DONE]":
            self.is_over = True
            if self._finish is None:
                self._answer.fail("unavailable", "the stream was done before its finish reason")
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            self._answer.fail("provider", "an event of the stream is no JSON object")
            self.is_over = True
            return
        self._chunk(chunk, "delta")

    def _whole(self, body: bytes) -> None:
        """A body that is one JSON document."""
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            self._answer.fail("unavailable", "the provider's JSON body ended early or is broken")
            return
        if isinstance(document, list) and len(document) == 1:
            document = document[0]
        if not isinstance(document, dict):
            self._answer.fail("provider", "the provider's body is no JSON object")
            return
        self._chunk(document, "message")
        if self._finish is None:
            self._answer.fail("provider", "the provider's body has neither an error nor a finished answer")

    def _chunk(self, chunk: dict[str, Any], part: str) -> None:
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        if error := chunk.get("error"):
            self._error(error if isinstance(error, dict) else {"message": str(error)})
            return
        if isinstance(chunk.get("id"), str) and chunk["id"]:
            self._response_id = self._clean(chunk["id"])
        choices = chunk.get("choices")
        if choices is None:
            return
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            self._answer.fail("provider", "the choices of an event are no array of objects")
            self.is_over = True
            return
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._choice(choice, choice.get(part) or {})

    def _choice(self, choice: dict[str, Any], part: dict[str, Any]) -> None:
        content, refusal = part.get("content"), part.get("refusal")
        if isinstance(content, str):
            self._answer.text(content)
        if isinstance(refusal, str) and refusal:
            self._refused = True
            self._answer.text(refusal)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]

    def _error(self, error: dict[str, Any]) -> None:
        message = self._clean(str(error.get("message") or "the provider failed inside its answer"))
        usage = self._lifted_usage()
        self._answer.fail(kind_of(error, None), message, usage)
        self.is_over = True


def usage_of(said: dict[str, Any]) -> tuple[Usage, bool]:
    """The usage object of a chunk; raises UnusableUsage."""
    prompt, completion = said.get("prompt_tokens_details"), said.get("completion_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return plain_usage(
        input_total=said.get("prompt_tokens"),
        cache_read=prompt.get("cached_tokens"),
        cache_write=prompt.get("cache_write_tokens"),
        output=said.get("completion_tokens"),
        reasoning=completion.get("reasoning_tokens"),
    )
