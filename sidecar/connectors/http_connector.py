"""A connector to an HTTP API: one POST, and a lift that is fed what comes back.

Each API's own file brings the two pure halves: `lower` makes the body of a
request, and a `BodyLift` makes the Answer of what comes. What stands between
them is the same for all. Source: WIRE section 1, CONTRACT section 6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx2
import trio
from msgspec import Struct

from sidecar.config.values import Connector as ConnectorConfig
from sidecar.connectors.body_lift import BodyLift, Clean
from sidecar.connectors.http_exchange import ExchangeFault, Outgoing, new_client, post
from sidecar.connectors.messages import clean_message
from sidecar.connectors.pace import Clock, Pace
from sidecar.connectors.promise import NO_SETTINGS, Answer, Lowered
from sidecar.contract.values import ProviderRequest
from sidecar.ops.credentials import Secret

_DOCUMENT_MARGIN_BYTES: Final = 1 << 20
_SLICE_BYTES: Final = 2048  # so much of a body can hold no more events or lines than a turn has time for
_REST_SECONDS_MAX: Final = 0.1  # a body that ends by then leaves its connection for the next request
_LAST_WORD_SECONDS_MAX: Final = 2.0  # a stream's last word follows the usage at once, where a server sends one at all

Lower = Callable[[ProviderRequest, str, Mapping[str, Any]], Lowered]
NewLift = Callable[[Answer, Clean, Lowered, int], BodyLift]  # the last one is `document_bytes_max`


class Api(Struct, frozen=True, kw_only=True):
    """What makes one server's API: where to post for an upstream model, with which headers, and the two halves.

    `headers` hold the credential where there is one; `secret` is that credential alone, for scrubbing.
    `absent` is what it may mean, for a person, that the server has no such path.
    """

    endpoint: Callable[[str], str]
    headers: Mapping[str, str]
    secret: str | None
    lower: Lower
    lift: NewLift
    absent: str = ""

    def __repr__(self) -> str:
        return "<Api>"


class Bounds(Struct, frozen=True, kw_only=True):
    """Of the lifted answer, and of the body that it is lifted from."""

    response_bytes_max: int
    body_bytes_max: int


class HttpConnector:
    """One server, with a client of its own."""

    def __init__(
        self, client: httpx2.AsyncBaseTransport, api: Api, bounds: Bounds, clock: Clock = time.perf_counter
    ) -> None:
        self._client = client
        self._api = api
        self._body_bytes_max = bounds.body_bytes_max
        # An answer may come in one event, where JSON's escapes make two bytes of one.
        self._document_bytes_max = min(bounds.body_bytes_max, 2 * bounds.response_bytes_max + _DOCUMENT_MARGIN_BYTES)
        self._clock = clock

    def __repr__(self) -> str:
        return f"<HttpConnector to {self._api.endpoint('…')}>"

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        return self._api.lower(request, upstream, settings)

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        if self._api.secret is not None:
            answer.hide(self._api.secret)
        lift = self._api.lift(answer, self._clean, lowered, self._document_bytes_max)
        try:
            await self._carry(lowered, answer, lift)
        except ExchangeFault as fault:
            lift.settle()
            answer.fail(fault.kind, str(fault))
        finally:
            lift.settle()  # also when the deadline strikes between the terminal event and the end of the body

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _carry(self, lowered: Lowered, answer: Answer, lift: BodyLift) -> None:
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
                    elif lift.has_all_but_the_end:
                        rest.deadline = min(rest.deadline, trio.current_time() + _LAST_WORD_SECONDS_MAX)
        if rest.cancelled_caught:
            lift.settle()
        if answer.ended is None:
            lift.close()

    def _outgoing(self, lowered: Lowered) -> Outgoing:
        return Outgoing(
            url=self._api.endpoint(lowered.upstream),
            headers={"accept": "text/event-stream", **self._api.headers},
            body=lowered.body,
            secret=self._api.secret,
            absent=self._api.absent,
        )

    def _clean(self, text: str) -> str:
        return clean_message(text, self._api.secret)


async def _feed(lift: BodyLift, piece: bytes, pace: Pace) -> None:
    """One piece, in slices, between which others run where it takes long."""
    for at in range(0, len(piece), _SLICE_BYTES):
        lift.feed(piece[at : at + _SLICE_BYTES])
        await pace.rest()


def built(config: ConnectorConfig, secret: Secret | None, api: Callable[[str, str | None], Api]) -> HttpConnector:
    """A connector as its configuration says, with a client of its own; `api` is given the base URL and the secret."""
    assert config.base_url is not None, "a kind that wants a base URL is not built without"
    return HttpConnector(
        new_client(config.base_url, idle_connections_max=config.concurrent_requests_max),
        api(config.base_url, secret.reveal() if secret else None),
        Bounds(response_bytes_max=config.response_bytes_max, body_bytes_max=config.body_bytes_max),
    )


def bearer(secret: str | None) -> dict[str, str]:
    """The header of a credential; none where there is none, and never an empty one."""
    return {} if secret is None else {"authorization": f"Bearer {secret}"}


def joined_url(base_url: str, path: str, *, version: str = "/v1") -> str:
    """The one URL that is posted to, whatever slashes the base has and whether it ends in the version or in `path`.

    `path` begins with a slash and has no version: `/chat/completions`. A base without a path gets the version.
    """
    split = urlsplit(base_url)
    base = split.path.rstrip("/")
    if not base.endswith(path):
        base = (base or version) + path
    return urlunsplit((split.scheme, split.netloc, base, "", ""))
