"""The two ends of a command's output: stdout for what was asked for, stderr for what is said about it."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import Final, TextIO

from sidecar.cli.receipt import one_line, shown

_CLEAR: Final = "\x1b[H\x1b[J"
_COLUMNS, _LINES = 80, 24  # of a terminal that doesn't say


class StdoutLost(Exception):
    """Stdout takes nothing more. `nobody_reads`: it is a pipe whose reader has left, which is no news to anybody."""

    def __init__(self, why: OSError) -> None:
        super().__init__(f"stdout can't be written: {why.strerror or why}")
        self.nobody_reads = why.errno == errno.EPIPE


def write_out(text: str) -> None:
    """All of the text to stdout, now. Raises StdoutLost where it can't be; then stdout is dropped.

    A pipe or a file gets the text's own UTF-8 and nothing else. A terminal gets
    what can't drive it, in its own encoding, and ends on a line of its own.
    """
    try:
        _write_out(text, sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        raise StdoutLost(error) from None


class LiveText:
    """Text to stdout piece by piece, each now: all of them and `end` are as one `write_out` of the text."""

    def __init__(self) -> None:
        self.written = ""  # all pieces
        self._held = ""  # the begin of what may be one line's end over two pieces
        self._open_line = False

    def write(self, piece: str) -> None:
        """Raises StdoutLost where it can't be written; then stdout is dropped."""
        self.written += piece
        with _dropped_where_lost():
            self._write(piece, sys.stdout)

    def end(self) -> None:
        """No more pieces come: a terminal goes on with a new line."""
        with _dropped_where_lost():
            self._end(sys.stdout)

    def _write(self, piece: str, out: TextIO | None) -> None:
        if out is None:
            raise OSError("it is closed")
        out.flush()
        if not out.isatty():
            out.buffer.write(piece.encode())
        else:
            text = self._held + piece
            self._held = "\r" if text.endswith("\r") else ""
            self._put(shown(text.removesuffix("\r")), out)
        out.buffer.flush()

    def _put(self, text: str, out: TextIO) -> None:
        out.buffer.write(text.encode(out.encoding, "replace"))
        self._open_line = not text.endswith("\n") if text else self._open_line

    def _end(self, out: TextIO | None) -> None:
        if out is not None and out.isatty():
            self._put(shown(self._held), out)
            self._held = ""
            if self._open_line:
                self._put("\n", out)
            out.buffer.flush()


def screen_out(text: str, *, is_first: bool) -> None:
    """`write_out` of lines that are shown again and again: a terminal shows the newest alone, cut to its height.

    Where stdout is no terminal, or one that can't, they come below those before, with an empty line between.
    """
    with _dropped_where_lost():
        out = sys.stdout
        if out is None or not out.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            _write_out(text if is_first else f"\n{text}", out)
            return
        size = os.get_terminal_size(out.fileno())
        lines = cut(shown(text).splitlines(), size.columns or _COLUMNS, size.lines or _LINES)
        out.flush()
        out.buffer.write((_CLEAR + "".join(f"{line}\n" for line in lines)).encode(out.encoding, "replace"))
        out.buffer.flush()


def cut(lines: list[str], columns: int, rows: int) -> list[str]:
    """As many of the lines as a screen of this size shows at once, its cursor's own row left free."""
    free = rows - 1
    if sum(_rows(line, columns) for line in lines) <= free:
        return lines
    kept: list[str] = []
    free -= 1  # for what is said of the rest
    for line in lines:
        free -= _rows(line, columns)
        if free < 0:
            break
        kept.append(line)
    return [*kept, f"({len(lines) - len(kept)} more lines)"]


def _rows(line: str, columns: int) -> int:
    return max(1, -(-len(line) // columns))


@contextmanager
def _dropped_where_lost() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        drop(sys.stdout)
        raise StdoutLost(error) from None
    except BaseException:  # a stop in the middle of a write: what is left of it must not hold up the end
        drop(sys.stdout)
        raise


def line_out(line: str = "") -> None:
    """`write_out`, of a line."""
    write_out(f"{line}\n")


def fault_out(command: str, exit_code: int, why: str, *, as_json: bool) -> int:
    """Why there is no answer: a line on stderr, or for a program an object on stdout. The exit code."""
    if as_json:
        line_out(json.dumps({"ok": False, "exit_code": exit_code, "error": why}))
    else:
        say(f"{command}: {why}")
    return exit_code


def _write_out(text: str, out: TextIO | None) -> None:
    if out is None:
        raise OSError("it is closed")
    out.flush()
    if out.isatty():
        text = shown(text)
        text = text if text.endswith("\n") or not text else text + "\n"
        out.buffer.write(text.encode(out.encoding, "replace"))
    else:
        out.buffer.write(text.encode())
    out.buffer.flush()


def say(line: str) -> None:
    """One line to stderr; where nobody can read it, nobody does."""
    if sys.stderr is None:
        return
    try:
        print(one_line(line), file=sys.stderr, flush=True)
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO | None) -> None:
    """Lets a stream that can't be written end in nothing, so that the interpreter's last flush doesn't complain."""
    if stream is None:
        return
    with suppress(UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
