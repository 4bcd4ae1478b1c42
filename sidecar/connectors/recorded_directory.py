"""The directory of recordings: an index of what is there, files that are whole or not there at all.

A recording is `<digest of its request>.json`. What is there is read once, at
the start; a file that is no recording is complained of then. Of each only what
it is found by stays in memory, at most `RECORDINGS_MAX` times; the rest is
read when it is replayed. Other names than `*.json` are nobody's business here.

A request is found by its digest, or else by the digest without its ids, so
that a test with fresh ids finds it too: the completed one of these that was
recorded first. What was made for another upstream model, or through another
kind of connector, is not found: it would be another provider's answer.

Two daemons may record into one directory, so names under which files are begun
are nobody else's. Source: the ledger's `whole_file`, which has one writer.
"""

from __future__ import annotations

import os
import stat
import tempfile
from bisect import insort
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from sidecar.config.keys import Complaint
from sidecar.connectors.recorded_format import (
    RECORDING_BYTES_MAX,
    Digests,
    NotARecording,
    Recording,
    decode,
    encode,
    has_other_pieces,
    holds_secret,
)
from sidecar.contract.values import FailureKind

RECORDINGS_MAX: Final = 50_000
_SUFFIX: Final = ".json"
_OWN: Final = "let the daemon's user own it, or write another directory"
_TAKE_AWAY: Final = "take the file out of the directory, or record it again"
_COMPLAINTS_MAX: Final = 20
_OF_THE_MOMENT: Final[frozenset[FailureKind]] = frozenset({"authentication", "rate_limited", "unavailable", "timeout"})


class NotKept(Exception):
    """A recording was not written; the message says why."""


class Entry(Struct, frozen=True, order=True):
    """What one recording is found by; the least of several is preferred."""

    has_failed: bool
    recorded_at_unix_ms: int
    digest: str
    upstream: str
    kind: str
    may_pass: bool  # it failed in a way that says nothing of the request

    @property
    def file_name(self) -> str:
        return self.digest + _SUFFIX


def entry_of(recording: Recording) -> Entry:
    return Entry(
        has_failed=recording.end.kind is not None,
        recorded_at_unix_ms=int(recording.recorded_at.timestamp() * 1000),
        digest=recording.provider_request_sha256,
        upstream=recording.upstream,
        kind=recording.kind,
        may_pass=recording.end.kind in _OF_THE_MOMENT,
    )


class Recordings:
    """Those in one directory that were made through connectors of one kind; the others are only counted."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory = directory
        self.with_other_pieces: list[str] = []  # files with a text that comes whole, since it was edited
        self._kind = kind
        self._by_digest: dict[str, Entry] = {}
        self._alike: dict[str, list[Entry]] = {}  # by the digest without ids

    def __len__(self) -> int:
        return len(self._by_digest)

    # --- what is found --------------------------------------------------------------------------------------------

    def find(self, digests: Digests, upstream: str, *, also_passing: bool) -> Entry | None:
        """The recording that answers this request. Without `also_passing` none that failed for the moment only."""
        for entry in self._candidates(digests):
            if (entry.upstream, entry.kind) == (upstream, self._kind) and (also_passing or not entry.may_pass):
                return entry
        return None

    def other(self, digests: Digests) -> Entry | None:
        """One of the same request that may be for another upstream model, or through another kind."""
        return next(iter(self._candidates(digests)), None)

    def _candidates(self, digests: Digests) -> list[Entry]:
        exact = self._by_digest.get(digests.exact)
        return [*([exact] if exact else ()), *self._alike.get(digests.without_ids, ())]

    def add(self, recording: Recording) -> None:
        entry = entry_of(recording)
        alike = self._alike.setdefault(recording.without_ids_sha256, [])
        if before := self._by_digest.get(entry.digest):
            alike.remove(before)
        self._by_digest[entry.digest] = entry
        insort(alike, entry)

    # --- the files ------------------------------------------------------------------------------------------------

    def index(self) -> list[Complaint]:
        """Reads all that is there, and says what is wrong with it."""
        try:
            names = self._names()
        except OSError as error:
            return [Complaint("directory", f"{self.directory} can't be read: {error.strerror}", hint=_OWN)]
        if len(names) > RECORDINGS_MAX:
            what = f"{self.directory} holds {len(names)} recordings, more than {RECORDINGS_MAX}"
            return [Complaint("directory", what, hint="use several directories")]
        complaints = []
        for name in names:
            try:
                recording = self.read(name)
                self.add(recording)
                if has_other_pieces(recording):
                    self.with_other_pieces.append(name)
            except NotARecording as wrong:
                complaints.append(Complaint("directory", f"{name}: {wrong}", hint=_TAKE_AWAY))
        if len(complaints) > _COMPLAINTS_MAX:
            more = Complaint(
                "directory",
                f"and {len(complaints) - _COMPLAINTS_MAX} more files that are no recordings",
                hint=_TAKE_AWAY,
            )
            complaints[_COMPLAINTS_MAX:] = [more]
        return complaints

    def _names(self) -> list[str]:
        with os.scandir(self.directory) as entries:
            return sorted(entry.name for entry in entries if entry.name.endswith(_SUFFIX))

    def read(self, name: str) -> Recording:
        """The recording in this file. Raises NotARecording, also where it can't be read."""
        recording = decode(_content(self.directory / name))
        if recording.provider_request_sha256 + _SUFFIX != name:
            raise NotARecording(f"holds the request of {recording.provider_request_sha256}{_SUFFIX}")
        return recording

    def write(self, recording: Recording, secret: str | None) -> bool:
        """Synced when this returns. A failure takes no other recording's place: False. Raises OSError and NotKept.

        For a thread: it waits for the disk, and leaves the index alone.
        """
        encoded = encode(recording)
        if len(encoded) > RECORDING_BYTES_MAX:
            raise NotKept(f"it is larger than {RECORDING_BYTES_MAX} bytes")
        if secret is not None and holds_secret(recording, encoded, secret):
            raise NotKept("the provider's credential stands in it")
        path = self.directory / entry_of(recording).file_name
        if recording.end.kind is not None and path.exists():
            return False
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists() and len(self._names()) >= RECORDINGS_MAX:
            raise NotKept(f"{RECORDINGS_MAX} recordings are there already: use another directory")
        _write_whole(path, encoded)
        return True


def _content(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotARecording("is no file")
            content = file.read(RECORDING_BYTES_MAX + 1)
    except OSError as error:
        raise NotARecording(f"can't be read: {error.strerror}") from error
    if len(content) > RECORDING_BYTES_MAX:
        raise NotARecording(f"is larger than {RECORDING_BYTES_MAX} bytes")
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """A FIFO that nobody writes to would otherwise keep us waiting before its kind can be seen."""
    return os.open(path, flags | os.O_NONBLOCK)


def _write_whole(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
