"""The blocking client: the same calls as AsyncClient's, from any thread of a program.

Source of all behaviour is `sidecar.client.session`; here callers' threads wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Self, Unpack

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
from sidecar.client.blocking_link import BlockingLink
from sidecar.client.errors import SidecarError
from sidecar.client.naming import checked_caller, checked_client_name, checked_id
from sidecar.client.patience import Patience
from sidecar.client.pieces import Telling
from sidecar.client.reaching import checked_path
from sidecar.client.session import Session
from sidecar.client.streaming import OneRequest
from sidecar.client.waiting import Answer, Waiter
from sidecar.contract.client_frames import TransportStatusReport, TransportWelcome
from sidecar.contract.values import ProviderRequest, TransportEvent, TransportInvocation


class Client:
    """A daemon's client for blocking programs; threads may share it, and share its one connection.

    The keywords are those of AsyncClient. The first call starts a thread that
    reads and writes; `close()`, or the end of the `with`, ends it. A process
    that forks once it has made a call makes a new client in the child: there
    this one raises Disconnected, and touches nothing of the parent's.

    KeyboardInterrupt in a call only stops the waiting, as any other exception:
    the request runs on, is paid for, and the same bytes get its answer.
    `cancel()`, from another thread or afterwards, is what stops a request.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        caller: str | None = None,
        name: str = "sidecar blocking client",
        connect_seconds_max: float = 10.0,
        grace_seconds: float = 10.0,
        wait_for_restart: bool = True,
        unread_bytes_max: int = 1_048_576,
        backoff_seconds_first: float = 0.02,
        backoff_seconds_max: float = 1.0,
    ) -> None:
        self._caller = checked_caller(caller)
        self._patience = Patience(
            connect_seconds_max=connect_seconds_max,
            grace_seconds=grace_seconds,
            backoff_seconds_first=backoff_seconds_first,
            backoff_seconds_max=backoff_seconds_max,
            unread_bytes_max=unread_bytes_max,
        )
        self._session = Session(client=checked_client_name(name), wait_for_restart=wait_for_restart)
        self._link = BlockingLink(checked_path(socket_path), self._session, self._patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. What waits in other threads is Disconnected; what was sent runs on in the daemon."""
        self._link.end()

    def connect(self) -> TransportWelcome:
        """What the daemon says of itself and of this user, once there is a connection. Not needed before a request."""
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.meet, waiter)):
            welcome = welcome_of(self._answer(waiter, woken))
        if self._caller is None and len(welcome.callers) == 1:
            self._caller = only_caller(welcome)
        return welcome

    def prepare(self, request: ProviderRequest, **terms: Unpack[TermsGiven]) -> TransportInvocation:
        """The whole invocation: quoted, invoked or streamed, it is the very same bytes each time.

        `terms` are those of invoke(). Asks the daemon who we are where no caller was named.
        """
        return self._invocation(request, terms_of(request, terms))

    def invoke(self, request: Asking, **terms: Unpack[TermsGiven]) -> Result:
        """The answer of a request that completed. Raises a SidecarError for every other end.

        Of `terms` any may be given: `max_cost_micro_usd` (100_000), what it may
        cost at worst; `timeout_seconds` (60.0), until it expires;
        `expires_at_unix_ms`, that instant itself, which wins; and
        `native_request_sha256`, in place of the request's own digest. An
        invocation has all of these already: none may stand beside it.
        """
        invocation = self._invocation(request, terms_of(request, terms))
        with told_of(invocation):
            frame = sealed(invocation)
            waiter, woken = self._waiter(seconds_left(invocation))
            with self._asking(waiter, partial(self._session.invoke, frame, *ids_of(invocation), waiter)):
                return result_of(self._answer(waiter, woken))

    def stream(self, request: Asking, **terms: Unpack[TermsGiven]) -> BlockingStream:
        """The events as they come: `with client.stream(request) as stream: for event in stream: ...`.

        `terms` are those of invoke().
        """
        return BlockingStream(self, request, terms_of(request, terms))

    def quote(self, request: Asking, **terms: Unpack[TermsGiven]) -> Quote:
        """What it would be answered now and cost at worst; nothing is written or held. Invoke its `invocation`.

        `terms` are those of invoke().
        """
        invocation = self._invocation(request, terms_of(request, terms))
        with told_of(invocation):
            frame = sealed_quote(invocation)
            waiter, woken = self._waiter()
            with self._asking(waiter, partial(self._session.quote, frame, *ids_of(invocation), waiter)):
                return quote_of(self._answer(waiter, woken), invocation)

    def status(self) -> TransportStatusReport:
        """What the daemon holds, as far as this user may see it."""
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.status, STATUS_FRAME, waiter)):
            return report_of(self._answer(waiter, woken))

    def cancel(self, request_id: str, *, caller: str | None = None) -> None:
        """The deadline of this running request is now; whoever waits for it gets its end. Ignored if it doesn't run.

        Raises TypeError or ValueError for what is no id, and IdentitySubstitution for a
        caller that this user may not be.
        What it cost is usually the whole reservation: the provider may have billed it all.
        """
        checked_id("request_id", request_id)
        caller = checked_caller(caller) or self._known_caller()
        waiter, woken = self._waiter()
        with self._asking(waiter, partial(self._session.cancel, caller, request_id, waiter)):
            answer = self._answer(waiter, woken)
        if isinstance(answer, SidecarError):
            raise answer

    # --- waiting ----------------------------------------------------------------------------------------------

    def _invocation(self, request: Asking, terms: Terms) -> TransportInvocation:
        caller = "" if isinstance(request, TransportInvocation) else self._known_caller()
        return invocation_of(request, caller, terms)

    def _known_caller(self) -> str:
        if self._caller is None:
            self._caller = only_caller(self.connect())
        return self._caller

    def _waiter(self, seconds_left: float | None = None, *, streams: bool = False) -> tuple[Waiter, threading.Event]:
        woken, now = threading.Event(), time.monotonic()
        return self._patience.waiter(woken.set, now, seconds_left=seconds_left, streams=streams), woken

    @contextmanager
    def _asking(self, waiter: Waiter, ask: Callable[[], None]) -> Iterator[None]:
        """Asks, and waits no more at the end of the block, however that comes."""
        try:
            self._link.post(ask, waiter)
            yield
        finally:
            if waiter.answer is None:
                self._link.leave(waiter)

    def _answer(self, waiter: Waiter, woken: threading.Event) -> Answer | SidecarError:
        self._until(waiter, woken, waiter.is_answered)
        assert waiter.answer is not None
        return waiter.answer

    def _until(self, waiter: Waiter, woken: threading.Event, condition: Callable[[], bool]) -> None:
        """Waits for it, or raises why that took too long."""
        while not condition():
            seconds = waiter.give_up_at - time.monotonic()
            if seconds <= 0:
                raise self._session.gave_up(waiter)
            if woken.wait(min(seconds, threading.TIMEOUT_MAX)):
                woken.clear()


class BlockingStream(OneRequest):
    """One request's events, text in pieces as it comes. Whatever did not come live comes from the result.

    It asks when the block is entered; leaving the block early only stops the
    waiting. Raises in the loop what invoke() would raise: then `events` of a
    RequestFailed has what there was, and the pieces told before are void.
    One thread iterates it.
    """

    def __init__(self, client: Client, request: Asking, terms: Terms) -> None:
        super().__init__(request, terms)
        self._client = client

    def __enter__(self) -> Self:
        self._enter()
        client = self._client
        self._invocation = invocation = client._invocation(self._request, self._terms)
        with told_of(invocation):
            frame, ids = sealed(invocation), ids_of(invocation)
        waiter, self._woken = client._waiter(seconds_left(invocation), streams=True)
        assert waiter.live is not None
        self._telling = Telling(waiter.live)
        self._block = client._asking(waiter, partial(client._session.invoke, frame, *ids, waiter))
        with told_of(invocation):
            self._block.__enter__()
        self._waiter = waiter
        return self

    def __exit__(self, *_: object) -> None:
        self._block.__exit__(None, None, None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TransportEvent:
        waiter, telling = self._inside()
        while self._rest is None:
            with told_of(self.invocation):
                self._client._until(waiter, self._woken, waiter.has_something)
                answer = waiter.answer  # looked at first: what is unread then came before it
                event = telling.next_live()
                if event is not None:
                    return event
                if answer is not None:
                    self._result = result_of(answer)
                    self._rest = iter(telling.rest(self._result.events))
        return next(self._rest)
