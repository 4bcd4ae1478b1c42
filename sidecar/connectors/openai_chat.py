"""Chat Completions, as OpenAI and many compatible servers speak it.

`openai_chat_lower` makes one POST body of a request and `openai_chat_lift` an
answer of what comes back; this is what stands between them. Source: WIRE section 3.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import httpx2
import trio

from sidecar.connectors import openai_chat_lower
from sidecar.connectors.http_exchange import ExchangeFault, Outgoing, post
from sidecar.connectors.messages import clean_message
from sidecar.connectors.openai_chat_lift import Lift
from sidecar.connectors.openai_chat_lower import Dialect
from sidecar.connectors.pace import Clock, Pace
from sidecar.connectors.promise import Answer, Lowered
from sidecar.contract.values import ProviderRequest

_PATH: Final = "/chat/completions"
_DOCUMENT_MARGIN_BYTES: Final = 1 << 20
_SLICE_BYTES: Final = 2048  # so much of a body can hold no more events or lines than a turn has time for
_REST_SECONDS_MAX: Final = 0.1  # a body that ends by then leaves its connection for the next request
_LAST_WORD_SECONDS_MAX: Final = 2.0  # `[DONE]` follows the usage at once, where a server sends it at all


def endpoint(base_url: str) -> str:
    """The one URL that is posted to, whatever slashes the base has; a base without a path gets `/v1`."""
    split = urlsplit(base_url)
    path = split.path.rstrip("/")
    if not path.endswith(_PATH):
        path = (path or "/v1") + _PATH
    return urlunsplit((split.scheme, split.netloc, path, "", ""))


class OpenAIChat:
    """One Chat Completions server."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        *,
        base_url: str,
        secret: str | None,
        response_bytes_max: int,
        body_bytes_max: int,
        dialect: Dialect,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._client = client
        self._url = endpoint(base_url)
        self._secret = secret
        self._body_bytes_max = body_bytes_max
        # An answer may come in one event, where JSON's escapes make two bytes of one.
        self._document_bytes_max = min(body_bytes_max, 2 * response_bytes_max + _DOCUMENT_MARGIN_BYTES)
        self._dialect = dialect
        self._clock = clock

    def __repr__(self) -> str:
        return f"<OpenAIChat at {self._url}>"

    def lower(self, request: ProviderRequest, upstream: str) -> Lowered:
        return openai_chat_lower.lower(request, upstream, self._dialect)

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        lift = Lift(answer, self._clean, upstream=lowered.upstream, document_bytes_max=self._document_bytes_max)
        try:
            await self._carry(lowered, answer, lift)
        except ExchangeFault as fault:
            lift.settle()
            answer.fail(fault.kind, str(fault))
        finally:
            lift.settle()  # also when the deadline strikes between the finish reason and the end of the body

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _carry(self, lowered: Lowered, answer: Answer, lift: Lift) -> None:
        """Posts and feeds what comes; once the answer is complete, the rest of the body gets a moment to end.

        A server that says all but its last word is not waited for until the deadline, with the slot held.
        """
        pace = Pace(self._clock)
        posted = post(self._client, self._outgoing(lowered), answer, self._body_bytes_max, pace)
        with trio.CancelScope() as rest:
            async with aclosing(posted) as pieces:
                async for piece in pieces:
                    await _feed(lift, piece, pace)
                    if lift.is_over:
                        moment = _REST_SECONDS_MAX if answer.ended and answer.ended.stop_reason else 0
                        rest.deadline = min(rest.deadline, trio.current_time() + moment)
                    elif lift.has_usage:
                        rest.deadline = min(rest.deadline, trio.current_time() + _LAST_WORD_SECONDS_MAX)
        if rest.cancelled_caught:
            lift.settle()
        if answer.ended is None:
            lift.close()

    def _outgoing(self, lowered: Lowered) -> Outgoing:
        headers = {"accept": "text/event-stream"}
        if self._secret is not None:
            headers["authorization"] = f"Bearer {self._secret}"
        return Outgoing(url=self._url, headers=headers, body=lowered.body, secret=self._secret)

    def _clean(self, text: str) -> str:
        return clean_message(text, self._secret)


async def _feed(lift: Lift, piece: bytes, pace: Pace) -> None:
    """One piece, in slices, between which others run where it takes long."""
    for at in range(0, len(piece), _SLICE_BYTES):
        lift.feed(piece[at : at + _SLICE_BYTES])
        await pace.rest()
