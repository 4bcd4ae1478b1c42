"""What the service manager hears of us, and when: ready, the status line, reloading, stopping, more time, still alive.

Two of these are promises that a hang must not keep:

More time (`EXTEND_TIMEOUT_USEC`) is asked for every five seconds, by fifteen,
so that two requests may be lost. While the ledger is opened, which has the main
thread to itself, another thread asks, as long as the opening's file calls come
back; where none has for `OPENING_SILENCE_SECONDS_MAX` it asks no more, and the
manager's patience decides: one call takes at most as long as the kernel gives a
disk (30 s a command, by default) and a reset behind that. While we stop, the
event loop asks, so one that hangs asks for nothing, and until the stop's own
limit at most.

Still alive (`WATCHDOG=1`) is said at half the interval, and only when the
ledger has answered since: its commit thread has synced the very segment that is
written. The wait for it is the proof: an answer that takes up to half of the
interval is in time, a dead thread, a sync that hangs and a poisoned ledger
never answer. A disk may be silent for 30 s and live, so the interval should be
above 60 s. While we drain this goes on, on the same terms, for managers whose
watchdog runs on (systemd's rests once it stops a service, or has been told
`STOPPING=1`); it ends before the ledger is closed, which has a limit of its
own. A poisoned ledger ends it at once: `STOPPING=1` is said then, since the
way out is at most ten seconds long and is no matter of the watchdog.

The status line is sent when it has changed, once a second at most, and no timer
runs while nothing happens. Where nobody listens nothing here runs at all.
Source: sd_notify(3), ECOSYSTEM 1.1.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from sidecar.ledger.faults import LedgerUnavailable
from sidecar.ops.log import Log
from sidecar.ops.notify import Notifier

EXTEND_EVERY_SECONDS: Final = 5.0
_EXTEND_USEC: Final = str(15_000_000)
OPENING_SILENCE_SECONDS_MAX: Final = 60.0
STATUS_SECONDS_MIN: Final = 1.0
_INTERVAL_SECONDS_MIN: Final = 0.1  # of a watchdog: what is shorter would sync the disk without end


def monotonic_usec() -> int:
    return time.monotonic_ns() // 1000


class Supervision:
    """Tells the service manager. All of it does nothing where nobody listens."""

    def __init__(
        self,
        notifier: Notifier | None = None,
        watchdog_seconds: float | None = None,
        clock_usec: Callable[[], int] = monotonic_usec,
    ) -> None:
        self._notifier = notifier or Notifier()
        self._watchdog_seconds = watchdog_seconds if self._notifier.is_heard else None
        self._clock_usec = clock_usec
        self._owed: deque[dict[str, str]] = deque()  # for which there was no room; what follows waits behind it
        self._told = ""
        self._last_reload = ""
        self._changed = False
        self._asleep: trio.Event | None = None
        self._stopping = trio.Event()
        self._stop_seconds_max = 0.0

    # --- what happens, in its order ---------------------------------------------------------------------------

    @contextmanager
    def opening(
        self, log: Log, moves: Callable[[], int], every_seconds: float = EXTEND_EVERY_SECONDS
    ) -> Iterator[None]:
        """While the ledger is opened: `moves` rises as long as that goes on. For the main thread, without a loop."""
        if not self._notifier.is_heard:
            yield
            return
        self._notifier.say(STATUS="opening the ledger", EXTEND_TIMEOUT_USEC=_EXTEND_USEC)
        over = threading.Event()
        asking = threading.Thread(
            target=self._ask_while_it_moves, args=(log, moves, over, every_seconds), name="more-time", daemon=True
        )
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join()

    def _ask_while_it_moves(
        self, log: Log, moves: Callable[[], int], over: threading.Event, every_seconds: float
    ) -> None:
        seen, silences = moves(), 0
        while not over.wait(every_seconds):
            now = moves()
            silences = 0 if now != seen else silences + 1
            seen = now
            if silences * every_seconds >= OPENING_SILENCE_SECONDS_MAX:
                log.warning("opening_silent", seconds=OPENING_SILENCE_SECONDS_MAX, now="no more time is asked for")
                return
            self._notifier.say(EXTEND_TIMEOUT_USEC=_EXTEND_USEC)

    def ready(self) -> None:
        """Everything that makes us ready is done."""
        self._must_say(READY="1")
        self.changed()

    def reloading(self) -> None:
        """A new configuration is being read. `reloaded` must follow, whatever comes of it."""
        if not self._stopping.is_set():
            self._must_say(RELOADING="1", MONOTONIC_USEC=str(self._clock_usec()))

    def reloaded(self, status: str) -> None:
        """The reload is over; `status` says which configuration is in force, and stands in the status line from now on.

        Without effect while we stop: whoever is told that we are ready then takes us for running.
        """
        if self._stopping.is_set():
            return
        self._last_reload = status
        self._told = status
        self._must_say(READY="1", STATUS=status)
        self.changed()

    def stopping(self, seconds_max: float) -> None:
        """The end has begun, and takes so long at most. What is said later is not said again."""
        if self._stopping.is_set():
            return
        self._must_say(STOPPING="1", EXTEND_TIMEOUT_USEC=_EXTEND_USEC)
        self._stop_seconds_max = seconds_max
        self._stopping.set()
        self.changed()

    def changed(self) -> None:
        """Something that the status line tells may be otherwise now."""
        self._changed = True
        if self._asleep is not None:
            self._asleep.set()

    # --- while the event loop runs ----------------------------------------------------------------------------

    async def serve(self, line: Callable[[], str]) -> None:
        """Sends the status line `line`, and asks for more time while we stop. Returns only where nobody listens."""
        if not self._notifier.is_heard:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_changes, line)
            nursery.start_soon(self._ask_while_stopping)

    async def watch(self, answers: Callable[[], Awaitable[None]]) -> None:
        """Pings at half the watchdog's interval, each time behind an answer. Returns when none will come any more."""
        if self._watchdog_seconds is None:
            return
        half = max(self._watchdog_seconds, _INTERVAL_SECONDS_MIN) / 2
        while True:
            asked_at = trio.current_time()
            try:
                await answers()
            except LedgerUnavailable:
                return
            self._notifier.say(WATCHDOG="1")
            self.changed()  # at midnight a window ends, and nothing else may happen
            await trio.sleep_until(asked_at + half)

    async def _tell_changes(self, line: Callable[[], str]) -> None:
        while True:
            if not self._changed:
                self._asleep = trio.Event()
                await self._asleep.wait()
                self._asleep = None
            self._changed = False
            self._tell(line())
            await trio.sleep(STATUS_SECONDS_MIN)

    def _tell(self, line: str) -> None:
        self._pay()
        words = f"{line}; {self._last_reload}" if self._last_reload else line
        if self._owed or (words != self._told and not self._notifier.say(STATUS=words)):
            self._changed = True  # there is no room: again in a while
        else:
            self._told = words

    async def _ask_while_stopping(self) -> None:
        await self._stopping.wait()
        until = trio.current_time() + self._stop_seconds_max
        while trio.current_time() < until:
            await trio.sleep(EXTEND_EVERY_SECONDS)
            self._notifier.say(EXTEND_TIMEOUT_USEC=_EXTEND_USEC)

    def _must_say(self, **states: str) -> None:
        """What the manager waits for: where it has no room, it is said again once a second."""
        if self._notifier.is_heard:
            self._owed.append(states)
            self._pay()

    def _pay(self) -> None:
        while self._owed and self._notifier.say(**self._owed[0]):
            self._owed.popleft()
