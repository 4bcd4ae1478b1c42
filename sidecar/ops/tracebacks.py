"""A bug as lines that can be logged: where it was, through which of our lines, and nothing of what was in memory.

An exception's message is whatever its raiser had at hand: a prompt, an answer,
a header. So no message is shown, only how long it is; an error of the system
says its errno in words. Source lines are the program's own, and no secret.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LINES_MAX: Final = 200
_CAUSES_MAX: Final = 8
_PACKAGE: Final = Path(__file__).parents[1]


def in_a_word(fault: BaseException) -> str:
    """Its type, and the innermost line of ours that it passed: `KeyError at service/carrier.py:93, in _ask`."""
    ours = [frame for frame in traceback.extract_tb(fault.__traceback__) if _is_ours(frame)]
    where = f" at {_file(ours[-1])}:{ours[-1].lineno}, in {ours[-1].name}" if ours else ""
    return f"{_what(fault)}{where}"


def in_lines(fault: BaseException) -> list[str]:
    """The whole of it, with its causes and the members of a group, cut in the middle where that is long."""
    lines = list(_lines(fault, "", _CAUSES_MAX))
    half = LINES_MAX // 2
    return lines if len(lines) <= LINES_MAX else [*lines[:half], "...", *lines[-half:]]


def _lines(fault: BaseException, indent: str, causes: int) -> Iterator[str]:
    before = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
    if before is not None and causes:
        yield from _lines(before, indent, causes - 1)
        yield f"{indent}{'which caused' if fault.__cause__ else 'during which happened'}:"
    for frame in traceback.extract_tb(fault.__traceback__):
        yield f"{indent}{_file(frame)}:{frame.lineno}, in {frame.name}: {(frame.line or '').strip()}"
    yield f"{indent}{_what(fault)}"
    if isinstance(fault, BaseExceptionGroup) and causes:
        for member in fault.exceptions:
            yield from _lines(member, f"{indent}  ", causes - 1)


def _what(fault: BaseException) -> str:
    name = type(fault).__qualname__
    if isinstance(fault, OSError) and isinstance(fault.errno, int):
        return f"{name}: {os.strerror(fault.errno)}"
    length = len(str(fault))
    return f"{name} ({length} characters, not shown)" if length else name


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return Path(frame.filename).is_relative_to(_PACKAGE)


def _file(frame: traceback.FrameSummary) -> str:
    """Within the package, or the last two parts: what stands above is the host's business."""
    path = Path(frame.filename)
    return str(path.relative_to(_PACKAGE)) if _is_ours(frame) else "/".join(path.parts[-2:])
