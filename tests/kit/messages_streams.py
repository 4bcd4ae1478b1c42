"""Answers of the Messages API: their events, and whole bodies with what a right connector lifts from each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kit.stream_cases import MADE, RECORDED

USED: dict[str, Any] = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 3,
}
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()


def begun(usage: Any = None, **message: Any) -> bytes:
    """The message's start, whose count of output is never the final one."""
    usage = {**USED, "output_tokens": 1} if usage is None else usage
    return event("message_start", message={"id": "msg_1", "type": "message", "content": [], "usage": usage, **message})


def opened(index: int, kind: str, **members: Any) -> bytes:
    return event("content_block_start", index=index, content_block={"type": kind, **members})


def piece(index: int, kind: str, **members: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **members})


def closed(index: int) -> bytes:
    return event("content_block_stop", index=index)


def said(*texts: str, index: int = 0) -> bytes:
    """A whole text block in these pieces."""
    pieces = b"".join(piece(index, "text_delta", text=text) for text in texts)
    return opened(index, "text", text="") + pieces + closed(index)


def called(index: int, call_id: str, name: str, *arguments: str) -> bytes:
    """A whole tool call whose arguments come in these pieces."""
    pieces = b"".join(piece(index, "input_json_delta", partial_json=each) for each in arguments)
    return opened(index, "tool_use", id=call_id, name=name, input={}) + pieces + closed(index)


def thought(index: int, *texts: str, signature: str = "c2ln") -> bytes:
    """A whole thinking block in these pieces."""
    pieces = b"".join(piece(index, "thinking_delta", thinking=text) for text in texts)
    signed = piece(index, "signature_delta", signature=signature)
    return opened(index, "thinking", thinking="", signature="") + pieces + signed + closed(index)


def stopped(reason: Any = "end_turn", usage: Any = USED, **members: Any) -> bytes:
    """The stop reason with the final usage."""
    counts = {} if usage is None else {"usage": usage}
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, **counts, **members)


def finished(reason: Any = "end_turn", usage: Any = USED) -> bytes:
    return stopped(reason, usage) + STOP


def document(*content: Any, reason: Any = "end_turn", usage: Any = USED, **members: Any) -> bytes:
    """An answer that was not streamed."""
    message = {"id": "msg_1", "type": "message", "content": list(content), "stop_reason": reason, "usage": usage}
    return json.dumps({**message, **members}).encode()


def expected() -> dict[str, dict[str, Any]]:
    """By path: what was recorded elsewhere, and from a llama.cpp server."""
    made = MADE / "anthropic"
    streams = {made / name: wanted for name, wanted in json.loads((made / "EXPECTED.json").read_text()).items()}
    if RECORDED.is_dir():
        recorded = json.loads((RECORDED / "EXPECTED.json").read_text())
        streams |= {RECORDED / name: wanted for name, wanted in recorded.items() if wanted["provider"] == "anthropic"}
    return {str(path): wanted for path, wanted in streams.items()}


def body_of(path: str) -> bytes:
    """The bytes of an answer; what is stored as bare payloads is framed as its manifest says."""
    stored = Path(path).read_bytes()
    if not path.endswith(".jsonl"):
        return stored
    payloads = [(json.loads(line)["type"].encode(), line) for line in stored.splitlines() if line]
    return b"".join(b"event: " + kind + b"\ndata: " + line + b"\n\n" for kind, line in payloads)
