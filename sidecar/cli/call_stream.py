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
from sidecar.contract.client_frames import LiveEvent
from sidecar.contract.values import Transported, TransportError, TransportEvent, TransportResult


class Live(Protocol):
    """Where what is live goes. `notes` is what must be said of it in the end."""

    notes: list[str]

    def take(self, event: TransportEvent) -> None:
        """Raises StdoutLost."""

    def end(self, transported: Transported | None) -> None:
        """The answer, or None where there is no good one. Raises StdoutLost."""


class Text:
    """The visible text, as it comes; without live events, all of it at the end. A part of an answer has no end."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._live = LiveText()

    def take(self, event: TransportEvent) -> None:
        if event.payload.text_delta:
            self._live.write(event.payload.text_delta.text)

    def end(self, transported: Transported | None) -> None:
        if transported is not None:
            self._write_the_rest(receipt.spoken(transported))
        self._live.end()

    def _write_the_rest(self, whole: str) -> None:
        if whole.startswith(self._live.written):
            self._live.write(whole[len(self._live.written) :])
            return
        self._live.write("\n" + whole)
        self.notes.append("the text that came live had gaps; all of it stands on the lines after it")


class Lines:
    """Each event as a line of JSON, as it comes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self, event: TransportEvent) -> None:
        line_out(json.dumps({"event": msgspec.to_builtins(event)}))

    def end(self, transported: Transported | None) -> None:
        """The object of all stands for the rest."""


LIVE: Final[Mapping[bool, Callable[[], Live]]] = {False: Text, True: Lines}  # by --json


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
