"""Where a repaired ledger is made: beside its final name, which it gets when all of it is on disk.

What is there under the final name is therefore whole; what a crash or a full
disk left is called `.partial`, and nothing here removes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sidecar.ledger.files import DiskFiles

REPORT_NAME: Final = "repair-report.json"


class NoPlace(Exception):
    """The new ledger can't be made there; the message says why."""


def partial_of(new: Path) -> Path:
    """Where a ledger stands that is to get this name."""
    return new.absolute().with_name(f"{new.absolute().name}.partial")


class NewPlace:
    """`directory` is where to write until `finish`."""

    def __init__(self, files: DiskFiles, new: Path, damaged: Path) -> None:
        """Raises NoPlace."""
        self._files = files
        self.new = new.absolute()
        if not self.new.name or self.new.name == "..":
            raise NoPlace(f"{self.new} is no name for a new directory")
        self.directory = partial_of(new)
        try:
            self._check(damaged)
            files.make_directory(self.directory)
        except OSError as error:
            raise NoPlace(f"{self.directory} can't be made: {error.strerror}") from None

    def _check(self, damaged: Path) -> None:
        if self.new.is_symlink() or (self.new.exists() and not self.new.is_dir()):
            raise NoPlace(f"{self.new} is there, and is no directory")
        if damaged.resolve() in (self.new.resolve(), *self.new.resolve().parents):
            raise NoPlace(f"{self.new} is in the damaged directory, which stays as it is")
        if self.new.exists() and self._files.names(self.new):
            raise NoPlace(f"{self.new} is there, and is not empty: name a directory that is not there yet")
        if self._files.exists(self.directory):
            raise NoPlace(f"{self.directory} is there: a repair that did not end has left it; remove it first")

    def finish(self, report: bytes) -> None:
        """The report beside the ledger, all of it synced, and then the name. Raises OSError."""
        descriptor = self._files.create(self.directory / REPORT_NAME)
        try:
            self._files.write(descriptor, [report], 0)
            self._files.sync(descriptor)
        finally:
            self._files.close(descriptor)
        self._files.sync_directory(self.directory)
        self._files.rename(self.directory, self.new)
        self._files.sync_directory(self.new.parent)
