"""What is asked of the daemon, and who waits for the answer. Pure: times are plain numbers of whoever drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from sidecar.client.errors import DaemonError, SidecarError
from sidecar.client.pieces import LiveRun
from sidecar.contract.client_frames import TransportQuoted, TransportStatusReport, TransportWelcome
from sidecar.contract.values import TransportResult

Kind = Literal["invocation", "quote", "status", "cancel", "welcome"]
Key = tuple[Kind, str, str]  # the kind, the caller and the request id; the last two are empty where there are none


class Sent(Struct, frozen=True):
    """The answer to what has none of its own: it went out."""


Answer = TransportResult | TransportQuoted | TransportStatusReport | TransportWelcome | Sent


class Waiter:
    """Somebody who waits for one answer.

    `wake` is called whenever there is something new: `sent`, `answer`, or an
    event of `live`. Until it is sent it waits to `send_by`, from then on to
    `answer_by`.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        *,
        since: float = 0.0,
        send_by: float,
        answer_by: float,
        live: LiveRun | None = None,
    ) -> None:
        self.wake = wake
        self.since = since
        self.send_by = min(send_by, answer_by)
        self.answer_by = answer_by
        self.live = live
        self.sent = False
        self.answer: Answer | SidecarError | None = None
        self.asked: Asked | None = None

    @property
    def give_up_at(self) -> float:
        return self.answer_by if self.sent else self.send_by

    def is_answered(self) -> bool:
        return self.answer is not None

    def has_something(self) -> bool:
        """An unread live event, or the answer."""
        return self.answer is not None or (self.live is not None and self.live.has_unread)

    def settle(self, answer: Answer | SidecarError) -> None:
        self.answer = answer
        self.wake()


class Asked:
    """One frame of ours that the daemon is to answer; the same bytes go out on each connection until it has.

    `out`: it went out on this connection, and its answer is due. `may_run`:
    it went out on one that is lost, so a join would begin in its midst.
    `parked`: the daemon, which is stopping, has said that it runs nothing
    more, so it waits for the next connection.
    """

    def __init__(self, kind: Kind, frame: bytes, caller: str = "", request_id: str = "") -> None:
        self.key: Key = (kind, caller, request_id)
        self.frame = frame
        self.waiters: list[Waiter] = []
        self.out = False
        self.may_run = False
        self.cancelled = False
        self.parked: DaemonError | None = None

    @property
    def kind(self) -> Kind:
        return self.key[0]

    @property
    def wants_events(self) -> bool:
        return any(waiter.live is not None and not waiter.live.over for waiter in self.waiters)

    def join(self, waiter: Waiter) -> None:
        """One more waits for the same answer."""
        waiter.asked = self
        waiter.sent = self.out
        if (self.out or self.may_run) and waiter.live is not None:
            waiter.live.end()  # it has missed the beginning
        self.waiters.append(waiter)

    def goes_out(self) -> None:
        self.out = True
        for waiter in self.waiters:
            waiter.sent = True
            waiter.wake()

    def comes_back(self) -> None:
        """Its connection is gone."""
        if self.out and self.parked is None:
            self.may_run = True
            for waiter in self.waiters:
                if waiter.live is not None:
                    waiter.live.end()
        self.out = False
        self.parked = None

    def settle(self, answer: Answer | SidecarError) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.settle(answer)
