"""What the ledger's reading tools share: how a ledger that can't be read is told, output in large pieces, times."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TextIO

from sidecar.audit.look import NoLedger
from sidecar.audit.reading import Reading
from sidecar.cli.output import say, write_out
from sidecar.ledger.faults import LedgerDamaged, LedgerHeld
from sidecar.ledger.files import DiskFiles
from sidecar.ledger.lock import hold_as_it_is

EXIT_CODES: Final = {
    os.EX_OK: "the ledger is sound, as far as this command reads it",
    os.EX_USAGE: "wrong command line",
    os.EX_DATAERR: "the ledger is damaged, or of another version: the place is said, and what stood before is given",
    os.EX_NOINPUT: "there is no ledger in this directory",
    os.EX_IOERR: "the ledger can't be read, or stdout not be written",
}
_HELP: Final = {
    "verify": "what stands before that place is sound: sidecar ledger export {} gives it",
    "show": "what stands before that place has been given; what is indeterminate there may have ended behind it",
    "spend": "what stands before that place has been summed; what is indeterminate there may have ended behind it",
    "export": "what stands before that place has been given",
    "resolve": "nothing was written",
}
_HELP_WITH_A_SEAL: Final = {**_HELP, "verify": "the records are sound"}
_PIECE_CHARACTERS: Final = 1 << 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BEGIN_AFTER_SECONDS: Final = 1.0
_AGAIN_AFTER_SECONDS: Final = 0.2


def told(command: str, directory: Path, read: Callable[[], object]) -> int:
    """Reads, and says on stderr why it can't be gone on with. Returns the exit code."""
    try:
        read()
    except LedgerDamaged as damage:
        say(f"sidecar ledger {command}: {with_help(command, directory, damage)}")
        return os.EX_DATAERR
    except NoLedger as absent:
        say(f"sidecar ledger {command}: {absent}")
        return os.EX_NOINPUT
    except OSError as error:
        say(f"sidecar ledger {command}: {directory}: {error.strerror or error}")
        return os.EX_IOERR
    return os.EX_OK


def dropped_in_words(reading: Reading) -> str:
    """What a checkpoint stands for."""
    dropped = reading.dropped
    requests = f"{dropped.completions} request{'s' * (dropped.completions != 1)}"
    return f"up to segment {reading.dropped_until}: {requests} charged {dropped.charged_micro_usd} micro-USD"


def with_help(command: str, directory: Path, damage: LedgerDamaged) -> str:
    """The damage, and what helps beside the advice that it has itself."""
    helps = _HELP_WITH_A_SEAL if is_in_a_seal(damage) else _HELP
    return f"{damage}; {helps[command].format(directory)}"


def is_in_a_seal(damage: LedgerDamaged) -> bool:
    return damage.segment.suffix == ".seal"


def may_be_held(directory: Path) -> bool:
    """Whether a daemon holds the ledger now; true too where that can't be told.

    The lock is the only one who knows, and is asked by taking it for a moment.
    """
    files = DiskFiles()
    try:
        lock = hold_as_it_is(files, directory)
    except (LedgerHeld, OSError):
        return True
    if lock is None:
        return files.exists(directory / "lock")
    files.close(lock)
    return False


def write_lines(lines: Iterable[str]) -> None:
    """All of them to stdout, in large pieces. Where `lines` raises, what came before is written first."""
    held: list[str] = []
    held_characters = 0
    try:
        for line in lines:
            held.append(line)
            held_characters += len(line)
            if held_characters >= _PIECE_CHARACTERS:
                piece = "".join(held)
                held, held_characters = [], 0
                write_out(piece)
    finally:
        if held:
            write_out("".join(held))


def instant(unix_ms: int) -> str:
    """UTC, to the millisecond; what no calendar holds stays a number."""
    try:
        return (_EPOCH + timedelta(milliseconds=unix_ms)).strftime("%Y-%m-%d %H:%M:%S.") + f"{unix_ms % 1000:03d}"
    except OverflowError:
        return f"{unix_ms} ms"


class Progress:
    """How far a long reading has come, on one line of a terminal that is written again and again, and then removed.

    Nothing is said within the first second, and nothing at all where stderr is no terminal.
    """

    def __init__(self, err: TextIO | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._err = sys.stderr if err is None else err
        self._monotonic = monotonic
        self._next_at = monotonic() + _BEGIN_AFTER_SECONDS if self._err is not None and self._err.isatty() else None
        self._is_shown = False

    def at(self, reading: Reading, newest_segment: int) -> None:
        if self._next_at is None or self._monotonic() < self._next_at:
            return
        self._next_at = self._monotonic() + _AGAIN_AFTER_SECONDS
        newest = max(newest_segment, reading.segment)
        self._write(f"\rreading segment {reading.segment} of {newest}: {reading.records:,} records\x1b[K")
        self._is_shown = True

    def over(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def _write(self, text: str) -> None:
        assert self._err is not None
        try:
            self._err.write(text)
            self._err.flush()
        except OSError:
            self._next_at, self._is_shown = None, False
