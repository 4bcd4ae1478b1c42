"""A connector that stands before another one and keeps what it answers, or answers from what was kept.

In `replay` nothing is ever sent: the other connector only lowers, so that a
request is refused, its states are dropped and its notes are made as they are
live, and it has neither a credential nor a child. A request of which there is
no recording is Rejected before anything is paid. In `record` every request is
sent, and its answer kept; `both` sends what it finds no recording of.

Kept is what came of asking: a completed answer, or a failure that the other
connector told once the request had left. Not kept is what our own bounds made
of it (a deadline, an answer that is too large), nor that nobody was there. A
failure never takes a recording's place, and one that says nothing of the
request (its credential, a rate limit, a provider that was down) is asked again
in `both`.

The recording is on disk before the answer is given. A thread writes it, and
is waited for at most `_WRITE_SECONDS_MAX`, whatever cancels the request, for it
is paid. An answer that can't be kept stands all the same, and the log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import trio
from msgspec import Struct

from sidecar.connectors.pace import Pace
from sidecar.connectors.promise import NO_SETTINGS, Answer, Connector, Lowered, Rejected, Serving
from sidecar.connectors.recorded_directory import Entry, NotKept, Recordings
from sidecar.connectors.recorded_format import (
    Digests,
    Heard,
    NotARecording,
    Recording,
    digests,
    pieces_of,
    recording_of,
)
from sidecar.contract.values import ProviderRequest
from sidecar.ops.clock import unix_ms
from sidecar.ops.log import Log

Mode = Literal["record", "replay", "both"]
_WRITE_SECONDS_MAX: Final = 5.0  # a disk that takes longer may lose us the recording: no answer waits more for it
_THREADS_MAX: Final = 4


class _Asked(Struct, frozen=True):
    """What is answered: the request as it came here, and as the other connector would send it."""

    request: ProviderRequest
    digests: Digests
    lowered: Lowered
    recorded: Entry | None  # in `replay`, what answers it


class Recorded:
    """Another connector and a directory of what it has answered. `kind` is that connector's."""

    def __init__(
        self,
        wrapped: Connector,
        recordings: Recordings,
        *,
        name: str,
        kind: str,
        mode: Mode,
        secret: str | None = None,
        clock_unix_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._wrapped = wrapped
        self._recordings = recordings
        self._name = name
        self._kind = kind
        self._mode = mode
        self._secret = secret
        self._clock_unix_ms = clock_unix_ms
        self._threads = trio.CapacityLimiter(_THREADS_MAX)
        self._log: Log | None = None

    def __repr__(self) -> str:
        return f"<Recorded {self._mode} {self._wrapped!r} in {self._recordings.directory}>"

    def lower(self, request: ProviderRequest, upstream: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Lowered:
        lowered = self._wrapped.lower(request, upstream, settings)
        of_request = digests(request)
        recorded = None
        if self._mode == "replay":
            recorded = self._recordings.find(of_request, upstream, also_passing=True)
            if recorded is None:
                raise Rejected(self._unknown(of_request, upstream))
        return Lowered(
            request=lowered.request,
            upstream=upstream,
            body=_Asked(request, of_request, lowered, recorded),
            states_dropped=lowered.states_dropped,
            call_ids=lowered.call_ids,
            notes=lowered.notes,
        )

    def at_once(self, lowered: Lowered, answer: Answer) -> bool:
        return False  # a file is read or written, and a disk may take its time

    async def exchange(self, lowered: Lowered, answer: Answer) -> None:
        asked: _Asked = lowered.body
        if recording := await self._recording_of(asked, lowered.upstream, answer):
            await _replay(recording, answer)
        elif answer.ended is None:
            await self._ask(asked, lowered.upstream, answer)

    async def serve(self, log: Log, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._log = log
        directory, found = self._recordings.directory, len(self._recordings)
        counted = {} if self._mode == "record" else {"recordings": found}
        log.info("recorded_opened", connector=self._name, mode=self._mode, **counted, directory=directory)
        if edited := self._recordings.with_other_pieces:
            log.warning("pieces_ignored", connector=self._name, recordings=len(edited), first=edited[0])
        if self._mode != "replay" and isinstance(self._wrapped, Serving):
            await self._wrapped.serve(log, task_status=task_status)
        else:
            task_status.started()

    def kill(self) -> None:
        if self._mode != "replay" and isinstance(self._wrapped, Serving):
            self._wrapped.kill()

    async def aclose(self) -> None:
        await self._wrapped.aclose()

    # --- from a recording -----------------------------------------------------------------------------------------

    def _unknown(self, of_request: Digests, upstream: str) -> str:
        """Short, since the log cuts it: the directory stands last."""
        directory = self._recordings.directory
        told = f"no recording {of_request.exact}"
        if other := self._recordings.other(of_request):
            told = f"{other.file_name:.12}... is of {other.upstream} by {other.kind}, not {upstream} by {self._kind}"
        return f'{told}; connector {self._name} makes one with mode = "record" or "both"; in {directory}'

    async def _recording_of(self, asked: _Asked, upstream: str, answer: Answer) -> Recording | None:
        """What answers this request, if that is not to be asked. Where its file has gone, `replay` fails unasked."""
        found = asked.recorded
        if self._mode == "both":
            found = self._recordings.find(asked.digests, upstream, also_passing=False)
        if found is None:
            return None
        try:
            recording = await trio.to_thread.run_sync(
                self._recordings.read, found.file_name, abandon_on_cancel=True, limiter=self._threads
            )
            if self._log is not None:
                self._log.info("recording_replayed", connector=self._name, file=found.file_name)
            return recording
        except NotARecording as wrong:
            self._tell_wrong("recording_unusable", found.file_name, str(wrong))
            if self._mode == "replay":
                answer.fail("unavailable", f"the recording {found.file_name} {wrong}; nothing was sent")
            return None

    # --- to a recording -------------------------------------------------------------------------------------------

    async def _ask(self, asked: _Asked, upstream: str, answer: Answer) -> None:
        heard = Heard()
        answer.overhear(heard.hear)
        try:
            await self._wrapped.exchange(asked.lowered, answer)
        finally:
            if _is_worth_keeping(answer):
                recording = recording_of(
                    asked.request,
                    asked.digests,
                    kind=self._kind,
                    upstream=upstream,
                    answer=answer,
                    heard=heard,
                    at_unix_ms=self._clock_unix_ms(),
                )
                await self._keep(recording)

    async def _keep(self, recording: Recording) -> None:
        """Waits for the disk through a cancellation, but not for ever."""
        name = recording.provider_request_sha256 + ".json"
        with trio.move_on_after(_WRITE_SECONDS_MAX, shield=True) as patience:
            try:
                written = await trio.to_thread.run_sync(
                    self._recordings.write, recording, self._secret, abandon_on_cancel=True, limiter=self._threads
                )
            except NotKept as why:
                self._tell_wrong("not_recorded", name, str(why))
            except (OSError, ValueError) as fault:
                self._tell_wrong("not_recorded", name, f"it can't be written: {fault}")
            else:
                self._kept(recording, name, written=written)
        if patience.cancelled_caught:
            self._tell_wrong("not_recorded", name, f"the disk has not taken it within {_WRITE_SECONDS_MAX:g} s")

    def _kept(self, recording: Recording, name: str, *, written: bool) -> None:
        if written and self._mode == "both":
            self._recordings.add(recording)
        if self._log is not None and written:
            self._log.info("recorded", connector=self._name, file=name, request=recording.request.request_id)
        elif self._log is not None:
            why = f"it failed ({recording.end.kind}), and an earlier recording stays"
            self._log.info("not_recorded", connector=self._name, file=name, why=why)

    def _tell_wrong(self, fact: str, name: str, why: str) -> None:
        if self._log is not None:
            self._log.error(fact, connector=self._name, file=name, why=why, directory=self._recordings.directory)


def _is_worth_keeping(answer: Answer) -> bool:
    ended = answer.ended
    return ended is not None and answer.sent and ended.kind != "result_size"


async def _replay(recording: Recording, answer: Answer) -> None:
    """The answer as it came, at once: what is priced, bounded and renamed today is done by those who always do it."""
    pace = Pace()
    answer.sent = recording.sent
    for note in recording.notes:
        answer.note(note)
    for event in recording.events:
        if event.text:
            for piece in pieces_of(event.text):
                answer.text(piece)
                await pace.rest()
        elif event.tool_call:
            answer.tool_call(event.tool_call.call_id, event.tool_call.name, event.tool_call.arguments)
        elif event.reasoning_state:
            answer.reasoning_state(event.reasoning_state.state)
        await pace.rest()
    end = recording.end
    claimed = end.claimed_cost_micro_usd
    if end.stop_reason is not None:
        answer.complete(end.stop_reason, end.usage, end.provider_response_id, claimed_cost_micro_usd=claimed)
    else:
        assert end.kind is not None, "a recording ends in one of two ways"
        answer.fail(end.kind, end.message, end.usage, claimed_cost_micro_usd=claimed)
