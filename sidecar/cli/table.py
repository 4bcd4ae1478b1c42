"""Columns for a person: the one table printer of the command line. Streams: it never holds all of a long table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

_LOOKED_AT_ROWS: Final = 200  # the columns are as wide as these need; a later row that needs more gets it
_GAP: Final = "  "


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines, each with its end. A column whose title begins with `>` is of numbers, and stands to the right.

    What `rows` raises is raised when the rows before it are given; where there are none, nothing is.
    """
    titles = [title.removeprefix(">") for title in columns]
    rights = [title.startswith(">") for title in columns]
    widths = [len(title) for title in titles]
    fault: Exception | None = None
    first: list[Sequence[str]] = []
    rest = iter(rows)
    try:
        for row in islice(rest, _LOOKED_AT_ROWS):
            first.append(row)
            widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    except Exception as error:
        fault, rest = error, iter(())
    if fault is not None and not first:
        raise fault
    for row in chain([titles], first, rest):
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = zip(row, widths, rights, strict=True)
        yield (
            _GAP.join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip() + "\n"
        )
    if fault is not None:
        raise fault
