"""Recorded and made streams with what a right connector lifts from each, and the ways in which one body can arrive."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from sidecar.connectors.body_lift import BodyLift
from sidecar.connectors.promise import Answer
from sidecar.contract.values import Usage

_ROOT = Path(__file__).resolve().parents[2]
RECORDED = _ROOT / "../shared/providers/streams"  # beside the project; tests of these skip where it is absent
MADE = _ROOT / "tests/connectors/streams"


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


def arrivals(body: bytes) -> Iterator[list[bytes]]:
    """One body in ways that must make no difference: whole, a byte at a time, other line ends, comments between."""
    lines = body.splitlines()
    for same in (
        body,
        b"\r\n".join(lines) + b"\r\n\r\n",
        b"\r".join(lines) + b"\r\r",
        b"".join(b": comment\n" + line + b"\n" for line in [*lines, b""]),
    ):
        yield [same]
        yield [same[at : at + 1] for at in range(len(same))]
        yield [same[at : at + 7] for at in range(0, len(same), 7)]


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
