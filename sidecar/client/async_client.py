"""The client for async programs, under Trio and asyncio alike.

One connection carries all requests at once. Nothing connects before something
is asked; then a daemon that is not there yet is waited for, and one that is
lost is found again: see `sidecar.client.session` for why that never costs twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self, Unpack

import anyio

from sidecar.client.answers import (
    Quote,
    Result,
    only_caller,
    quote_of,
    report_of,
    result_of,
    told_of,
    welcome_of,
)
from sidecar.client.asking import (
    STATUS_FRAME,
    Asking,
    Terms,
    TermsGiven,
    ids_of,
    invocation_of,
    sealed,
    sealed_quote,
    seconds_left,
    terms_of,
)
from sidecar.client.async_link import AsyncLink
from sidecar.client.errors import SidecarError, WhichCaller
from sidecar.client.naming import checked_caller, checked_client_name, checked_id
from sidecar.client.patience import Patience
from sidecar.client.pieces import Telling
from sidecar.client.reaching import checked_path
from sidecar.client.session import Session
from sidecar.client.streaming import OneRequest
from sidecar.client.waiting import Answer, Waiter
from sidecar.contract.client_frames import TransportStatusReport, TransportWelcome
from sidecar.contract.values import ProviderRequest, TransportEvent, TransportInvocation


class AsyncClient:
    """A daemon's client, open inside `async with`. For one event loop; its tasks may share it.

    `caller` None is the only caller that this user may be. `connect_seconds_max`
    bounds the wait for a daemon that is not there; a request that was sent once
    is waited for, over any number of lost connections, until `grace_seconds`
    past its expiry. `wait_for_restart`: a daemon that is stopping and has run
    nothing is waited for like a lost one; otherwise that is a DaemonError.
    A stream holds at most `unread_bytes_max` of live events that nobody reads,
    then completes from the result.

    Cancelling a task that waits here (a scope, a timeout) only stops the
    waiting: the request runs on, is paid for, and the same bytes get its
    answer. `cancel()` is what stops a request.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        caller: str | None = None,
        name: str = "sidecar async client",
        connect_seconds_max: float = 10.0,
        grace_seconds: float = 10.0,
        wait_for_restart: bool = True,
        unread_bytes_max: int = 1_048_576,
        backoff_seconds_first: float = 0.02,
        backoff_seconds_max: float = 1.0,
    ) -> None:
        self._path = checked_path(socket_path)
        self._caller = checked_caller(caller)
        self._patience = Patience(
            connect_seconds_max=connect_seconds_max,
            grace_seconds=grace_seconds,
            backoff_seconds_first=backoff_seconds_first,
            backoff_seconds_max=backoff_seconds_max,
            unread_bytes_max=unread_bytes_max,
        )
        self._session = Session(client=checked_client_name(name), wait_for_restart=wait_for_restart)
        self._link: AsyncLink | None = None

    async def __aenter__(self) -> Self:
        if self._link is not None:
            raise RuntimeError("a client is opened once: make another")
        self._link = AsyncLink(self._path, self._session, self._patience)
        self._link.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection. What waits in other tasks is Disconnected; what was sent runs on in the daemon.

        The end of the `async with` does it; once it is done, doing it again is harmless.
        """
        if self._link is not None:
            await self._link.end()

    async def connect(self) -> TransportWelcome:
        """What the daemon says of itself and of this user, once there is a connection. Not needed before a request."""
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.meet, waiter)):
            welcome = welcome_of(await self._answer(waiter, woken))
        if self._caller is None and len(welcome.callers) == 1:
            self._caller = only_caller(welcome)
        return welcome

    def prepare(self, request: ProviderRequest, **terms: Unpack[TermsGiven]) -> TransportInvocation:
        """The whole invocation: quoted, invoked or streamed, it is the very same bytes each time.

        `terms` are those of invoke(). Raises WhichCaller where no caller was
        named and `connect()` has not found the only one yet.
        """
        wanted = terms_of(request, terms)
        if self._caller is None:
            raise WhichCaller(None)
        return invocation_of(request, self._caller, wanted)

    async def invoke(self, request: Asking, **terms: Unpack[TermsGiven]) -> Result:
        """The answer of a request that completed. Raises a SidecarError for every other end.

        Of `terms` any may be given: `max_cost_micro_usd` (100_000), what it may
        cost at worst; `timeout_seconds` (60.0), until it expires;
        `expires_at_unix_ms`, that instant itself, which wins; and
        `native_request_sha256`, in place of the request's own digest. An
        invocation has all of these already: none may stand beside it.
        """
        invocation = await self._invocation(request, terms_of(request, terms))
        with told_of(invocation):
            frame = sealed(invocation)
            waiter, woken = self._waiter(seconds_left(invocation))
            with self._asking(waiter, partial(self._session.invoke, frame, *ids_of(invocation), waiter)):
                return result_of(await self._answer(waiter, woken))

    def stream(self, request: Asking, **terms: Unpack[TermsGiven]) -> Stream:
        """The events as they come: `async with client.stream(request) as stream: async for event in stream: ...`.

        `terms` are those of invoke().
        """
        return Stream(self, request, terms_of(request, terms))

    async def quote(self, request: Asking, **terms: Unpack[TermsGiven]) -> Quote:
        """What it would be answered now and cost at worst; nothing is written or held. Invoke its `invocation`.

        `terms` are those of invoke().
        """
        invocation = await self._invocation(request, terms_of(request, terms))
        with told_of(invocation):
            frame = sealed_quote(invocation)
            waiter, woken = self._waiter()
            with self._asking(waiter, partial(self._session.quote, frame, *ids_of(invocation), waiter)):
                return quote_of(await self._answer(waiter, woken), invocation)

    async def status(self) -> TransportStatusReport:
        """What the daemon holds, as far as this user may see it."""
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.status, STATUS_FRAME, waiter)):
            return report_of(await self._answer(waiter, woken))

    async def cancel(self, request_id: str, *, caller: str | None = None) -> None:
        """The deadline of this running request is now; whoever waits for it gets its end. Ignored if it doesn't run.

        Raises TypeError or ValueError for what is no id, and IdentitySubstitution for a
        caller that this user may not be.
        What it cost is usually the whole reservation: the provider may have billed it all.
        """
        checked_id("request_id", request_id)
        caller = checked_caller(caller) or await self._known_caller()
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.cancel, caller, request_id, waiter)):
            answer = await self._answer(waiter, woken)
        if isinstance(answer, SidecarError):
            raise answer

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _invocation(self, request: Asking, terms: Terms) -> TransportInvocation:
        if isinstance(request, TransportInvocation):
            return invocation_of(request, "", terms)
        return invocation_of(request, await self._known_caller(), terms)

    async def _known_caller(self) -> str:
        if self._caller is None:
            self._caller = only_caller(await self.connect())
        return self._caller

    def _waiter(self, seconds_left: float | None = None, *, streams: bool = False) -> tuple[Waiter, _Woken]:
        woken = _Woken()
        now = anyio.current_time()
        return self._patience.waiter(woken.wake, now, seconds_left=seconds_left, streams=streams), woken

    @contextmanager
    def _asking(self, waiter: Waiter, ask: Callable[[], None]) -> Iterator[None]:
        """Asks, and waits no more at the end of the block, however that comes."""
        if self._link is None:
            raise RuntimeError("a client is open inside its `async with` only")
        try:
            ask()
            self._link.stir()
            yield
        finally:
            self._session.leave(waiter)
            self._link.stir()

    async def _answer(self, waiter: Waiter, woken: _Woken) -> Answer | SidecarError:
        await self._until(waiter, woken, waiter.is_answered)
        assert waiter.answer is not None
        return waiter.answer

    async def _until(self, waiter: Waiter, woken: _Woken, condition: Callable[[], bool]) -> None:
        """Waits for it, or raises why that took too long."""
        while not condition():
            with anyio.CancelScope(deadline=waiter.give_up_at) as patience:
                await woken.wait()
            if patience.cancelled_caught and not condition() and anyio.current_time() >= waiter.give_up_at:
                raise self._session.gave_up(waiter)


class _Woken:
    """Wakes one task, any number of times."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


