"""Streams of every API with what a right connector lifts from each, those recorded elsewhere and ours, and the ways
in which the same stream may arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sidecar.connectors.body_lift import BodyLift
from sidecar.connectors.promise import Answer
from sidecar.contract.values import Usage

_ROOT = Path(__file__).resolve().parents[2]
RECORDED: Final = _ROOT / "../shared/providers/streams"  # beside the project; tests of these skip where it is absent
MADE: Final = _ROOT / "tests/connectors/streams"


class Stream(Struct, frozen=True):
    """`wanted` is what EXPECTED.json says of it; `terminal` the offset of the line that ends the answer, or of its end
    where it fails.
    """

    name: str
    provider: str
    body: bytes
    wanted: dict[str, Any]


def streams() -> dict[str, Stream]:
    """By name. A recording that holds one JSON event a line is given as the stream that it was."""
    found: dict[str, Stream] = {}
    for folder in (MADE, RECORDED):
        if not folder.is_dir():
            continue
        for name, wanted in json.loads((folder / "EXPECTED.json").read_text()).items():
            if (folder / name).suffix != ".json":  # a body that came with a status of its own
                provider = wanted.get("provider", "openai_chat")
                found[name] = Stream(name, provider, _body(folder / name), wanted)
    return found


def _body(path: Path) -> bytes:
    whole = path.read_bytes()
    if path.suffix == ".jsonl":
        return b"".join(b"data: " + line + b"\n\n" for line in whole.splitlines() if line)
    return whole


# What ends a whole answer, by API. A fault inside the stream ends it too.
_TERMINAL: Final = {
    "openai_chat": re.compile(rb'"finish_reason": ?"|"error": ?\{'),
    "openai_responses": re.compile(rb'"type": ?"(?:response\.completed|response\.incomplete|response\.failed|error)"'),
    "anthropic": re.compile(rb'"stop_reason": ?"|"type": ?"error"'),
    "gemini": re.compile(rb'"finishReason"'),
    "llama_stack_native": re.compile(rb'"event_type": ?"complete"|"error": ?\{'),
}


def end_of_answer(stream: Stream) -> int:
    """How many bytes must have come, at least, before the answer can have ended well."""
    found = _TERMINAL[stream.provider].search(stream.body)
    assert found is not None, f"{stream.name} has no end"
    return found.end()


def _lines(body: bytes, end: bytes) -> bytes:
    return body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", end)


def _with_comments(body: bytes) -> bytes:
    plain = _lines(body, b"\n")
    lines = plain.splitlines(keepends=True)
    return b": first\n" + b"".join(line + (b": keep-alive\n:\n" if line.endswith(b"\n") else b"") for line in lines)


def _by_bytes(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def _in_characters(body: bytes) -> list[bytes]:
    """Cut behind the first byte of each character of several bytes, and nowhere else."""
    cuts = [0, *[at + 1 for at, byte in enumerate(body) if byte >= 0xC0], len(body)]
    return [body[begin:end] for begin, end in pairwise(cuts)]


ARRIVALS: Final[dict[str, Callable[[bytes], list[bytes]]]] = {
    "whole": lambda body: [body],
    "byte by byte": _by_bytes,
    "split inside characters": _in_characters,
    "with CRLF": lambda body: [_lines(body, b"\r\n")],
    "with CRLF, byte by byte": lambda body: _by_bytes(_lines(body, b"\r\n")),
    "with CR": lambda body: [_lines(body, b"\r")],
    "with CR, byte by byte": lambda body: _by_bytes(_lines(body, b"\r")),
    "with comments": lambda body: [_with_comments(body)],
    "with comments, byte by byte": lambda body: _by_bytes(_with_comments(body)),
}


def cuts(stream: Stream) -> Iterator[bytes]:
    """What has come when the stream breaks off, behind every byte."""
    for length in range(len(stream.body)):
        yield stream.body[:length]


def arrivals(body: bytes) -> Iterator[list[bytes]]:
    """One body in every way in which it may arrive."""
    for pieces in ARRIVALS.values():
        yield pieces(body)


def expected(*providers: str) -> dict[str, dict[str, Any]]:
    """By path: the event streams of these providers in `EXPECTED.json`, recorded elsewhere and ours."""
    found: dict[str, dict[str, Any]] = {}
    for folder in (MADE, RECORDED):
        if folder.is_dir():
            cases = json.loads((folder / "EXPECTED.json").read_text())
            found |= {
                str(folder / name): wanted
                for name, wanted in cases.items()
                if wanted.get("provider", "openai_chat") in providers and name.endswith(".sse")
            }
    return found


def lifted(
    lift: Callable[[Answer], BodyLift], pieces: Iterable[str | bytes], *, response_bytes_max: int = 1_000_000
) -> Answer:
    """The answer of a body that came in these pieces and then ended."""
    answer = Answer(frozenset(), response_bytes_max, fresh_id=lambda: "call_fresh")
    answer.sent = True
    made = lift(answer)
    for piece in pieces:
        made.feed(piece.encode() if isinstance(piece, str) else piece)
    made.close()
    return answer


def text_of(answer: Answer) -> str:
    return "".join(event.text_delta.text for event in answer.events() if event.text_delta)


def calls_of(answer: Answer) -> list[tuple[str, str, str]]:
    calls = [event.tool_call for event in answer.events() if event.tool_call]
    return [(call.call_id, call.name, call.arguments) for call in calls]


def states_of(answer: Answer) -> list[bytes]:
    return [event.reasoning_state.state for event in answer.events() if event.reasoning_state]


def used(input: int, output: int, read: int = 0, write: int = 0, reasoning: int | None = None) -> Usage:
    return Usage(
        input_tokens=input,
        cache_read_tokens=read,
        cache_write_tokens=write,
        output_tokens=output,
        reasoning_tokens=reasoning,
    )
