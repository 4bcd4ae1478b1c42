"""How long a client waits, and for what. Numbers only; the clock is whoever drives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from sidecar.client.pieces import LiveRun
from sidecar.client.waiting import Waiter


class Patience(Struct, frozen=True, kw_only=True):
    """`connect_seconds_max`: for a daemon that is not there yet, before a request was first sent.

    `grace_seconds`: past a request's expiry, because the deadline strikes in
    the daemon first, which then records the end and says it. Attempts to
    connect are `backoff_seconds_first` apart at first, then twice as far each
    time, to at most `backoff_seconds_max`.
    """

    connect_seconds_max: float
    grace_seconds: float
    backoff_seconds_first: float
    backoff_seconds_max: float
    unread_bytes_max: int

    def waiter(
        self, wake: Callable[[], None], now: float, *, seconds_left: float | None = None, streams: bool = False
    ) -> Waiter:
        """Somebody who starts to wait now. What has no expiry of its own (`seconds_left` None) is answered at once."""
        if seconds_left is None:
            seconds_left = self.connect_seconds_max
        return Waiter(
            wake,
            since=now,
            send_by=now + self.connect_seconds_max,
            answer_by=now + seconds_left + self.grace_seconds,
            live=LiveRun(self.unread_bytes_max) if streams else None,
        )

    def delays(self) -> Iterator[float]:
        """Seconds before each attempt after the first."""
        delay = self.backoff_seconds_first
        while True:
            yield delay
            delay = min(2 * delay, self.backoff_seconds_max)
