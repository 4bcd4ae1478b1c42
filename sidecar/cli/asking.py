"""One invocation as the command line says it: what `call` sends, and what `quote` asks about.

Nothing is kept between two runs, so what makes two runs the same request, the
id and the expiry, can be given on the command line: both commands make the
very same bytes of the same words.
"""

from __future__ import annotations

import argparse
import math
import os
import pwd
import secrets
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.cli import advice, typed
from sidecar.cli.dial import Trouble
from sidecar.cli.receipt import Sent
from sidecar.client.asking import Terms, invocation_of, new_request
from sidecar.contract import canonical
from sidecar.contract.client_frames import TransportQuote
from sidecar.contract.ids import is_id
from sidecar.contract.values import U64_MAX, TransportInvocation
from sidecar.ops.clock import unix_ms
from sidecar.rules.framing import FRAME_BYTES_LIMIT

_FROM_STDIN: Final = "-"
_TIMEOUT_HELP: Final = (
    "until the request expires; the daemon takes at most its expiry_skew_seconds_max"
    f" ({advice.EXPIRY_SKEW_SECONDS_DEFAULT} unless configured){{and_then}}; default: %(default)g"
)


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
    stream: bool
    text: str


def add_arguments(parser: argparse.ArgumentParser, *, json_help: str, and_then: str = "") -> None:
    """What an invocation is made of. `and_then` is said of what comes when its time is over."""
    add = parser.add_argument
    add("--socket", type=typed.a_socket, required=True, metavar="PATH", help="where the daemon listens; always wanted")
    add(
        "--model",
        type=typed.an_id,
        required=True,
        metavar="NAME",
        help="a model of the daemon's configuration; always wanted",
    )
    add(
        "--caller",
        type=typed.an_id,
        metavar="ID",
        help="a caller of the daemon's configuration; default: your login name",
    )
    add("--max-output-tokens", type=typed.whole(2**32 - 1), default=512, metavar="N", help="default: %(default)s")
    add("--timeout", type=typed.seconds, default=60.0, metavar="SECONDS", help=_TIMEOUT_HELP.format(and_then=and_then))
    add(
        "--budget",
        type=typed.whole(U64_MAX),
        default=100_000,
        metavar="MICRO_USD",
        help="at most; default: %(default)s",
    )
    add("--json", action="store_true", help=json_help)
    add("--request-id", type=typed.an_id, metavar="ID", help="default: a fresh one")
    add(
        "--expires-at-unix-ms",
        type=typed.whole(U64_MAX),
        metavar="N",
        help="an instant; default: --timeout from now",
    )
    add("text", metavar="TEXT", help="what to say; - reads it from stdin; after -- it may begin with a dash")


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
        stream=getattr(arguments, "stream", False),
        text=arguments.text,
    )


def prepared(asked: Asked) -> tuple[Sent, TransportInvocation]:
    """The invocation. The time that it has begins once its text is there. Raises Trouble."""
    caller, text = asked.caller or login_name(), _text(asked.text)
    request_id = asked.request_id or f"call-{secrets.token_hex(12)}"
    sent = Sent(
        caller=caller,
        request_id=request_id,
        model=asked.model,
        expires_at_unix_ms=asked.expires_at_unix_ms or unix_ms() + math.ceil(asked.timeout_seconds * 1000),
        max_cost_micro_usd=asked.budget_micro_usd,
    )
    request = new_request(
        asked.model,
        text,
        request_id=request_id,
        conversation_id=request_id,
        max_output_tokens=asked.max_output_tokens,
    )
    terms = Terms(expires_at_unix_ms=sent.expires_at_unix_ms, max_cost_micro_usd=sent.max_cost_micro_usd)
    return sent, invocation_of(request, caller, terms)


def encoded(frame: TransportInvocation | TransportQuote) -> bytes:
    """Its canonical bytes, if there may be a daemon that takes so many. Raises Trouble."""
    made = canonical.encode(frame)
    if len(made) > FRAME_BYTES_LIMIT:
        raise Trouble(
            "text", f"the text makes a request of {len(made)} bytes; no daemon takes above {FRAME_BYTES_LIMIT}"
        )
    return made


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


def login_name() -> str:
    """By uid, as the daemon sees us; the environment's word would count for nothing there."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = ""
    if not is_id(name):
        raise Trouble("usage", f"uid {os.getuid()} has no login name to call as: give --caller")
    return name
