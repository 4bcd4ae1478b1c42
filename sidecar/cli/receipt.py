"""What came of a call, for a person and for a program. Pure.

Whatever a terminal shows goes through `shown` or `one_line` first: neither a
model nor whatever listens on a socket may drive the terminal of who asked.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import msgspec

from sidecar.cli.exits import Retry
from sidecar.contract.values import Completed, Failed, Transported, TransportReceipt

_HARMLESS: Final = frozenset("\n\t")
# They turn the reading direction of what follows them, also of what we print.
_TURNING: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_MICRO: Final = 1_000_000


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What must be said again to ask for the same answer again, and the budget that was given."""

    caller: str
    request_id: str
    model: str
    expires_at_unix_ms: int
    max_cost_micro_usd: int


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no good answer. `origin` is who said so: refusal, outcome, transport_error or command."""

    origin: str
    kind: str
    message: str
    advice: str
    exit_code: int
    retry: Retry
    retry_after_seconds: float | None = None


def shown(text: str) -> str:
    """The text with every character replaced that could drive a terminal; newlines and tabs stay."""
    return "".join(_safe(character) for character in text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    return "".join(" " if character in _HARMLESS else character for character in shown(text))


def _safe(character: str) -> str:
    if character in _HARMLESS:
        return character
    is_control = unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _TURNING
    return "\ufffd" if is_control else character


def dollars(micro_usd: int) -> str:
    """Exactly: no floating point touches money."""
    return f"${micro_usd // _MICRO}.{micro_usd % _MICRO:06d}"


def spoken(transported: Transported) -> str:
    """The visible text of an answer."""
    return "".join(event.payload.text_delta.text for event in transported.events if event.payload.text_delta)


def again(sent: Sent) -> str:
    """How the very same request is made once more."""
    return f"the same command with {named(sent)}"


def named(sent: Sent) -> str:
    """The flags that make a command line's request the very same."""
    return f"--request-id {sent.request_id} --expires-at-unix-ms {sent.expires_at_unix_ms}"


def lines(sent: Sent, transported: Transported, *, is_shown: bool = False) -> list[str]:
    """The receipt as a person reads it. `is_shown`: what came before a failure stands on the screen already."""
    receipt = transported.receipt
    told = [
        ("model", f"{receipt.model}, answered by {receipt.provider}"),
        ("ended", _ended(receipt)),
        ("tokens", _tokens(receipt)),
        ("charge", _charge(sent, receipt)),
        *(("note", note) for note in _notes(sent, transported, is_shown=is_shown)),
        ("request", f"{receipt.request_id} of caller {receipt.caller_runtime_id}"),
        ("replay", f"{again(sent)} (costs nothing)"),
    ]
    return [one_line(f"{name + ':':<9}{what}") for name, what in told]


def _ended(receipt: TransportReceipt) -> str:
    ended: Completed | Failed = receipt.outcome.chosen
    return ended.stop_reason if isinstance(ended, Completed) else f"failed, {ended.kind}"


def _tokens(receipt: TransportReceipt) -> str:
    usage = receipt.outcome.chosen.usage
    if usage is None:
        return "not known, so the whole reservation is charged"
    reasoning = "" if usage.reasoning_tokens is None else f" ({usage.reasoning_tokens} of them reasoning)"
    return (
        f"{usage.input_tokens} in, {usage.cache_read_tokens} read from cache, {usage.cache_write_tokens} written to it,"
        f" {usage.output_tokens} out{reasoning}"
    )


def _charge(sent: Sent, receipt: TransportReceipt) -> str:
    charge = receipt.cost_micro_usd
    return f"{charge} micro-USD = {dollars(charge)}, of a budget of {sent.max_cost_micro_usd}"


def _notes(sent: Sent, transported: Transported, *, is_shown: bool) -> list[str]:
    receipt, notes = transported.receipt, []
    stop = receipt.outcome.completed.stop_reason if receipt.outcome.completed else None
    calls = sum(1 for event in transported.events if event.payload.tool_call)
    if stop == "max_output_tokens":
        notes.append("cut at --max-output-tokens")
    if stop == "refusal":
        notes.append("the model declined to answer")
    if stop is not None and not spoken(transported):
        notes.append("the answer has no text")
    if receipt.cost_micro_usd > sent.max_cost_micro_usd:
        notes.append("an over-run: the provider used more than the budget allowed for")
    if receipt.foreign_reasoning_dropped:
        notes.append(f"{receipt.foreign_reasoning_dropped} reasoning states were dropped")
    if receipt.outcome.failed and transported.events:
        notes.append(f"a part of an answer had come before{'' if is_shown else '; --json shows it'}")
    elif calls:
        notes.append(f"{calls} tool call{'s' * (calls > 1)}, though no tool was offered; --json shows all")
    return notes


def document(sent: Sent | None, transported: Transported | None, failure: Failure | None) -> dict[str, Any]:
    """Everything, for a program; every member is always there. The receipt is as published in `schemas/`."""
    receipt = transported.receipt if transported else None
    ended: Completed | Failed | None = receipt.outcome.chosen if receipt else None
    return {
        "ok": failure is None,
        "exit_code": 0 if failure is None else failure.exit_code,
        "sent": msgspec.to_builtins(sent),
        "text": spoken(transported) if transported else None,
        "tool_calls": _calls(transported),
        "stop": ended.stop_reason if isinstance(ended, Completed) else None,
        "usage": msgspec.to_builtins(ended.usage) if ended else None,
        "charge_micro_usd": receipt.cost_micro_usd if receipt else None,
        "receipt": msgspec.to_builtins(receipt),
        "failure": msgspec.to_builtins(failure),
    }


def _calls(transported: Transported | None) -> list[Any]:
    events = transported.events if transported else ()
    return [msgspec.to_builtins(event.payload.tool_call) for event in events if event.payload.tool_call]