class Stream(OneRequest):
    """One request's events, text in pieces as it comes. Whatever did not come live comes from the result.

    It asks when the block is entered; leaving the block early only stops the
    waiting. Raises in the loop what invoke() would raise: then `events` of a
    RequestFailed has what there was, and the pieces told before are void.
    """

    def __init__(self, client: AsyncClient, request: Asking, terms: Terms) -> None:
        super().__init__(request, terms)
        self._client = client

    async def __aenter__(self) -> Self:
        self._enter()
        client = self._client
        self._invocation = invocation = await client._invocation(self._request, self._terms)
        with told_of(invocation):
            frame = sealed(invocation)
        waiter, self._woken = client._waiter(seconds_left(invocation), streams=True)
        assert waiter.live is not None
        self._telling = Telling(waiter.live)
        self._block = client._asking(waiter, partial(client._session.invoke, frame, *ids_of(invocation), waiter))
        self._block.__enter__()
        self._waiter = waiter
        return self

    async def __aexit__(self, *_: object) -> None:
        self._block.__exit__(None, None, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TransportEvent:
        waiter, telling = self._inside()
        if self._rest is None:
            with told_of(self.invocation):
                await self._client._until(waiter, self._woken, waiter.has_something)
                event = telling.next_live()
                if event is not None:
                    return event
                assert waiter.answer is not None
                self._result = result_of(waiter.answer)
                self._rest = iter(telling.rest(self._result.events))
        for event in self._rest:
            return event
        raise StopAsyncIteration
