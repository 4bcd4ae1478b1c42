"""The live half of `sidecar call`: where a call's events go while they come, and its text once they all have.

A daemon drops the live events that a slow reader doesn't take; the result
carries them all. So what was not live is written from the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from sidecar.cli import receipt
from sidecar.cli.dial import Dialed, Trouble, greeted, read_said
from sidecar.cli.output import LiveText, line_out
from sidecar.cli.receipt import Sent
from sidecar.client.errors import NotADaemon
from sidecar.client.pieces import LiveRun, Telling
from sidecar.contract.client_frames import LiveEvent
from sidecar.contract.values import Transported, TransportError, TransportEvent, TransportResult


class Live(Protocol):
    """Where the events of one call go. `notes` is what must be said of it in the end."""

    notes: list[str]

    def take(self, event: TransportEvent) -> None:
        """One that came live. Raises StdoutLost."""

    def end(self, transported: Transported | None, *, is_good: bool) -> None:
        """No more come: what was not live is told. Raises StdoutLost."""


class _Told:
    """Those events that came live and those of the result, each told once, in their order, as far as that can be."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._run = LiveRun(0)  # each is taken out as soon as it is in
        self._telling = Telling(self._run)

    def take(self, event: TransportEvent) -> None:
        self._run.offer(event, 0)
        if (live := self._telling.next_live()) is not None:
            self._tell(live)

    def _tell_the_rest(self, transported: Transported) -> bool:
        """Whether what was told before was the beginning of it."""
        try:
            rest = self._telling.rest(transported.events)
        except NotADaemon:
            return False
        for event in rest:
            self._tell(event)
        return True

    def _tell(self, event: TransportEvent) -> None:
        raise NotImplementedError


class Text(_Told):
    """The visible text, as it comes. Where there is no good answer, what came of it stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._out = LiveText()

    def end(self, transported: Transported | None, *, is_good: bool) -> None:
        if transported is not None and is_good and not self._tell_the_rest(transported):
            self._out.write("\n" + receipt.spoken(transported))
            self.notes.append("the text that came live had gaps; all of it stands on the lines after it")
        self._out.end()

    def _tell(self, event: TransportEvent) -> None:
        if event.payload.text_delta:
            self._out.write(event.payload.text_delta.text)


class Lines(_Told):
    """Each event as a line of JSON, as it comes."""

    def end(self, transported: Transported | None, *, is_good: bool) -> None:
        if transported is not None and not self._tell_the_rest(transported):
            self.notes.append("the events that came live had gaps; the last object has the whole text")

    def _tell(self, event: TransportEvent) -> None:
        line_out(json.dumps({"event": msgspec.to_builtins(event)}))


class Nothing:
    """What is told otherwise."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, event: TransportEvent) -> None: ...

    def end(self, transported: Transported | None, *, is_good: bool) -> None: ...


LIVE: Final[Mapping[tuple[bool, bool], Callable[[], Live]]] = {  # by --stream and --json
    (False, False): Text,
    (False, True): Nothing,
    (True, False): Text,
    (True, True): Lines,
}


def streamed(daemon: Dialed, socket: Path, sent: Sent, frame: bytes, live: Live) -> TransportResult | TransportError:
    """Asks for live events, then for the answer; gives each event away as it comes. Raises as Dialed and `live`."""
    welcome = greeted(daemon, "call", stream_events=True)
    if isinstance(welcome, TransportError):
        return welcome
    daemon.send(frame)
    while True:
        said: LiveEvent | TransportResult | TransportError = read_said(daemon.receive(), LiveEvent, TransportResult)
        if not isinstance(said, LiveEvent):
            return said
        must_be_ours(said, sent, socket)
        live.take(said.event)


def must_be_ours(said: LiveEvent | TransportResult, sent: Sent, socket: Path) -> None:
    """Raises Trouble where the daemon speaks of another request than the one that was sent."""
    if (said.caller_runtime_id, said.request_id) != (sent.caller, sent.request_id):
        raise Trouble("no_daemon_protocol", f"what listens on {socket} answered another request than ours")
