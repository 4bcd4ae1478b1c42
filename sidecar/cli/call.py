"""`sidecar call`: one invocation from the shell; its text to stdout, its receipt to stderr.

Nothing is kept between two runs, so what makes two runs the same request, the
id and the expiry, is said in every receipt and can be given on the command
line. Exit codes after sysexits; `sidecar.cli.exits` says what each end means.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pwd
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from sidecar.cli import advice, receipt
from sidecar.cli.dial import Trouble, dialed, invocation_frame, read_answer
from sidecar.cli.exits import COMMAND_FAULTS, EXIT_CODES, FAILURES, REFUSALS, Meaning
from sidecar.cli.output import StdoutLost, drop, say, write_out
from sidecar.cli.receipt import Failure, Sent
from sidecar.cli.stops import Stopped, Stops
from sidecar.connectors.messages import wait_in
from sidecar.contract.ids import is_id
from sidecar.contract.values import (
    PROVIDER_REQUEST,
    U64_MAX,
    Failed,
    InputItem,
    ProviderRequest,
    Refusal,
    Transported,
    TransportError,
    TransportResult,
    UserText,
)
from sidecar.ops.clock import unix_ms
from sidecar.rules.framing import FRAME_BYTES_LIMIT, FrameSize

_GRACE_SECONDS: Final = 10.0  # the deadline strikes in the daemon first; then it records the end, and says it
_FROM_STDIN: Final = "-"
_TIMEOUT_SECONDS_MAX: Final = 1e9
_TIMEOUT_HELP: Final = (
    "until the request expires; the daemon takes at most its expiry_skew_seconds_max"
    f" ({advice.EXPIRY_SKEW_SECONDS_DEFAULT} unless configured), and one that says nothing by then is waited for"
    f" {_GRACE_SECONDS:g} s more; default: %(default)g"
)
_REPLAYING: Final = """\
The same command with the --request-id and --expires-at-unix-ms that its receipt names is the same request: it gets the
recorded answer, and nobody is asked or paid again. Without them each run is a request of its own."""


class Asked(Struct, frozen=True, kw_only=True):
    """The command line."""

    socket: Path
    model: str
    caller: str | None
    request_id: str | None
    expires_at_unix_ms: int | None
    max_output_tokens: int
    timeout_seconds: float
    budget_micro_usd: int
    as_json: bool
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sidecar call` takes; the exit codes stand below it."""
    add = parser.add_argument
    add("--socket", type=_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    add("--model", type=_id, required=True, metavar="NAME", help="a model of the daemon's configuration; always wanted")
    add("--caller", type=_id, metavar="ID", help="a caller of the daemon's configuration; default: your login name")
    add("--max-output-tokens", type=_whole(2**32 - 1), default=512, metavar="N", help="default: %(default)s")
    add("--timeout", type=_seconds, default=60.0, metavar="SECONDS", help=_TIMEOUT_HELP)
    add("--budget", type=_whole(U64_MAX), default=100_000, metavar="MICRO_USD", help="at most; default: %(default)s")
    add(
        "--json", action="store_true", help="all of it as one JSON object on stdout, no receipt on stderr; default: off"
    )
    add("--request-id", type=_id, metavar="ID", help="default: a fresh one")
    add("--expires-at-unix-ms", type=_whole(U64_MAX), metavar="N", help="an instant; default: --timeout from now")
    add("text", metavar="TEXT", help="what to say; - reads it from stdin; after -- it may begin with a dash")
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser.epilog = f"{_REPLAYING}\n\nexit codes:\n{codes}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def asked_by(arguments: argparse.Namespace) -> Asked:
    return Asked(
        socket=arguments.socket,
        model=arguments.model,
        caller=arguments.caller,
        request_id=arguments.request_id,
        expires_at_unix_ms=arguments.expires_at_unix_ms,
        max_output_tokens=arguments.max_output_tokens,
        timeout_seconds=arguments.timeout,
        budget_micro_usd=arguments.budget,
        as_json=arguments.json,
        text=arguments.text,
    )


def call(asked: Asked, *, grace_seconds: float = _GRACE_SECONDS) -> int:
    """Asks once and tells what came of it. Returns the exit code."""
    sent = transported = failure = None
    with Stops() as stops:
        try:
            with stops.raising():
                sent, frame = _prepared(asked)
                transported, failure = _carried(asked, sent, frame, grace_seconds)
        except Trouble as trouble:
            failure = _fault(trouble, sent)
        except Stopped as stopped:
            failure = _interrupted(stopped, sent)
        return _tell(asked, sent, transported, failure, stops)


# --- what is sent -----------------------------------------------------------------------------------------------


def _prepared(asked: Asked) -> tuple[Sent, bytes]:
    """The invocation's frame. The time that it has begins once its text is there."""
    caller, text = asked.caller or _login_name(), _text(asked.text)
    request_id = asked.request_id or f"call-{secrets.token_hex(12)}"
    sent = Sent(
        caller=caller,
        request_id=request_id,
        model=asked.model,
        expires_at_unix_ms=asked.expires_at_unix_ms or unix_ms() + math.ceil(asked.timeout_seconds * 1000),
        max_cost_micro_usd=asked.budget_micro_usd,
    )
    request = ProviderRequest(
        schema_id=PROVIDER_REQUEST,
        request_id=request_id,
        conversation_id=request_id,
        model=asked.model,
        instructions="",
        input=(InputItem(user_text=UserText(text=text)),),
        tools=(),
        tool_choice="auto",
        parallel_tool_calls=False,
        max_output_tokens=asked.max_output_tokens,
    )
    frame = invocation_frame(
        request,
        caller=caller,
        expires_at_unix_ms=sent.expires_at_unix_ms,
        max_cost_micro_usd=sent.max_cost_micro_usd,
    )
    if len(frame) > FRAME_BYTES_LIMIT:
        raise Trouble(
            "text", f"the text makes a request of {len(frame)} bytes; no daemon takes above {FRAME_BYTES_LIMIT}"
        )
    return sent, frame


def _text(argument: str) -> str:
    try:
        text = _stdin().decode() if argument == _FROM_STDIN else argument
        text.encode()  # what was no text on the command line stands there as lone surrogates
    except UnicodeError:
        raise Trouble("text", "the text is not UTF-8") from None
    if not text:
        raise Trouble("text", "the text is empty")
    return text


def _stdin() -> bytes:
    if sys.stdin is None:
        raise Trouble("no_input", "stdin is closed")
    try:
        read = sys.stdin.buffer.read(FRAME_BYTES_LIMIT + 1)
    except OSError as error:
        raise Trouble("no_input", f"stdin can't be read: {error.strerror}") from None
    if len(read) > FRAME_BYTES_LIMIT:
        raise Trouble("text", f"the text is larger than any request may be, {FRAME_BYTES_LIMIT} bytes")
    return read


def _login_name() -> str:
    """By uid, as the daemon sees us; the environment's word would count for nothing there."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = ""
    if not is_id(name):
        raise Trouble("usage", f"uid {os.getuid()} has no login name to call as: give --caller")
    return name


# --- what comes back --------------------------------------------------------------------------------------------


def _carried(asked: Asked, sent: Sent, frame: bytes, grace_seconds: float) -> tuple[Transported | None, Failure | None]:
    socket = asked.socket
    left_seconds = max(0.0, (sent.expires_at_unix_ms - unix_ms()) / 1000)
    give_up_at = time.monotonic() + min(left_seconds, _TIMEOUT_SECONDS_MAX) + grace_seconds
    with dialed(socket, give_up_at) as daemon:
        try:
            answer = read_answer(daemon.ask(frame))
        except TimeoutError:
            raise Trouble("no_answer", "the daemon has not answered in time") from None
        except (FrameSize, msgspec.MsgspecError):
            raise Trouble("no_daemon_protocol", f"what listens on {socket} does not speak as sidecar does") from None
        except OSError as error:
            raise Trouble("connection_lost", str(error.strerror or error)) from None
    if isinstance(answer, TransportError):
        meaning = advice.of_transport_error(answer.code, answer.message)
        return None, _failure("transport_error", answer.code, answer.message, meaning, sent)
    if (answer.caller_runtime_id, answer.request_id) != (sent.caller, sent.request_id):
        raise Trouble("no_daemon_protocol", f"what listens on {socket} answered another request than ours")
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
    return _failure("outcome", failed.kind, failed.message, FAILURES[failed.kind], sent, wait)


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
    asked: Asked, sent: Sent | None, transported: Transported | None, failure: Failure | None, stops: Stops
) -> int:
    """The exit code, once everything is told that can be."""
    try:
        with stops.raising():
            if asked.as_json:
                write_out(json.dumps(receipt.document(sent, transported, failure)) + "\n")
            elif transported is not None and failure is None:
                write_out(receipt.spoken(transported))
    except StdoutLost as lost:
        failure = failure or _fault(Trouble("output", str(lost)), sent)
    except Stopped as stopped:
        drop(sys.stdout)
        failure = failure or _interrupted(stopped, sent)
    with stops.raising():
        if failure is not None:
            say(f"sidecar call: {failure.kind}: {failure.message}; {failure.advice}")
        if transported is not None and sent is not None and not asked.as_json:
            for line in receipt.lines(sent, transported):
                say(line)
    return os.EX_OK if failure is None else failure.exit_code


# --- what the command line may hold -----------------------------------------------------------------------------


def _socket(said: str) -> Path:
    if not said:
        raise argparse.ArgumentTypeError("it is empty; a path is wanted")
    return Path(said)


def _id(said: str) -> str:
    if not is_id(said):
        raise argparse.ArgumentTypeError("an id is 1 to 256 characters of printable ASCII, without spaces")
    return said


def _whole(at_most: int) -> Callable[[str], int]:
    def whole(said: str) -> int:
        plain = said.replace("_", "")
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= 20 and 1 <= int(plain) <= at_most):
            raise argparse.ArgumentTypeError(f"a whole number from 1 to {at_most} is wanted")
        return int(plain)

    return whole


def _seconds(said: str) -> float:
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _TIMEOUT_SECONDS_MAX:
        raise argparse.ArgumentTypeError("a number of seconds above 0 is wanted")
    return seconds
