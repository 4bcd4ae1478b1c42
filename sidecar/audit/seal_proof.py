"""Seals against the records that they are made of: each is read whole, and must say exactly what the records say.

A seal is looked at when the reading comes to its first segment, and held open
until it has come to its last. While the records pass, only the completions
of its segments are looked up in it; the rest follows at its end, because
then each of its entries is one of these:

    ended in these segments           looked up when its Completed passed; as many as have passed
    begun here, and open at the end   looked up now; as many as are open
    begun in a segment that was       may be there if it is open at the end (a merge keeps it); looked up now
        dropped before the seal's
    ended in a segment of the seal    is left over until the next merge; nobody can tell any more
        that was dropped

So memory holds what is open, the sums of the seal and 8 bytes for each of its blocks. Where segments were
dropped, sums of the first seal may hold what they were charged, up to what the checkpoint says, and windows that have
ended by the low-water mark may be gone. A caller whose windows have changed their length within a seal has its
total compared, and each of its windows only as a bound: no record says when the configuration changed.

Beside a live daemon seals come, are merged and go. One that has gone between two looks is not missed: what has come in
its place is looked for, and proved if it begins where the reading is, else read for its soundness only. One that was
made when more was dropped than before the reading has the same freedom, up to the checkpoint that is there by now.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from sidecar.audit import seals as decoder
from sidecar.audit.decoder import Line, Members
from sidecar.audit.records_in_order import RecordsInOrder
from sidecar.audit.seal_file import SealFile
from sidecar.audit.seals import NO_PLACE, Place
from sidecar.ledger.faults import LedgerDamaged
from sidecar.ledger.files import DiskFiles

_NEVER: Final = 1 << 64
_pack: Final = msgspec.msgpack.Encoder().encode

Window = tuple[str, int, int]  # caller, length in seconds, start in Unix ms


def key_of(begin: Line) -> bytes:
    """Under which the request of a Begin stands in a seal; made anew, as the second opinion on `index.key_of`."""
    return sha256(_pack([begin.members["caller_runtime_id"], begin.members["request_id"]])).digest()[:16]


class SegmentSums:
    """What the row of one segment must say, gathered while its records pass."""

    def __init__(self, number: int, segment_bytes: int) -> None:
        self.number = number
        self._segment_bytes = segment_bytes
        self._records = self._begins = self._completions = 0
        self._charged_micro_usd = 0
        self._admitted_until = self._expires_until = 0

    def take(self, line: Line) -> None:
        self._records += 1
        begun = line if line.kind == "Begin" else line.begun
        if begun is None:
            return
        self._admitted_until = max(self._admitted_until, begun.members["admitted_at_unix_ms"])
        if line.kind == "Begin":
            self._begins += 1
            self._expires_until = max(self._expires_until, line.members["expires_at_unix_ms"])
        else:
            self._completions += 1
            self._charged_micro_usd += line.members["charge_micro_usd"]

    def row(self, end: Members) -> Members:
        """`end` is where the record ends with this segment."""
        return {
            "number": self.number,
            "segment_bytes": self._segment_bytes,
            "incarnation": end["incarnation"],
            "end": end["offset"],
            "head": end["head"],
            "batch": end["batch"],
            "closed": end["closed"],
            "records": self._records,
            "begins": self._begins,
            "completions": self._completions,
            "charged_micro_usd": self._charged_micro_usd,
            "admitted_until_unix_ms": self._admitted_until,
            "expires_until_unix_ms": self._expires_until,
        }


class SealProof:
    """One seal, and what the records of its segments come to meanwhile. Every method raises LedgerDamaged."""

    def __init__(self, file: SealFile, reading: RecordsInOrder, dropped_until: int, *, dropped_since: bool) -> None:
        """`dropped_until` is the last segment that was dropped when the seal was made, if not before; `dropped_since`
        whether that is more than what the reading began behind."""
        self.file = file
        self._said: Members = file.document
        self._reading = reading
        self._dropped_until = dropped_until
        self._low_water = _NEVER if dropped_since else reading.low_water_at_begin
        self._dropped_bound = _NEVER if dropped_since else reading.dropped.charged_micro_usd
        self._may_hold_dropped = dropped_until > 0 and file.first <= dropped_until + 1
        self._ended = 0
        self._lengths: dict[str, set[int]] = {}
        for caller, seconds, _, _ in self._said["sums"]:
            self._lengths.setdefault(caller, set()).add(seconds)
        self._sums: dict[Window, int] = {}
        self._ended_said, self._open_said = self._counted()

    def _counted(self) -> tuple[int, int]:
        """How many entries have ended in segments that are there, and how many have not ended."""
        ended = still_open = 0
        file = self.file
        for at, entry in file.entries():
            if entry.completed == NO_PLACE:
                still_open += 1
            elif file.first <= entry.completed[0] <= file.last and entry.begin < entry.completed:
                ended += entry.completed[0] > self._dropped_until
            else:
                raise file.damaged(at, f"a Completed in segments {file.first} to {file.last}, behind its Begin")
        return ended, still_open

    def check_begin(self, end: int, head: bytes) -> None:
        """Where the reading comes to its first segment, which is there."""
        if (self._said["before_end"], self._said["before_head"]) != (end, head):
            raise self._wrong(f"that the segment before ended at {end} with the chain head {head.hex()}")

    def take(self, line: Line) -> None:
        if line.begun is None:
            return
        begin = line.begun.segment, line.begun.offset
        at, entry = self.file.find(key_of(line.begun))
        if entry is None or (entry.begin, entry.completed) != (begin, (line.segment, line.offset)):
            request = line.begun.members["request_id"]
            raise self.file.damaged(at, f"request {request}, begun at {begin}, ended at {line.segment, line.offset}")
        self._ended += line.segment > self._dropped_until
        caller, admitted_at = line.begun.members["caller_runtime_id"], line.begun.members["admitted_at_unix_ms"]
        lengths = self._lengths.get(caller)
        if lengths is None and not (self._may_hold_dropped and admitted_at < self._low_water):
            raise self._wrong(f"a sum of caller {caller}")
        for seconds in lengths or ():
            start = admitted_at - admitted_at % (1000 * seconds) if seconds else 0
            window = caller, seconds, start
            self._sums[window] = self._sums.get(window, 0) + line.members["charge_micro_usd"]

    def check_row(self, row: Members) -> None:
        said = self._said["segments"][row["number"] - self.file.first]
        for name, value in row.items():
            if said[name] != value:
                raise self._wrong(f"{name} {_shown(value)} of segment {row['number']}")

    def check_end(self, end: Members) -> None:
        """Where the reading has left its last segment."""
        said = self._said["end"]
        for name, value in end.items():
            is_as_said = said[name] == value
            if name == "low_water_unix_ms":  # the checkpoint's is of later than this
                is_as_said = value <= said[name] <= max(value, self._low_water)
            elif name.startswith("checkpoint_") and self._dropped_until and not self._reading.checkpoint[0]:
                is_as_said = said["checkpoint_segment"] <= self._dropped_until  # one whose record was dropped, or none
            if not is_as_said:
                raise self._wrong(f"{name} {_shown(value)} at its end")
        still_open = sorted(self._reading.open)
        if [tuple(place) for place in self._said["open"]] != still_open:
            raise self._wrong(f"{len(still_open)} open requests at its end, as the records have them")
        self._check_open(still_open)
        if self._ended != self._ended_said:
            raise self._wrong(f"{self._ended} requests that ended in its segments; {self._ended_said} entries say so")
        self._check_sums()

    def _check_open(self, still_open: list[Place]) -> None:
        known = 0
        for place in still_open:
            begun = self._reading.open[place]
            at, entry = self.file.find(key_of(begun))
            is_here = self.file.first <= place[0]
            is_so = not is_here if entry is None else (entry.begin, entry.completed) == (place, NO_PLACE)
            if not is_so:
                raise self.file.damaged(at, f"request {begun.members['request_id']}, begun at {place} and open")
            if entry is not None:
                if not is_here and place[0] > self._dropped_until:
                    raise self.file.damaged(at, f"no request begun at {place}, since nothing of it stands here")
                known += 1
        if known != self._open_said:
            raise self._wrong(f"{known} open requests; {self._open_said} entries say so")

    def _check_sums(self) -> None:
        said = {(caller, seconds, start): charged for caller, seconds, start, charged in self._said["sums"]}
        surplus = 0
        for caller, lengths in self._lengths.items():
            here = {window: charged for window, charged in said.items() if window[0] == caller}
            counted = {window: charged for window, charged in self._sums.items() if window[0] == caller}
            if self._may_hold_dropped:
                surplus += sum(max(0, charged - counted.get(window, 0)) for window, charged in here.items())
                missing = (
                    len(lengths) == 1 and here.get(window, -1) < charged and not _is_over(window, self._low_water)
                    for window, charged in counted.items()
                )
                is_so = not any(missing)
            elif len(lengths) == 1:
                is_so = here == counted
            else:
                is_bound = all(charged <= counted.get(window, -1) for window, charged in here.items())
                is_so = is_bound and sum(here.values()) == sum(counted.values()) // len(lengths)
            if not is_so:
                raise self._wrong(f"sums of caller {caller} as the records have them")
        if surplus > self._dropped_bound:
            raise self._wrong("sums of no more than what was charged here and in what was dropped")

    def _wrong(self, expected: str) -> LedgerDamaged:
        return self.file.damaged(self.file.document_at, expected)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _is_over(window: Window, low_water_unix_ms: int) -> bool:
    _, seconds, start = window
    return seconds > 0 and start + 1000 * seconds <= low_water_unix_ms


def _checkpoint(name: str) -> int:
    return decoder.checkpoint_segment(name) or 0


class SealProofs:
    """The seals of a ledger, proved while it is read; `count` of them have been.

    A seal is made of records, so a damaged one takes nothing from them: it is noted in `damages`, and the reading goes
    on without it.
    """

    def __init__(self, files: DiskFiles, directory: Path, *, cold: bool) -> None:
        self._files = files
        self._directory = directory
        self._cold = cold
        self._proofs: list[SealProof] = []
        self._seen: set[str] = set()
        self._segment: SegmentSums
        self.count = 0
        self.damages: list[LedgerDamaged] = []

    def close(self) -> None:
        for proof in self._proofs:
            proof.file.close()
        self._proofs.clear()

    @contextmanager
    def _noting(self, proof: SealProof) -> Iterator[None]:
        """Whatever damage is found within; this proof has then come to its end."""
        try:
            yield
        except LedgerDamaged as damage:
            self.damages.append(damage)
            self._end(proof)

    def _end(self, proof: SealProof) -> None:
        self._proofs.remove(proof)
        proof.file.close()

    def enter(self, number: int, segment_bytes: int, reading: RecordsInOrder, dropped_until: int) -> None:
        """Before the first record of a segment; the seals that begin here are gone along with from now on."""
        self._segment = SegmentSums(number, segment_bytes)
        for first, file in self._opened(number, is_first=number == dropped_until + 1):
            try:
                newest = max(map(_checkpoint, self._files.names(self._directory)), default=0)  # it was there first
                since = newest > dropped_until
                proof = SealProof(file, reading, newest if since else dropped_until, dropped_since=since)
                if first == number:
                    proof.check_begin(*reading.end_before)
            except LedgerDamaged as damage:
                file.close()
                self.damages.append(damage)
            except BaseException:
                file.close()
                raise
            else:
                self._proofs.append(proof)

    def _opened(self, number: int, *, is_first: bool) -> Iterator[tuple[int, SealFile]]:
        """Those that begin with this segment, and at the first one those that begin before it; of a ledger that is
        being kept light, as it is now."""
        for name, (first, last) in self._unseen():
            begins_here = first == number or (is_first and first < number <= last)
            if begins_here and (file := self._read(name)) is not None:
                yield first, file

    def _read(self, name: str) -> SealFile | None:
        """None for one that is gone meanwhile, or is damaged."""
        file = None
        try:
            file = SealFile(self._files, self._directory / name, cold=self._cold)
        except FileNotFoundError:
            return None
        except LedgerDamaged as damage:
            self.damages.append(damage)
        self._seen.add(name)
        return file

    def _unseen(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """The names are asked for until nothing new comes."""
        looked_at: set[str] = set()
        while True:
            names = set(self._files.names(self._directory)) - self._seen - looked_at
            ranges = [(name, found) for name in sorted(names) if (found := decoder.seal_range(name))]
            if not ranges:
                return
            for name, found in ranges:
                looked_at.add(name)
                yield name, found

    def take(self, lines: tuple[Line, ...]) -> None:
        for line in lines:
            self._segment.take(line)
        for proof in tuple(self._proofs):
            with self._noting(proof):
                for line in lines:
                    proof.take(line)

    def leave(self, end: Members) -> None:
        """Behind the last record of a segment that nothing is wrong with."""
        row = self._segment.row(end)
        for proof in tuple(self._proofs):
            with self._noting(proof):
                proof.check_row(row)
                if proof.file.last == end["segment"]:
                    proof.check_end(end)
                    self._end(proof)
                    self.count += 1

    def finish(self) -> None:
        """Behind the last segment: the rest is looked at by itself."""
        for name, _ in self._unseen():
            if (file := self._read(name)) is not None:
                try:
                    for _ in file.entries():
                        pass
                except LedgerDamaged as damage:
                    self.damages.append(damage)
                finally:
                    file.close()
