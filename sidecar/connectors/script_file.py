"""A script that may change while the daemon runs: it is looked at again, and read again where it is another.

Whoever changes it should write it whole under another name and rename it: what
is seen half written is wrong until it is seen whole.
"""

from __future__ import annotations

import os
from pathlib import Path

from sidecar.config.keys import ConfigFaults
from sidecar.connectors.promise import Rejected
from sidecar.connectors.script import Rule, read_script

_Stamp = tuple[int, int, int, int] | None


class ScriptFile:
    """The script in this file. Raises ConfigFaults, if what is there at first is wrong."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)  # taken before it is read: a change in between is seen at the next look
        self._rules = read_script(path)
        self._fault: str | None = None

    def rules(self) -> tuple[Rule, ...]:
        """Those that stand in the file now; the same tuple as before while it has not changed.

        Raises Rejected while the script is wrong or gone: an answer by rules that stand there no longer would be an
        answer that nobody wrote.
        """
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp = stamp
            self._read()
        if self._fault is not None:
            raise Rejected(self._fault)
        return self._rules

    def _read(self) -> None:
        try:
            self._rules = read_script(self._path)
            self._fault = None
        except ConfigFaults as faults:
            self._fault = f"the script has become wrong: {'; '.join(map(str, faults.complaints))}"


def _stamp(path: Path) -> _Stamp:
    """What changes with the file: which one it is, when it was written, and its size. None where it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
