"""`sidecar quote`: what a call would be answered now, and what it could cost at worst. Nothing is run, nor reserved.

It takes what `call` takes, and makes the same invocation of it: with the id and
the expiry that it names, the call is the very request that was quoted.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from sidecar.cli import advice, asking, question, receipt
from sidecar.cli.asking import Asked, asked_by, encoded, prepared
from sidecar.cli.dial import Trouble, answered, read_said
from sidecar.cli.exits import EXIT_CODES as CALL_EXIT_CODES
from sidecar.cli.exits import REFUSALS, Meaning
from sidecar.cli.output import say, write_out
from sidecar.cli.receipt import Failure, Sent, dollars
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract.client_frames import TRANSPORT_QUOTE, TransportQuote, TransportQuoted
from sidecar.contract.values import Refusal, TransportError
from sidecar.ops.clock import unix_ms

EXIT_CODES: Final[Mapping[int, str]] = {
    **CALL_EXIT_CODES,
    os.EX_OK: "it would be admitted, or is on record, and answered from there",
}
_SAME_REQUEST: Final = """\
sidecar call with the same arguments, and the --request-id and --expires-at-unix-ms that are told, is the very request
that was quoted: its worst case is what is reserved for it. A refusal has the exit code that it would have there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar call` takes, but for --stream."""
    asking.add_arguments(parser, json_help="all of it as one JSON object on stdout; default: off")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_SAME_REQUEST}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace) -> int:
    return quote(asked_by(arguments))


def quote(asked: Asked) -> int:
    """Asks, and tells the answer. Returns the exit code that a call would have for the refusal, if there is one."""
    sent = quoted = failure = None
    with Stops() as stops:
        try:
            with stops.raising():
                sent, invocation = prepared(asked)
                frame = encoded(TransportQuote(schema_id=TRANSPORT_QUOTE, invocation=invocation))
                answer = answered(asked.socket, frame, _quoted, seconds_max=question.SECONDS_MAX)
                quoted, failure = _read(answer, asked, sent)
        except Trouble as trouble:
            failure = _failure("command", trouble.kind, str(trouble), question.meaning_of_trouble(trouble))
        except Stopped as stopped:
            told = question.meaning_of_trouble(Trouble("interrupted", stopped.by))
            failure = _failure("command", "interrupted", stopped.by, structs.replace(told, exit_code=stopped.exit_code))
        with stops.raising():
            return _tell(asked, sent, quoted, failure)


def _quoted(frame: bytes) -> TransportQuoted | TransportError:
    return read_said(frame, TransportQuoted)


def _read(
    answer: TransportQuoted | TransportError, asked: Asked, sent: Sent
) -> tuple[TransportQuoted | None, Failure | None]:
    if isinstance(answer, TransportError):
        meaning = advice.of_transport_error(answer.code, answer.message)
        return None, _failure("transport_error", answer.code, answer.message, meaning)
    if (answer.caller_runtime_id, answer.request_id) != (sent.caller, sent.request_id):
        raise Trouble("no_daemon_protocol", f"what listens on {asked.socket} answered another request than ours")
    return answer, _refused(answer.refusal, asked, sent) if answer.refusal else None


def _refused(refusal: Refusal, asked: Asked, sent: Sent) -> Failure:
    by_timeout = asked.expires_at_unix_ms is None
    told = advice.of_refusal(refusal, sent, by_timeout=by_timeout, now_unix_ms=unix_ms())
    return _failure("refusal", refusal, "it would be refused", structs.replace(REFUSALS[refusal], advice=told))


def _failure(origin: str, kind: str, message: str, meaning: Meaning) -> Failure:
    return Failure(
        origin=origin,
        kind=kind,
        message=message,
        advice=meaning.advice,
        exit_code=meaning.exit_code,
        retry=meaning.retry,
    )


def _tell(asked: Asked, sent: Sent | None, quoted: TransportQuoted | None, failure: Failure | None) -> int:
    if asked.as_json:
        write_out(json.dumps(_document(sent, quoted, failure)) + "\n")
    elif quoted is not None and sent is not None:
        write_out("".join(f"{line}\n" for line in _lines(sent, quoted)))
    if failure is not None:
        say(f"sidecar quote: {failure.kind}: {failure.message}; {failure.advice}")
    return os.EX_OK if failure is None else failure.exit_code


def _lines(sent: Sent, quoted: TransportQuoted) -> list[str]:
    told = [
        ("quote", f"it would be refused: {quoted.refusal}" if quoted.refusal else "it would be admitted, or replayed"),
        ("at worst", _worst_case(sent, quoted)),
        ("request", f"{quoted.request_id} of caller {quoted.caller_runtime_id}, for model {sent.model}"),
    ]
    if quoted.refusal is None:
        told.append(("call", f"sidecar call with the same arguments and {receipt.named(sent)}"))
    return [receipt.one_line(f"{name + ':':<10}{what}") for name, what in told]


def _worst_case(sent: Sent, quoted: TransportQuoted) -> str:
    worst = quoted.worst_case_micro_usd
    if worst is None:
        return "not known: a rule before the cost applies"
    return f"{worst} micro-USD = {dollars(worst)}, of a budget of {sent.max_cost_micro_usd}"


def _document(sent: Sent | None, quoted: TransportQuoted | None, failure: Failure | None) -> dict[str, Any]:
    """Everything, for a program; every member is always there."""
    return {
        "ok": failure is None,
        "exit_code": 0 if failure is None else failure.exit_code,
        "sent": msgspec.to_builtins(sent),
        "worst_case_micro_usd": quoted.worst_case_micro_usd if quoted else None,
        "refusal": quoted.refusal if quoted else None,
        "failure": msgspec.to_builtins(failure),
    }
