"""The recorded connector in each of its modes, so that it behaves as the contract of every connector asks."""

from __future__ import annotations

import io
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from kit import build

from sidecar.connectors.promise import NO_SETTINGS, Answer, Connector, Lowered
from sidecar.connectors.recorded import Mode, Recorded
from sidecar.connectors.recorded_directory import Recordings
from sidecar.connectors.recorded_format import Heard, digests, recording_of
from sidecar.contract.values import ProviderRequest
from sidecar.ops.log import Log

_HELD_BYTES_MAX = 1_000_000


def recordings_in(directory: Path, kind: str = "scripted") -> Recordings:
    """Those that are there now, all of them sound."""
    recordings = Recordings(directory, kind)
    if directory.is_dir():
        assert recordings.index() == []
    return recordings


def recorded_in(
    directory: Path,
    wrapped: Connector,
    mode: Mode,
    *,
    kind: str = "scripted",
    secret: str | None = None,
    at_ms: int = 0,
) -> Recorded:
    """`at_ms`: so long after the fixed instant it records."""
    recordings = recordings_in(directory, kind)

    def clock() -> int:
        return build.NOW + at_ms

    return Recorded(wrapped, recordings, name="kept", kind=kind, mode=mode, secret=secret, clock_unix_ms=clock)


class RecordedBefore(Recorded):
    """In replay, with a recording of whatever is lowered, made before of a connector that answers at once."""

    def __init__(self, wrapped: Connector, directory: Path) -> None:
        self._recordings = recordings_in(directory)
        super().__init__(wrapped, self._recordings, name="kept", kind="scripted", mode="replay")

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        lowered = self._wrapped.lower(request, upstream, settings)
        heard = Heard()
        answer = Answer(lowered.call_ids, _HELD_BYTES_MAX, lowered.notes, on_event=heard.hear)
        assert self._wrapped.at_once(lowered, answer)
        of_request = digests(request)
        recording = recording_of(
            request, of_request, kind="scripted", upstream=upstream, answer=answer, heard=heard, at_unix_ms=build.NOW
        )
        self._recordings.write(recording, None)
        self._recordings.add(recording)
        return super().lower(request, upstream, settings)


@asynccontextmanager
async def recording(wrapped: Connector, *, log: io.StringIO | None = None) -> AsyncIterator[Connector]:
    """In record, served while it is entered."""
    with tempfile.TemporaryDirectory() as directory:
        async with trio.open_nursery() as nursery:
            connector = recorded_in(Path(directory) / "recordings", wrapped, "record")
            await nursery.start(connector.serve, Log(log or io.StringIO(), "text"))
            yield connector
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def replaying(wrapped: Connector) -> AsyncIterator[Connector]:
    with tempfile.TemporaryDirectory() as directory:
        yield RecordedBefore(wrapped, Path(directory))
