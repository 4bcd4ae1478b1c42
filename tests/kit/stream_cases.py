"""Streams of every API with what a right connector lifts from each, those recorded elsewhere and ours, and the ways
in which the same stream may arrive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

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
