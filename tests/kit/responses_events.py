"""Events of a Responses stream as text, and what one lifts to."""

from __future__ import annotations

import json
from typing import Any

from sidecar.connectors.openai_responses_lift import Lift
from sidecar.connectors.promise import Answer, Ended
from sidecar.contract.values import Usage

USED: dict[str, Any] = {"input_tokens": 11, "output_tokens": 3, "total_tokens": 14}


def event(type: str, **members: Any) -> str:
    return f"event: {type}\ndata: {json.dumps({'type': type, **members})}\n\n"


def added(item: dict[str, Any], index: int | None = 0) -> str:
    return event("response.output_item.added", item=item, **_at(index))


def done(item: dict[str, Any], index: int | None = 0) -> str:
    return event("response.output_item.done", item=item, **_at(index))


def said(text: str, index: int | None = 0, **members: Any) -> str:
    return event("response.output_text.delta", delta=text, **_at(index), **members)


def arguments(text: str, index: int | None = 0, **members: Any) -> str:
    return event("response.function_call_arguments.delta", delta=text, **_at(index), **members)


def completed(usage: Any = USED, status: str = "completed", **members: Any) -> str:
    response = {"id": "resp_1", "object": "response", "status": status, "usage": usage, **members}
    return event(f"response.{status}", response=response)


def incomplete(reason: Any = None, usage: Any = USED, **members: Any) -> str:
    details = None if reason is None else {"reason": reason}
    return completed(usage, "incomplete", incomplete_details=details, **members)


def message(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **members}


def call(arguments: Any = "{}", call_id: str = "c1", name: str = "look", **members: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, **members}


def _at(index: int | None) -> dict[str, int]:
    return {} if index is None else {"output_index": index}


def lifted(
    *pieces: str | bytes,
    document_bytes_max: int = 100_000,
    response_bytes_max: int = 1_000_000,
    silent_cut_tokens: int | None = None,
) -> Answer:
    """The answer of a body that came in these pieces and then ended."""
    answer = Answer(frozenset(), response_bytes_max, fresh_id=lambda: "call_fresh")
    answer.sent = True
    lift = Lift(
        answer, str, upstream="tiny", document_bytes_max=document_bytes_max, silent_cut_tokens=silent_cut_tokens
    )
    for piece in pieces:
        lift.feed(piece.encode() if isinstance(piece, str) else piece)
    if answer.ended is None:
        lift.close()
    return answer


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def calls_of(answer: Answer) -> list[tuple[str, str, str]]:
    calls = [event.tool_call for event in answer.events() if event.tool_call]
    return [(call.call_id, call.name, call.arguments) for call in calls]


def states_of(answer: Answer) -> list[Any]:
    return [json.loads(event.reasoning_state.state) for event in answer.events() if event.reasoning_state]


def end(answer: Answer) -> Ended:
    assert answer.ended is not None
    return answer.ended


def used(input: int, output: int, read: int = 0, write: int = 0, reasoning: int | None = None) -> Usage:
    return Usage(
        input_tokens=input,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output,
        reasoning_tokens=reasoning,
    )
