"""What an answer on the daemon's socket says and costs, held against what the server itself has counted."""

from __future__ import annotations

from typing import Any

import msgpack
from kit.daemon_process import Client, Process
from kit.ledger_view import LedgerView
from kit.road import receipt
from upstream.counters import Counted, counted
from upstream.llama import Llama

from sidecar.contract.values import BeginRecord, CompletedRecord

# The five prices of the daemon's config, in micro-USD per million tokens: all prime and all different.
INPUT, CACHE_READ, CACHE_WRITE_SHORT, CACHE_WRITE_LONG, OUTPUT = 2_000_003, 3_000_017, 5_000_011, 7_000_003, 11_000_027


def charge_of(plain: int, read: int, made: int) -> int:
    """In whole micro-USD, rounded up once; no server here writes to a cache for money."""
    return -(-(plain * INPUT + read * CACHE_READ + made * OUTPUT) // 1_000_000)


def payloads(answer: bytes, name: str) -> list[dict[str, Any]]:
    events = msgpack.unpackb(answer)["disposition"]["Transported"]["events"]
    return [event["payload"][name] for event in events if name in event["payload"]]


def text_of(answer: bytes) -> str:
    return "".join(delta["text"] for delta in payloads(answer, "TextDelta"))


def counts(answer: bytes) -> tuple[int, int, int]:
    """(plain input, cache read, output) of a receipt with usage, however its request ended."""
    (outcome,) = receipt(answer)["outcome"].values()
    usage = outcome["usage"]
    assert usage["cache_write_tokens"] == 0
    return usage["input_tokens"], usage["cache_read_tokens"], usage["output_tokens"]


def asked(client: Client, llama: Llama, frame: bytes) -> bytes:
    """The answer, whose usage is what the server itself counted meanwhile, and whose charge follows from that alone."""
    before = counted(llama)
    answer = client.ask(frame)
    check_money(answer, before, llama)
    return answer


def check_money(answer: bytes, before: Counted, llama: Llama) -> None:
    own = counted(llama).since(before)
    assert counts(answer) == own
    assert receipt(answer)["cost_micro_usd"] == charge_of(*own) > 0


def failed(answer: bytes) -> tuple[str, str, dict[str, int] | None, int]:
    """(kind, message, usage, charge) of a failure."""
    outcome = receipt(answer)["outcome"]["Failed"]
    return outcome["kind"], outcome["message"], outcome.get("usage"), receipt(answer)["cost_micro_usd"]


def recorded(daemon: Process) -> list[tuple[BeginRecord, CompletedRecord]]:
    """Every settled request of a daemon that is made to stop; none is left open."""
    assert daemon.stop() == 0
    view = LedgerView(daemon.folder / "ledger")
    assert not view.open
    return view.completes
