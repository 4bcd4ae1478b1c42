"""From the body of a Messages answer, in pieces, to an Answer. Pure.

Counts of usage overwrite each other and are never added: those of a message's
start are not final. They are once a later event has said the output and
nothing has come behind it; an answer that ends without such a count has no
usage. The stop reason ends the answer; where the body breaks off behind it,
`settle` does. Source: WIRE sections 1.1, 1.4 and 4.9 to 4.11.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from sidecar.connectors.anthropic_messages_pieces import Blocks, BlocksTooLarge, BrokenBlock
from sidecar.connectors.body_lift import (
    BodyLift,
    Clean,
    an_object,
    reason_in,
    word,
)
from sidecar.connectors.failures import error_in
from sidecar.connectors.model_names import is_same_family
from sidecar.connectors.promise import Answer, ResponseTooLarge
from sidecar.connectors.unicode_pieces import NotUnicode
from sidecar.contract.values import CacheRetention, StopReason, Usage
from sidecar.rules.usage import UnusableUsage, usage_from_parts

STOP_REASONS: Final[dict[str, StopReason]] = {
    "end_turn": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_output_tokens",
    "stop_sequence": "stop_sequence",
    "refusal": "refusal",
    "model_context_window_exceeded": "context_window",
}
_WHOLE_TURNS: Final = frozenset(
    {"end_turn", "tool_use", "stop_sequence"}
)  # every block of such a turn is whole or broken
_COUNTS: Final = frozenset(
    {"input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation", "output_tokens",
     "output_tokens_details", "iterations"}
)  # fmt: skip


DOCUMENT_BLOCKS_MAX: Final = 4096


class Lift(BodyLift):
    """One Messages answer. `retention` is how long the request asked to keep its prefix."""

    _terminal = "stop reason"
    _kind_of_answer = "message"

    def __init__(
        self,
        answer: Answer,
        clean: Clean,
        *,
        upstream: str,
        document_bytes_max: int,
        retention: CacheRetention | None = None,
    ) -> None:
        super().__init__(answer, clean, upstream=upstream, document_bytes_max=document_bytes_max)
        self._blocks = Blocks(answer, upstream, document_bytes_max)
        self._retention = retention
        self._model = ""  # as the message's start called it
        self._stop: str | None = None
        self._counts: dict[str, Any] = {}
        self._is_counted = False  # whether the counts are final: they came behind everything else
        self._events = {
            "message_start": self._message_start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_piece,
            "content_block_stop": self._block_stop,
            "message_delta": self._message_piece,
            "message_stop": self._message_stop,
        }

    @property
    def has_all_but_the_end(self) -> bool:
        return self._stop is not None and self._is_counted

    def settle(self) -> None:
        """Ends the answer if its stop reason has been read; else does nothing."""
        if self._stop is None or self._answer.ended is not None:
            return
        self.is_over = True
        stop = STOP_REASONS.get(self._stop)
        try:
            usage = self._usage()
        except UnusableUsage as fault:
            self._end_blocks(is_whole=False)
            self._break("provider", f"the provider's usage can't be used: {fault}")
            return
        self._answer.final_usage = usage
        broken = self._end_blocks(is_whole=stop in _WHOLE_TURNS)
        if stop is None:
            broken = f"the provider stopped for a reason that is not known here: {self._stop:.80}"
        elif stop == "tool_use" and not self._answer.tool_calls:
            broken = broken or "the provider stopped for a tool call and made none"
        if stop is None or broken:
            self._break("provider", broken, usage)
            return
        if stop == "end_turn" and self._answer.tool_calls:
            stop = "tool_use"
        self._answer.complete(stop, usage, self._response_id)

    def _end_blocks(self, *, is_whole: bool) -> str:
        """Gives on what has waited for the end; what is broken, empty where nothing is."""
        with suppress(ResponseTooLarge):  # the answer has failed by itself
            try:
                self._blocks.end(is_whole=is_whole)
            except (BrokenBlock, NotUnicode) as fault:
                return str(fault)
        return ""

    def _done(self) -> None:
        self.settle()
        self._break("unavailable", "the stream was done before its stop reason")

    # --- events -----------------------------------------------------------------------------------------------

    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        kind = word(said.get("type"))
        if kind == "error" or (said.get("error") and kind not in self._events):
            error = said.get("error") or said
            self._failed(error_in(error))
        elif is_document:
            self._document_message(said)
        elif kind in self._events:
            try:
                self._events[kind](said)
            except BlocksTooLarge as fault:
                self._break("result_size", str(fault))
            except (BrokenBlock, NotUnicode) as fault:
                self._break("provider", str(fault))

    def _message_start(self, said: dict[str, Any]) -> None:
        """A second one was seen through proxies: what has come stands, and its counts are the newer ones."""
        message = an_object(said.get("message"))
        model = word(message.get("model"))
        if not is_same_family(self._model or model, model):
            self._answer.note("provider_fallback")
        self._model = self._model or model
        self._names(message.get("id"), model)
        self._is_counted = False
        self._count(message.get("usage"))
        self._note_transformations(message)

    def _block_start(self, said: dict[str, Any]) -> None:
        self._is_counted = False
        block = an_object(said.get("content_block"))
        if block.get("type") == "fallback":  # the server says that another model goes on
            self._answer.note("provider_fallback")
        self._blocks.start(_index(said), block)

    def _block_piece(self, said: dict[str, Any]) -> None:
        self._is_counted = False
        self._blocks.piece(_index(said), an_object(said.get("delta")))

    def _block_stop(self, said: dict[str, Any]) -> None:
        self._blocks.stop(_index(said))

    def _message_piece(self, said: dict[str, Any]) -> None:
        delta = an_object(said.get("delta"))
        if delta.get("stop_reason") not in (None, ""):
            self._stop = reason_in(delta["stop_reason"])
        if "output_tokens" in self._count(said.get("usage")):
            self._is_counted = True
        self._note_transformations(said)
        self._note_transformations(delta)

    def _message_stop(self, said: dict[str, Any]) -> None:
        self.settle()
        usage = None
        with suppress(UnusableUsage):
            usage = self._usage()
        self._break("provider", "the provider's message stopped and gave no reason", usage)

    def _document_message(self, message: dict[str, Any]) -> None:
        """An answer that was not streamed, as the events that it would have been."""
        content = message.get("content")
        blocks = content if isinstance(content, list) else []
        if len(blocks) > DOCUMENT_BLOCKS_MAX:
            self._break("provider", f"the provider sent more than {DOCUMENT_BLOCKS_MAX} blocks in one answer")
            return
        self._object({"type": "message_start", "message": message}, is_document=False)
        for index, block in enumerate(blocks):
            self._object({"type": "content_block_start", "index": index, "content_block": block}, is_document=False)
            self._object({"type": "content_block_stop", "index": index}, is_document=False)
        delta = {"stop_reason": message.get("stop_reason")}
        self._object({"type": "message_delta", "delta": delta, "usage": message.get("usage")}, is_document=False)

    # --- usage and notes --------------------------------------------------------------------------------------

    def _count(self, said: object) -> dict[str, Any]:
        """Every count that is said overwrites the one before it; those that are."""
        counts = {name: count for name, count in an_object(said).items() if name in _COUNTS and count is not None}
        self._counts |= counts
        return counts

    def _usage(self) -> Usage | None:
        """The final counts, None where none came. Raises UnusableUsage."""
        if not self._is_counted:
            return None
        counts, details = self._counts, an_object(self._counts.get("output_tokens_details"))
        parts = usage_from_parts(
            input_tokens=counts.get("input_tokens"),
            cache_read=counts.get("cache_read_input_tokens"),
            cache_write=counts.get("cache_creation_input_tokens"),
            output=counts.get("output_tokens"),
            reasoning=details.get("thinking_tokens"),
        )
        usage = self._counted(*parts)
        written_long = an_object(counts.get("cache_creation")).get("ephemeral_1h_input_tokens")
        if self._retention != "long" and isinstance(written_long, int) and written_long > 0:
            self._answer.note("cache_kept_longer")
        if counts.get("iterations"):
            self._answer.note("provider_fallback")
        return usage

    def _note_transformations(self, said: dict[str, Any]) -> None:
        changes = said.get("input_transformations")
        if isinstance(changes, list) and any(an_object(one).get("type") == "thinking_dropped" for one in changes):
            self._answer.note("state_dropped_upstream")

    def _failed(self, error: dict[str, Any]) -> None:
        """Counts that came without a stop reason are running ones."""
        usage = None
        with suppress(UnusableUsage):
            usage = self._usage() if self._stop is not None else None
        self._error(error, usage)


def _index(said: dict[str, Any]) -> int | None:
    """Which block an event is of; where a server counts none, there is one at a time."""
    index = said.get("index")
    return index if isinstance(index, int) else None
