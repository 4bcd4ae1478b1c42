"""What the first reading of a damaged ledger keeps of its records: instants, sizes, counts, and who stands twice."""

from __future__ import annotations

from sidecar.audit.decoder import Line
from sidecar.repair.start import Start

_INSTANTS = {
    "Opened": "opened_at_unix_ms",
    "Begin": "admitted_at_unix_ms",
    "Completed": "completed_at_unix_ms",
    "Closed": "closed_at_unix_ms",
}


class Seen:
    """Sums over the records that were read, the single ones of damaged batches included."""

    def __init__(self) -> None:
        self.records = 0
        self.begins = 0
        self.ends = 0
        self.newest_instant_unix_ms = 0
        self.newest_expiry_unix_ms = 0
        self.longest_lifetime_ms = 0
        self.low_water_unix_ms = 0
        self.record_bytes_max = 0
        # A torn tail can hold the begin of a request that was sent again later: what stands in a whole batch counts.
        self._single_begins: set[tuple[str, str]] = set()
        self._single_ends: set[tuple[int, int]] = set()
        self._begun_again: set[tuple[str, str]] = set()
        self._ended_again: set[tuple[int, int]] = set()

    def line(self, line: Line, named: tuple[int, int], *, has_begin: bool, is_single: bool, is_believed: bool) -> None:
        """Of a Completed: the begin that it is the end of, and whether that is one of those that are known."""
        members = line.members
        self.records += 1
        self.record_bytes_max = max(self.record_bytes_max, line.length)
        if line.kind in _INSTANTS:
            self.newest_instant_unix_ms = max(self.newest_instant_unix_ms, members[_INSTANTS[line.kind]])
        if line.kind == "LowWater":
            self.low_water_unix_ms = max(self.low_water_unix_ms, members["expires_at_unix_ms"])
        elif line.kind == "Begin":
            self._begin(line)
            request = members["caller_runtime_id"], members["request_id"]
            if is_single:
                self._single_begins.add(request)
            elif request in self._single_begins:
                self._begun_again.add(request)
        elif line.kind == "Completed" and is_believed:
            self.ends += has_begin
            if is_single:
                self._single_ends.add(named)
            elif named in self._single_ends:
                self._ended_again.add(named)

    def kept(self, start: Start) -> None:
        """What a checkpoint says. Its begins are no records that were read, and count as begins all the same."""
        self.low_water_unix_ms = start.low_water_unix_ms
        for line in start.begins:
            self.record_bytes_max = max(self.record_bytes_max, line.length)
            admitted = line.members["admitted_at_unix_ms"]
            self.newest_instant_unix_ms = max(self.newest_instant_unix_ms, admitted)
            self._begin(line)

    def _begin(self, line: Line) -> None:
        expiry = line.members["expires_at_unix_ms"]
        self.begins += 1
        self.newest_expiry_unix_ms = max(self.newest_expiry_unix_ms, expiry)
        self.longest_lifetime_ms = max(self.longest_lifetime_ms, expiry - line.members["admitted_at_unix_ms"])

    def is_superseded(self, line: Line, named: tuple[int, int]) -> bool:
        """Of a single record: whether a whole batch says the same of its request, or something else."""
        if line.kind == "Begin":
            return (line.members["caller_runtime_id"], line.members["request_id"]) in self._begun_again
        if line.kind == "Completed":
            return named in self._ended_again
        return False

    @property
    def open_max(self) -> int:
        """At most so many requests are open at the end."""
        return self.begins - self.ends + len(self._begun_again) + len(self._ended_again)
