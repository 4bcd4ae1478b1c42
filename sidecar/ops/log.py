"""The daemon's log: one fact a line, written so that a person and a collector can both read it.

`key=value` text by default; under the journal (when `$JOURNAL_STREAM` names our
stderr) each line begins with its priority and leaves the time to the journal;
JSON lines on request. Values from outside are cut and escaped here, once.
Prompts, replies, headers and keys are never passed to a log: lengths and
digests are. Source: ECOSYSTEM section 4.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

Soon = Callable[[Callable[[], None]], None]
Form = Literal["text", "journal", "json"]
_VALUE_CHARACTERS_MAX: Final = 200
_PRIORITIES: Final = {"error": 3, "warning": 4, "info": 6}  # the journal's
_plain: Final = re.compile(r"[a-zA-Z0-9_.,:;/@+\-%()\[\]<>*#!?'^~|&$]+").fullmatch


def default_form(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Form:
    """`journal` when the stream is the journal's socket, else `text`."""
    named = environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return "text"
    return "journal" if named == f"{status.st_dev}:{status.st_ino}" else "text"


class Log:
    """Writes facts: a name and named values."""

    def __init__(self, stream: TextIO | None = None, form: Form | None = None) -> None:
        self._stream = stream or sys.stderr
        self._form = form or default_form(self._stream)
        self._soon: Soon = lambda write: write()
        self._lines: list[str] = []
        self._second, self._calendar = -1, ""

    def gather(self, soon: Soon) -> None:
        """From now on what is said at level info is written when `soon` comes to it, many lines at once."""
        self._soon = soon

    def info(self, fact: str, /, **values: object) -> None:
        self._lines.append(self._line("info", fact, values))
        if len(self._lines) == 1:
            self._soon(self._write)

    def warning(self, fact: str, /, **values: object) -> None:
        self._lines.append(self._line("warning", fact, values))
        self._write()

    def error(self, fact: str, /, **values: object) -> None:
        self._lines.append(self._line("error", fact, values))
        self._write()

    def _write(self) -> None:
        """Nobody is told where the lines can't be written: there is no other place to say so."""
        if not self._lines:
            return
        text = "\n".join([*self._lines, ""])
        self._lines.clear()
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _now(self) -> str:
        """UTC to the millisecond; the calendar is asked once a second."""
        second, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
        if second != self._second:
            self._second, self._calendar = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._calendar}.{milliseconds:03}+00:00"

    def _line(self, level: str, fact: str, values: Mapping[str, object]) -> str:
        now = self._now()
        if self._form == "json":
            said = {key: _json(value) for key, value in values.items()}
            own = {"time": now, "level": level, "fact": fact}
            return _dumped({**own, **said, **own})
        words = [fact, *[f"{key}={_text(value)}" for key, value in values.items()]]
        return f"<{_PRIORITIES[level]}>{' '.join(words)}" if self._form == "journal" else " ".join([now, level, *words])


def _cut(value: object) -> str:
    text = str(value)
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "..."


def _json(value: object) -> object:
    return value if value is None or isinstance(value, bool | int) else _cut(value)


def _text(value: object) -> str:
    if type(value) is int:
        return str(value)
    text = _cut(value)
    return text if _plain(text) else _dumped(text) if text else '""'


def _dumped(value: object) -> str:
    """JSON in which nothing but printable ASCII stands; the library leaves DEL as it is."""
    return json.dumps(value).replace("\x7f", "\\u007f")
