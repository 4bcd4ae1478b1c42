"""What both kinds of stream have: what was asked, what was told of it, and what it came to. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sidecar.client.answers import Result, not_ended
from sidecar.client.asking import Asking, Terms
from sidecar.client.pieces import Telling
from sidecar.client.waiting import Waiter
from sidecar.contract.values import TransportEvent, TransportInvocation


class OneRequest:
    """A stream is of one request, which is asked when its block is entered: once."""

    def __init__(self, request: Asking, terms: Terms) -> None:
        self._request = request
        self._terms = terms
        self._was_entered = False
        self._invocation: TransportInvocation | None = None
        self._waiter: Waiter | None = None
        self._telling: Telling | None = None
        self._result: Result | None = None
        self._rest: Iterator[TransportEvent] | None = None

    def _enter(self) -> None:
        if self._was_entered:
            raise RuntimeError("a stream is entered once: client.stream() makes another, also of the same invocation")
        self._was_entered = True

    def _inside(self) -> tuple[Waiter, Telling]:
        if self._waiter is None or self._telling is None:
            raise RuntimeError("a stream is iterated inside its `with` only: there it asks")
        return self._waiter, self._telling

    @property
    def invocation(self) -> TransportInvocation:
        """What was asked, whole; the very same bytes get the same answer."""
        if self._invocation is None:
            raise RuntimeError("the stream has no invocation yet: it is made when its `with` is entered")
        return self._invocation

    @property
    def is_whole(self) -> bool:
        """Whether the pieces add up to the result, known at its end.

        False where the very same bytes ran already when this stream asked: what
        came live then began in the middle of the first text, and `result` has all of it.
        """
        if self._telling is None:
            raise RuntimeError("the stream has told nothing yet: it asks when its `with` is entered")
        return self._telling.is_whole

    @property
    def result(self) -> Result:
        """The result, once the last event was told."""
        if self._result is None:
            raise not_ended()
        return self._result
