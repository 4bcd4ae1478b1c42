"""The one HTTP exchange: a POST that is sent exactly once, and a body that is read within bounds.

Nothing is retried, no redirect is followed, no cookie is kept. `Answer.sent`
turns true when the first byte of the request is about to leave, so that a
failure to connect costs nothing and any later one costs what is not known. A
status of 400 and above is the provider's last word: it stands even if the
error's body breaks off or the deadline strikes while it is read. There are no
timeouts here: the deadline of the invocation cancels the whole. Faults of the
HTTP library are turned into failures here and nowhere else.
Source: CONTRACT sections 5 and 6; WIRE sections 1, 7 and 8.
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import trio
from msgspec import Struct

from sidecar.connectors.failures import (
    USAGE_UNKNOWN_STATUSES,
    error_of,
    kind_of,
    kind_of_status,
    wait_in_error,
    wait_seconds,
    words_of,
)
from sidecar.connectors.messages import clean_message, with_wait
from sidecar.connectors.pace import Pace
from sidecar.connectors.promise import Answer
from sidecar.contract.values import NOTHING_USED, FailureKind

ERROR_BODY_BYTES_MAX: Final = 65_536
_NOT_THERE: Final = re.compile(r"(?:file |page |route )?(?:not found|method not allowed)\W*", re.IGNORECASE)
_WRONG_PATH_STATUSES: Final = frozenset({404, 405})
_NO_TLS_REASONS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})  # by OpenSSL's age
_CONNECTED: Final = "connect_tcp.complete"
_LEAVING: Final = "send_request_headers.started"  # the first trace event after which a byte of the request may leave
_HEADERS: Final = {
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "keep-alive",
    "user-agent": "model-sidecar",
    "content-type": "application/json",
}
_IDLE_SECONDS_MAX: Final = 4.0  # below the 5 s after which Node and uvicorn close what is idle; gateways wait longer

for _talker in ("httpcore2", "httpx2"):
    logging.getLogger(_talker).setLevel(logging.WARNING)  # their debug lines quote headers


class Outgoing(Struct, frozen=True, kw_only=True):
    """One request as it will be sent; `secret` is only for scrubbing what comes back, `absent` explains a 404."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: str | None
    absent: str = ""

    def __repr__(self) -> str:
        return f"<POST {self.url}, {len(self.body)} bytes>"


