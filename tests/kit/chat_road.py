"""The road with the Chat Completions connector at its end, and a provider on a loopback socket behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgpack
import trio
from kit import build
from kit.connector_cases import chat_at
from kit.road import Road, receipt
from kit.road import said as in_a_word
from kit.stub_http import Reply, StubProvider, chunked, stub_provider

from sidecar.contract.values import InputItem

DONE = b"data: [DONE]\n\n"
USED = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
USED_COST = 11 * 2_000_003 + 3 * 11_000_027  # millionths of a micro-USD, at the prices of `kit.road`


def chunk(delta: Any = None, finish: Any = None, **members: Any) -> bytes:
    """One event; without a delta and a finish reason its choices are empty."""
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "chatcmpl-1", "choices": choices, **members}).encode() + b"\n\n"


def said(text: str) -> bytes:
    return chunk({"content": text})


def called(*pieces: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(pieces)})


def finished(finish: str = "stop", usage: Any = USED) -> bytes:
    """The finish reason, the usage chunk and the stream's end."""
    return chunk(None, finish) + chunk(usage=usage) + DONE


def one_piece_a_byte(body: bytes) -> Reply:
    return chunked(*(body[at : at + 1] for at in range(len(body))))


@dataclass
class Told:
    """What came of one invocation: in a word, its receipt, its events, and what the ledger holds of it."""

    word: str
    receipt: dict[str, Any]
    text: str
    calls: list[tuple[str, str, str]]
    reservation: int
    charge: int
    notes: tuple[str, ...]

    @property
    def usage(self) -> dict[str, Any] | None:
        (outcome,) = self.receipt["outcome"].values()
        used: dict[str, Any] | None = outcome.get("usage")
        return used

    @property
    def message(self) -> str:
        return str(self.receipt["outcome"]["Failed"]["message"])


class ChatRoad:
    """`ask` is a whole invocation; `stub.requests` is what the provider heard of it."""

    def __init__(self, road: Road, stub: StubProvider) -> None:
        self.road = road
        self.stub = stub

    async def ask(self, *items: InputItem, frame: bytes | None = None, **changes: Any) -> Told:
        """Admitted and carried; fails the test where it is refused."""
        with trio.fail_after(20):
            answer = await self.road.answer(frame or build.frame(build.request(*items, **changes)))
        payloads = [event["payload"] for event in msgpack.unpackb(answer)["disposition"]["Transported"]["events"]]
        calls = [payload["ToolCall"] for payload in payloads if "ToolCall" in payload]
        begin, record = self.road.ledger.completes[-1]
        assert record.charge_micro_usd == receipt(answer)["cost_micro_usd"]
        return Told(
            word=in_a_word(answer),
            receipt=receipt(answer),
            text="".join(payload["TextDelta"]["text"] for payload in payloads if "TextDelta" in payload),
            calls=[(call["call_id"], call["name"], call["arguments"]) for call in calls],
            reservation=begin.reservation_micro_usd,
            charge=record.charge_micro_usd,
            notes=record.notes,
        )

    def body(self) -> dict[str, Any]:
        """The JSON of the last POST."""
        made: dict[str, Any] = json.loads(self.stub.requests[-1].body)
        return made


@asynccontextmanager
async def chat_road(reply: Reply | Callable[[int], Reply], **changes: Any) -> AsyncIterator[ChatRoad]:
    """A road to a provider that answers so; `changes` are those of `kit.road`."""
    async with stub_provider(reply) as stub:
        connector = chat_at(stub.url)
        yield ChatRoad(Road(connector=connector, **changes), stub)
        await connector.aclose()


async def told(reply: Reply | bytes, **road: Any) -> Told:
    """One invocation that is answered so: a reply, or the body of a stream that ends well."""
    async with chat_road(chunked(reply) if isinstance(reply, bytes) else reply, **road) as chat:
        return await chat.ask()
