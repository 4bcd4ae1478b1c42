"""The children of one process connector: how many there are, who has which, and when another may be started.

One child carries one exchange at a time. So a child is a plain loop in any
language, with nothing to untangle, and what one exchange does to its child
reaches no other: a deadline kills the child of that request, and a child that
breaks the protocol takes one request with it. The price is a process for each
request that runs at once; at most `children_max` live, and a request that
finds them all ending waits for the first that is gone.

One child is kept ready from the start. It is replaced when it has ended, and
others are started as requests need them; a few that have nothing to do stay. A
child that ends, breaks the protocol or can't be started before it has ever
answered is at fault: until a delay is over (0.1 s, doubled by each such fault
in a row, at most 10 s) none is started, and requests that find no idle child
fail at once. Whichever child answers ends that delay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import trio

from sidecar.connectors.messages import clean_message
from sidecar.ops.log import Log

_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 10.0
_IDLE_MAX: Final = 4
_CLOSE_SECONDS_MAX: Final = 3.0  # above the time that reaping may take
_LAST_WORDS_SECONDS_MAX: Final = 0.5  # how long what a dead child wrote may take to be read
_LINES_MAX: Final = 50  # of a child's stderr, told in each
_LINES_SECONDS: Final = 10.0


class AnyChild(Protocol):
    """What is asked of a child here and by the connector; `sidecar.connectors.child` has the real one."""

    pid: int

    def send_now(self, framed: bytes) -> int: ...
    async def send(self, framed: bytes) -> None: ...
    async def receive(self) -> bytes: ...
    def is_quiet(self) -> bool: ...
    async def tell_lines(self, tell: Callable[[str], None]) -> None: ...
    async def wait_ended(self) -> None: ...
    def kill(self) -> None: ...
    async def reap(self) -> str: ...
    def close(self) -> None: ...


class NoChild(Exception):
    """No child can be had now; nothing was sent. The message says why, for a person."""


class Kept:
    """One child and what is known of it."""

    def __init__(self, child: AnyChild, nursery: trio.Nursery) -> None:
        self.child = child
        self.answered = False  # ever
        self.is_used = False
        self._nursery = nursery
        self._sending = 0

    @property
    def is_sending(self) -> bool:
        return self._sending > 0

    def send(self, framed: bytes) -> None:
        """Sends a frame beside what is read meanwhile. Raises BrokenPipeError where not a byte of it was taken."""
        taken = self.child.send_now(framed)
        if taken < len(framed):
            self._sending += 1
            self._nursery.start_soon(self._send, framed[taken:])

    async def _send(self, rest: bytes) -> None:
        await self.child.send(rest)
        self._sending -= 1


class Children:
    """Gives out children; `serve` is where they live, and must run for any to be had."""

    def __init__(
        self, start: Callable[[], Awaitable[AnyChild]], *, name: str, secret: str | None, children_max: int
    ) -> None:
        self._start = start
        self._name = name
        self._secret = secret
        self._children_max = children_max
        self._all: set[Kept] = set()
        self._idle: list[Kept] = []  # the one that was used last stands last and is used first
        self._starting = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._closed = False
        self._delay_seconds = 0.0
        self._not_before = -float("inf")
        self._last_fault = ""

    # --- for an exchange --------------------------------------------------------------------------------------

    async def take(self) -> Kept:
        """A child that waits for a request. Raises NoChild."""
        while True:
            if self._closed or self._nursery is None:
                raise NoChild("the connector is closed")
            while self._idle:
                kept = self._idle.pop()
                if kept.child.is_quiet():
                    kept.is_used = True
                    return kept
                self._drop(kept, "the connector's process had gone, or wrote without being asked")
            if (wait_seconds := self._not_before - trio.current_time()) > 0:
                raise NoChild(f"{self._last_fault}; it is started again in {wait_seconds:.1f} s")
            if self._living() < self._children_max:
                kept = await self._started(self._nursery)
                kept.is_used = True
                return kept
            await self._changed.park()

    def give_back(self, kept: Kept, *, answered: bool, broke: str | None) -> None:
        """What an exchange says when it has ended, in whatever way: a child that can't be asked again is killed.

        `broke` is how it broke the protocol. With neither, it was cut off, which is no fault of the child.
        """
        kept.is_used = False
        if answered:
            kept.answered = True
            self._delay_seconds, self._not_before = 0.0, -float("inf")
        if answered and broke is None and not kept.is_sending and len(self._idle) < _IDLE_MAX:
            self._idle.append(kept)
        elif broke is not None:
            self._drop(kept, broke)
        else:
            kept.child.kill()
        self._changed.unpark_all()

    # --- where they live --------------------------------------------------------------------------------------

    async def serve(self, log: Log, task_status: trio.TaskStatus[None]) -> None:
        """Keeps a child ready until `close`; leaves none behind, whatever ends it."""
        self._log = log
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                await self._keep_one_ready(nursery)
        finally:
            self._nursery = None

    async def close(self) -> None:
        """Kills every child, and waits a moment for them to be gone."""
        self._closed = True
        self.kill()
        self._changed.unpark_all()
        with trio.move_on_after(_CLOSE_SECONDS_MAX):
            while self._nursery is not None and self._living():
                await self._changed.park()

    def kill(self) -> None:
        """Every child and its group, now; from any thread."""
        for kept in tuple(self._all):
            kept.child.kill()

    async def _keep_one_ready(self, nursery: trio.Nursery) -> None:
        while not self._closed:
            if self._living():
                await self._changed.park()
            elif trio.current_time() < self._not_before:
                with trio.move_on_at(self._not_before):
                    await self._changed.park()
            else:
                try:
                    self._idle.append(await self._started(nursery))
                except NoChild:
                    continue  # told, and a delay stands before the next one
                self._changed.unpark_all()

    def _living(self) -> int:
        """Children that there are, those that are being started or are not quite gone included."""
        return len(self._all) + self._starting

    async def _started(self, nursery: trio.Nursery) -> Kept:
        self._starting += 1
        try:
            child = await self._start()
        except OSError as error:
            self._fault(f"the connector's process can't be started: {error.strerror or error}")
            raise NoChild(self._last_fault) from error
        finally:
            self._starting -= 1
            self._changed.unpark_all()
        if self._closed or self._nursery is not nursery:
            await child.reap()
            child.close()
            raise NoChild("the connector is closed")
        kept = Kept(child, nursery)
        self._all.add(kept)
        self._log.info("child_started", connector=self._name, pid=child.pid)
        nursery.start_soon(self._live_out, kept)  # not awaited: from here on it has an owner, whatever is cancelled
        return kept

    async def _live_out(self, kept: Kept) -> None:
        """A child's whole life; then it is reaped, and whatever it had started in its group is killed."""
        child = kept.child
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.tell_lines, self._teller(child))
                await child.wait_ended()
                child.kill()
                self._ended_by_itself(kept)
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_WORDS_SECONDS_MAX
            with trio.move_on_after(_LAST_WORDS_SECONDS_MAX):
                while kept.is_used:
                    await self._changed.park()
        finally:
            how = await child.reap()
            child.close()
            self._gone(kept, how)

    def _ended_by_itself(self, kept: Kept) -> None:
        if kept in self._idle:
            self._idle.remove(kept)
            if not kept.answered and not self._closed:
                self._fault("the connector's process ended before it was asked anything")

    def _gone(self, kept: Kept, how: str) -> None:
        self._all.discard(kept)
        if kept in self._idle:
            self._idle.remove(kept)
        self._log.info("child_ended", connector=self._name, pid=kept.child.pid, how=how)
        self._changed.unpark_all()

    # --- faults -----------------------------------------------------------------------------------------------

    def _drop(self, kept: Kept, why: str) -> None:
        kept.child.kill()
        self._log.warning("child_dropped", connector=self._name, pid=kept.child.pid, why=self._clean(why))
        if not kept.answered:
            self._fault(why)

    def _fault(self, why: str) -> None:
        """A child was at fault before it ever answered; many at once are one fault."""
        now = trio.current_time()
        self._last_fault = self._clean(why)
        if now < self._not_before:
            return
        self._delay_seconds = min(max(_FIRST_DELAY_SECONDS, 2 * self._delay_seconds), _DELAY_SECONDS_MAX)
        self._not_before = now + self._delay_seconds
        self._log.warning(
            "child_faulty", connector=self._name, why=self._last_fault, again_in_seconds=f"{self._delay_seconds:g}"
        )

    def _clean(self, text: str) -> str:
        return clean_message(text, self._secret)

    def _teller(self, child: AnyChild) -> Callable[[str], None]:
        """Tells lines of a child's stderr; what is too many is counted instead."""
        lines, untold, since = 0, 0, trio.current_time()

        def tell(line: str) -> None:
            nonlocal lines, untold, since
            if trio.current_time() - since >= _LINES_SECONDS:
                if untold:
                    self._log.warning("child_lines_dropped", connector=self._name, pid=child.pid, count=untold)
                lines, untold, since = 0, 0, trio.current_time()
            lines += 1
            if lines > _LINES_MAX:
                untold += 1
            else:
                self._log.info("child_said", connector=self._name, pid=child.pid, line=self._clean(line))

        return tell