class ExchangeFault(Exception):
    """The exchange broke before the body's end. An answer whose terminal event was read stands all the same."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def new_client(base_url: str, *, idle_connections_max: int) -> httpx2.AsyncBaseTransport:
    """What sends a request and reads its response, and nothing else: the lower half of the library's client.

    The upper half would take proxies and passwords from the environment, follow
    redirects and keep cookies, and each piece of a stream would go through it.

    How many exchanges run at once is the service's to bound; this only says how
    many connections stay open after them. Over plain HTTP none does: making one
    costs next to nothing there, llama.cpp's server often closes a kept one
    unannounced, and a request that meets the closing can be neither told from
    one that ran nor sent again.
    """
    is_worth_keeping = base_url.startswith("https:")
    return httpx2.AsyncHTTPTransport(
        trust_env=False,
        limits=httpx2.Limits(
            max_connections=None,
            max_keepalive_connections=idle_connections_max if is_worth_keeping else 0,
            keepalive_expiry=_IDLE_SECONDS_MAX,
        ),
    )


async def post(
    client: httpx2.AsyncBaseTransport, outgoing: Outgoing, answer: Answer, body_bytes_max: int, pace: Pace | None = None
) -> AsyncGenerator[bytes, None]:
    """The pieces of a 200's body; any other status ends the Answer and yields nothing.

    Raises ExchangeFault for a broken connection and for a body above its
    bound. Use it with `contextlib.aclosing`: closed early, it drops the connection.
    """

    pace = pace or Pace()
    in_handshake: list[trio.abc.AsyncResource] = []

    async def trace(name: str, seen: Mapping[str, Any]) -> None:
        if name.endswith(_CONNECTED):
            in_handshake.append(seen["return_value"])
        elif name.endswith(_LEAVING):
            in_handshake.clear()
            answer.sent = True

    headers = {**_HEADERS, **outgoing.headers}
    try:
        request = httpx2.Request(
            "POST", outgoing.url, content=outgoing.body, headers=headers, extensions={"trace": trace}
        )
        async with aclosing(await client.handle_async_request(request)) as response:
            if response.status_code != 200:
                await _fail_by_status(response, outgoing, answer, pace)
            elif response.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
                answer.fail("provider", "the provider encoded a body that was asked for as it is")
            else:
                left = body_bytes_max
                async with aclosing(_raw_pieces(response, pace)) as pieces:
                    async for piece in pieces:
                        left -= len(piece)
                        if left < 0:
                            raise ExchangeFault("result_size", f"the provider sent more than {body_bytes_max} bytes")
                        yield piece
    except httpx2.TimeoutException as error:
        raise ExchangeFault("timeout", _said(error, outgoing)) from error
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise ExchangeFault("provider", _said(error, outgoing)) from error
    except httpx2.HTTPError as error:
        raise ExchangeFault("unavailable", _said(error, outgoing)) from error
    finally:
        for stream in in_handshake:
            await trio.aclose_forcefully(stream)  # the library leaves it open when its TLS handshake is cancelled


async def _raw_pieces(response: httpx2.Response, pace: Pace) -> AsyncGenerator[bytes, None]:
    """The body as it comes off the connection, which is dropped where it is not read to its end.

    One read may hold thousands of pieces, for HTTP's chunks can be a byte each.

    The library stacks generators and does not close all of its inner ones, so an
    early end is brought about from the inside: by a read that is cancelled.
    """
    pieces = aiter(_stream_of(response))
    try:
        async for piece in pieces:
            await pace.rest()
            yield piece
    finally:
        with suppress(httpx2.HTTPError), trio.CancelScope() as drop:
            drop.cancel()
            async for _ in pieces:  # what was buffered; the first read that would wait ends it
                await pace.rest_uncancelled()


def _stream_of(response: httpx2.Response) -> httpx2.AsyncByteStream:
    assert isinstance(response.stream, httpx2.AsyncByteStream), "what is asked without blocking is read so"
    return response.stream


async def _fail_by_status(response: httpx2.Response, outgoing: Outgoing, answer: Answer, pace: Pace) -> None:
    """The failure that a status of 300 and above, or a strange 2xx, is; also if its body breaks off or is cut."""
    body = bytearray()
    try:
        async with aclosing(_raw_pieces(response, pace)) as pieces:
            async for piece in pieces:
                body += piece[: ERROR_BODY_BYTES_MAX - len(body)]
                if len(body) == ERROR_BODY_BYTES_MAX:
                    break
    except httpx2.HTTPError:
        pass  # the status has said what matters
    finally:
        kind, message = status_failure(response.status_code, response.headers, bytes(body), outgoing)
        is_known = response.status_code >= 400 and response.status_code not in USAGE_UNKNOWN_STATUSES
        answer.fail(kind, message, NOTHING_USED if is_known else None)


def status_failure(status: int, headers: Mapping[str, str], body: bytes, outgoing: Outgoing) -> tuple[FailureKind, str]:
    """The kind and the message for a person that a status other than 200 and what came with it make."""
    if 300 <= status < 400:
        return "provider", f"HTTP {status}: a redirect, which is never followed: is base_url right?"
    error = error_of(body)
    kind = kind_of(error, status) if error is not None else kind_of_status(status)
    said = words_of(error) if error is not None else ""
    if not said:
        said = f"HTTP {status} with {'an empty' if not body else 'a non-JSON' if error is None else 'an unknown'} body"
        if error is None and status in _WRONG_PATH_STATUSES:
            said += f" for a POST to {urlsplit(outgoing.url).path}: is base_url right?"
    elif status in _WRONG_PATH_STATUSES and not outgoing.absent and _NOT_THERE.fullmatch(said):
        path = urlsplit(outgoing.url).path
        said = f"{said:.512} (a POST to {path}: are base_url and the model's upstream right?)"
    message = clean_message(said, outgoing.secret)
    if outgoing.absent and status in _WRONG_PATH_STATUSES:
        message = f"{message:.512} ({outgoing.absent})"
    wait = wait_seconds(headers, time.time())
    if wait is None and error is not None:
        wait = wait_in_error(error)
    return kind, message if wait is None else with_wait(message, wait)


def _said(error: Exception, outgoing: Outgoing) -> str:
    what = "no connection to" if isinstance(error, httpx2.ConnectError) else "the connection broke:"
    why = f"{type(error).__name__}: {_words(error)}"
    if isinstance(error, httpx2.ConnectError) and _meets_no_tls(error):
        why = "the server there does not speak TLS: is https right in base_url?"
    return clean_message(f"{what} {urlsplit(outgoing.url).netloc} ({why})", outgoing.secret)


def _words(error: BaseException) -> str:
    """What an error says, or the first of those behind it that says anything: a bad certificate stands deep down."""
    behind: BaseException | None = error
    while behind is not None and not str(behind):
        behind = behind.__cause__ or behind.__context__
    return str(behind) if behind is not None else "no reason was given"


def _meets_no_tls(error: BaseException) -> bool:
    """Whether what came in the handshake was no TLS at all."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, ssl.SSLError) and behind.reason in _NO_TLS_REASONS:
            return True
        behind = behind.__cause__ or behind.__context__
    return False
