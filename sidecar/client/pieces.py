"""A stream's live events, so told that their pieces add up to the result. Pure.

Two halves meet in a queue, and neither waits for the other. `LiveRun` belongs
to whoever reads the connection: it takes live events as long as they are one
unbroken run from the start of the answer. A gap, a lost connection or a reader
who leaves too much unread ends the run for good: what comes live after that
can't be placed, and the result carries it all anyway. `Telling` belongs to
whoever iterates: it tells what is queued, then completes it from the result.
So a stream that nobody reads costs a bounded number of bytes and holds up nobody.

One thing can't be told while it happens: where another client's very same
bytes are running already, the first text comes from its middle on. The result
shows it, and `is_whole` says it then.

The queue and the two counters are each written by one side only, so the halves
may live in two threads without a lock.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from sidecar.client.errors import NotADaemon
from sidecar.contract.values import TextDelta, TransportEvent, TransportEventPayload


class LiveRun:
    """Takes live events in, at most `unread_bytes_max` of them unread."""

    def __init__(self, unread_bytes_max: int) -> None:
        self._unread_bytes_max = unread_bytes_max
        self._unread: deque[tuple[TransportEvent, int]] = deque()
        self._offered_bytes = 0
        self._taken_bytes = 0
        self._next_sequence = 0
        self._in_text = False
        self.over = False

    def offer(self, event: TransportEvent, length_bytes: int) -> None:
        """Queues the event if it continues the run; ends the run otherwise."""
        if self.over:
            return
        is_text = isinstance(event.payload.text_delta, TextDelta)
        goes_on = self._in_text and is_text and event.sequence == self._next_sequence - 1
        has_gap = not goes_on and event.sequence != self._next_sequence
        if has_gap or self._offered_bytes - self._taken_bytes + length_bytes > self._unread_bytes_max:
            self.over = True  # what is queued stands; what comes after it is only in the result
            return
        self._next_sequence, self._in_text = event.sequence + 1, is_text
        self._offered_bytes += length_bytes
        self._unread.append((event, length_bytes))

    def end(self) -> None:
        """Nothing live from here on; what is queued is still told."""
        self.over = True

    def take(self) -> TransportEvent | None:
        """The oldest unread event. For the reading side."""
        try:
            event, length_bytes = self._unread.popleft()
        except IndexError:
            return None
        self._taken_bytes += length_bytes
        return event

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)


class Telling:
    """What a stream has told, and what is left to tell once the result is there."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._texts: dict[int, list[str]] = {}
        self._others: dict[int, Any] = {}
        self.is_whole = True  # what was told adds up to the result

    def next_live(self) -> TransportEvent | None:
        """The next unread live event, noted as told."""
        event = self._run.take()
        if event is None:
            return None
        payload = event.payload.chosen
        if isinstance(payload, TextDelta):
            self._texts.setdefault(event.sequence, []).append(payload.text)
        else:
            self._others[event.sequence] = payload
        return event

    def rest(self, events: tuple[TransportEvent, ...]) -> list[TransportEvent]:
        """What of the result is not told yet. Raises NotADaemon if what was told is not of it."""
        told = len(self._texts) + len(self._others)
        rest: list[TransportEvent] = []
        for place, event in enumerate(events):
            if place >= told:
                rest.append(event)
                continue
            left = self._left(event, is_last=place == told - 1)
            if left is not None:
                rest.append(left)
        if told > len(events):
            raise _other()
        return rest

    def _left(self, event: TransportEvent, *, is_last: bool) -> TransportEvent | None:
        payload = event.payload.chosen
        if not isinstance(payload, TextDelta):
            if self._others.get(event.sequence) != payload:
                raise _other()
            return None
        said = "".join(self._texts.get(event.sequence, ()))
        if event.sequence == 0 and self._is_from_the_middle(said, payload.text, is_last=is_last):
            self.is_whole = False
            return None
        if (
            event.sequence not in self._texts
            or not payload.text.startswith(said)
            or (said != payload.text and not is_last)
        ):
            raise _other()
        if said == payload.text:
            return None
        text = TextDelta(text=payload.text[len(said) :])
        return TransportEvent(sequence=event.sequence, payload=TransportEventPayload(text_delta=text))

    def _is_from_the_middle(self, said: str, text: str, *, is_last: bool) -> bool:
        """Whether this is a part of the text but not its beginning; behind the whole of it something else was told."""
        if not said or said == text:
            return False
        return said in text and not text.startswith(said) if is_last else text.endswith(said)


def _other() -> NotADaemon:
    return NotADaemon("the live events were not the beginning of the result; invoke() gets the result as it stands")
