"""The two ends of a command's output: stdout for what was asked for, stderr for what is said about it."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from io import UnsupportedOperation
from typing import TextIO

from sidecar.cli.receipt import one_line, shown


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
