"""`sidecar call`: one invocation from the shell; its text to stdout, its receipt to stderr.

Nothing is kept between two runs, so what makes two runs the same request, the
id and the expiry, is said in every receipt and can be given on the command
line. Exit codes after sysexits; `sidecar.cli.exits` says what each end means.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Final

from msgspec import structs

from sidecar.cli import advice, asking, receipt, typed
from sidecar.cli.asking import Asked, asked_by, encoded, prepared
from sidecar.cli.call_stream import LIVE, Live, must_be_ours, streamed
from sidecar.cli.dial import Trouble, dialed, read_answer, telling
from sidecar.cli.exits import COMMAND_FAULTS, EXIT_CODES, REFUSALS, Meaning
from sidecar.cli.output import StdoutLost, drop, say, write_out
from sidecar.cli.receipt import Failure, Sent
from sidecar.cli.stops import Stopped, Stops
from sidecar.contract.values import Failed, Refusal, Transported, TransportError, TransportResult
from sidecar.contract.waits import wait_in
from sidecar.ops.clock import unix_ms

_GRACE_SECONDS: Final = 10.0  # the deadline strikes in the daemon first; then it records the end, and says it
_STREAM_HELP: Final = (
    "the text as it comes; with --json each event as an object on a line of its own, then the one of all; default: off"
)
_LOST_MIDWAY: Final = Meaning(os.EX_IOERR, "same_id", "what was sent goes on, and is paid for")
_REPLAYING: Final = """\
The same command with the --request-id and --expires-at-unix-ms that its receipt names is the same request: it gets the
recorded answer, and nobody is asked or paid again. Without them each run is a request of its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar call` takes; the exit codes stand below it."""
    asking.add_arguments(
        parser,
        json_help="all of it as one JSON object on stdout, no receipt on stderr; default: off",
        and_then=f", and one that says nothing by then is waited for {_GRACE_SECONDS:g} s more",
    )
    parser.add_argument("--stream", action="store_true", help=_STREAM_HELP)
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_REPLAYING}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run(arguments: argparse.Namespace) -> int:
    return call(asked_by(arguments))


def call(asked: Asked, *, grace_seconds: float = _GRACE_SECONDS) -> int:
    """Asks once and tells what came of it. Returns the exit code."""
    sent = transported = failure = None
    live = LIVE[asked.stream, asked.as_json]()
    with Stops() as stops:
        try:
            with stops.raising():
                sent, invocation = prepared(asked)
                transported, failure = _carried(asked, sent, encoded(invocation), live, grace_seconds)
        except Trouble as trouble:
            failure = _fault(trouble, sent)
        except Stopped as stopped:
            failure = _interrupted(stopped, sent)
        except StdoutLost as lost:
            failure = _failure("command", "output", str(lost), _LOST_MIDWAY, sent)
        return _tell(asked, sent, transported, failure, live, stops)


# --- what comes back --------------------------------------------------------------------------------------------


def _carried(
    asked: Asked, sent: Sent, frame: bytes, live: Live, grace_seconds: float
) -> tuple[Transported | None, Failure | None]:
    socket = asked.socket
    left_seconds = max(0.0, (sent.expires_at_unix_ms - unix_ms()) / 1000)
    give_up_at = time.monotonic() + min(left_seconds, typed.SECONDS_MAX) + grace_seconds
    with dialed(socket, give_up_at) as daemon, telling(socket):
        answer = streamed(daemon, socket, sent, frame, live) if asked.stream else read_answer(daemon.ask(frame))
    if isinstance(answer, TransportError):
        meaning = advice.of_transport_error(answer.code, answer.message)
        return None, _failure("transport_error", answer.code, answer.message, meaning, sent)
    must_be_ours(answer, sent, socket)
    return _read(answer, asked, sent)


def _read(result: TransportResult, asked: Asked, sent: Sent) -> tuple[Transported | None, Failure | None]:
    if result.disposition.refused:
        refusal: Refusal = result.disposition.refused
        by_timeout = asked.expires_at_unix_ms is None
        told = advice.of_refusal(refusal, sent, by_timeout=by_timeout, now_unix_ms=unix_ms())
        meaning = structs.replace(REFUSALS[refusal], advice=told)
        return None, _failure("refusal", refusal, advice.what_is_refused(refusal), meaning, sent)
    transported = result.disposition.transported
    assert transported, "a result is refused or transported"
    failed = transported.receipt.outcome.failed
    return transported, _failed(failed, sent) if failed else None


def _failed(failed: Failed, sent: Sent) -> Failure:
    wait = wait_in(failed.message)
    return _failure("outcome", failed.kind, failed.message, advice.of_failure(failed), sent, wait)


def _fault(trouble: Trouble, sent: Sent | None) -> Failure:
    return _failure("command", trouble.kind, str(trouble), COMMAND_FAULTS[trouble.kind], sent)


def _interrupted(stopped: Stopped, sent: Sent | None) -> Failure:
    return structs.replace(_fault(Trouble("interrupted", stopped.by), sent), exit_code=stopped.exit_code)


def _failure(
    origin: str, kind: str, message: str, meaning: Meaning, sent: Sent | None, wait_seconds: float | None = None
) -> Failure:
    retry, told = meaning.retry, meaning.advice
    if retry == "same_id" and sent is None:
        retry, told = "new_id", "nothing was sent"
    elif retry == "same_id" and sent is not None and not meaning.never_left:
        told = f"{told}; to get its answer: {receipt.again(sent)}"
    return Failure(
        origin=origin,
        kind=kind,
        message=message,
        advice=told,
        exit_code=meaning.exit_code,
        retry=retry,
        retry_after_seconds=wait_seconds,
    )


# --- what is told -----------------------------------------------------------------------------------------------


def _tell(
    asked: Asked,
    sent: Sent | None,
    transported: Transported | None,
    failure: Failure | None,
    live: Live,
    stops: Stops,
) -> int:
    """The exit code, once everything is told that can be."""
    try:
        with stops.raising():
            live.end(transported, is_good=failure is None)
            if asked.as_json:
                write_out(json.dumps(receipt.document(sent, transported, failure)) + "\n")
    except StdoutLost as lost:
        failure = failure or _fault(Trouble("output", str(lost)), sent)
    except Stopped as stopped:
        drop(sys.stdout)
        failure = failure or _interrupted(stopped, sent)
    with stops.raising():
        for note in live.notes:
            say(f"sidecar call: note: {note}")
        if failure is not None:
            say(f"sidecar call: {failure.kind}: {failure.message}; {failure.advice}")
        if transported is not None and sent is not None and not asked.as_json:
            for line in receipt.lines(sent, transported, is_shown=asked.stream):
                say(line)
    return os.EX_OK if failure is None else failure.exit_code
