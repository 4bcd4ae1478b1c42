"""One exchange as a child answers it: bytes in, an Answer out. Pure.

What a child may get wrong, what then becomes of its exchange, and of it:

    writes garbage                no frame, not strict, none of its two frames, an exchange that is still to come, a
                                  tool by no name, arguments that are no object: `Failed{provider}`; killed
    floods                        a frame, an answer or bytes above their bound: `Failed{result_size}`; killed
    dies, or closes its stdout    `Failed{unavailable}`; replaced
    answers twice, or goes on     the first outcome stands; killed
    speaks of what is over        the exchange that it carries now goes on without that; killed behind it
    claims a cost                 settled against the derived one, see `sidecar.service.settlement`; goes on

None of these failures has a usage: what the provider billed is not known.
Events that came before stay. Source: CONTRACT sections 5 and 6.
"""

from __future__ import annotations

from typing import Final

from sidecar.connectors.messages import clean_message
from sidecar.connectors.process_lower import wrapped
from sidecar.connectors.promise import Answer, ResponseTooLarge
from sidecar.contract.connector_frames import (
    BrokenFrame,
    ConnectorEvent,
    ConnectorOutcome,
    parse_from_child,
)
from sidecar.contract.ids import is_id
from sidecar.contract.json_text import NotJsonObject, check_object
from sidecar.contract.values import FailureKind, ToolCall, TransportEventPayload, Usage
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize, FrameSplitter, FrameTooLarge
from sidecar.rules.usage import usage_from_parts

BLOCKS_MAX: Final = 1024  # tool calls and reasoning states of one answer, together
_FRAME_MARGIN_BYTES: Final = 65_536  # what a frame may hold beside an answer's text
_RESPONSE_ID_CHARACTERS_MAX: Final = 256


class Lift:
    """Feed it what the child wrote, and `step` until it says that more bytes are needed or that it is over."""

    def __init__(
        self,
        answer: Answer,
        *,
        exchange: int,
        upstream: str,
        secret: str | None,
        response_bytes_max: int,
        body_bytes_max: int,
    ) -> None:
        self._answer = answer
        self._exchange = exchange
        self._upstream = upstream
        self._secret = secret
        self._splitter = FrameSplitter(min(FRAME_BYTES_LIMIT, response_bytes_max + _FRAME_MARGIN_BYTES))
        self._body_bytes_max = body_bytes_max
        self._bytes_left = body_bytes_max
        self._blocks = 0
        self.has_answered = False  # whether its outcome came
        self.broke: str | None = None  # why the child may not be asked again

    @property
    def is_over(self) -> bool:
        return self._answer.ended is not None

    def feed(self, received: bytes) -> None:
        """What came, an empty piece for the end. Whole frames in it wait for `step`."""
        if not received:
            self._break("unavailable", "the connector's process ended before its outcome")
            return
        self._bytes_left -= len(received)
        if self._bytes_left < 0:
            self._break("result_size", f"the connector's process wrote more than {self._body_bytes_max} bytes")
            return
        self._splitter.feed(received)

    def step(self) -> bool:
        """Takes one frame; False where none is whole, and when it is over. Raises ResponseTooLarge."""
        if self.is_over:
            return False
        try:
            frame = self._splitter.next_frame()
            if frame is None:
                return False
            self._take(parse_from_child(frame))
        except FrameTooLarge as fault:
            self._break("result_size", f"the connector's process began {fault}")
        except (FrameSize, BrokenFrame) as fault:
            self._break("provider", f"the connector's process wrote no frame that it may: {fault}")
        except ResponseTooLarge:
            self.broke = "the connector's process sent too large an answer"
            raise
        return not self.is_over

    def _take(self, said: ConnectorEvent | ConnectorOutcome) -> None:
        if said.exchange != self._exchange:
            self._strange(said.exchange)
        elif isinstance(said, ConnectorOutcome):
            self._end(said)
        else:
            self._event(said.payload)

    def _strange(self, exchange: int) -> None:
        if exchange > self._exchange:
            raise BrokenFrame(f"exchange {exchange} is still to come")
        self.broke = f"the connector's process spoke again of exchange {exchange}, which is over"

    def _event(self, payload: TransportEventPayload) -> None:
        if payload.text_delta:
            self._answer.text(payload.text_delta.text)
            return
        self._blocks += 1
        if self._blocks > BLOCKS_MAX:
            raise BrokenFrame(f"more than {BLOCKS_MAX} tool calls and reasoning states in one answer")
        if payload.tool_call:
            self._call(payload.tool_call)
        elif payload.reasoning_state:
            self._answer.reasoning_state(wrapped(payload.reasoning_state.state, self._upstream))

    def _call(self, call: ToolCall) -> None:
        if not is_id(call.name):
            raise BrokenFrame(f"a tool by a name that can be none: {call.name!r:.80}")
        try:
            check_object(call.arguments or "{}")
        except NotJsonObject as wrong:
            raise BrokenFrame(f"a call of {call.name:.80} with broken arguments: {wrong}") from None
        self._answer.tool_call(call.call_id, call.name, call.arguments)

    def _end(self, said: ConnectorOutcome) -> None:
        self.has_answered = True
        claimed = said.cost_micro_usd
        if completed := said.outcome.completed:
            usage = self._usage(completed.usage)
            response_id = self._response_id(completed.provider_response_id)
            stop = completed.stop_reason
            if stop == "tool_use" and not self._answer.tool_calls:
                raise BrokenFrame("it stopped for a tool call and made none")
            if stop == "end_turn" and self._answer.tool_calls:
                stop = "tool_use"
            self._answer.complete(stop, usage, response_id, claimed_cost_micro_usd=claimed)
        elif failed := said.outcome.failed:
            message = clean_message(failed.message, self._secret)
            self._answer.fail(failed.kind, message, self._usage(failed.usage), claimed_cost_micro_usd=claimed)
        if self._splitter.in_frame:
            self.broke = "the connector's process went on after its outcome"

    def _usage(self, said: Usage | None) -> Usage | None:
        if said is None:
            return None
        usage, clamped = usage_from_parts(
            input_tokens=said.input_tokens,
            cache_read=said.cache_read_tokens,
            cache_write=said.cache_write_tokens,
            output=said.output_tokens,
            reasoning=said.reasoning_tokens,
        )
        if clamped:
            self._answer.note("usage_clamped")
        return usage

    def _response_id(self, said: str | None) -> str | None:
        if not said or not said.isprintable():
            return None
        return clean_message(said, self._secret)[:_RESPONSE_ID_CHARACTERS_MAX]

    def _break(self, kind: FailureKind, why: str) -> None:
        self.broke = why
        self._answer.fail(kind, clean_message(why, self._secret))
