"""The daemon's log: one fact a line, written so that a person and a collector can both read it.

`key=value` text by default; under the journal (when `$JOURNAL_STREAM` names our
stderr) each line begins with its priority and leaves the time to the journal;
JSON lines on request. Values from outside are cut and escaped here, once.
Prompts, replies, headers and keys are never passed to a log: lengths and
digests are. A reader that is slow holds up nobody: a pipe or a socket gets only
what it takes at once, what it doesn't take is lost, and how much that was is
said as soon as a line goes out again. Source: ECOSYSTEM section 4.
"""

from __future__ import annotations

import json
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, TextIO

Soon = Callable[[Callable[[], None]], None]
Form = Literal["text", "journal", "json"]
_VALUE_CHARACTERS_MAX: Final = 200
_WHOLE_CHARACTERS_MAX: Final = 1200
_LINES_HELD_MAX: Final = 1000
_PRIORITIES: Final = {"critical": 2, "error": 3, "warning": 4, "notice": 5, "info": 6}  # the journal's
_PLAIN: Final = r"[a-zA-Z0-9_.,:;/@+\-%()\[\]<>*#!?'^~|&$]+"
_plain: Final = re.compile(_PLAIN).fullmatch
_PLAIN_BYTES: Final = bytes([byte for byte in range(128) if _plain(chr(byte))])


class Whole(str):
    """A sentence of our own, which is written whole: what is cut is mostly what to do about it."""

    __slots__ = ()


def default_form(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Form:
    """`journal` when the stream is the journal's socket, else `text`."""
    named = environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return "text"
    return "journal" if named == f"{status.st_dev}:{status.st_ino}" else "text"


def _pipe_of(stream: TextIO) -> Pipe | None:
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    return Pipe(descriptor) if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


class Pipe:
    """A pipe or socket that somebody reads, written to without ever waiting for them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)
        self._begun = b""  # what is owed of a line that went out in part

    def write(self, lines: Sequence[str]) -> int:
        """How many of these lines went out, the first ones; the last of them perhaps in part, and then it is owed."""
        self._begun = self._rest_of(self._begun)
        if self._begun:
            return 0
        gone = 0
        for group in _groups([f"{line}\n".encode("utf-8", "backslashreplace") for line in lines]):
            rest = self._rest_of(b"".join(group))
            taken = sum(map(len, group)) - len(rest)
            for line in group:
                if taken <= 0:
                    return gone
                gone += 1
                self._begun = line[taken:]
                taken -= len(line)
            if rest:
                return gone
        return gone

    def _rest_of(self, text: bytes) -> bytes:
        """What was not taken of this. Room for PIPE_BUF bytes is what a poll promises."""
        with suppress(OSError):  # nobody reads any more, or somebody else has filled it meanwhile
            while text and any(event & select.POLLOUT for _, event in self._room.poll(0)):
                text = text[os.write(self._descriptor, text[: select.PIPE_BUF]) :]
        return text


def _groups(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many lines together as a pipe takes whole or not at all; a longer line alone."""
    group: list[bytes] = []
    size = 0
    for line in lines:
        if group and size + len(line) > select.PIPE_BUF:
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


class Log:
    """Writes facts: a name and named values."""

    def __init__(self, stream: TextIO | None = None, form: Form | None = None) -> None:
        self._stream = stream or sys.stderr
        self._form = form or default_form(self._stream)
        self._soon: Soon = lambda write: write()
        self._lines: list[str] = []
        self._pipe = _pipe_of(self._stream)
        self._lost = 0  # of which no line has told yet
        self.lines_lost = 0
        self._second, self._calendar = -1, ""

    @property
    def is_for_a_person(self) -> bool:
        """Whether it is read as it stands, by no journal and no collector."""
        return self._form == "text"

    def gather(self, soon: Soon) -> None:
        """From now on what is said at level info or notice is written when `soon` comes to it, many lines at once."""
        self._soon = soon

    def info(self, fact: str, /, **values: object) -> None:
        """What runs as it should, of one request or one connection."""
        self._lines.append(self._line("info", fact, values))
        if len(self._lines) == 1:
            self._soon(self._write)
        elif len(self._lines) >= _LINES_HELD_MAX:
            self._write()

    def notice(self, fact: str, /, **values: object) -> None:
        """What runs as it should and is seldom, of the daemon as a whole."""
        self._lines.append(self._line("notice", fact, values))
        if len(self._lines) == 1:
            self._soon(self._write)

    def warning(self, fact: str, /, **values: object) -> None:
        """What a person should look at, some time."""
        self._lines.append(self._line("warning", fact, values))
        self._write()

    def error(self, fact: str, /, **values: object) -> None:
        """Something is broken, and the daemon goes on."""
        self._lines.append(self._line("error", fact, values))
        self._write()

    def critical(self, fact: str, /, **values: object) -> None:
        """The daemon can't go on, or can't be believed."""
        self._lines.append(self._line("critical", fact, values))
        self._write()

    def _write(self) -> None:
        """Nobody is told where the lines can't be written: there is no other place to say so."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if self._pipe is not None:
            self._write_to(self._pipe, lines)
            return
        text = "\n".join([*lines, ""])
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _write_to(self, pipe: Pipe, lines: list[str]) -> None:
        told = [self._line("warning", "lines_lost", {"count": self._lost})] if self._lost else []
        gone = pipe.write([*told, *lines])
        lost = len(lines) - max(0, gone - len(told))
        self._lost = lost if gone else self._lost + lost
        self.lines_lost += lost

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
        words = f"{fact} {_words(values)}" if values else fact
        return f"<{_PRIORITIES[level]}>{words}" if self._form == "journal" else f"{now} {level} {words}"


@lru_cache(maxsize=512)
def _form_of(keys: tuple[str, ...]) -> tuple[str, bytes]:
    """The words of these keys as one format, and what of them is not plain where their values are."""
    return " ".join([f"{key}=%s" for key in keys]), b" ".join([b"="] * len(keys))


def _words(values: Mapping[str, object]) -> str:
    """`key=value` for each. Most lines hold short and plain values only, which is seen faster of all together."""
    form, shape = _form_of(tuple(values))
    words = form % tuple(values.values())
    others = 4 * (len(values) - 1)  # so many characters at least, beside the longest one
    if (
        words.isascii()
        and words.encode().translate(None, _PLAIN_BYTES) == shape
        and "= " not in words
        and words[-1] != "="
        and (len(words) <= _VALUE_CHARACTERS_MAX + others or max(map(len, words.split(" "))) <= _VALUE_CHARACTERS_MAX)
    ):
        return words
    return " ".join([f"{key}={_text(value)}" for key, value in values.items()])


def _cut(value: object) -> str:
    text = str(value)
    characters_max = _WHOLE_CHARACTERS_MAX if isinstance(value, Whole) else _VALUE_CHARACTERS_MAX
    return text if len(text) <= characters_max else text[:characters_max] + "..."


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
