"""`sidecar ledger spend`: what each caller's requests came to, by model and window.

A request belongs to the window that it was admitted in, as in the daemon's own
account; what is not settled yet holds its whole reservation. Of what was
dropped only the sum over all is known: it is said, and in no row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from sidecar.audit.reading import Reading
from sidecar.audit.requests import requests_of
from sidecar.cli import ledger_reading
from sidecar.cli.ledger_reading import Progress, dropped_in_words, instant, told, write_lines
from sidecar.cli.output import say
from sidecar.cli.setup import load_config
from sidecar.cli.table import table
from sidecar.config.keys import ConfigFaults
from sidecar.ledger.faults import LedgerDamaged

WINDOW_SECONDS_DEFAULT: Final = 86_400
EXIT_CODES: Final = {**ledger_reading.EXIT_CODES, os.EX_CONFIG: "the configuration is wrong"}
ROWS_MAX: Final = 1_000_000
_COLUMNS: Final = (
    "caller", "model", "window from (UTC)", ">seconds", ">requests", ">micro-USD charged", ">indeterminate", ">held",
)  # fmt: skip

Key = tuple[str, str, int, int]  # caller, model, window start in Unix ms, window length in seconds


class Sum(Struct):
    """What the requests of one row came to."""

    requests: int = 0
    charged_micro_usd: int = 0
    indeterminate: int = 0
    held_micro_usd: int = 0


class TooManyRows(Exception):
    """The windows are too short for a ledger that is this long."""


def spend(directory: Path, *, window_seconds: int, config: Path | None, as_json: bool) -> int:
    """Windows are of `window_seconds`, but of a caller that the configuration names, of its spend_window_seconds."""
    try:
        windows = _windows_of(config) if config is not None else {}
    except ConfigFaults as faults:
        for complaint in faults.complaints:
            say(str(complaint))
        return os.EX_CONFIG

    def read() -> None:
        reading = Reading(directory)
        sums, damage = _summed(reading, lambda caller: windows.get(caller, window_seconds))
        lines = _json_lines(sums) if as_json else table(_COLUMNS, _rows(sums))
        write_lines(lines)
        if reading.dropped_until:
            say(f"sidecar ledger spend: note: in no row is what was dropped {dropped_in_words(reading)}")
        if damage is not None:
            raise damage

    try:
        return told("spend", directory, read)
    except TooManyRows:
        say(f"sidecar ledger spend: more than {ROWS_MAX} rows: take a longer --window-seconds")
        return os.EX_USAGE


def _windows_of(config: Path) -> Mapping[str, int]:
    return {caller.id: caller.spend_window_seconds for caller in load_config(config).callers.values()}


def _summed(reading: Reading, window_of: Callable[[str], int]) -> tuple[dict[Key, Sum], LedgerDamaged | None]:
    """The sums of what stands before the damage, if there is one."""
    sums: dict[Key, Sum] = {}
    progress = Progress()
    newest = reading.newest_segment()
    try:
        for request in requests_of(reading):
            progress.at(reading, newest)
            seconds = window_of(request.caller)
            admitted_at = request.admitted_at_unix_ms
            key = request.caller, request.model, admitted_at - admitted_at % (1000 * seconds), seconds
            row = sums.get(key)
            if row is None:
                if len(sums) == ROWS_MAX:
                    raise TooManyRows
                row = sums[key] = Sum()
            row.requests += 1
            row.charged_micro_usd += request.charge_micro_usd or 0
            row.indeterminate += request.ended is None
            row.held_micro_usd += request.held_micro_usd
    except LedgerDamaged as damage:
        return sums, damage
    finally:
        progress.over()
    return sums, None


def _rows(sums: Mapping[Key, Sum]) -> Iterator[tuple[str, ...]]:
    for (caller, model, start, seconds), row in sorted(sums.items(), key=lambda item: item[0]):
        figures = (seconds, row.requests, row.charged_micro_usd, row.indeterminate, row.held_micro_usd)
        yield caller, model, instant(start)[:19], *map(str, figures)


def _json_lines(sums: Mapping[Key, Sum]) -> Iterator[str]:
    for (caller, model, start, seconds), row in sorted(sums.items(), key=lambda item: item[0]):
        document: dict[str, Any] = {
            "caller_runtime_id": caller,
            "model": model,
            "window_start_unix_ms": start,
            "window_seconds": seconds,
            "requests": row.requests,
            "charged_micro_usd": row.charged_micro_usd,
            "indeterminate": row.indeterminate,
            "held_micro_usd": row.held_micro_usd,
        }
        yield json.dumps(document) + "\n"
