"""From the body of a Responses answer, in pieces, to an Answer. Pure.

Text goes to the Answer as it comes; a call and a reasoning state when their
item is done. The terminal event holds everything that an end needs, so the
outcome stands as soon as it is read. What is wrong with an item before is
kept until then, for the usage comes with it: a broken call is no fault where
the answer was cut off. An answer that was not streamed is the response object
of that event alone. Source: WIRE sections 1.1, 1.4 and 2.8 to 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from sidecar.connectors.body_lift import BodyLift, Clean, an_object, word
from sidecar.connectors.failures import error_in
from sidecar.connectors.openai_responses_items import (
    ArgumentsTooLarge,
    Slot,
    Slots,
    TooManyItems,
    arguments_in,
    text_in,
)
from sidecar.connectors.openai_responses_states import state_of_phase, state_of_reasoning
from sidecar.connectors.promise import Answer
from sidecar.connectors.tool_calls import BrokenCall, CallsTooLarge, WholeCall
from sidecar.connectors.unicode_pieces import NotUnicode, UnicodePieces
from sidecar.contract.values import StopReason, Usage
from sidecar.rules.usage import UnusableUsage, plain_usage

_NO_ENDS: Final = frozenset({"queued", "in_progress", "cancelled"})
_WORSE: Final = ("completed", "incomplete", "failed")
ENDS: Final = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
STOP_REASONS: Final[dict[str, StopReason]] = {"max_output_tokens": "max_output_tokens", "content_filter": "refusal"}
_BEGINNINGS: Final = frozenset({"response.created", "response.queued", "response.in_progress"})


class Lift(BodyLift):
    """One Responses answer.

    `silent_cut_tokens`: the output bound of a server that may say `completed` of an answer that it cut there, as
    llama.cpp does; an answer of so many tokens is then taken for a cut one. None where the server's word is trusted.
    """

    _kind_of_answer = "response"

    def __init__(
        self,
        answer: Answer,
        clean: Clean,
        *,
        upstream: str,
        document_bytes_max: int,
        silent_cut_tokens: int | None = None,
    ) -> None:
        super().__init__(answer, clean, upstream=upstream, document_bytes_max=document_bytes_max)
        self._silent_cut_tokens = silent_cut_tokens
        self._slots = Slots(document_bytes_max)
        self._refused = False
        self._unfinished: str | None = None  # why a call can't be handed out: no fault where the answer was cut off
        self._held: list[WholeCall] = []  # calls without arguments, that a silent cut may have taken
        self._fault: str | None = None  # why this can be no good answer, however it ends
        self._events: dict[str, Callable[[dict[str, Any]], None]] = {
            "response.output_item.added": self._added,
            "response.output_text.delta": self._text_delta,
            "response.refusal.delta": self._refusal_delta,
            "response.function_call_arguments.delta": self._arguments_delta,
            "response.function_call_arguments.done": self._arguments_done,
            "response.output_item.done": self._done_event,
        }

    def settle(self) -> None:
        """Nothing: the terminal event has ended the answer when it was read."""

    def _done(self) -> None:
        self._break("unavailable", "the stream was done before its terminal event")

    def _object(self, said: dict[str, Any], *, is_document: bool) -> None:
        try:
            self._event(said, is_document=is_document)
        except (ArgumentsTooLarge, CallsTooLarge) as fault:
            self._break("result_size", str(fault))
        except (TooManyItems, NotUnicode) as fault:
            self._break("provider", str(fault))

    def _event(self, said: dict[str, Any], *, is_document: bool) -> None:
        kind = word(said.get("type"))
        if kind in self._events:
            self._events[kind](said)
        elif kind in ENDS:
            self._terminal_event(said.get("response"), ENDS[kind])
        elif kind in _BEGINNINGS:
            self._look(an_object(said.get("response")))
        elif is_document and said.get("object") == "response" and word(said.get("status")) in ENDS.values():
            self._ended(said, said["status"])
        elif (
            kind == "error" or said.get("object") == "error" or (said.get("error") and not kind.startswith("response."))
        ):
            error = said.get("error") or said
            self._error(error_in(error))

    # --- items ------------------------------------------------------------------------------------------------

    def _added(self, event: dict[str, Any]) -> None:
        self._slots.begin(event, an_object(event.get("item")))

    def _text_delta(self, event: dict[str, Any]) -> None:
        if isinstance(event.get("delta"), str):
            self._show(self._slots.of("message", event, event.get("item_id")), event["delta"])

    def _refusal_delta(self, event: dict[str, Any]) -> None:
        self._refused = self._refused or bool(event.get("delta"))
        self._text_delta(event)

    def _arguments_delta(self, event: dict[str, Any]) -> None:
        if isinstance(event.get("delta"), str):
            slot = self._slots.of("function_call", event, event.get("item_id"))
            self._slots.add_arguments(slot, event["delta"])

    def _arguments_done(self, event: dict[str, Any]) -> None:
        arguments = event.get("arguments")
        if isinstance(arguments, str) and arguments:
            slot = self._slots.of("function_call", event, event.get("item_id"))
            slot.arguments.clear()
            self._slots.add_arguments(slot, arguments)

    def _done_event(self, event: dict[str, Any]) -> None:
        item = an_object(event.get("item"))
        slot = self._slots.of(word(item.get("type")), event, item.get("id"))
        if not slot.is_done:
            self._item_done(slot, item)

    def _item_done(self, slot: Slot, item: dict[str, Any]) -> None:
        """Items of kinds that are not known here are nothing."""
        slot.is_done = True
        if slot.kind == "message":
            self._message_done(slot, item)
        elif slot.kind == "function_call":
            self._call_done(slot, item)
        elif slot.kind == "reasoning" and item.get("status") != "incomplete":
            state = state_of_reasoning(item, self._upstream)
            if state is not None:
                self._answer.reasoning_state(state)

    def _message_done(self, slot: Slot, item: dict[str, Any]) -> None:
        """The item's text against what was handed on: what is missing of it is said now, another text is a fault."""
        said, refused = text_in(item)
        self._refused = self._refused or refused
        slot.phase = slot.phase or item.get("phase")
        whole, shown = UnicodePieces().feed(said), "".join(slot.said)
        if whole.startswith(shown):
            if len(whole) > len(shown):
                self._text = UnicodePieces()  # half a character may wait there that the item's text holds whole
                self._show(slot, whole[len(shown) :])
        elif whole and whole.strip() != shown.strip():
            self._fault = "the provider's message is another text than its pieces"

    def _call_done(self, slot: Slot, item: dict[str, Any]) -> None:
        try:
            if item.get("status") == "incomplete":
                raise BrokenCall("the provider broke off a tool call")
            call = self._slots.call_in(slot, item)
        except BrokenCall as fault:
            self._unfinished = str(fault)
            return
        if self._silent_cut_tokens is None or arguments_in(slot, item):
            self._answer.tool_call(call.call_id, call.name, call.arguments)
        else:
            self._held.append(call)

    def _show(self, slot: Slot, piece: str) -> None:
        """Visible text of a message, behind the state of its phase. Raises NotUnicode."""
        shown = self._text.feed(piece)
        if not shown:
            return
        if not slot.said:
            state = state_of_phase(slot.phase, self._upstream)
            if state is not None:
                self._answer.reasoning_state(state)
        slot.said.append(shown)
        self._answer.text(shown)

    # --- the end ----------------------------------------------------------------------------------------------

    def _terminal_event(self, response: object, status: str) -> None:
        if not isinstance(response, dict):
            self._break("provider", "the provider's last event holds no response")
            return
        said = word(response.get("status"))
        if said in _NO_ENDS:
            self._break("provider", f"the provider's last event has the status {said}")
            return
        if said in ENDS.values():  # where the two differ, the worse is believed
            status = max(status, said, key=_WORSE.index)
        self._ended(response, status)

    def _ended(self, response: dict[str, Any], status: str) -> None:
        self.is_over = True
        self._look(response)
        usage, unusable = self._lifted_usage(response.get("usage"))
        error = response.get("error")
        if status == "completed" and an_object(response.get("incomplete_details")).get("reason"):
            status = "incomplete"
        if status == "failed" or error:
            self._error(error_in(error), usage)
            return
        self._answer.final_usage = usage
        fault = self._taken(response.get("output"), is_whole=status == "completed")
        if unusable or fault:
            self._break("provider", unusable or fault or "", usage)
        elif status == "incomplete":
            self._incomplete(an_object(response.get("incomplete_details")).get("reason"), usage)
        else:
            self._completed(usage)

    def _taken(self, output: object, *, is_whole: bool) -> str | None:
        """Takes what the response holds and no event has brought; why that is no good answer, if it is none."""
        try:
            items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
            self._take_output(items, is_whole=is_whole)
            for slot in self._slots.all_of("function_call") if is_whole else []:
                if not slot.is_done:
                    self._item_done(slot, {})
        except (TooManyItems, NotUnicode) as fault:
            return str(fault)
        return self._fault

    def _take_output(self, output: list[dict[str, Any]], *, is_whole: bool) -> None:
        """The n-th item of a kind is the n-th of that kind that began; most were done by events of their own."""
        begun: dict[str, Iterator[Slot]] = {}
        for item in output:
            kind = word(item.get("type"))
            if kind not in begun:
                begun[kind] = iter(self._slots.all_of(kind))
            slot = next(begun[kind], None) or self._slots.begin({}, item)
            is_cut = kind == "function_call" and not is_whole and item.get("status") != "completed"
            if not slot.is_done and not is_cut:
                self._item_done(slot, item)

    def _incomplete(self, reason: object, usage: Usage | None) -> None:
        stop = STOP_REASONS.get(word(reason))
        if stop is not None:
            self._answer.complete(stop, usage, self._response_id)
            return
        why = f"for a reason that is not known here: {word(reason):.80}" if word(reason) else "and did not say why"
        self._break("provider", f"the provider left its answer incomplete {why}", usage)

    def _completed(self, usage: Usage | None) -> None:
        if self._is_silently_cut(usage):
            self._answer.complete("max_output_tokens", usage, self._response_id)
            return
        try:
            self._text.close()
        except NotUnicode as fault:
            self._break("provider", str(fault), usage)
            return
        if self._refused:
            self._answer.complete("refusal", usage, self._response_id)
        elif self._unfinished is not None:
            self._break("provider", self._unfinished, usage)
        else:
            for call in self._held:
                self._answer.tool_call(call.call_id, call.name, call.arguments)
            stop: StopReason = "tool_use" if self._answer.tool_calls else "end_turn"
            self._answer.complete(stop, usage, self._response_id)

    def _is_silently_cut(self, usage: Usage | None) -> bool:
        return (
            usage is not None and self._silent_cut_tokens is not None and usage.output_tokens >= self._silent_cut_tokens
        )

    def _look(self, response: dict[str, Any]) -> None:
        """What a response says beside its items."""
        self._names(response.get("id"), response.get("model"))
        changes = response.get("input_transformations")
        for change in changes if isinstance(changes, list) else []:
            if an_object(change).get("action") == "removed":
                self._answer.note("state_dropped_upstream")
        if self._silent_cut_tokens is None:  # OpenAI's own word is trusted, and its tier has a price
            self._tier(response.get("service_tier"))

    def _lifted_usage(self, said: object) -> tuple[Usage | None, str | None]:
        """The counts, or why they can't be used; neither where the provider sent none."""
        if not isinstance(said, dict):
            return None, None
        try:
            return self._counted(*usage_of(said)), None
        except UnusableUsage as fault:
            return None, f"the provider's usage can't be used: {fault}"


def usage_of(said: dict[str, Any]) -> tuple[Usage, bool]:
    """The usage object of a response, whose input total holds reads and writes of the cache. Raises UnusableUsage."""
    details = an_object(said.get("input_tokens_details"))
    return plain_usage(
        input_total=said.get("input_tokens"),
        cache_read=details.get("cached_tokens"),
        cache_write=details.get("cache_write_tokens"),
        output=said.get("output_tokens"),
        reasoning=an_object(said.get("output_tokens_details")).get("reasoning_tokens"),
    )
