"""The two ends of a command's output: stdout for what was asked for, stderr for what is said about it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from io import UnsupportedOperation
from typing import TextIO

from sidecar.cli.receipt import one_line, shown


def write_out(text: str) -> None:
    """All of the text to stdout, now. Raises OSError where it can't be.

    A pipe or a file gets the text's own UTF-8 and nothing else. A terminal gets
    what can't drive it, in its own encoding, and ends on a line of its own.
    """
    out = sys.stdout
    if out is None:
        raise OSError("it is closed")
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
