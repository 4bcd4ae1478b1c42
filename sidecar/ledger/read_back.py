"""Single records, read back from where they stand: the segments, and the Begins that a checkpoint has kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from sidecar.contract.values import STORED_AS_IS, BeginRecord, RecordBody
from sidecar.ledger import format as on_disk
from sidecar.ledger.face import Recorded
from sidecar.ledger.faults import LedgerUnavailable, RecordDamaged
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.format import FormatFault
from sidecar.ledger.landing import Place
from sidecar.ledger.recovery import segment_path

_AT_ONCE_BYTES: Final = 2048  # most Begins are shorter


def begin_in(framed: bytes) -> BeginRecord:
    """The Begin that these bytes are, with its header; raises FormatFault."""
    begin = on_disk.decode_record(framed).begin
    if not begin:
        raise FormatFault("a Begin in this place")
    return begin


class ReadBack:
    """Every other method raises OSError, or FormatFault where other bytes than the record's stand in its place."""

    def __init__(self, files: DiskFiles, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.kept: Mapping[tuple[int, int], bytes] = {}  # framed Begins of segments that are gone
        self.dropped_until = 0  # the last segment that is gone

    def record(self, place: Place) -> RecordBody:
        """From its segment's file alone: of one that is gone it is FileNotFoundError."""
        return on_disk.decode_record(self._read(place.segment, place.offset, place.length))

    def response(self, recorded: Recorded) -> bytes:
        """The frame of a completed request as it was sent. Raises only LedgerUnavailable, RecordDamaged."""
        assert recorded.completed is not None
        at = recorded.completed
        damaged = partial(RecordDamaged, file=self.path(at.segment), offset=at.offset)
        try:
            completed = self.record(at).completed
        except FormatFault as fault:
            raise damaged(f"the recorded answer can't be read back: {fault}") from fault
        except OSError as fault:
            raise LedgerUnavailable(f"the recorded answer can't be read back: {fault}") from fault
        begin = recorded.begin.segment, recorded.begin.offset
        if not completed or (completed.begin_segment, completed.begin_offset) != begin:
            raise damaged("the recorded answer can't be read back: another record stands in its place")
        if completed.response[:1] != STORED_AS_IS:
            raise LedgerUnavailable("the recorded answer is stored in a form that this version doesn't know")
        return completed.response[1:]

    def begin(self, segment: int, offset: int) -> tuple[BeginRecord, Place]:
        """The Begin at this place, also where only a checkpoint has it, and with its length."""
        framed = self.framed(segment, offset)
        return begin_in(framed), Place(segment, offset, len(framed))

    def framed(self, segment: int, offset: int) -> bytes:
        """The record that begins here, with its header, as it stands on disk."""
        kept = self.kept.get((segment, offset))
        if kept is not None:
            return kept
        first = self._read(segment, offset, _AT_ONCE_BYTES)
        length = on_disk.framed_length(first)
        missing = length - len(first)
        return first[:length] if missing <= 0 else first + self._read(segment, offset + len(first), missing)

    def length(self, segment: int, offset: int) -> int:
        """How long the record that begins here says it is, with its header."""
        return on_disk.framed_length(self._read(segment, offset, on_disk.RECORD_HEADER_BYTES))

    def path(self, segment: int) -> Path:
        return segment_path(self._directory, segment)

    def _read(self, segment: int, offset: int, length: int) -> bytes:
        descriptor = self._files.open_to_read(self.path(segment))
        try:
            return self._files.read(descriptor, length, offset)
        finally:
            self._files.close(descriptor)
