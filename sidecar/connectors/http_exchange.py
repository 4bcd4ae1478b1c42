"""The one HTTP exchange: a POST that is sent exactly once, and a body that is read within bounds.

Nothing is retried and no redirect is followed. `Answer.sent` turns true when
the first byte of the request is about to leave, so that a failure to connect
costs nothing and any later one costs what is not known. There are no timeouts
here: the deadline of the invocation cancels the whole. Faults of the HTTP
library are turned into failures here and nowhere else.
Source: CONTRACT sections 5 and 6; WIRE sections 1, 7 and 8.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

import httpx2
from msgspec import Struct

from sidecar.connectors.failures import USAGE_UNKNOWN_STATUSES, kind_of, kind_of_status, wait_seconds
from sidecar.connectors.messages import clean_message
from sidecar.connectors.promise import Answer
from sidecar.contract.values import NOTHING_USED, FailureKind

ERROR_BODY_BYTES_MAX: Final = 65_536
_LEAVING: Final = "send_request_headers.started"


class Outgoing(Struct, frozen=True, kw_only=True):
    """One request as it will be sent; its `secret` is only for scrubbing what comes back."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    secret: str | None

    def __repr__(self) -> str:
        return f"<POST {self.url}, {len(self.body)} bytes>"


class ExchangeFault(Exception):
    """The exchange broke before the body's end. An answer whose terminal event was read stands all the same."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def new_client() -> httpx2.AsyncClient:
    """A client that takes nothing from the environment, follows nothing and waits as long as it is let."""
    return httpx2.AsyncClient(trust_env=False, follow_redirects=False, timeout=None)


async def post(
    client: httpx2.AsyncClient, outgoing: Outgoing, answer: Answer, body_bytes_max: int
) -> AsyncGenerator[bytes, None]:
    """The pieces of a 200's body; any other status ends the Answer and yields nothing.

    Raises ExchangeFault for a broken connection and for a body above its
    bound. Use it with `contextlib.aclosing`.
    """

    async def trace(name: str, _: Mapping[str, Any]) -> None:
        if name.endswith(_LEAVING):
            answer.sent = True

    headers = {"accept-encoding": "identity", "content-type": "application/json", **outgoing.headers}
    try:
        async with client.stream(
            "POST", outgoing.url, content=outgoing.body, headers=headers, extensions={"trace": trace}
        ) as response:
            if response.status_code != 200:
                await _fail_by_status(response, outgoing, answer)
                return
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                answer.fail("provider", "the provider encoded a body that was asked for as it is")
                return
            async with aclosing(_bounded(response, body_bytes_max)) as pieces:
                async for piece in pieces:
                    yield piece
    except httpx2.TimeoutException as error:
        raise ExchangeFault("timeout", _said(error, outgoing)) from error
    except httpx2.InvalidURL as error:
        raise ExchangeFault("provider", _said(error, outgoing)) from error
    except httpx2.HTTPError as error:
        raise ExchangeFault("unavailable", _said(error, outgoing)) from error


async def _bounded(response: httpx2.Response, body_bytes_max: int) -> AsyncGenerator[bytes, None]:
    left = body_bytes_max
    async with aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise ExchangeFault("result_size", f"the provider sent more than {body_bytes_max} bytes")
            yield piece


async def _fail_by_status(response: httpx2.Response, outgoing: Outgoing, answer: Answer) -> None:
    """The failure that a status of 300 and above, or a strange 2xx, is."""
    status = response.status_code
    body, was_cut = await _error_body(response)
    error = error_of(body)
    said = str(error.get("message") or "") if error else ""
    kind = kind_of(error, status) if error else kind_of_status(status)
    message = (
        said or f"HTTP {status} with {'an empty' if not body else 'a non-JSON' if error is None else 'an unknown'} body"
    )
    if 300 <= status < 400:
        message = f"HTTP {status}: a redirect, which is never followed"
    wait = wait_seconds(response.headers, time.time())
    message = clean_message(message, outgoing.secret, was_cut=was_cut)
    if wait is not None:
        message = f"{message[:960]} (the provider asks to wait {wait:g} s)"
    is_known = status >= 400 and status not in USAGE_UNKNOWN_STATUSES
    answer.fail(kind, message, NOTHING_USED if is_known else None)


async def _error_body(response: httpx2.Response) -> tuple[bytes, bool]:
    body = bytearray()
    async with aclosing(response.aiter_raw()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > ERROR_BODY_BYTES_MAX:
                return bytes(body[:ERROR_BODY_BYTES_MAX]), True
    return bytes(body), False


def error_of(body: bytes | str) -> dict[str, Any] | None:
    """The error object of a JSON body, in any of the shapes that servers use; None where the body is no JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    if not isinstance(document, dict):
        return None
    error = document.get("error", document)
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else document


def _said(error: Exception, outgoing: Outgoing) -> str:
    return clean_message(f"{type(error).__name__}: {error}", outgoing.secret)
